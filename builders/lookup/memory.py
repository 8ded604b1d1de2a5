"""Remembers which entry a look-up led to, so that the next one neither makes a plan nor compares contents.

The outcome of a look-up is a function of the spec, of environment variables, of the folders that are searched, of
opforge's own code, of the compiler, and of the files that the entry was built from. The name of what is remembered
covers the first four. It holds the paths of all others, and of the folders on PATH in which an earlier compiler would
appear, with a digest of their stamps. If it differs, the look-up is made in full. That the entry may be loaded is
judged at each load.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge import formats, settings
from opforge.builders import toolchains
from opforge.builders.spec import abi, kernel_roots, machine
from opforge.cache import machine_folder
from opforge.cache.filesystem.disk import ABSENT, Disk, FlatStamps, PathStamp
from opforge.cache.filesystem.files import UNREADABLE
from opforge.cache.layout import FETCHED
from opforge.cache.records.entry import Entry, is_record, is_systems

if TYPE_CHECKING:
    from opforge.builders.spec.op_spec import OpSpec
    from opforge.cache.store import Match, Source, Store

LOOKUP_FIELDS = ("inputs", "shims")
"""The longest fields of a record. They are needed to choose an entry, and not to load it."""


class Snapshot(NamedTuple):
    """What a look-up depends on besides its name, as it was before the look-up."""

    at: int
    """When the snapshot was taken, in the disk's nanoseconds."""
    folders: list[tuple[str, tuple[int, ...]]]
    """Where an earlier compiler, or an entry of a layer with this description, would appear; with their stamps."""
    absent: list[str]
    """Paths that must not exist: an earlier root would then provide a source."""


class Lookup(NamedTuple):
    """One look-up: what is requested, and where it is looked for."""

    spec: OpSpec
    store: Store
    sources: Sequence[Source]
    """The layers that are searched before the store, in order."""
    root_paths: Mapping[str, str]
    exact: bool = False

    def name(self, programs: Mapping[str, object]) -> str:
        """Returns the name under which the outcome is remembered.

        `programs` are the toolchain's, if it had to be found before; their paths are part of the name.
        """
        spec = self.spec
        variables = toolchains.plan_variables(spec)  # PATH and COMPILER_PATH among them
        requires = abi.requirements(spec.abi, spec.name)
        folders = [str(self.store.layout), *(str(source.layout) for source in self.sources)]
        # Not KernelRoots but tuples: the repr of a NamedTuple is Python code.
        parts = [list(map(tuple, part)) if part is spec.roots else part for part in spec]
        value: list[object] = [formats.LOOKUP, *parts, requires, _working_folder(), _code_stamps(spec)[0]]
        value += [sorted(self.root_paths.items()), sorted(programs), folders]
        value += [settings.variable("OPFORGE_PREBUILT"), self.exact, abi.INTERFACE, *machine.name_parts()]
        groups = (flag for group in spec.groups for flag in group.device_flags)
        flags = (
            *spec.search_flags,
            *spec.device_flags,
            *groups,
            *map(settings.variable, ("CXX", *settings.USER_FLAGS)),
        )
        value.append(machine.native_processor(flags))
        # Tuples of strings have one repr, in a third of the time of canonical JSON; that of bytes takes longer.
        text = repr(value).encode("utf-8", "surrogateescape")
        return hashlib.sha256(b"\0".join([text, *map(b"=".join, variables)])).hexdigest()[:32]


def recall(lookup: Lookup, programs: Mapping[str, object]) -> Entry | None:
    """Returns the entry that this look-up led to before, checked; None if anything that led there has changed."""
    kept = machine_folder.kept_folders()
    if not kept:
        return None
    name, store = lookup.name(programs), lookup.store
    try:
        memory: Any = machine_folder.recall(name, kept)
        if memory is None or memory["format"] != formats.LOOKUP or memory["name"] != name:
            return None
        paths, record = memory["paths"], memory["record"]
        stamps = store.disk.flat_stamps(paths)
        if _digest(stamps) != memory["stamps"]:
            return None
        if any(os.environ.get(variable, "") != value for variable, value in memory["variables"]):
            return None
        source = lookup.sources[memory["source"]] if memory["source"] >= 0 else store.own
        key = os.path.basename(memory["key"])
        if not is_record(record):
            return None
        watched = FlatStamps(paths[: memory["watched"]], stamps[: 4 * memory["watched"]])
        entry = Entry(key, source.layout.entry(key), record, memory["origin"], watched)
        if source.problem(entry) is not None:
            return None
        if memory["pointer"]:
            note_use(store, memory["pointer"])
        return entry
    except UNREADABLE:
        return None


def note_use(store: Store, pointer: str) -> None:
    """Notes that an entry is used, at most once an hour. Then the store's limits are enforced too.

    A store that only has hits would otherwise never be swept.
    """
    if store.note_use(pointer):
        from opforge.cache.maintenance import limits  # not on the path of a hit, except once an hour

        limits.enforce_settings(store.layout)


