"""A remembered look-up: the parts of its name, the folders of entries, and the load of the entry that it found.

The outcome of a look-up follows from the op's declaration, from environment variables, from the folders that are
searched and from this machine, which are its name; and from opforge's own code, the compiler and the files that the
entry was built from, whose stamps are compared. It is remembered *which* entry it was, never that it may be loaded:
owners, modes and the library's digest are checked at each load.

`load` says no, and nothing more, if anything is unusual. Then `builders/lookup/finder.py` looks the op up in full.
"""

from __future__ import annotations

import atexit
import operator
import os
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import FunctionType, MappingProxyType
from typing import Any

from opforge.foundation import environment, file_owners, formats, remembered_values, settings
from opforge.foundation.remembered_values import FlatStamps

from . import library, machine
from .library import PACKAGE_LAYER, Entry

INTERFACE = 2
"""The number of what the headers of the root `opforge_abi` compile into a library, and the loader relies on. It rises
when that changes, fixes included; a test holds the digest of these headers without their comments."""
LISTED, FETCHED = "descriptions", "fetched"
"""The folders of a store with the pointers to entries by description; FETCHED for those that came from a remote."""
UNSIGNED = " (unsigned)"
"""The end of the origin of an entry that a remote offered without a signature."""
ABSENT_SECONDS = 24 * 3600.0
"""How long the remotes are not asked again for a tuning result that they had not."""
USE_INTERVAL_NS = 3_600_000_000_000
"""How long after a noted use of an entry the next one is noted."""
FLAG_ENDINGS = ("flags", "flag", "args", "arg", "macros", "include_path")
"""Endings of methods that may be meant as attributes. Others are the author's own helpers."""
_NO_HELPERS = (*FLAG_ENDINGS, "include_paths")
"""Those, and that of another method which ported builders have: see `op_spec.DEEPSPEED_METHODS`."""
METHODS = (FunctionType, staticmethod, classmethod)
FOR_ALL = "FOR_ALL_BUILDERS"
"""The name of the table, beside BUILDERS, of what all builders of a package have in common."""
HOST = "cpu"
"""The target of this machine's processor, in the form in which it has nothing to check."""
PLAIN = (str, int, bool, float, type(None))
NATIVE = ("=native", "@/")
"""Parts of a flag that select this machine's processor, or that name a file of flags."""
DAY = "=day"
"""Stands among environment variables for the day, for what __DATE__ is a part of. No variable has this name."""
Place = tuple[str, Collection[int], int, str]
"""A folder in which prebuilt entries are looked for: its path, the user ids that its files may belong to, the mode bits
by which other users may write its libraries, and LISTED or FETCHED."""
_trusted: dict[tuple[object, ...], bool] = {}


def reset() -> None:
    """Forgets which folders are trusted: they are looked at again."""
    _trusted.clear()


def load(
    builder: Any, base: type, load_torchs: Callable[[Any, Entry, str], Any] | None = None
) -> tuple[Any, Entry, str] | None:
    """Returns an op's functions, its entry, and the root of a store whose limits are due; or None.

    None if nothing is remembered of the builder's declaration, if anything that led there has changed, or if the entry
    may not be loaded. `base` is the class of which the builder is an instance. `load_torchs` loads a library of torch's
    ABI, which takes more than to open it, for the builder and with the folders of its sources.
    """
    if settings.paranoid() or settings.log():
        return None
    declared = declaration(builder, base)
    store = trusted_store() if declared else None
    if store is None:
        return None
    root, layers, owners = store
    sources = places(type(builder).__module__.partition(".")[0], root, layers, owners)
    name = name_of(declared, [root, *[place[0] for place in sources]], False, (), variables())
    found = remembered_entry(name, (root, owners, 0, LISTED), sources)
    if found is None:
        return None
    entry, value = found
    record = entry.record
    if entry.origin.endswith(UNSIGNED):
        return None

    def opens(typed: Mapping[str, Any]) -> Any:
        return library.opened(record["op"], entry, typed, value["roots"])

    loaded = library.load(entry, builder.signatures, opens)
    if loaded is None and record["abi"] in library.WITH_MODULES and load_torchs:
        loaded = load_torchs(builder, entry, value["roots"])
    if loaded is None or ("tuned" in value and not _is_tuned(entry, value["tuned"])):
        return None
    count_hit(root, entry)
    return loaded, entry, root if value["pointer"] and note_use(value["pointer"], time.time_ns()) else ""


