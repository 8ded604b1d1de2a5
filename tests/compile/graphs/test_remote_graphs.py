"""Compiled graphs that travel: signed by a key that the policy allows for their name, or not used."""

from __future__ import annotations

import pickle

import pytest
from support.compiled_graphs import bundles, double
from support.remote.nodes import Nodes

import opforge
from opforge.graphs import bundle, remote, statements, store, topic
from opforge.remote import maintenance, mirror, remotes, topics, withdrawals
from opforge.remote.signatures import keys
from opforge.remote.stores import open_store

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A remote, and a key that may sign graphs named `pair`."""
    made = Nodes(tmp_path / "nodes", monkeypatch)
    made.trust(made.public, scopes=("compiled:pa*",))
    return made


@pytest.fixture
def where():
    return topic.of("pair")


@pytest.fixture
def published(nodes, first, where):
    """The remote, with the graphs of the first machine."""
    (name,) = bundles(first)
    folder = str(first / "v2" / "graphs" / name)
    remote.push(nodes.store, remotes.parse(nodes.url), folder, where, keys.signer("ci"))
    return nodes.store


def run_step():
    with opforge.compiled("pair") as graphs:
        got = torch.compile(double)(torch.ones(6))
    assert torch.equal(got, double(torch.ones(6)))
    return graphs


def test_a_machine_takes_what_another_has_signed(machines, published, first):
    own = machines.enter("second")
    graphs = run_step()
    assert (graphs.found, graphs.compiled) == (1, ())
    assert bundles(own) == bundles(first)


def test_the_next_process_uses_no_remote(machines, published, monkeypatch):
    own = machines.enter("second")
    run_step()
    monkeypatch.setenv("OPFORGE_REMOTES", "file:///missing/folder")
    machines.enter("third", own)
    assert run_step().compiled == ()
