from __future__ import annotations

import pytest
from support.compiled_graphs import Machines, double

import opforge


@pytest.fixture
def machines(tmp_path, monkeypatch):
    """Machines without anything that was compiled."""
    return Machines(tmp_path / "machines", monkeypatch)


@pytest.fixture(scope="session")
def first(tmp_path_factory, nothing_of_the_machines):
    """The store of a machine that has compiled `double` for six numbers, under the name `pair`."""
    torch = pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        store = Machines(tmp_path_factory.mktemp("first"), patch).enter("first")
        with opforge.compiled("pair") as graphs:
            torch.compile(double)(torch.ones(6))
        assert len(graphs.compiled) == 1
    return store
