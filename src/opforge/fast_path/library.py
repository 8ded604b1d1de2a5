"""A library on disk: checked each time before it is used, opened once, and its ops registered once in a process."""

from __future__ import annotations

import _ctypes
import ctypes
import errno
import hashlib
import importlib
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opforge.foundation import formats, remembered_values, settings
from opforge.foundation.file_owners import folder_problem, others_bits
from opforge.foundation.remembered_values import FlatStamps

if TYPE_CHECKING:
    from types import ModuleType

STABLE, PLAIN, TORCH, FACADE = "torch-stable", "c", "torch", "torch-facade"
"""The ABIs: see builders/declaration/abi.py."""
WITH_MODULES = (TORCH, FACADE)
"""The ABIs whose libraries may have a Python module, or blocks of TORCH_LIBRARY."""
OLDEST_TORCH = "2.10"
"""The oldest torch in which ops of the stable ABI are registered."""
REGISTER = "opforge_register"
PACKAGE_LAYER = "_opforge_ops"
"""The layer that an installed package carries: this folder below the package's own."""
LINKED = "its folder is a link"
RECORD, BUILD = "record.json", "build.json"
READ_FORMATS = range(1, formats.RECORD + 1)
"""The formats of records that are read."""
CHUNK = 32 << 10
"""Bytes read at a time: small enough that the same memory is reused, which is faster than new memory each time."""
FULL_CHECK_BYTES = 2 << 20
"""Up to this size a library is hashed at every load. A larger one is hashed only if its stamp differs from that of its
last full check."""
TEXTS = ("key", "plan", "description", "op", "abi", "target", "file", "sha256")
"""The fields of a record that are texts, and that every record has."""
lock = threading.RLock()  # reentrant: a module's own initialisation may load another op
by_entry: dict[str, tuple[LoadedOp | ModuleType, Mapping[str, Any]]] = {}
"""By entry key, with the signatures that plain functions got."""
with_others: set[str] = set()
"""Ops of which a version has kernels for the ops of other libraries. One version's are registered: the others are not
in `by_entry`, and `opforge.builders.loader` loads them again."""
SANITIZERS = ("libasan.so", "libtsan.so", "libhwasan.so", "liblsan.so", "libclang_rt.asan", "libclang_rt.tsan")
"""Run-time libraries that must be in the process before a library that needs them is opened."""
owner_of: dict[str, str] = {}
"""Public name in torch.ops -> the op that owns it. Another version of that op may be loaded too, another op may not."""
namespaces_of: dict[str, list[str]] = {}  # entry key -> the namespaces in torch.ops that hold its ops
defined: dict[str, dict[str, None]] = {}  # entry key -> the public names of its ops in torch.ops, or their namespaces
tuned: dict[str, Sequence[Any]] = {}  # entry key -> what was set in its library of the rows of a tuning result
held: set[str] = set()
"""Keys of entries that are being tuned: a load sets nothing in their libraries."""
python_fakes: dict[str, Callable[..., Any]] = {}
"""Public name in torch.ops -> the author's Python fake kernel."""
python_kernels: dict[str, Any] = {}
"""Kernels that Python has registered in torch's dispatcher since the first load, as torch names them:
namespace/op/key."""
registrations = 0
"""How often kernels were registered that a compiled function may depend on: by Python, or by a library for others."""


