"""Publishes tuning results: a statement in the topic of the op's code, in the place of the key's earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge.cache.records.tuned import Stored
from opforge.errors import PublishError

from . import tuned_statements
from .publish import add_statement, refuse_foreign
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


def push_stored(store: ObjectStore, remote: Remote, result: Stored, signer: Signer | None) -> PushedResult:
    """Publishes a result of a store, as `push` does. Raises PublishError for one that is damaged or was fetched."""
    if result.problem:
        raise PublishError(result.path, str(remote), f"it is damaged: {result.problem}", "Time it again: opforge tune")
    refuse_foreign(f"tuned:{result.value['op']}", remote, "a remote" if result.is_fetched else "")
    return push(store, remote, result.value, signer)


def push(store: ObjectStore, remote: Remote, value: Mapping[str, Any], signer: Signer | None) -> PushedResult:
    """Publishes a tuning result. Without a signer its statement is unsigned. Raises PublishError, StoreError."""
    what = f"tuned:{value['op']}"
    try:
        stated = tuned_statements.statement(value)
        is_new = add_statement(store, stated, signer, tuned_statements.merge, what, str(remote))
    except ValueError as error:
        raise PublishError(what, str(remote), str(error), "Nothing was published") from error
    return PushedResult(value["op"], tuned_statements.label_of(value), value["target"], is_new)