def remembered_entry(
    name: str,
    own: Place,
    sources: Sequence[Place],
    stamp: Callable[[Iterable[str], int], list[int]] | None = None,
) -> tuple[Entry, Mapping[str, Any]] | None:
    """Returns the entry that a look-up led to before, checked, and all that is remembered of it.

    None if anything that led there has changed. `own` is the user's store, `sources` are searched before it.
    """
    found = remembered_values.recall(name, stamp)
    if found is None:
        return None
    value, stamps = found
    try:
        if any(value_of(variable) != text for variable, text in value["variables"]):
            return None
        root, owners, bits, _area = sources[value["source"]] if value["source"] >= 0 else own
        key, number, record = os.path.basename(value["key"]), value["watched"], value["record"]
        if not library.is_record(record):
            return None
        watched = FlatStamps(stamps.paths[:number], stamps.numbers[: 4 * number])
        entry = Entry(key, f"{root}/{formats.STORE}/entries/{key}", record, value["origin"], watched, value["often"])
        if library.integrity_problem(entry, owners, allowed_write_bits=bits) is not None:
            return None
        if "tuned" in value and is_due(value["tuned"]["until"]):
            return None
        return (entry, value) if type(value["pointer"]) is type(value["roots"]) is str else None
    except remembered_values.UNREADABLE:  # no schema on the path of a hit
        return None


def is_due(until: float) -> bool:
    """Returns whether the remotes are asked for a tuning result again, which they had not; never if `until` is 0.

    A time later than can have been noted by now was noted while the clock was ahead.
    """
    return until > 0 and not 0 <= until - time.time() <= ABSENT_SECONDS


def value_of(variable: str) -> str:
    """Returns the value of an environment variable; of DAY this day."""
    return time.strftime("%Y-%m-%d") if variable == DAY else os.environ.get(variable, "")


def _is_tuned(entry: Entry, value: Mapping[str, Any]) -> bool:
    """Sets the values that a look-up has found for an op's tunables. Returns whether the library has taken them."""
    try:
        return not library.set_tuned(entry, value["rows"])
    except remembered_values.UNREADABLE:
        return False


def note_use(pointer: str, now_ns: int) -> bool:
    """Sets a pointer's time to now, at most once an hour: the least recently used entry is evicted first.

    Returns whether it did. Then the store's limits are due: a store that only has hits would otherwise never be swept.
    """
    try:
        # abs: a time far in the future was set by a wrong clock, and would keep the entry for ever.
        status = os.lstat(pointer)
        is_shared = stat.S_ISREG(status.st_mode) and status.st_nlink > 1  # it may be another's file too
        if abs(now_ns - status.st_mtime_ns) > USE_INTERVAL_NS and not is_shared:
            os.utime(pointer, follow_symlinks=False)
            return True
    except (OSError, ValueError):
        return False  # a read-only store, a pointer that has just been removed, or a damaged file of remembered values
    return False


def count(store: str, **amounts: float) -> None:
    """Adds to what this process has counted of a store, in memory: on the path of a hit nothing is written.

    It is written when the process ends. What a process has counted that is killed, or ends by os._exit, is lost. Of two
    threads that count at the same instant, one may be lost.
    """
    own = remembered_values.counts.setdefault(store, {})
    for name, amount in amounts.items():
        own[name] = own.get(name, 0) + amount


def count_hit(store: str, entry: Entry) -> None:
    """Counts the load of an entry that was found, and the time that its build took."""
    seconds = entry.record.get("seconds")
    kind = "cached" if entry.origin == "cache" else "prebuilt"
    count(store, saved=seconds if type(seconds) is float else 0, **{kind: 1})


@atexit.register
def _write_counts() -> None:
    if remembered_values.counts:
        from opforge.foundation import remembered_values_writer  # no hit needs it

        remembered_values_writer.write_counts()


def name_of(
    declared: object, roots: Sequence[str], exact: bool, programs: Iterable[str], names: Iterable[tuple[bytes, bytes]]
) -> str:
    """Returns the name under which the outcome of a look-up is remembered.

    Args:
        declared: What is requested: an op's `declaration`, or its spec with what it is resolved to here.
        roots: The folders that are searched: the store, then the layers before it.
        exact: Whether a layer's entry for a lower CPU level is refused.
        programs: Those of the toolchain, if it had to be found before.
        names: The environment variables that the plan may depend on, with their values.
    """
    # __file__: another opforge beside the same torch, such as a second checkout, has other headers and other plans.
    found = machine.package_folder("torch"), machine.python_include(), __file__
    prebuilt = settings.prebuilt.found()[0]
    parts = formats.LOOKUP, declared, roots, exact, sorted(programs), prebuilt, INTERFACE, found
    return remembered_values.name_of((*parts, machine.name_parts(), working_folder()), names)


