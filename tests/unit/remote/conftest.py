from __future__ import annotations

import pytest
from support import sample_ops


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A remote with a trusted key, and nodes that ask it."""
    from support.remote.nodes import Nodes

    return Nodes(tmp_path / "nodes", monkeypatch)


@pytest.fixture
def builder(tmp_path):
    """The builder of a plain C op; it takes a tenth of a second to build."""
    return sample_ops.plain_op(tmp_path / "op")()


@pytest.fixture(scope="session")
def plain_entry(tmp_path_factory, nothing_of_the_machines):
    """The entry of an op with the same sources, built once."""
    from opforge.cache import current_store

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(tmp_path_factory.mktemp("plain-store")))
        current_store.reset()
        entry = sample_ops.plain_op(tmp_path_factory.mktemp("plain-op"))().build()
        current_store.reset()
    return entry


@pytest.fixture
def entry(nodes, plain_entry):
    """The op's entry, as another machine has built and published it."""
    nodes.push(plain_entry)
    return plain_entry


@pytest.fixture
def built_entry(nodes, builder):
    """The op's entry, as the node `builder` has built and published it."""
    return nodes.built(builder)
