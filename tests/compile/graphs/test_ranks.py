"""Processes of one job that start together: one compiles, and the others take what it has compiled."""

from __future__ import annotations

import stat

import pytest
from support import child_processes
from support.compiled_graphs import pages

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.compile,
    pytest.mark.timeout(1200),
    pytest.mark.long("takes minutes"),
]
RANK = """
import torch, opforge
def step(x):
    return (x * 2).sin().softmax(-1)
with opforge.compiled("ranks") as graphs:
    got = torch.compile(step)(torch.ones(4, 6))
assert torch.allclose(got, step(torch.ones(4, 6)))
print(graphs.found, len(graphs.compiled))
"""
COUNTING = """#!/bin/sh
case "$*" in *.cpp*) echo "$*" >> {log} ;; esac
exec g++ "$@"
"""


@pytest.fixture
def job(tmp_path):
    """Returns a function that starts so many ranks, and gives what each printed and how often a compiler ran."""
    compiler, log = tmp_path / "counting", tmp_path / "log"
    compiler.write_text(COUNTING.format(log=log))
    compiler.chmod(stat.S_IRWXU)

    def run(name, ranks):
        log.write_text("")
        env = {
            "OPFORGE_CACHE_DIR": str(tmp_path / name / "store"),
            "OPFORGE_COMPILED_WAIT": "900",
            "CXX": str(compiler),
        }
        processes = [
            child_processes.start_python(RANK, env={**env, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name / str(rank))})
            for rank in range(ranks)
        ]
        printed = []
        for process in processes:
            out, err = process.communicate(timeout=900)
            assert process.returncode == 0, err
            printed.append(tuple(map(int, out.split())))
        assert len(pages(tmp_path / name / "store")) == 1
        return sorted(printed), len(log.read_text().splitlines())

    return run


def test_eight_cold_ranks_compile_as_often_as_one(job):
    alone, runs = job("alone", 1)
    assert alone == [(0, 1)] and runs > 0
    together, all_runs = job("together", 8)
    assert together == [(0, 1)] + [(1, 0)] * 7
    assert all_runs <= 1.2 * runs
    again, none = job("together", 2)
    assert again == [(1, 0)] * 2 and none == 0
