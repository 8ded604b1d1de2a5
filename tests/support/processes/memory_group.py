"""A control group with a limit on memory, below this process's own, for processes that a test starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from opforge.accelerator.host import cgroup

LIMITS = {"memory.limit_in_bytes": "memory.usage_in_bytes", "memory.max": "memory.current"}


class Group(NamedTuple):
    """A control group."""

    folder: str

    def prefix(self) -> list[str]:
        """Returns the beginning of a command that runs in the group."""
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', self.folder]


@contextmanager
def memory_group(size: int) -> Iterator[Group]:
    """Makes a group whose processes may use `size` bytes together, and removes it. Skips the test if it cannot."""
    own = next((f"/{folder}" for folder in cgroup._folders("/", "memory") if os.path.isdir(f"/{folder}")), "")
    folder = f"{own}/opforge-test-{os.getpid()}"
    try:
        os.mkdir(folder)
    except OSError as error:
        pytest.skip(f"not run: no control group can be made here ({error})")
    try:
        names = [name for name in LIMITS if os.path.exists(f"{folder}/{name}")]
        try:
            with open(f"{folder}/{names[0]}", "w") as file:
                file.write(str(size))
        except (IndexError, OSError) as error:
            pytest.skip(f"not run: a control group below {own} gets no limit on memory ({error!r})")
        yield Group(folder)
    finally:
        os.rmdir(folder)
