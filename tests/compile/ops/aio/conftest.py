"""Queues of each engine."""

from __future__ import annotations

import pytest

from opforge.ops import aio

ENGINES = ("io_uring", "libaio", "threads")


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    if reason := aio.report()[request.param]:
        pytest.skip(f"{request.param}: {reason}")
    return request.param


@pytest.fixture(scope="module")
def queue(engine):
    """A queue with few and small blocks, so that small files take many."""
    with aio.Queue(engine, block_size=8192, depth=4) as opened:
        yield opened


@pytest.fixture(autouse=True)
def built_once(builds_are_shared):
    """The processes that tests start find the ops too."""
