"""Ranks that communicate inside a function: each compiles without a call, and finds it the next time."""

from __future__ import annotations

import os
import sys

import pytest
from support import child_processes, text_files
from support.processes import forked_python
from support.remote.servers import free_port

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.compile, pytest.mark.timeout(1200)]
MODEL = """
import torch
import torch.distributed._functional_collectives as collectives
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(6, 6)
    def forward(self, x):
        gathered = collectives.all_gather_tensor(self.inner(x), 0, "0")
        # A mean of a few numbers each: a sine of a large sum would show in which order it was added up.
        return collectives.all_reduce(gathered.mean(0, keepdim=True), "sum", "0").sin()
"""
RANK = """
import os, sys
sys.path.insert(0, os.environ["FOLDER"])
import torch, opforge, rank_model, torch._inductor.config
torch._inductor.config.fallback_by_default = True  # torch's own kernels: no C++ is compiled
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model, x = rank_model.Model(), torch.full((2, 6), 1.0 + torch.distributed.get_rank())
wrapped = opforge.compile(model, "ranks")
with torch.no_grad():
    got, expected = wrapped(x), model(x)
torch.testing.assert_close(got, expected)
print(wrapped.found, wrapped.compiled, wrapped.problem)
torch.distributed.barrier()
os._exit(0) if not sys.stdout.flush() else None
"""


def ranks(folder, count, port, model=MODEL, **variables):
    """Starts so many ranks; returns what each printed."""
    text_files.write(folder, "rank_model.py", model)
    env = {
        **variables,
        "FOLDER": str(folder),
        "OPFORGE_CACHE_DIR": str(folder / "store"),
        "OPFORGE_COMPILED_WAIT": "900",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count),
    }
    # A variable of torch's is read where its compiler is imported.
    python = sys.executable if variables else os.path.join(forked_python.commands(compiling=True), "python")
    processes = [child_processes.start_python(RANK, python, env={**env, "RANK": str(rank)}) for rank in range(count)]
    printed = []
    for process in processes:
        out, err = process.communicate(timeout=1000)
        assert process.returncode == 0, err
        printed.append(out.strip())
    return sorted(printed)


def test_two_ranks_wait_for_no_collective_and_find_what_they_compiled(tmp_path):
    assert ranks(tmp_path, 2, free_port()) == ["0 1"] * 2
    assert ranks(tmp_path, 2, free_port()) == ["1 0"] * 2


@pytest.mark.long("eight processes that import torch")
def test_eight_ranks(tmp_path):
    assert ranks(tmp_path, 8, free_port()) == ["0 1"] * 8
    assert ranks(tmp_path, 8, free_port()) == ["1 0"] * 8


def for_all(folder, count, **named):
    """Starts ranks with torch's setting that a graph is compiled by one of them; returns what each printed."""
    return ranks(folder, count, free_port(), TORCH_COMPILE_ON_ONE_RANK="1", **named)


@pytest.fixture
def has_graphs_for_all():
    """Whether this torch has the setting."""
    import torch.compiler.config

    if not hasattr(torch.compiler.config, "compile_on_one_rank"):
        pytest.skip("torch has graphs for all ranks from 2.14 on")


def test_one_rank_compiles_for_all_where_torch_is_asked_for_that(tmp_path, has_graphs_for_all):
    assert for_all(tmp_path, 2) == ["0 1", "1 0"]
    assert for_all(tmp_path, 2) == ["1 0"] * 2


def test_what_names_the_rank_is_compiled_by_each(tmp_path, has_graphs_for_all):
    branch = "if torch.distributed.get_rank() == 0:\n            x = x + 1\n        "
    model = MODEL.replace("gathered = ", f"{branch}gathered = ", 1)
    assert for_all(tmp_path, 2, model=model) == ["0 1"] * 2
    assert for_all(tmp_path, 2, model=model) == ["1 0"] * 2


@pytest.mark.long("eight processes that import torch")
def test_one_of_eight_ranks_compiles(tmp_path, has_graphs_for_all):
    assert for_all(tmp_path, 8) == ["0 1", *["1 0"] * 7]
    assert for_all(tmp_path, 8) == ["1 0"] * 8
