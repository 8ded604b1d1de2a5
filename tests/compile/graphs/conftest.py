from __future__ import annotations

import pytest
from support.compiled_graphs import Machines

from opforge.graphs import topic


@pytest.fixture
def machines(tmp_path, monkeypatch):
    """Machines without anything that was compiled. Their graphs call torch's own kernels: a C++ one compiles for 3 s.

    With `compiles_cpp` they have C++ without vectors, whose headers would compile for another second.
    """
    from torch._inductor import config

    calling = {"fallback_by_default": True} if hasattr(config, "fallback_by_default") else {}
    with config.patch({"cpp.simdlen": 1, **calling}):
        yield Machines(tmp_path / "machines", monkeypatch)


@pytest.fixture
def compiles_cpp(machines):
    """Graphs have kernels in C++, as torch makes them unless it is asked otherwise."""
    from torch._inductor import config

    if not hasattr(config, "fallback_by_default"):
        yield
        return
    with config.patch(fallback_by_default=False):
        yield


@pytest.fixture
def where():
    """The topic of the graphs that `first` has compiled."""
    return topic.of("pair")
