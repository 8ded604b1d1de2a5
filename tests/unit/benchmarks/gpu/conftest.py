"""Makes the benchmark of rows small enough for the CPU."""

from __future__ import annotations

import sys

import pytest
from support.gpu import fake_gpu


@pytest.fixture
def rows(checkout_on_path, monkeypatch):
    """`benchmarks.gpu.rows` with small tasks, with torch's functions in place of ours, and without Liger."""
    from benchmarks.gpu import rows

    fake_gpu.shrink(rows, monkeypatch, 64)
    monkeypatch.setattr(rows, "ops", fake_gpu.torch_ops())
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    return rows