class Entry:
    """A built library on disk: a value, which nobody changes. Making a NamedTuple would take a tenth of a hit."""

    __slots__ = ("folder", "key", "often", "origin", "record", "watched")

    def __init__(
        self,
        key: str,
        folder: str,
        record: Mapping[str, Any],
        origin: str,
        watched: FlatStamps | None = None,
        often: int = -1,
    ) -> None:
        self.key = key
        """The name of its folder: the result key and the first digits of the library's SHA-256."""
        self.folder = folder
        self.record = record
        """Properties and requirements of the library: file, size (bytes), sha256, abi, exports, requires, ..."""
        self.origin = origin
        """Where it came from: "built", "cache", or the path of a read-only layer."""
        self.watched = watched or FlatStamps()
        """The files that it was built from, and the folders in which an earlier one would appear."""
        self.often = often
        """How many of them, the first, a process compares each time that it loads the entry again. The rest, where
        another compiler would be found, are compared once a second. By default all are the first."""

    def _replace(self, **others: Any) -> Entry:
        """Returns the same entry with some fields replaced."""
        return Entry(**{name: getattr(self, name) for name in self.__slots__} | others)

    def _fields(self) -> tuple[Any, ...]:
        return self.key, self.folder, self.record, self.origin, self.watched, self.often

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.key, self.folder))

    def __repr__(self) -> str:
        """Returns the op, the target and the source, and not the whole record."""
        op, target = self.record.get("op"), self.record.get("target")
        return f"<entry {self.key} of {op!r} for {target} ({self.origin})\n  {self.folder}>"

    @property
    def suffix(self) -> str:
        """What the namespaces of a later version end in. An edited comment gives another entry of the same library."""
        return f"_{self.key[:8]}{self.key[-8:]}"

    @property
    def library(self) -> str:
        """The library's absolute path. It is unique to the content, as the dynamic linker requires."""
        return f"{self.folder}/{self.record['file']}"

    def build(self) -> dict[str, Any]:
        """Returns how it was built. Raises OSError or ValueError if that is not known, as in a layer."""
        data = json.loads(remembered_values.read_file(os.path.join(self.folder, BUILD), remembered_values.MAX_BYTES))
        if not isinstance(data, dict):
            raise ValueError(f"{BUILD} is not an object")
        return data


def is_record(record: Any) -> bool:
    """Returns whether this is the record of a library in a format that is read, and names a file inside its entry."""
    try:
        file = record["file"]
        return (
            record["format"] in READ_FORMATS
            and all(isinstance(record[name], str) for name in TEXTS)
            and os.path.basename(file) == file not in ("", ".", "..")
            and isinstance(record["size"], int)
            and isinstance(record["python_module"], bool)
            and all(isinstance(name, str) for names in (record["exports"], record["needs"]) for name in names)
        )
    except (KeyError, TypeError, IndexError):  # no schema on the path of a hit
        return False


def integrity_problem(
    entry: Entry, owners: Collection[int], full: bool = False, allowed_write_bits: int = 0
) -> str | None:
    """Returns the problem of an entry's library; None if the library is intact.

    Args:
        entry: The entry, whose record has been read.
        owners: The user ids that the entry may belong to.
        full: Hash the library, whatever its stamp.
        allowed_write_bits: The mode bits by which other users may write the library.
    """
    record = entry.record
    try:
        problem, path = folders_problem(entry.folder, owners, allowed_write_bits), entry.library
        if problem == LINKED:
            path, problem = resolved(path, owners)
    except (OSError, ValueError) as error:  # ValueError: a damaged record has a zero byte in its key
        problem = f"its folder cannot be read ({getattr(error, 'strerror', error)})"
    if problem:
        return problem
    try:
        # Without O_NONBLOCK a pipe in the library's place would block for ever.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(path, flags)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            if not may_be_linked(path):
                return "the library is a link"
            path, problem = resolved(path, owners)
            if problem:
                return problem
            handle = os.open(path, flags)
    except (OSError, ValueError) as error:
        return f"the library cannot be opened ({getattr(error, 'strerror', error)})"
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return "the library is not a regular file"
        if status.st_uid not in owners:
            return f"the library belongs to user {status.st_uid}, who is not trusted here"
        if status.st_mode & 0o022 and others_bits(status, handle) & ~allowed_write_bits:
            return f"the library can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
        if status.st_size != record["size"]:
            return f"the library has {status.st_size} bytes instead of {record['size']}"
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        if not full and status.st_size > FULL_CHECK_BYTES and stamp == record.get("stamp"):
            return None
        digest = hashlib.sha256()
        while chunk := os.read(handle, min(CHUNK, status.st_size + 1)):
            digest.update(chunk)
        return None if digest.hexdigest() == record["sha256"] else "the library's digest differs from its record's"
    finally:
        os.close(handle)


