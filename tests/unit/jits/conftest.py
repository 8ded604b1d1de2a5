from __future__ import annotations

import pytest


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A remote with a trusted key, and nodes that ask it."""
    from support.remote.nodes import Nodes

    return Nodes(tmp_path / "nodes", monkeypatch)
