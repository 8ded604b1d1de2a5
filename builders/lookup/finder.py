"""Looks for an op that is built already: in the layers by its description, in the user's store by its plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opforge import settings
from opforge.builders.spec import abi
from opforge.cache.store import Rejected
from opforge.errors import ToolchainNotFoundError

from .host_requirements import device_objection, lower_targets, other_levels, unfit
from .memo import look_around, recall, remember
from .package_layers import layers_of

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder
    from opforge.cache.filesystem.trust import PackageLayer
    from opforge.cache.records.entry import Entry
    from opforge.cache.store import Store

VOUCHED = ("torch", "python", "system", "cuda", "rocm", "oneapi", "zig", "sysroot")
"""The roots whose files may differ between where a prebuilt op was built and here: its requirements speak for them."""

SILENT = "its record does not tell what loading needs"


def find(builder: OpBuilder, store: Store, exact: bool) -> Entry | None:
    """The entry that answers `builder` as its files are now, or None; `builder.trace` gets every rejection."""
    builder.trace = []
    try:
        return _find(builder, store, exact)
    finally:
        # A layer is asked once for each level of the CPU.
        builder.trace = list(dict.fromkeys(builder.trace))


def _find(builder: OpBuilder, store: Store, exact: bool) -> Entry | None:
    shipped = layers_of(type(builder))
    if (store.layers or shipped) and settings.prebuilt() != "ignore":
        entry = _match(builder, store, shipped, exact)
        if entry:
            return entry
    places, paranoid = builder.places(), settings.paranoid()
    if not paranoid:
        entry = recall(builder, store, places)
        if entry and tells_enough(entry.binary):
            return entry
    seen = look_around(builder, store, places)
    try:
        toolchain = builder.toolchain(store)
        plan = builder.plan(toolchain)
    except ToolchainNotFoundError:
        # Without a compiler there is no plan; what this user built before may still answer the description.
        return _match(builder, store, (), exact, own=True)
    entry = look_up(store, plan.key, places, builder.trace, paranoid)
    if entry and not paranoid:
        remember(builder, store, places, toolchain, plan.key, entry, seen)
    return entry


def tell_of_others(builder: OpBuilder, store: Store) -> None:
    """Add to `builder.trace` the prebuilt entries of this op that answer another description, with what differs."""
    from opforge.cache.layout import Layout
    from opforge.cache.maintenance.explain import rejected_entries

    if settings.prebuilt() == "ignore":
        return
    seen = {one.where for one in builder.trace}
    for layer in (*store.layers, *(Layout(one.root) for one in layers_of(type(builder)))):
        found = rejected_entries(layer, builder.name, builder.target.device, builder.places(), VOUCHED, store.disk)
        builder.trace += [Rejected(folder, reason) for folder, reason in found if folder not in seen]


def look_up(
    store: Store, plan_key: str, places: Mapping[str, str], trace: list[Rejected], paranoid: bool
) -> Entry | None:
    """The stored entry of a plan, or None. A record that reads well and has lost what loading needs is not used."""
    entry = store.get(plan_key, places, trace, paranoid)
    if entry is None or tells_enough(entry.binary):
        return entry
    trace.append(Rejected(entry.folder, SILENT))
    try:
        os.unlink(store.stat_record_path(plan_key, entry.key, places))  # written anew after the build
    except OSError:
        pass
    return None


def tells_enough(told: Mapping[str, Any]) -> bool:
    """Whether a record holds what loading asks of it: one flipped bit can leave a file that is still JSON."""
    lists = (told.get("exports"), told.get("needs"))
    names = all(isinstance(one, list) and all(isinstance(name, str) for name in one) for one in lists)
    return names and told.get("abi") in abi.ALL and isinstance(told.get("python_module"), bool)


def _match(
    builder: OpBuilder, store: Store, shipped: Sequence[PackageLayer], exact: bool, own: bool = False
) -> Entry | None:
    """A prebuilt entry for the builder's target, or for the highest CPU level below it that was built."""
    if builder.target.device != "cpu":
        return _match_device(builder, store, shipped, exact, own)
    description, places = builder.describe(), builder.places()
    fitting = [builder.target] if exact else lower_targets(builder.target)
    for target in fitting:
        key = description._replace(target=str(target)).key
        entry = store.match(key, _objection, places, VOUCHED, builder.trace, own, shipped)
        if entry:
            return entry
    for target in other_levels(builder.target, fitting):
        # None of these answers; that there is one is what its owner will want to know.
        trace: list[Rejected] = []
        refusal = f"it is built for {target}, and {builder.target} is wanted"

        def refuse(_told: Mapping[str, Any], why: str = refusal) -> str:
            return why

        store.match(description._replace(target=str(target)).key, refuse, places, VOUCHED, trace, own, shipped)
        builder.trace += [one for one in trace if one.reason == refusal]
    return None


def _match_device(
    builder: OpBuilder, store: Store, shipped: Sequence[PackageLayer], exact: bool, own: bool
) -> Entry | None:
    """A prebuilt entry whose code runs on the devices here; first one that the driver need not compile any further."""
    key, places, target = builder.describe().key, builder.places(), builder.target
    for jit in (False, True):
        trace: list[Rejected] = []

        def objection(told: Mapping[str, Any], jit: bool = jit) -> str | None:
            if exact and told["target"] != str(target):
                return f"it is built for {told['target']}, and {target} is wanted"
            return _objection(told) or device_objection(told, target.arch, jit)

        entry = store.match(key, objection, places, VOUCHED, trace, own, shipped)
        if entry:
            return entry
    builder.trace += trace
    return None


def _objection(told: Mapping[str, Any]) -> str | None:
    return unfit(told) or (None if tells_enough(told) else SILENT)
