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


@pytest.fixture
def entry(nodes, builder):
    """The op's entry, as another node has built and published it."""
    return nodes.built(builder)
