"""How many compilers run at once, by the memory that each of them needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Schedule(NamedTuple):
    """At most `jobs` compilers at once, of which at most `depth` are for the steps in `heavy`."""

    jobs: int
    heavy: frozenset[str] = frozenset()
    """The outputs of the steps of which not every core may run one."""
    depth: int = 0

    @property
    def is_bound_by_memory(self) -> bool:
        """Whether with more memory more compilers would run at once."""
        return bool(self.heavy)


def schedule(needs: Mapping[str, int], cores: int, left: int | None) -> Schedule:
    """Returns the schedule with which compilers use no more memory than is left; one compiler always runs.

    Args:
        needs: The bytes that the compiler of each step needs, by the step's output.
        cores: How many compilers may run at once if there is memory for all of them.
        left: The bytes that they may use together; None if that is not known.
    """
    largest = max(needs.values(), default=0)
    if left is None or largest * min(cores, len(needs)) <= left:
        return Schedule(cores)
    heavy = {output: need for output, need in needs.items() if need > left // cores}
    depth = max(1, min(left // largest, len(heavy)))
    other = max((need for output, need in needs.items() if output not in heavy), default=0)
    beside = max(0, left - depth * largest) // other if other else 0
    return Schedule(min(cores, depth + beside), frozenset(heavy), depth)
