"""Sharing out cores among ranks: every core goes to one rank, and no rank gets two more than another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opforge.errors import CoresError


@dataclass(frozen=True)
class Core:
    """A physical core, with the hardware threads of it that may be used."""

    threads: tuple[int, ...]
    """The numbers of its usable hardware threads. At least one."""
    node: int
    """Its NUMA node."""
    kind: int = 0
    """0 for the fastest cores of the machine. A hybrid machine has slower kinds too."""


Share = tuple[Core, ...]


def share_out(cores: Sequence[Core], ranks: int) -> list[Share]:
    """Returns one share a rank, in the order of the cores' nodes. Raises CoresError if there are too few cores.

    Shares differ by at most one core, and no core is left over. If some split of the ranks over the nodes lets every
    rank stay on one node, that split is used, and fast and slow cores are dealt out evenly on each node. Otherwise
    the ranks take the cores in order; then fewer ranks than there are nodes have cores on two or more nodes.
    """
    if len(cores) < ranks:
        available = "1 core" if len(cores) == 1 else f"{len(cores)} cores"
        raise CoresError(
            f"{ranks} ranks need a core each, and {available} may be used",
            "Start fewer ranks, or allow more cores (affinity mask, cpuset, --bind-core-list)",
        )
    nodes = _by_node(cores)
    if (counts := _ranks_by_node([len(members) for members in nodes], ranks)) is not None:
        return [share for members, count in zip(nodes, counts, strict=True) for share in _deal(members, count)]
    least, more = divmod(len(cores), ranks)
    remaining = iter(core for members in nodes for core in members)
    return [tuple(next(remaining) for _ in range(least + (rank < more))) for rank in range(ranks)]


def _by_node(cores: Iterable[Core]) -> list[list[Core]]:
    nodes: dict[int, list[Core]] = {}
    for core in cores:
        nodes.setdefault(core.node, []).append(core)
    return list(nodes.values())


def _ranks_by_node(sizes: Sequence[int], ranks: int) -> list[int] | None:
    """Returns the number of ranks on each node so that every rank stays on one node. None if no split does that.

    With shares of q or q + 1 cores, n ranks use up c cores if and only if c / (q + 1) <= n <= c / q.
    """
    least = sum(sizes) // ranks
    counts = [-(-size // (least + 1)) for size in sizes]
    limits = [size // least for size in sizes]
    if any(count > limit for count, limit in zip(counts, limits, strict=True)):
        return None
    unplaced = ranks - sum(counts)
    for node, limit in enumerate(limits):
        added = max(0, min(unplaced, limit - counts[node]))
        counts[node] += added
        unplaced -= added
    return counts if unplaced == 0 else None


def _deal(cores: Sequence[Core], ranks: int) -> list[Share]:
    """Deals one node's cores: a run of each kind to every rank. Leftovers go round, on from the last kind's."""
    shares: list[list[Core]] = [[] for _ in range(ranks)]
    turn = 0
    for kind in sorted({core.kind for core in cores}):
        alike = [core for core in cores if core.kind == kind]
        each, leftover = divmod(len(alike), ranks)
        favoured = {(turn + step) % ranks for step in range(leftover)}
        remaining = iter(alike)
        for rank, share in enumerate(shares):
            share.extend(next(remaining) for _ in range(each + (rank in favoured)))
        turn += leftover
    return [tuple(share) for share in shares]