def declaration(builder: Any, base: type) -> str:
    """Returns a text from which the builder's spec follows, on this machine; empty if it takes more to know the spec.

    It has all attributes as they are declared, and what they refer to. Builders that override a method of `base`, have
    properties or values of other kinds, or are not for the host's own compiler take the long way.
    """
    kind, own = type(builder), vars(base)
    target, level = builder._requested, machine.level_here()
    if type(kind) is not type or not level or not is_as_written(base) or tables_for_all(kind):
        return ""
    if target not in (None, HOST) and (target.device != "cpu" or target.arch not in ((), ("native",), (level,))):
        return ""
    values: dict[str, Any] = dict(vars(builder))
    for at in kind.__mro__:
        if at is not base and at is not object:
            for name, value in vars(at).items():
                values.setdefault(name, value)
    declared = []
    for name, value in values.items():
        if name[:2] == "__":
            if name in ("__getattr__", "__getattribute__"):
                return ""
        elif name[0] == "_":
            if name in own and (name != "_directory" or value):
                return ""
        elif type(value) in METHODS:
            if name in own or name.endswith(_NO_HELPERS):
                return ""
        elif name == "signatures":
            declared.append((name, bool(value)))  # they decide how functions are called, and not what is built
        elif name not in IN_TEXT and (name in own or name == "portable") and value:
            return ""  # the author's own may have no truth value, as a tensor has none
        elif type(own.get(name)) in (*METHODS, property) or not _is_plain(value):
            return ""
        else:
            declared.append((name, value))
    devices = values.get("devices", ("cpu",))
    if type(devices) not in (tuple, list) or "cpu" not in devices:
        return ""
    folders = [os.path.realpath(path) for path in absolute(values.get("include_dirs", ()))]
    file = file_of(kind)
    try:
        folder = os.path.abspath(os.path.dirname(file)) if file else os.getcwd()
    except OSError:
        return ""
    text = repr((kind.__module__, kind.__name__, folder, folders, declared))
    flags = [text, *map(environment.variable, ("CXX", *settings.USER_FLAGS))]
    return "" if any(word in part for part in flags for word in NATIVE) else text


as_written: dict[str, Any] = {}
"""OpBuilder's own attributes, as its module has left them."""


def is_as_written(base: type) -> bool:
    """Returns whether nobody has set anything on the class of all builders since."""
    own = vars(base)
    if len(own) == len(as_written) and all(map(operator.is_, own.values(), as_written.values())):
        return True
    return not set_on(base)


def set_on(base: type) -> dict[str, Any]:
    """Returns the attributes that were set on the class of all builders; an attribute that was removed is None."""
    own = vars(base)
    names = [name for name in {**own, **as_written} if own.get(name) is not as_written.get(name)]
    return {name: own.get(name) for name in names if not name.startswith("__annotat")}  # what Python itself adds


def file_of(kind: type) -> str:
    """Returns the file that declares a class; empty if it has none: its sources are in the working folder then."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or ""


def tables_for_all(kind: type) -> dict[str, Any]:
    """Returns the tables FOR_ALL_BUILDERS that apply to a builder's class, by the names of their packages.

    A class has that of the nearest package above its module. Base classes of other packages bring theirs.
    """
    tables = {}
    for at in kind.__mro__:
        package = at.__module__
        if package[:8] == "opforge.":
            continue  # opforge's own builders share nothing
        while package:
            if (table := getattr(sys.modules.get(package), "__dict__", {}).get(FOR_ALL)) is not None:
                tables[package] = table
                break
            package = package.rpartition(".")[0]
    return tables


IN_TEXT = frozenset(
    {
        *(
            "abi",
            "cases",
            "define_macros",
            "devices",
            "extra_compile_args",
            "extra_link_args",
            "folder",
            "include_dirs",
        ),
        *("kernel_roots", "libraries", "name", "python_functions", "signatures", "sources", "torch_target", "tunable"),
        "version",
    }
)
"""The attributes of which the text says all. With any other one an op takes the long way, unless it is empty."""


def _is_plain(value: Any) -> bool:
    """Returns whether a value's repr says all of it: strings and numbers, and lists, tuples and dicts of them."""
    kind = type(value)
    if kind in PLAIN:
        return True
    if kind is dict or kind is MappingProxyType:
        return all(type(name) is str and _is_plain(part) for name, part in value.items())
    is_listed = kind is list or kind is tuple or (kind.__module__ == KERNEL_ROOT and issubclass(kind, tuple))
    return is_listed and all(_is_plain(part) for part in value)


