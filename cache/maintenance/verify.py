"""Checks every entry of a store in full. A damaged one is quarantined, and built again when it is next needed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Container
from typing import NamedTuple

from opforge.cache import staging
from opforge.cache.admit import checked_record
from opforge.cache.layout import Layout
from opforge.foundation.events import emit

from . import listing


class Checked(NamedTuple):
    """One entry after a full check. `problem` is empty if it is intact."""

    key: str
    op: str
    path: str
    problem: str
    quarantined: bool
    """Whether it was damaged, and could be moved to the quarantine folder."""

    def to_json(self) -> dict[str, object]:
        """Returns the object that `opforge verify --json` prints: its names are public."""
        fields = {"result": self.key, "op": self.op, "path": self.path, "problem": self.problem}
        return {**fields, "set_aside": self.quarantined}


def verify(
    layout: Layout,
    owners: Collection[int],
    on_progress: Callable[[int, int], None] | None = None,
    keys: Container[str] | None = None,
) -> list[Checked]:
    """Hashes every library and checks every entry key; quarantines damaged entries.

    `owners` are the user ids that entries may belong to. `on_progress` is called with the number of entries that are
    checked and the number of all. With `keys` these entries alone are checked.
    """
    checked, began = [], time.perf_counter()
    folders = [folder for folder in listing.entry_folders(layout) if keys is None or folder.name in keys]
    for number, folder in enumerate(folders):
        problem, record = "", listing.record_of(layout, folder.name) or {}
        try:
            checked_record(folder.path, owners, folder.name)
        except ValueError as error:
            problem = str(error)
        except OSError as error:
            problem = f"it cannot be read ({error.strerror})"
        if os.path.lexists(folder.path):  # otherwise another process has removed it meanwhile
            quarantined = bool(problem) and staging.quarantine(layout, folder.name, problem)
            library = os.path.join(folder.path, record["file"]) if record else folder.path
            checked.append(Checked(folder.name, str(record.get("op", "")), library, problem, quarantined))
        if on_progress:
            on_progress(number + 1, len(folders))
    damaged = sum(bool(entry.problem) for entry in checked)
    emit("verify", path=str(layout), entries=len(checked), damaged=damaged, seconds=time.perf_counter() - began)
    return checked
