"""Remembers which entry a look-up led to, so that the next one neither makes a plan nor compares contents.

The name of a look-up, and how it is recalled, are in `fast_path/lookup.py`; the file that it is kept in, and the stamps
by which it is still valid, in `foundation/remembered_values.py`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.accelerator.host.cpuid import cpu_level
from opforge.builders import toolchains
from opforge.builders.declaration import abi, kernel_roots, machine
from opforge.builders.declaration.op_spec import OpSpec, root_paths
from opforge.cache.layout import FETCHED, Layout
from opforge.cache.maintenance import limits
from opforge.cache.records.entry import is_systems
from opforge.cache.store import Match, Source, Store
from opforge.fast_path import lookup as fast_lookup
from opforge.fast_path.library import Entry
from opforge.foundation import environment, remembered_values_writer, settings
from opforge.foundation.environment import HEADER_VARIABLES
from opforge.foundation.remembered_values import ABSENT, FlatStamps, PathStamp

from .own_code import Code

log = logging.getLogger("opforge")
_said = set[str]()
"""The files with a time of change in the future that a warning has named."""
LOOKUP_FIELDS = ("inputs", "shims")
"""The longest fields of a record. They are needed to choose an entry, and not to load it."""


class Snapshot(NamedTuple):
    """The state that a look-up depends on besides its name, taken before the look-up."""

    at: int
    """When the snapshot was taken, in the disk's nanoseconds."""
    folders: list[tuple[str, tuple[int, ...]]]
    """Where an earlier compiler, or an entry of a layer with this description, would appear; with their stamps."""
    absent: list[str]
    """Paths that must not exist: an earlier root would then provide a source."""


class Lookup(NamedTuple):
    """A look-up: the requested op, and the places that are searched."""

    spec: OpSpec
    store: Store
    sources: Sequence[Source]
    """The layers that are searched before the store, in order."""
    root_paths: Mapping[str, str]
    exact: bool = False
    declared: str = ""
    """The text of `fast_lookup.declaration` from which the spec follows, if there is one."""
    asks: bool = False
    """Whether the remotes may be asked for what is missing."""

    def name(self, programs: Mapping[str, object]) -> str:
        """Returns the name under which the outcome is remembered.

        `programs` are the toolchain's, if it had to be found before; their paths are part of the name.
        """
        spec = self.spec
        folders = [str(self.store.layout), *(str(source.layout) for source in self.sources)]
        if self.declared:
            return fast_lookup.name_of(self.declared, folders, self.exact, programs, fast_lookup.variables())
        parts = tuple(spec)
        groups = (flag for group in spec.groups for flag in group.device_flags)
        user = map(environment.variable, ("CXX", *settings.USER_FLAGS))
        native = machine.native_processor((*spec.search_flags, *spec.device_flags, *groups, *user))
        here = abi.requirements(spec.abi, spec.name), sorted(self.root_paths.items()), native, cpu_level()
        return fast_lookup.name_of(
            (_plain(parts), here), folders, self.exact, programs, toolchains.plan_variables(spec)
        )


def lookup_of(spec: OpSpec, store: Store, exact: bool = False, declared: str = "", asks: bool = False) -> Lookup:
    """Returns the look-up of a spec in a store and the sources before it. Raises SourceNotFoundError, SettingError."""
    return Lookup(spec, store, sources_of(spec, store), root_paths(spec), exact, declared, asks)


def sources_of(spec: OpSpec, store: Store) -> list[Source]:
    """Returns where prebuilt entries are looked for, in order; nothing if OPFORGE_PREBUILT forbids it."""
    layers = [str(source.layout) for source in store.layers]
    places = fast_lookup.places(spec.package, store.layout.root, layers, store.owners)
    return [Source(Layout(root), owners, bits, area) for root, owners, bits, area in places]


def _plain(value: Any) -> Any:
    """Returns a part of a spec as values of Python's own classes: another class's repr may hide what is in it."""
    kind = type(value)
    if kind is str or value is None:
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return [[_plain(name), _plain(part)] for name, part in value.items()]
    if isinstance(value, int):
        return int.__repr__(value)
    return repr(value)


