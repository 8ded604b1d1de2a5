"""A failed build, kept for the processes that waited for it: they raise its error and do not build a second time.

A waiter tells a new failure from an earlier one by its id. Times would not do: the builder may be another machine, with
another clock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.layout import Layout
from opforge.cache.schema import FormatError
from opforge.foundation import remembered_values
from opforge.foundation.files import write_file
from opforge.foundation.remembered_values import FlatStamps

from .schemas import FAILURE


class Failure(NamedTuple):
    """A build error that can cross processes."""

    kind: str
    attributes: Mapping[str, Any]
    """The error's attributes, the message among them. JSON-able."""
    state: str
    """The state of the sources that failed to build."""


def path(layout: Layout, plan_key: str) -> str:
    """Returns the path of a plan's failure, whether there is one or not."""
    return layout.path("failures", plan_key + ".json")


def note(layout: Layout, plan_key: str, failure: Failure, read: FlatStamps) -> None:
    """Writes the failure for the waiters. `read` are the files that the build had read, as far as they are known."""
    data = {**failure._asdict(), "id": os.urandom(8).hex(), "read": [*read.paths], "stamps": [*read.numbers]}
    with suppress(OSError):  # a full disk may be why the build failed; the waiters then build for themselves
        write_file(path(layout, plan_key), json.dumps(data).encode())


def latest_id(layout: Layout, plan_key: str) -> str:
    """Returns the id of the latest failure of a plan; empty if there is none."""
    data = _read(layout, plan_key)
    return str(data["id"]) if data else ""


def _read(layout: Layout, plan_key: str) -> Any:
    """Returns the latest failure of a plan; None if there is none that can be read."""
    try:
        return schema.read(path(layout, plan_key), FAILURE)
    except (OSError, FormatError):
        return None


def after(layout: Layout, plan_key: str, earlier_id: str, state: str) -> Failure | None:
    """Returns the latest failure if it is of the same sources and its id is not `earlier_id`; otherwise None.

    None also if a file that the failed build had read, wherever it is, has changed since.
    """
    data = _read(layout, plan_key)
    if not data or data["id"] == earlier_id or data["state"] != state:
        return None
    stamps = remembered_values.stamps_of(data["read"])
    # Sizes and times of modification: the same header of the system has another inode on another node.
    if stamps[0::4] != data["stamps"][0::4] or stamps[1::4] != data["stamps"][1::4]:
        return None
    return Failure(data["kind"], data["attributes"], state)


def forget(layout: Layout, plan_key: str) -> None:
    """Removes the failure of a plan, after a build that succeeded."""
    with suppress(OSError):
        os.unlink(path(layout, plan_key))
