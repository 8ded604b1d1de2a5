"""What is found needs no compiler: one that is named and does not exist changes nothing."""

from __future__ import annotations

import pytest
from support.compiled_graphs import flat

import opforge

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile


def test_a_graph_is_found_whatever_compiler_is_named(machines, monkeypatch):
    from torch._inductor import config

    own = machines.enter("first")
    with opforge.compiled("pair") as graphs:
        torch.compile(flat)(torch.ones(6))
    assert len(graphs.compiled) == 1
    monkeypatch.setattr(config.cpp, "cxx", (None, "/nonexistent/g++"))
    machines.enter("second", own)
    with opforge.compiled("pair") as graphs, opforge.no_builds():
        torch.compile(flat)(torch.ones(6))
    assert (graphs.found, graphs.compiled) == (1, ())