def take_snapshot(lookup: Lookup, description: str, absent: list[str]) -> Snapshot:
    """Returns what is remembered besides the entry. It must be taken before the look-up: later changes would be missed.

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


def watching(entry: Entry, absent: Iterable[str], stamps: Iterable[PathStamp] = ()) -> Entry:
    """Returns the entry with more that is compared before a kept builder uses it again: absent paths, and stamps."""
    watched = [*entry.watched.pairs(), *((path, ABSENT) for path in absent), *stamps]
    return entry._replace(watched=FlatStamps.of(dict.fromkeys(watched)))


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
    disk, spec = lookup.store.disk, lookup.spec
    _digest_of_code, code = _code_stamps(spec)
    watched = match.entry.watched.pairs()
    programs_used = ((path, tuple(stamp)) for path, stamp in used.items())
    stamped = [
        *dict.fromkeys((*watched, *match.stamped.files, *match.stamped.others, *snapshot.folders, *programs_used))
    ]
    torch = machine.torch_folder() if spec.abi != abi.PLAIN else None
    if torch:  # its version decides whether the entry fits
        path = os.path.join(torch, "version.py")
        stamped.append((path, tuple(disk.flat_stamps([path]))))
    stamped += [(path, ABSENT) for path in snapshot.absent if (path, ABSENT) not in watched]
    stamps = FlatStamps.of(stamped)
    if not match.stamped.is_complete or stamps.is_racy(snapshot.at) or FlatStamps((), code).is_racy(snapshot.at):
        return
    entry = match.entry
    folders_of = [source.layout.entry(entry.key) for source in lookup.sources]
    record = {name: value for name, value in entry.record.items() if name not in LOOKUP_FIELDS}
    name = lookup.name(programs)
    memory = {
        "format": formats.LOOKUP,
        "name": name,
        "key": entry.key,
        "source": folders_of.index(entry.folder) if entry.folder in folders_of else -1,
        "origin": "cache" if entry.origin == "built" else entry.origin,
        "pointer": match.pointer,
        "record": record | {"stamp": list(disk.stamp(entry.library) or ())},
        "watched": len(watched),
        "paths": stamps.paths,
        "stamps": _digest(stamps.numbers),
        "variables": match.stamped.variables,
    }
    machine_folder.remember(name, json.dumps(memory).encode())


def _digest(stamps: Sequence[int]) -> str:
    """Returns a digest of stamps. Comparing them one by one would take twice as long: they would have to be parsed."""
    return hashlib.sha256(marshal.dumps([*stamps], 2)).hexdigest()


def _working_folder() -> str:
    """Returns the working folder, if PATH or CXX is relative to it; otherwise, or if it has been removed, empty."""
    starts = ":" + (settings.variable("PATH") or os.defpath)
    compiler = settings.variable("CXX")
    if "/" in compiler:
        starts += ":" + compiler
    try:
        return "" if starts.count(":") == starts.count(":/") else os.getcwd()
    except FileNotFoundError:
        return ""  # and nothing is found in it


def _folders(variable: str, default: str = "") -> list[str]:
    value = settings.variable(variable)
    if not value and (not default or variable in os.environ):
        return []
    return [folder or "." for folder in (value or default).split(os.pathsep)]


def _program_folders() -> list[str]:
    """Returns the folders in which a compiler that takes precedence would appear: their stamps are remembered."""
    return list(dict.fromkeys([*_folders("PATH", os.defpath), *_folders("COMPILER_PATH")]))


def _stamps_of(files: Sequence[str]) -> tuple[str, list[int]]:
    """Returns a digest of the stamps of these files, and the stamps."""
    stamps = Disk().flat_stamps(files)
    return _digest(stamps), stamps


_code = {toolchains.HOST_CODE: _stamps_of(toolchains.HOST_CODE)}
"""The host's are taken when this module is imported: that is the code that runs, and a hit need not take them."""


def _code_stamps(spec: OpSpec) -> tuple[str, list[int]]:
    """Returns the stamps of opforge's files that shape plans for this spec, as this process first saw them."""
    files = toolchains.plan_code(spec)
    if files not in _code:
        _code[files] = _stamps_of(files)
    return _code[files]


def absent_paths(spec: OpSpec) -> list[str]:
    """Returns the paths at which an earlier root would provide a source or a folder, or add a folder of headers."""
    paths = []
    for name in (*spec.sources, *(spec.all_include_dirs if spec.groups else spec.include_dirs)):
        if not os.path.isabs(name):
            for root in spec.roots:
                path = os.path.join(root.path, name)
                if os.path.exists(path):
                    break
                paths.append(path)
    without = [root for root in spec.roots if root.include and not kernel_roots.has_headers(root)]
    return [*paths, *(os.path.join(root.path, root.include) for root in without)]
