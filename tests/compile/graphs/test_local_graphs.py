"""Compiled graphs in the user's own store: found by another process, and refused when they are not what they were."""

from __future__ import annotations

import pytest
from support.compiled_graphs import bundles, double

import opforge

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile


def run(function=double, count=6):
    got = torch.compile(function)(torch.ones(count))
    assert torch.equal(got, function(torch.ones(count)))


def test_another_machine_compiles_nothing(machines, first):
    store = machines.enter("second", first)
    with opforge.compiled("pair") as graphs:
        run()
    assert (graphs.found, graphs.compiled) == (1, ()) and graphs.seconds > 0
    assert bundles(store) == bundles(first)


def test_a_scope_without_compiles_stores_nothing(machines):
    store = machines.enter("idle")
    with opforge.compiled("pair") as graphs:
        pass
    assert graphs.found == 0 and not bundles(store)
