"""Sharing out cores among ranks, on random machines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opforge.errors import CoresError
from opforge.launch.binding.cores import Core, share_out


@st.composite
def machines(draw):
    """Cores on up to six nodes, of one or two kinds, with one or two threads."""
    cores, cpu = [], 0
    for node in range(draw(st.integers(1, 6))):
        for _ in range(draw(st.integers(1, 20))):
            count = draw(st.integers(1, 2))
            cores.append(Core(tuple(range(cpu, cpu + count)), node, draw(st.integers(0, 1))))
            cpu += count
    return cores


@settings(max_examples=150, deadline=None)
@given(machines(), st.integers(1, 40))
def test_every_core_goes_to_one_rank_and_shares_are_even(cores, ranks):
    if ranks > len(cores):
        with pytest.raises(CoresError):
            share_out(cores, ranks)
        return
    shares = share_out(cores, ranks)
    assert len(shares) == ranks
    shared = [core for share in shares for core in share]
    assert sorted(shared, key=cores.index) == cores and len(shared) == len(set(shared))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    nodes = [{core.node for core in share} for share in shares]
    assert sum(len(rank_nodes) > 1 for rank_nodes in nodes) < len({core.node for core in cores})
    assert nodes == sorted(nodes, key=lambda rank_nodes: (min(rank_nodes), max(rank_nodes)))  # ranks follow the nodes
    if all(len(rank_nodes) == 1 for rank_nodes in nodes):
        for node in {core.node for core in cores}:
            fast = [sum(core.kind == 0 for core in share) for share in shares if share[0].node == node]
            assert max(fast) - min(fast) <= 1


def split_exists(sizes, ranks):
    """Returns whether each rank can stay on one node with shares that differ by at most one. Tries all splits."""
    least, more = divmod(sum(sizes), ranks)

    def fits(remaining, small, big):
        if not remaining:
            return small == big == 0
        for here in range(min(big, remaining[0] // (least + 1)) + 1):
            small_here, leftover = divmod(remaining[0] - here * (least + 1), least)
            if leftover == 0 and small_here <= small and fits(remaining[1:], small - small_here, big - here):
                return True
        return False

    return fits(sizes, ranks - more, more)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 20))
def test_ranks_stay_on_one_node_if_and_only_if_some_split_allows_it(sizes, ranks):
    if ranks > sum(sizes):
        return
    cores = [Core((100 * node + index,), node) for node, size in enumerate(sizes) for index in range(size)]
    whole = all(len({core.node for core in share}) == 1 for share in share_out(cores, ranks))
    assert whole == split_exists(tuple(sizes), ranks)
