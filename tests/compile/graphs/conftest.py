from __future__ import annotations

import pytest
from support.compiled_graphs import Machines

from opforge.graphs import topic


@pytest.fixture
def machines(tmp_path, monkeypatch):
    """Machines without anything that was compiled. Their code has no vectors, whose headers compile for a second."""
    from torch._inductor import config

    with config.patch({"cpp.simdlen": 1}):
        yield Machines(tmp_path / "machines", monkeypatch)


@pytest.fixture
def where():
    """The topic of the graphs that `first` has compiled."""
    return topic.of("pair")
