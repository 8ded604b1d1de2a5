"""Remembers the outcome of a look-up, so that the next one makes no plan.

A plan is a pure function of a spec, of environment variables, of the toolchain, and of opforge's own code. A memo is
named by the first two and by where the roots lie. It holds the stamps of the others, of the folders on PATH in which an
earlier compiler would appear, and the stat record of the entry. If any stamp differs, the look-up makes a plan.

    v1/answers/KEY.json
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from opforge.builders import toolchains
from opforge.builders.spec import abi
from opforge.builders.spec.kernel_roots import is_own
from opforge.cache.filesystem.disk import ABSENT, Disk
from opforge.cache.filesystem.files import UNREADABLE, make_folder, read_json, write_file
from opforge.cache.records import validity
from opforge.cache.records.entry import Entry

if TYPE_CHECKING:
    from opforge.builders.spec.op_spec import OpSpec
    from opforge.builders.toolchains.toolchain import Toolchain
    from opforge.cache.store import Store

FORMAT = 3


class Snapshot(NamedTuple):
    """What a plan depends on besides the memo's key, as it was before the plan was made."""

    at: int
    """When the snapshot was taken, in the disk's nanoseconds."""
    stamps: Mapping[str, list[int]]
    """The folders in which an earlier compiler would appear, with their stamps."""
    absent: list[str]
    """Paths that must not exist: an earlier root would then provide a source."""


def load(spec: OpSpec, store: Store, root_paths: Mapping[str, str], programs: Mapping[str, object]) -> Entry | None:
    """Returns the entry that this look-up led to before, checked; None if anything that led there has changed.

    `programs` are the toolchain's, if it had to be found before; their paths are part of the memo's key.
    """
    path = memo_path(spec, store, root_paths, programs)
    try:
        memo = read_json(path)
        record, folders = memo["ticket"], _program_folders()
        if memo["format"] != FORMAT or not validity.is_stat_record(record) or not path.endswith(f"/{memo['key']}.json"):
            return None
        if memo["code"] != _code_stamps(spec) or memo["folders"] != folders:
            return None
        if store.disk.flat_stamps([*memo["programs"], *folders, *memo["inputs"]]) != memo["stamps"]:
            return None
        if any(os.path.exists(absent) for absent in memo["absent"]) or not validity.variables_hold(record):
            return None
        return store.use(record, (path, memo["filed"]))
    except UNREADABLE:
        return None


def take_snapshot(spec: OpSpec, store: Store) -> Snapshot:
    """Returns what a memo will hold. It must be taken before the plan is made: later changes would go unnoticed."""
    at = store.disk.now_ns()
    stamps = {path: list(store.disk.stamp(path) or ()) for path in _program_folders()}
    return Snapshot(at, stamps, _absent_paths(spec))


def save(
    spec: OpSpec,
    store: Store,
    root_paths: Mapping[str, str],
    programs: Mapping[str, object],
    toolchain: Toolchain,
    plan_key: str,
    entry: Entry,
    snapshot: Snapshot,
) -> None:
    """Writes the memo. If that fails, the next look-up makes a plan, nothing else."""
    record = entry.stat_record
    if not record or not validity.holds_by_stamps(record, root_paths, store.disk):
        return  # an input was changed so recently that it could change again and keep its stamp
    path = memo_path(spec, store, root_paths, programs)
    used = toolchain.programs()
    code = _code_stamps(spec)
    around = [*used.values(), *snapshot.stamps.values()]
    times = [*code[1::4], *code[2::4], *(time for stamp in around for time in stamp[1:3])]
    if any(time > snapshot.at - validity.RACY_NS for time in times):
        return  # the same holds for opforge's own code, a program, or a folder on PATH
    inputs = [where[-6:] for where in (*record["open"], *record["folders"], *record["seals"])]
    memo = {
        "format": FORMAT,
        "key": os.path.basename(path)[: -len(".json")],
        "code": code,
        "programs": list(used),
        "folders": list(snapshot.stamps),
        "inputs": [f"{root_paths[root]}/{below}" for root, below, *_stamp in inputs],
        "stamps": [number for stamp in (*around, *(where[2:] for where in inputs)) for number in stamp or ABSENT],
        "absent": snapshot.absent,
        "ticket": {
            **record,
            "open": [where for where in record["open"] if is_own(where[0])],
            "folders": [],
            "seals": [],
        },
        "filed": store.stat_record_path(plan_key, entry.key, root_paths),
    }
    try:
        make_folder(store.layout.path("answers"))
        write_file(path, json.dumps(memo).encode())
    except OSError:
        return


def memo_path(spec: OpSpec, store: Store, root_paths: Mapping[str, str], programs: Mapping[str, object]) -> str:
    """Returns the path of a look-up's memo, named by all that decides the plan besides stamps."""
    variables = [os.environ.get(name) for name in toolchains.plan_environment(spec)]
    requires = abi.part(spec.abi, spec.name, spec.name, spec.torch_target).requires if spec.abi == abi.TORCH else ()
    value = [FORMAT, *spec, requires, variables, _working_folder(), sorted(root_paths.items()), sorted(programs)]
    # Tuples of strings have one repr, which takes a third of the time of canonical JSON.
    name = hashlib.sha256(repr(value).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return f"{store.layout.path('answers')}/{name}.json"


def _working_folder() -> str:
    """The working folder, if PATH or CXX is relative to it; otherwise empty."""
    compiler = os.environ.get("CXX", "")
    starts = [*_folders("PATH", os.defpath), *([compiler] if "/" in compiler else [])]
    return "" if all(path.startswith("/") for path in starts) else os.getcwd()


def _folders(variable: str, default: str = "") -> list[str]:
    value = os.environ.get(variable, default)
    return [folder or "." for folder in value.split(os.pathsep)] if value else []


def _program_folders() -> list[str]:
    """The folders in which a compiler that takes precedence would appear: their stamps are in the memo."""
    return list(dict.fromkeys([*_folders("PATH", os.defpath), *_folders("COMPILER_PATH")]))


_code: dict[tuple[str, ...], list[int]] = {toolchains.HOST_CODE: Disk().flat_stamps(toolchains.HOST_CODE)}
"""The host's are taken when this module is imported: that is the code that runs, and a hit need not take them."""


def _code_stamps(spec: OpSpec) -> list[int]:
    """The stamps of opforge's own files that shape plans for this spec, as they were when this process first asked."""
    files = toolchains.plan_code(spec)
    if files not in _code:
        _code[files] = Disk().flat_stamps(files)
    return _code[files]


def _absent_paths(spec: OpSpec) -> list[str]:
    """The paths at which an earlier root would provide a source or a folder, or add a folder of headers."""
    paths = []
    for name in (*spec.sources, *spec.include_dirs):
        if not os.path.isabs(name):
            for root in spec.roots:
                path = os.path.join(root.path, name)
                if os.path.exists(path):
                    break
                paths.append(path)
    headers = [os.path.join(root.path, root.include) for root in spec.roots if root.include]
    return [*paths, *(folder for folder in headers if not os.path.isdir(folder))]