def remembered_entry(lookup: Lookup, programs: Mapping[str, object]) -> Entry | None:
    """Returns the entry that this look-up led to before, checked; None if anything that led there has changed."""
    own, *sources = [(str(source.layout), *source[1:4]) for source in (lookup.store.own, *lookup.sources)]
    found = fast_lookup.remembered_entry(lookup.name(programs), own, sources, lookup.store.disk.flat_stamps)
    if found is None:
        return None
    entry, value = found
    if value["pointer"]:
        note_use(lookup.store, value["pointer"])
    return entry


def note_use(store: Store, pointer: str) -> None:
    """Notes that an entry is used, at most once an hour. Then the store's limits are enforced too."""
    if fast_lookup.note_use(pointer, store.disk.now_ns()):
        limits.enforce_settings(store.layout)


def take_snapshot(lookup: Lookup, description: str, absent: list[str]) -> Snapshot:
    """Returns what is remembered besides the entry. It is taken before the look-up: later changes would be missed.

    `description` is the key of the op's description, or empty if no layer is searched. `absent` are the op's
    `absent_paths` from before the description was made.
    """
    disk = lookup.store.disk
    at = disk.now_ns()
    folders = _program_folders()
    for source in lookup.sources:
        folders.append(disk.nearest(source.pointers(description), source.layout.root))
        if source.area == FETCHED:  # the trust file decides whether what was fetched may be loaded
            folders.append(settings.trust_file())
    paths = [*dict.fromkeys(folders)]
    return Snapshot(at, FlatStamps(paths, disk.flat_stamps(paths)).pairs(), absent)


def watching(entry: Entry, absent: Iterable[str], compiler: Iterable[PathStamp] = ()) -> Entry:
    """Returns the entry with more that is compared before a kept builder uses it again.

    `absent` are paths that must not exist. `compiler` are stamps that are compared once a second. So are opforge's own
    files, in a checkout: where it is installed as a package, they are not compared by a process that uses them.
    """
    stamps = direct([*entry.watched.pairs(), *((path, ABSENT) for path in absent)])
    often = [(path, stamp) for path, stamp in stamps if not path.startswith(OWN_FOLDERS)]
    watched = dict.fromkeys([*often, *stamps, *compiler])
    return entry._replace(watched=FlatStamps.of(watched), often=len(often))


def direct(stamps: Iterable[PathStamp]) -> list[PathStamp]:
    """Returns stamps, each once. Two names of one folder count as one: `a/b/..`, as includes have it, and `a`.

    Those are the same only while `a/b` is a folder and no link. Its own stamp, which must be among these, says so.
    """
    pairs = [*stamps]
    paths = {path for path, _stamp in pairs}
    result: dict[PathStamp, None] = {}
    for path, stamp in pairs:
        head, detour, rest = path.partition("/..")
        while detour and rest[:1] in ("", "/") and head in paths and os.path.isdir(head) and not os.path.islink(head):
            path = os.path.dirname(head) + rest
            head, detour, rest = path.partition("/..")
        result[path, stamp] = None
    return [*result]


def with_compiler(match: Match, programs: Mapping[str, Sequence[int]], snapshot: Snapshot) -> Match:
    """Returns the match with the compiler watched too: its programs, and where another would be found first.

    A process that keeps the builder looks the op up again if one of them has changed.
    """
    folders = [item for item in snapshot.folders if not is_systems(item[0])]
    stamps = [*folders, *((path, tuple(stamp)) for path, stamp in programs.items())]
    return match._replace(entry=watching(match.entry, snapshot.absent, stamps))


def remember(
    lookup: Lookup, programs: Mapping[str, object], used: Mapping[str, Sequence[int]], match: Match, snapshot: Snapshot
) -> None:
    """Remembers the outcome. If that fails, the next look-up is made in full, nothing else.

    `used` are the programs that led to the plan, with their stamps; none if no plan was made.
    """
    disk, spec, entry = lookup.store.disk, lookup.spec, match.entry
    watched = entry.watched.pairs()
    others = direct([*watched, *_read_by_lookup(lookup, used, match, snapshot)])
    tuning: dict[str, object] = {}
    if spec.tunable:
        from . import tuned  # for ops alone that have something to tune

        outcome = tuned.resolve(spec, entry, lookup.asks)
        others += outcome.watched.pairs()
        tuning["tuned"] = {"rows": outcome.rows, "until": outcome.until}
    stamped = [*dict.fromkeys([*watched, *others])]  # the first are those that the entry watches
    if not match.stamped.is_complete:
        return
    _warn_of_times(spec.name, FlatStamps.of(stamped))
    folders_of = [source.layout.entry(entry.key) for source in lookup.sources]
    record = {name: value for name, value in entry.record.items() if name not in LOOKUP_FIELDS}
    value = {
        "key": entry.key,
        "source": folders_of.index(entry.folder) if entry.folder in folders_of else -1,
        "origin": "cache" if entry.origin == "built" else entry.origin,
        "pointer": match.pointer,
        "record": record | {"stamp": list(disk.stamp(entry.library) or ())},
        "roots": "".join(f"{root.name}={root.path}\n" for root in spec.roots),
        "watched": len(watched),
        "often": entry.often if entry.often >= 0 else len(watched),
        "variables": match.stamped.variables,
        **tuning,
    }
    remembered_values_writer.remember(lookup.name(programs), FlatStamps.of(stamped), value, snapshot.at)


