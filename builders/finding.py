"""Looks for an op that is built already: in the layers by its description, in the user's store by its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge import settings
from opforge.errors import ToolchainNotFoundError

from .answers import look_around, recall, remember
from .requirements import lower_targets, unfit

if TYPE_CHECKING:
    from opforge.cache.entry import Entry
    from opforge.cache.store import Store

    from .base import OpBuilder

VOUCHED = ("torch", "python", "system")
"""The roots whose files may differ between where a prebuilt op was built and here: its requirements speak for them."""


def find(builder: OpBuilder, store: Store, exact: bool) -> Entry | None:
    """The entry that answers `builder` as its files are now, or None; `builder.trace` gets every rejection."""
    builder.trace = []
    if store.layers:
        entry = _match(builder, store, exact)
        if entry:
            return entry
    places, paranoid = builder.places(), settings.paranoid()
    if not paranoid:
        entry = recall(builder, store, places)
        if entry:
            return entry
    seen = look_around(builder, store, places)
    try:
        toolchain = builder.toolchain(store)
        plan = builder.plan(toolchain)
    except ToolchainNotFoundError:
        # Without a compiler there is no plan; what this user built before may still answer the description.
        return _match(builder, store, exact, own=True)
    entry = store.get(plan.key, places, builder.trace, paranoid)
    if entry and not paranoid:
        remember(builder, store, places, toolchain, plan.key, entry, seen)
    return entry


def _match(builder: OpBuilder, store: Store, exact: bool, own: bool = False) -> Entry | None:
    """A prebuilt entry for the builder's target, or for the highest CPU level below it that was built."""
    description, places = builder.describe(), builder.places()
    for target in [builder.target] if exact else lower_targets(builder.target):
        key = description._replace(target=str(target)).key
        entry = store.match(key, unfit, places, VOUCHED, builder.trace, own)
        if entry:
            return entry
    return None
