"""Makes `import benchmarks` find the checkout's."""

from __future__ import annotations

import pytest
from support.paths import CHECKOUT


@pytest.fixture(autouse=True)
def checkout_on_path(monkeypatch):
    """Tests import the benchmarks themselves: when this module is imported, the checkout is not on the path yet."""
    monkeypatch.syspath_prepend(CHECKOUT)


@pytest.fixture(autouse=True)
def no_benchmark_settings(monkeypatch):
    for name in ("OPFORGE_BENCH_LONG", "OPFORGE_BENCH_DEEPSPEED_PYTHON"):
        monkeypatch.delenv(name, raising=False)
