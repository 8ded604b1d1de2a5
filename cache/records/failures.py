"""A failed build, kept for those who were waiting for it: they raise the builder's own error, not a second build's."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge.cache.filesystem.files import read_json, write_file
from opforge.cache.layout import Layout


class Failure(NamedTuple):
    """A build error that can cross processes: `told` are its attributes, the message among them.

    `inputs` tells which state of the sources it speaks of.
    """

    kind: str
    told: Mapping[str, Any]
    inputs: str


def path(layout: Layout, plan_key: str) -> str:
    """Where the failure of a plan lies, if there is one."""
    return layout.path("failures", plan_key + ".json")


def note(layout: Layout, plan_key: str, failure: Failure) -> None:
    """Leave the failure for the waiters."""
    data = {**failure._asdict(), "at": time.time_ns()}
    try:
        write_file(path(layout, plan_key), json.dumps(data).encode())
    except OSError:
        return  # a full disk may be the very failure; the waiters then build for themselves


def since(layout: Layout, plan_key: str, began_ns: int, inputs: str) -> Failure | None:
    """The failure of the same inputs that was noted after `began_ns`, if any."""
    try:
        data = read_json(path(layout, plan_key))
        if data["at"] >= began_ns and data["inputs"] == inputs:
            str(data["told"]["message"])
            return Failure(data["kind"], data["told"], data["inputs"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def forget(layout: Layout, plan_key: str) -> None:
    """The build has succeeded: nobody needs the old failure."""
    try:
        os.unlink(path(layout, plan_key))
    except OSError:
        return
