"""How many compilers a build runs at once."""

from __future__ import annotations

import pytest
from support.compilers.fake_compiler import plan_of
from support.sample_ops import plain_op

from opforge.builders.run import memory_needs, parallelism
from opforge.cache.current_store import writable_store


@pytest.fixture
def plan(tmp_path):
    return plan_of(plain_op(tmp_path)(), tmp_path), writable_store().layout


def keep(plan, layout, peak):
    """Keeps what the compiler of the plan's one source needed."""
    needs = memory_needs.MemoryNeeds(plan, {}, layout)
    needs.known = {memory_needs.name_of(plan.sources[0]): peak}
    needs.keep()


@pytest.mark.parametrize(
    ("cores", "left", "measured", "count"),
    [
        (8, None, None, 8),
        (8, 64 << 30, None, 8),
        (8, 1 << 30, None, 4),  # 256 MiB each until it is measured
        (8, 1 << 30, 128 << 20, 8),
        (8, 1 << 30, 400 << 20, 2),
        (8, 1 << 30, 4 << 30, 1),
        (8, 0, None, 1),
        (1, 64 << 30, 1 << 20, 1),
    ],
)
def test_as_many_compilers_run_as_cores_and_memory_allow(plan, monkeypatch, cores, left, measured, count):
    class Cores:
        threads = cores

    monkeypatch.setattr(parallelism.Topology, "read", classmethod(lambda _cls: Cores))
    monkeypatch.setattr(parallelism, "memory_left", lambda: left)
    monkeypatch.setattr(parallelism, "processes_left", lambda: None)
    if measured:
        keep(*plan, measured)
    assert parallelism.compiler_jobs(None, *plan) == count
    assert parallelism.compiler_jobs(3, *plan) == 3
    monkeypatch.setenv("OPFORGE_JOBS", "5")
    assert parallelism.compiler_jobs(None, *plan) == 5


@pytest.mark.parametrize(("left", "count"), [(None, 64), (400, 64), (43, 10), (11, 2), (7, 1), (3, 1), (0, 1)])
def test_no_more_compilers_run_than_processes_may_be_started(plan, monkeypatch, left, count):
    class Cores:
        threads = 64

    monkeypatch.setattr(parallelism.Topology, "read", classmethod(lambda _cls: Cores))
    monkeypatch.setattr(parallelism, "memory_left", lambda: None)
    monkeypatch.setattr(parallelism, "processes_left", lambda: left)
    assert parallelism.compiler_jobs(None, *plan) == count
    assert parallelism.compiler_jobs(7, *plan) == 7


@pytest.mark.parametrize("text", ["", "x", "0", "-5", "\0", "[]", '{"a": 0}', '{"a": "b"}', '{"a": 1e9}'])
def test_a_damaged_measurement_stops_no_build(plan, text):
    keep(*plan, 1)
    with open(memory_needs.path_of(*plan), "w") as file:
        file.write(text)
    assert parallelism.compiler_jobs(None, *plan) >= 1
