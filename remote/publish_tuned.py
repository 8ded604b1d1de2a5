"""Publishes tuning results: a statement in the topic of the op's code, in the place of the key's earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge.errors import PublishError

from . import statements, topics, tuned_statements, withdrawals
from .remotes import Remote
from .signatures.keys import Signer
from .stores.protocol import ObjectStore


class PushedResult(NamedTuple):
    """The result for one tuning result."""

    op: str
    label: str
    target: str
    is_new: bool
    """False if the store had it already."""


def push(store: ObjectStore, remote: Remote, value: Mapping[str, Any], signer: Signer | None) -> PushedResult:
    """Publishes a tuning result. Without a signer its statement is unsigned. Raises PublishError, StoreError."""
    what = f"tuned:{value['op']}"
    try:
        stated = tuned_statements.statement(value)
        item = statements.signed(stated, [signer] if signer else [], topics.MAX_ITEM_BYTES)
        if signer:
            withdrawals.publish(store, signer, item.signatures[0].name)

        def change(stored: bytes | None) -> bytes | None:
            items = topics.read_frame(stored) if stored is not None else []
            merged = tuned_statements.merge(items, item, value)
            if merged == items:
                return None
            if len(merged) > topics.MAX_ITEMS:
                hint = "Remove old ones: opforge gc URL --unused-for AGE"
                raise PublishError(what, str(remote), f"its topic has {topics.MAX_ITEMS} results already", hint)
            return topics.frame(merged)

        written = topics.edit(store, tuned_statements.topic_of(value["kernel"]), topics.MAX_FRAME_BYTES, change, what)
    except ValueError as error:
        raise PublishError(what, str(remote), str(error), "Nothing was published") from error
    return PushedResult(value["op"], tuned_statements.label_of(value), value["target"], written is not None)