def _read_by_lookup(
    lookup: Lookup, used: Mapping[str, Sequence[int]], match: Match, snapshot: Snapshot
) -> list[PathStamp]:
    """Returns the stamps of what a look-up has read or found absent, besides the files that the entry watches."""
    torch = machine.torch_folder() if lookup.spec.abi != abi.PLAIN else None
    # Its version decides whether the entry fits.
    version = [os.path.join(torch, "version.py")] if torch else []
    return [
        *match.stamped.files,
        *match.stamped.others,
        *snapshot.folders,
        *((path, tuple(stamp)) for path, stamp in used.items()),
        *FlatStamps(version, lookup.store.disk.flat_stamps(version)).pairs(),
        *_code_stamps(lookup.spec),
        *((path, ABSENT) for path in snapshot.absent),
    ]


def _warn_of_times(op: str, stamps: FlatStamps) -> None:
    """Says which files have a time of change in the future: once, as the look-up is remembered."""
    if ahead := [path for path in stamps.ahead() if path not in _said]:
        _said.update(ahead)
        more = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
        text = (
            "%s: by this machine's clock the times of change of %s%s are in the future: their contents are compared at"
            " each load. If the clock is right, `touch` sets it"
        )
        log.warning(text, op, ahead[0], more)


def _folders(variable: str, default: str = "") -> list[str]:
    value = environment.variable(variable)
    if not value and (not default or variable in os.environ):
        return []
    return [folder or "." for folder in (value or default).split(os.pathsep)]


def _program_folders() -> list[str]:
    """Returns the folders in which a compiler or a header that takes precedence would appear.

    Their stamps are remembered.
    """
    headers = [folder for variable in HEADER_VARIABLES for folder in _folders(variable) if os.path.isabs(folder)]
    return list(dict.fromkeys([*_folders("PATH", os.defpath), *_folders("COMPILER_PATH"), *headers]))


_PACKAGE = os.path.dirname(os.path.dirname(toolchains.__path__[0]))
OWN_FOLDERS = (f"{_PACKAGE}/", f"{kernel_roots.OPFORGE.path}/")
"""The folders with opforge's own Python and kernels."""
_code = {toolchains.HOST_CODE: Code(toolchains.HOST_CODE, _PACKAGE)}
"""The stamps of the host's are taken when this module is imported: that is the code that runs."""


def _code_stamps(spec: OpSpec) -> list[PathStamp]:
    """Returns the stamps of opforge's files that shape plans for this spec, as this process first saw them."""
    files = toolchains.plan_code(spec)
    if files not in _code:
        _code[files] = Code(files, _PACKAGE)
    return _code[files].stamps()


def absent_paths(spec: OpSpec) -> list[str]:
    """Returns the paths at which an earlier root would provide a source or a folder, or add a folder of headers."""
    paths = []
    for name in (*spec.sources, *(spec.all_include_dirs if spec.groups else spec.include_dirs)):
        if not os.path.isabs(name):
            for root in spec.roots:
                path = os.path.join(root.path, name)
                if os.path.exists(path):
                    break
                paths.append(_first_missing(path, root.path))
    without = [root for root in spec.roots if root.include and not kernel_roots.has_headers(root)]
    return [*dict.fromkeys([*paths, *(os.path.join(root.path, root.include) for root in without)])]


def _first_missing(path: str, top: str) -> str:
    """Returns the first folder on the way to a missing path, below `top`, that is missing too; or the path itself."""
    while len(above := os.path.dirname(path)) > len(top) and not os.path.exists(above):
        path = above
    return path
