"""Looks for an op that is built already: in layers by its description, in the user's store by its plan."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge import settings
from opforge.builders import toolchains
from opforge.builders.spec import abi
from opforge.builders.spec.op_spec import root_paths
from opforge.cache.current import current_store
from opforge.cache.filesystem.trust import PackageLayer
from opforge.cache.layout import PACKAGE_LAYER
from opforge.cache.store import Rejected
from opforge.errors import (
    BuildResourceError,
    OpIncompatibleError,
    PrebuiltRequiredError,
    ToolchainError,
    ToolchainNotFoundError,
)

from . import memo

if TYPE_CHECKING:
    from opforge.builders.spec.op_spec import OpSpec
    from opforge.builders.toolchains.toolchain import Toolchain
    from opforge.cache.records.entry import Entry
    from opforge.cache.store import Store

TRUSTED_ROOTS = ("torch", "python", "system", "cuda", "rocm", "oneapi", "zig", "sysroot")
"""The roots whose files may differ between where a prebuilt op was built and here: its requirements cover them."""
INCOMPLETE = "its record is incomplete"

FindToolchain = Callable[["OpSpec", "Store"], "Toolchain"]


class Found(NamedTuple):
    """The outcome of a look-up."""

    entry: Entry | None
    rejected: tuple[Rejected, ...]
    """Every stored entry that was seen and not taken, with the reason."""


def find(
    spec: OpSpec,
    store: Store | None = None,
    exact: bool = False,
    find_toolchain: FindToolchain | None = None,
) -> Found:
    """Returns the prebuilt or stored entry for the spec as its files are now, and every entry that was rejected.

    A layer's entry for a lower CPU level is accepted too, unless `exact`. Raises SourceNotFoundError, CacheDirError
    and what finding a toolchain raises, except ToolchainNotFoundError if a stored entry fits without a compiler.
    """
    rejected: list[Rejected] = []
    entry = search(spec, store or current_store(), exact, find_toolchain, rejected)
    return Found(entry, tuple(dict.fromkeys(rejected)))


def log_event(event: str, **fields: object) -> None:
    """Logs an event of a load. `opforge.events` is imported only if a log is set, to keep hits fast."""
    if os.environ.get("OPFORGE_LOG"):
        from opforge.events import emit

        emit(event, **fields)


def stored_entry(spec: OpSpec, store: Store | None, exact: bool, force: bool, rejected: list[Rejected]) -> Entry | None:
    """Returns the entry that makes a build unnecessary, or None. `rejected` gets every entry that does not fit.

    `force` looks for nothing. Logs the event `hit` or `miss`. Raises PrebuiltRequiredError if there is no entry and
    building is forbidden.
    """
    began, seen = time.perf_counter(), list[Rejected]()
    store = store or current_store()
    try:
        entry = None if force else search(spec, store, exact, None, seen)
    finally:
        rejected += dict.fromkeys(seen)  # a layer is asked once for each level of the CPU
    if entry:
        log_event("hit", op=spec.name, seconds=time.perf_counter() - began, path=entry.folder, origin=entry.origin)
        return entry
    if settings.prebuilt() == "require":
        add_other_descriptions(spec, store, rejected)
        raise PrebuiltRequiredError(spec.name, str(spec.target), [*map(str, rejected)])
    reasons = ["it was requested"] if force else [*map(str, rejected)]
    log_event("miss", op=spec.name, seconds=time.perf_counter() - began, reasons=reasons)
    return None


def search(
    spec: OpSpec, store: Store, exact: bool, find_toolchain: FindToolchain | None, rejected: list[Rejected]
) -> Entry | None:
    """As `find`, but appends to `rejected`, which is filled even if the look-up raises."""
    package_layers = layers_of(spec.package)
    use_layers = (store.layers or package_layers) and settings.prebuilt() != "ignore"
    toolchain, programs, paths = _toolchain_first(spec, store, find_toolchain)
    if use_layers:
        entry = _match(spec, store, paths, package_layers, exact, rejected)
        if entry:
            return entry
    paranoid = settings.paranoid()
    # A toolchain that a caller hands in is in no memo's key.
    memoize = not paranoid and find_toolchain is None
    if memoize:
        entry = memo.load(spec, store, paths, programs)
        if entry and has_required_fields(entry.binary):
            return entry
    from opforge.builders.planner import make_plan

    snapshot = memo.take_snapshot(spec, store)
    try:
        toolchain = toolchain or (find_toolchain or toolchains.find_toolchain)(spec, store)
        plan = make_plan(spec, toolchain)
    except ToolchainNotFoundError:
        # Without a compiler there is no plan, but an entry that this user built before may fit the description.
        return _match(spec, store, paths, (), exact, rejected, own=True)
    entry = look_up(store, plan.key, paths, rejected, paranoid)
    if entry and memoize:
        memo.save(spec, store, paths, programs, toolchain, plan.key, entry, snapshot)
    return entry


def _toolchain_first(
    spec: OpSpec, store: Store, find_toolchain: FindToolchain | None
) -> tuple[Toolchain | None, Mapping[str, object], dict[str, str]]:
    """The toolchain, its programs and the root paths, for an op that the host's compiler alone does not build.

    The roots that such a toolchain adds have to be known before anything is compared. The host's compiler adds none: it
    is looked for only if there is no memo.
    """
    if spec.uses_host_compiler:
        return None, {}, root_paths(spec)
    try:
        toolchain = (find_toolchain or toolchains.find_toolchain)(spec, store)
        return toolchain, toolchain.programs(), root_paths(spec, toolchain.root_paths())
    except (BuildResourceError, OpIncompatibleError, ToolchainNotFoundError, ToolchainError):
        return None, {}, root_paths(spec)  # a prebuilt entry needs no compiler, and so none of its headers


def layers_of(package: str) -> tuple[PackageLayer, ...]:
    """Returns the layers inside an imported package; none if it carries no ops, or is no package."""
    layers = []
    for folder in getattr(sys.modules.get(package), "__path__", ()):
        root = os.path.join(folder, PACKAGE_LAYER)
        if os.path.isdir(root):
            # Whoever can write the package's code is trusted with its libraries: that code is running already.
            own = os.stat(folder)
            layers.append(PackageLayer(root, own.st_uid, own.st_mode & (stat.S_IWGRP | stat.S_IWOTH)))
    return tuple(layers)


def add_other_descriptions(spec: OpSpec, store: Store, rejected: list[Rejected]) -> None:
    """Append to `rejected` the prebuilt entries of this op that have another description, with what differs."""
    from opforge.cache.layout import Layout
    from opforge.cache.maintenance.explain import rejected_entries

    if settings.prebuilt() == "ignore":
        return
    _toolchain, _programs, paths = _toolchain_first(spec, store, None)
    seen = {entry.where for entry in rejected}
    for layer in (*store.layers, *(Layout(layer.root) for layer in layers_of(spec.package))):
        others = rejected_entries(layer, spec.name, spec.target.device, paths, TRUSTED_ROOTS, store.disk)
        rejected += [Rejected(folder, reason) for folder, reason in others if folder not in seen]


def look_up(
    store: Store, plan_key: str, paths: Mapping[str, str], rejected: list[Rejected], paranoid: bool
) -> Entry | None:
    """Returns the stored entry of a plan, or None. An entry whose record has lost a field is not used."""
    entry = store.get(plan_key, paths, rejected, paranoid)
    if entry is None or has_required_fields(entry.binary):
        return entry
    rejected.append(Rejected(entry.folder, INCOMPLETE))
    try:
        os.unlink(store.stat_record_path(plan_key, entry.key, paths))  # written anew after the build
    except OSError:
        pass
    return None


def has_required_fields(record: Mapping[str, Any]) -> bool:
    """Returns whether a record holds what loading reads: one flipped bit can leave a file that is still JSON."""
    lists = (record.get("exports"), record.get("needs"))
    are_names = all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists)
    return are_names and record.get("abi") in abi.ALL and isinstance(record.get("python_module"), bool)


def _match(
    spec: OpSpec,
    store: Store,
    paths: Mapping[str, str],
    package_layers: Sequence[PackageLayer],
    exact: bool,
    rejected: list[Rejected],
    own: bool = False,
) -> Entry | None:
    """A prebuilt entry for the spec's target, or for the highest CPU level below it that was built."""
    from opforge.builders.spec.description import describe
    from opforge.builders.spec.targets import lower_targets, other_levels

    description = describe(spec)
    if spec.target.device != "cpu":
        return _match_device(spec, description.key, store, paths, package_layers, exact, rejected, own)
    fitting = [spec.target] if exact else lower_targets(spec.target)
    for target in fitting:
        key = description._replace(target=str(target)).key
        entry = store.match(key, entry_problem, paths, TRUSTED_ROOTS, rejected, own, package_layers)
        if entry:
            return entry
    for target in other_levels(spec.target, fitting):
        # None of these can be used, but it is reported.
        seen: list[Rejected] = []
        problem = f"it is built for {target}, not for {spec.target}"

        def refuse(_record: Mapping[str, Any], reason: str = problem) -> str:
            return reason

        key = description._replace(target=str(target)).key
        store.match(key, refuse, paths, TRUSTED_ROOTS, seen, own, package_layers)
        rejected += [entry for entry in seen if entry.reason == problem]
    return None


def _match_device(
    spec: OpSpec,
    key: str,
    store: Store,
    paths: Mapping[str, str],
    package_layers: Sequence[PackageLayer],
    exact: bool,
    rejected: list[Rejected],
    own: bool,
) -> Entry | None:
    """A prebuilt entry whose code runs on the devices here; first one that the driver need not compile any further."""
    from .device_requirements import device_problem

    target, seen = spec.target, list[Rejected]()
    for jit in (False, True):
        seen = []

        def problem(record: Mapping[str, Any], jit: bool = jit) -> str | None:
            if exact and record["target"] != str(target):
                return f"it is built for {record['target']}, not for {target}"
            return entry_problem(record) or device_problem(record, target.arch, jit)

        entry = store.match(key, problem, paths, TRUSTED_ROOTS, seen, own, package_layers)
        if entry:
            return entry
    rejected += seen
    return None


def entry_problem(record: Mapping[str, Any]) -> str | None:
    """Returns why an entry with this record cannot be loaded on this host, or None."""
    from .host_requirements import host_problem

    return host_problem(record) or (None if has_required_fields(record) else INCOMPLETE)