def folders_problem(folder: str, owners: Collection[int], allowed_write_bits: int) -> str | None:
    """Returns why somebody else could put another file in a library's place, or None.

    LINKED if that depends on what links of an installed package lead to: see `resolved`. The entry's folder, `entries`
    and the folder of the format are looked at; the store's root and what is above it are checked when the store is
    opened.
    """
    path, linked = folder, None
    for _depth in range(3):
        status = os.lstat(path)
        whose = "its folder" if path == folder else path
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in owners:
            if not (stat.S_ISLNK(status.st_mode) and status.st_uid in owners and may_be_linked(folder)):
                return f"{whose} is a link, a file, or another user's"
            linked = LINKED
        elif status.st_mode & 0o022 and others_bits(status, path) & ~allowed_write_bits:
            return f"{whose} can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
        path = path.rpartition("/")[0]
    return linked


def may_be_linked(path: str) -> bool:
    """Returns whether a path is in a layer whose files and folders may be links, that of an installed package.

    `uv --link-mode symlink`, Bazel and Spack make them. Who can change a link there can change the package's code.
    """
    return f"/{PACKAGE_LAYER}/" in path


def resolved(path: str, owners: Collection[int]) -> tuple[str, str]:
    """Returns the file that a path in an installed package leads to, and why it cannot be trusted; empty if it can.

    All folders above that file are judged; others may write those that OPFORGE_TRUSTED_FOLDERS names.
    """
    real = os.path.realpath(path)
    problem = folder_problem(os.path.dirname(real), owners, shared=settings.trusted_folders())
    return real, f"it is a link to {real}, and {problem[0]}" if problem else ""


def reset() -> None:
    """Forgets which entries are loaded: the next load of one opens and registers it again."""
    by_entry.clear()


def loaded_ops() -> dict[str, str]:
    """Returns the keys of the entries that this process has loaded, each with the name of its op."""
    with lock:  # another thread may load an op meanwhile
        return {key: loaded.__name__ for key, (loaded, _) in by_entry.items()}


def _replace_lock() -> None:
    """Replaces the lock in a forked child: the thread that held it is gone, and nobody would release it."""
    global lock
    lock = threading.RLock()


os.register_at_fork(after_in_child=_replace_lock)


class LoadedOp:
    """A loaded op: its functions as attributes.

    `path` is the library, `origin` where it came from, `result` its key, unless the op has a function of that name.
    `__file__` is always the library, and `__entry__` the entry. `help(op)` shows the functions' schemas.
    """

    def __init__(self, name: str, entry: Entry, find: Callable[[str], Any], names: tuple[str, ...]) -> None:
        # No name that a function could have: a function would be hidden by it.
        self.__name__, self.__file__, self.__entry__ = name, entry.library, entry
        self.__find__, self.__names__ = find, names
        self.__extended__: dict[Any, LoadedOp] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        # Another thread may be importing torch.
        compiler: Any = getattr(sys.modules.get("torch"), "compiler", None)
        is_traced = bool(compiler and compiler.is_compiling())
        try:
            function = self.__find__(name)
        except AttributeError as error:
            if name in ENTRY_ATTRIBUTES:
                return getattr(self.__entry__, ENTRY_ATTRIBUTES[name])
            if not is_traced:  # torch.compile cannot trace an import: `hasattr(op, name)` would break the graph
                importlib.import_module("opforge.foundation.tracebacks").explain_missing(error, name, self.__names__)
            raise
        if not is_traced:  # it would look up again, without end, what it traces here as an attribute that changes
            setattr(self, name, function)  # the next access finds it without coming here
        return function

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *ENTRY_ATTRIBUTES, *self.__names__})

    def __call__(self, *_arguments: Any, **_named: Any) -> Any:
        functions = ", ".join(self.__names__) or "none"
        raise TypeError(f"the op {self.__name__!r} is not a function; call one of its functions: {functions}")

    def __deepcopy__(self, _: Any) -> LoadedOp:
        return self  # as a module would be: a model that holds it can be copied

    def __reduce__(self) -> str:
        problem = f"the op {self.__name__!r} cannot be pickled, because it is a library of this process"
        raise TypeError(f"{problem}: load it in the process that needs it, and do not pickle it")

    def __repr__(self) -> str:
        return str(_texts().op_text(self))

    __doc__ = property(lambda self: _texts().op_help(self))


