"""Sharing out cores among ranks: every core goes to one rank, and no rank gets two more than another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opforge.errors import CoresError


@dataclass(frozen=True)
class Core:
    """A physical core, or what is left of it."""

    threads: tuple[int, ...]
    """Its hardware threads that may be used, by number; at least one."""
    node: int
    """Its NUMA node."""
    kind: int = 0
    """0 for the fastest cores of the machine; a hybrid machine has slower ones too."""


Share = tuple[Core, ...]


def share_out(cores: Sequence[Core], ranks: int) -> list[Share]:
    """One share a rank, in the order in which the cores' nodes come. Raises CoresError where there are too few cores.

    Shares differ by one core at most, and no core is left over. If some split of the ranks over the nodes lets every
    rank stay on one node, that is the split; fast and slow cores are then dealt out evenly. Else ranks take the cores
    one after another, so that fewer ranks than there are nodes have cores on two or more of them.
    """
    if len(cores) < ranks:
        raise CoresError(
            f"{ranks} ranks want cores, and {_counted(len(cores))} may be used",
            "Start fewer ranks, or free more cores (affinity mask, cpuset, --bind-core-list)",
        )
    nodes = _by_node(cores)
    counts = _ranks_by_node([len(held) for held in nodes], ranks)
    if counts is not None:
        return [share for held, count in zip(nodes, counts, strict=True) for share in _deal(held, count)]
    least, more = divmod(len(cores), ranks)
    left = iter(core for held in nodes for core in held)
    return [tuple(next(left) for _ in range(least + (rank < more))) for rank in range(ranks)]


def _by_node(cores: Iterable[Core]) -> list[list[Core]]:
    nodes: dict[int, list[Core]] = {}
    for core in cores:
        nodes.setdefault(core.node, []).append(core)
    return list(nodes.values())


def _ranks_by_node(sizes: Sequence[int], ranks: int) -> list[int] | None:
    """How many ranks each node takes so that all of them stay on one node; None where no split does that.

    With shares of q or q + 1 cores, c cores are used up by n ranks exactly where c / (q + 1) <= n <= c / q.
    """
    least = sum(sizes) // ranks
    counts = [-(-size // (least + 1)) for size in sizes]
    most = [size // least for size in sizes]
    if any(few > many for few, many in zip(counts, most, strict=True)):
        return None
    spare = ranks - sum(counts)
    for node, many in enumerate(most):
        taken = min(spare, many - counts[node])
        counts[node] += max(0, taken)
        spare -= max(0, taken)
    return counts if spare == 0 else None


def _deal(cores: Sequence[Core], ranks: int) -> list[Share]:
    """Deal one node's cores: a run of each kind to every rank; the odd ones go round, on from the last deal's."""
    shares: list[list[Core]] = [[] for _ in range(ranks)]
    turn = 0
    for kind in sorted({core.kind for core in cores}):
        alike = [core for core in cores if core.kind == kind]
        each, odd = divmod(len(alike), ranks)
        lucky = {(turn + step) % ranks for step in range(odd)}
        left = iter(alike)
        for rank, share in enumerate(shares):
            share.extend(next(left) for _ in range(each + (rank in lucky)))
        turn += odd
    return [tuple(share) for share in shares]


def _counted(number: int) -> str:
    return "one core" if number == 1 else f"{number} cores"