KERNEL_ROOT = "opforge.builders.declaration.kernel_roots"
"""The module of KernelRoot, a named tuple. The repr of any other one may say nothing of what is in it."""


def absolute(value: Any) -> list[str]:
    """Returns the absolute paths in a list, or in lists by device. What is no text and no path is left out."""
    if isinstance(value, (dict, MappingProxyType)):
        return [path for part in value.values() for path in absolute(part)]
    if not isinstance(value, (list, tuple)):
        return []
    paths = [os.fsdecode(path) for path in value if isinstance(path, (str, bytes, os.PathLike))]
    return [path for path in paths if path[:1] == "/" and "\0" not in path]


def trusted_store() -> tuple[str, tuple[str, ...], frozenset[int]] | None:
    """Returns the user's store, its layers, and who may own what is in them; None if one of them is not trusted."""
    root, layers, names = settings.cache_dir(), settings.cache_layers(), settings.trusted_owners()
    user = file_owners.trusted_ids()
    owners = file_owners.trusted_ids(names) if names else user
    if _is_trusted(root, user, owners) and all(_is_trusted(layer, owners) for layer in layers):
        return root, layers, owners
    return None


def _is_trusted(folder: str, owners: frozenset[int], above: frozenset[int] | None = None) -> bool:
    key = folder, owners, above, settings.trusted_folders()
    if key not in _trusted:
        _trusted[key] = file_owners.folder_problem(*key) is None
    return _trusted[key]


def places(package: str, root: str, layers: Iterable[str], owners: Collection[int]) -> list[Place]:
    """Returns where prebuilt entries of a package's op are looked for, in order; none if OPFORGE_PREBUILT forbids it.

    `root` is the user's own store: what was fetched lies there. Raises SettingError.
    """
    found = [(layer, owners, 0, LISTED) for layer in layers]
    found += [*package_places(package, owners), *_installed_places(owners)]
    if os.access(f"{root}/{formats.STORE}/{FETCHED}", os.F_OK):
        found.append((root, owners, 0, FETCHED))
    return found if found and settings.prebuilt() != "ignore" else []


def package_places(package: str, owners: Collection[int]) -> list[Place]:
    """Returns the layers inside an imported package; none if it carries no ops, or is no package."""
    found: list[Place] = []
    for folder in getattr(sys.modules.get(package), "__path__", ()):
        root = f"{folder}/{PACKAGE_LAYER}"
        if os.access(root, os.F_OK):
            # Whoever can write the package's code is trusted with its libraries: that code is running already.
            status = os.stat(folder)
            bits = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            found.append((root, {*owners, status.st_uid}, bits, LISTED))
    return found


def _installed_places(owners: Collection[int]) -> list[Place]:
    """Returns the folders of installed kernel packages that hold libraries, but for those that others could change."""
    present = [
        root for root, _scope in settings.kernel_folders() if os.access(f"{root}/{formats.STORE}/{LISTED}", os.F_OK)
    ]
    shared = settings.trusted_folders() if present else ()
    return [
        (root, owners, 0, LISTED) for root in present if file_owners.folder_problem(root, owners, None, shared) is None
    ]


def variables(more: Iterable[str] = ()) -> list[tuple[bytes, bytes]]:
    """Returns the variables that a plan may depend on and that are set, with their values, sorted by name.

    `more` are those of a toolchain that is not the host's own.
    """
    return environment.of_compilers((*more, *settings.compiler_env()))


def working_folder() -> str:
    """Returns the working folder, if PATH or CXX is relative to it; otherwise, or if it has been removed, empty."""
    starts = ":" + (environment.variable("PATH") or os.defpath)
    compiler = environment.variable("CXX")
    if "/" in compiler:
        starts += ":" + compiler
    try:
        return "" if starts.count(":") == starts.count(":/") else os.getcwd()
    except OSError:
        return ""  # and nothing is found in it


def current_folder() -> str:
    """Returns the working folder; "/" if it has been removed: so every file in it is missing."""
    try:
        return os.getcwd()
    except OSError:
        return os.sep