def _texts() -> Any:
    from opforge.foundation import upper_parts  # on use: no load needs it

    return upper_parts.get("texts of loaded ops")


ENTRY_ATTRIBUTES = {"path": "library", "origin": "origin", "result": "key"}  # of a loaded op -> those of its entry


def load(entry: Entry, signatures: Mapping[str, Any], opens: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Returns the functions of an entry's library, which is opened once: the same object for the same entry.

    `signatures` are those of plain functions: other ones give another object. `opens` gets them, opens the library and
    registers its ops: it is `opened`, or what `opforge.builders.loader` does. It returns None if it cannot.
    """
    typed = copied_signatures(signatures) if entry.record["abi"] == PLAIN else {}
    with lock:
        loaded, before = by_entry.get(entry.key, (None, typed))
        if loaded is None or typed != before:
            loaded = opens(typed)
            if loaded is not None:
                by_entry[entry.key] = loaded, typed
        return loaded


def opened(op: str, entry: Entry, typed: Mapping[str, Any], folders: str) -> LoadedOp | None:
    """Returns the functions of a library that needs nothing but to be opened and registered.

    None for any other, and for one that cannot be loaded: `opforge.builders.loader` loads it, or says what is wrong.
    `folders` are those of its sources, a line `name=path` for each, for its errors.
    """
    abi, needs = entry.record["abi"], entry.record["needs"]
    # A library of the stable ABI needs torch's own libraries, which are in the process once torch is imported.
    if abi not in (STABLE, PLAIN) or (abi == STABLE and "torch" not in sys.modules) or op in with_others:
        return None
    if any(name.startswith(SANITIZERS) for name in needs):
        return None
    try:
        handle = opened_file(entry)
    except OSError:
        return None
    return plain(op, entry, handle, typed) if abi == PLAIN else _registered(op, entry, handle, folders)


def copied_signatures(signatures: Mapping[str, Any]) -> dict[str, Any]:
    """Returns signatures that nobody changes: a builder's own may be changed in place."""
    return {name: (value[0], [*value[1]]) if type(value) is tuple else value for name, value in signatures.items()}


def _registered(op: str, entry: Entry, handle: int, folders: str) -> LoadedOp | None:
    schemas, kernels = described(handle)
    if kernels or any(name in owner_of for name in names_of(schemas)):
        return None
    functions = register(op, entry, handle, schemas, "", folders)
    return None if isinstance(functions, str) else functions


def opened_file(entry: Entry) -> int:
    """Opens an entry's library and returns its handle. Raises OSError. A ctypes.CDLL would make a class for each."""
    return _ctypes.dlopen(entry.library, os.RTLD_NOW | os.RTLD_LOCAL)


def described(handle: int) -> tuple[list[str], str]:
    """Returns a library's own description: `namespace::schema` for each op, and the types of its kernels.

    For a TORCH_LIBRARY block that is its namespace. The types are empty if they are known to fit the schemas. A line
    without types is an op of another library, or `::` if nobody can list for which ops there are kernels.
    """
    describe = remembered_values.FUNCTION(_ctypes.dlsym(handle, "opforge_describe"))
    schemas, _, kernels = ctypes.string_at(describe(0, 0, 0)).decode().partition("\f")
    return schemas.splitlines(), kernels


def names_of(schemas: Sequence[str]) -> list[str]:
    """Returns the public name, namespace::name, of each schema."""
    return [schema.partition("(")[0].partition(".")[0] for schema in schemas]


def call_register(handle: int, suffix: str | None, folders: str | None) -> str:
    """Calls a library's own registration. Returns why it refuses, and then nothing is registered; or an empty text.

    Without a suffix it registers the kernels for the ops of other libraries again; without folders too it removes them.
    """
    texts = suffix if suffix is None else suffix.encode(), folders if folders is None else os.fsencode(folders)
    refusal = remembered_values.FUNCTION(_ctypes.dlsym(handle, REGISTER))(*texts, 0)
    return ctypes.string_at(refusal).decode(errors="replace") or "it refuses" if refusal else ""


def register(op: str, entry: Entry, handle: int, schemas: Sequence[str], suffix: str, folders: str) -> LoadedOp | str:
    """Registers an opened library's ops, with `suffix` behind their namespaces. Returns its functions.

    If it refuses, its reason is returned, and nothing is registered.
    """
    if problem := call_register(handle, suffix, folders):
        return problem
    # namespace::name, and .overload where there are several
    heads, qualified = [schema.partition("(")[0] for schema in schemas], names_of(schemas)
    # Only the first version owns the public name.
    owners = {name.partition("::")[2]: name.partition("::")[0] + suffix for name in qualified}
    for name in qualified:
        owner_of[name] = op
    namespaces_of[entry.key] = [*dict.fromkeys(owners.values())]
    tag_compile_caches(entry.key, [head.replace("::", f"{suffix}::", 1) for head in heads])
    # Read from the schemas: within torch.compile, torch cannot be queried for overloads.
    overloaded = {name.partition("::")[2].partition(".")[0] for name in heads if "." in name}

    def find(name: str) -> Any:
        import torch

        if name not in owners:
            raise AttributeError(f"the op {op!r} has no function {name!r}; it has: {', '.join(owners) or 'none'}")
        packet = getattr(getattr(torch.ops, owners[name]), name)
        return packet if name in overloaded else packet.default

    return LoadedOp(op, entry, find, tuple(owners))


def plain(op: str, entry: Entry, handle: int, functions: Mapping[str, Any]) -> LoadedOp:
    """Returns the plain C functions of an opened library. `functions` are their signatures, by name."""
    library = ctypes.CDLL(entry.library, handle=handle)
    # Older records name of a function that the loader chooses for the processor only its resolver.
    exports = [name.removesuffix(".resolver") for name in entry.record["exports"]]
    names = tuple([name for name in exports if name not in (TUNABLES, TUNE)])
    if functions and (unknown := functions.keys() - {*names}):
        from opforge.errors.base import BuilderError, unknown_name

        raise BuilderError(op, *unknown_name("signatures", min(unknown), names))

    def find(name: str) -> Any:
        if name not in names:  # the library's needs are searched too: libc has functions of many names
            raise AttributeError(f"the op {op!r} has no function {name!r}; it has: {', '.join(names)}")
        function = library[name]
        if name in functions:
            function.restype, function.argtypes = functions[name]
        return function

    return LoadedOp(op, entry, find, names)


TUNABLES, TUNE, TUNABLE_INTERFACE = "opforge_tunables", "opforge_tune", "1"
"""The functions of <opforge/tunable.h>, and the number of that interface."""


def loaded_handle(entry: Entry) -> int:
    """Returns the handle of the library whose functions an entry's load gives: it may have another path.

    A process that finds the same entry in another store or layer keeps what it has loaded. Raises OSError.
    """
    loaded, _typed = by_entry.get(entry.key, (None, None))
    return opened_file(loaded.__entry__ if isinstance(loaded, LoadedOp) else entry)


def tunables(handle: int) -> dict[str, int]:
    """Returns the tunables of an opened library with their defaults. Raises OSError if it has none."""
    text = ctypes.string_at(remembered_values.FUNCTION(_ctypes.dlsym(handle, TUNABLES))(0, 0, 0))
    number, *lines = text.decode().split("\n")
    if number != TUNABLE_INTERFACE:
        raise OSError(f"its <opforge/tunable.h> has the number {number}, and this opforge sets {TUNABLE_INTERFACE}")
    return {name: int(standard) for name, _equals, standard in [line.partition("=") for line in lines]}


def set_tuned(entry: Entry, rows: Sequence[Any], is_held: bool = False) -> str:
    """Sets the rows of a tuning result in an entry's library: without any, its defaults.

    A row is a dtype's number, the lowest and the highest size of calls, and values by name. Returns why nothing was
    changed: a row has a name that the library lacks, or a number that it cannot hold. Raises OSError if it has no
    tunables. `is_held` is for whoever tunes the op.
    """
    if tuned.get(entry.key, []) == rows or (entry.key in held and not is_held):
        return ""
    handle = loaded_handle(entry)
    names, numbers = tunables(handle), list[int]()
    for dtype, low, high, config in rows:
        if missing := config.keys() - names.keys():
            return f"it sets {', '.join(sorted(missing))}, which the library lacks"
        numbers += [dtype, low, high, *(config.get(name, standard) for name, standard in names.items())]
    try:
        data = b"".join([number.to_bytes(8, sys.byteorder, signed=True) for number in numbers])
    except OverflowError:
        return f"it sets {max(numbers, key=abs)}, which has more than 64 bits"
    # No CFUNCTYPE: making its class would take longer than all else here.
    _ctypes.call_cdeclfunction(_ctypes.dlsym(handle, TUNE), (data, ctypes.c_int64(len(rows))))
    tuned[entry.key] = rows
    return ""


def python_functions(where: str, op: Any, name: str) -> Mapping[str, Any]:
    """Returns further functions of a loaded op by name: the result of `where`, a "module:function".

    `name` is the op's, for messages. Raises BuilderError if `where` names no function, or if that returns no functions.
    """
    if not where:
        return {}
    module, _, function = where.partition(":")
    expected = 'Expected "module:function", of a function that returns a dict from name to function'
    try:
        add = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        from opforge.errors import BuilderError

        raise BuilderError(name, f"python_functions={where!r} cannot be imported ({error})", expected) from error
    functions: Mapping[str, Any] = add(op)
    if not hasattr(functions, "items"):
        from opforge.errors import BuilderError

        raise BuilderError(name, f"python_functions={where!r} has returned {functions!r}", expected)
    return functions


def adding(where: str) -> Any:
    """Returns the function that `where`, a "module:function", names now; None if its module is not imported.

    A module that is loaded again has another one.
    """
    module, _, name = where.partition(":")
    return getattr(sys.modules.get(module), name, None)


def extended(library: Any, where: str) -> Any:
    """Returns a loaded library with the functions that `where` adds; see `python_functions`.

    What another builder adds to the same library, or a module that was loaded again, is in another object. A Python
    module has them all, the newest of each name. What `where` has added before stays: the program may hold it.
    """
    if not where:
        return library
    try:
        importlib.import_module(where.partition(":")[0])
    except (ImportError, ValueError):
        pass  # `python_functions` says what is wrong
    key, op = (where, adding(where)), library
    if isinstance(library, LoadedOp):
        other = LoadedOp(library.__name__, library.__entry__, library.__find__, library.__names__)
        op = library.__extended__.setdefault(key, other)
    added = vars(op).setdefault("__added__", {})  # name -> the key of what added it
    for name, function in python_functions(where, op, library.__name__).items():
        if name not in vars(op) or added.get(name, key) != key:
            setattr(op, name, function)
            added[name] = key
    return op


def tag_compile_caches(entry: str, names: Iterable[str]) -> None:
    """Puts ops, by public name or all of a `namespace::`, into the keys of torch.compile's caches, with their entry.

    The tag is composed when torch computes a key: later loads, and a tag that the user sets later, are in it.
    """
    defined.setdefault(entry, {}).update(dict.fromkeys(names))
    config = sys.modules.get("torch.compiler.config")  # which `import torch` imports
    kind: Any = type(config)  # the class of this module alone
    if config is not None and "cache_key_tag" not in vars(kind):

        def tag(config: Any) -> str:
            from opforge.foundation import upper_parts

            compile_tag = upper_parts.get("compile tag")
            text: str = compile_tag.behind(kind.__getattr__(config, "cache_key_tag"), {**defined}, {**python_fakes})
            return text

        kind.cache_key_tag = property(tag)
        record_kernels()


def record_kernels(torch_library: Any = None) -> None:
    """Keeps the kernels that Python registers from now on: torch itself hands none of them out."""
    kind: Any = getattr(torch_library or sys.modules.get("torch.library"), "Library", None)
    if kind is None or hasattr(kind.impl, "__wrapped__"):
        return
    original = kind.impl

    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **named: Any) -> None:
        global registrations
        original(self, op_name, fn, dispatch_key, **named)
        registrations += 1
        name = op_name if isinstance(op_name, str) else op_name.name()
        python_kernels[f"{self.ns}/{name.rpartition('::')[2]}/{dispatch_key or self.dispatch_key}"] = fn

    impl.__wrapped__ = original  # type: ignore[attr-defined]
    kind.impl = impl
