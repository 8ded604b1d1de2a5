"""A program that was written for one vendor runs on the CPU after it is ported."""

from __future__ import annotations

import pytest
from support import child_processes

pytest.importorskip("libcst", reason="pip install 'opforge[port]'")

from opforge.port.files import port_file

PROGRAM = '''"""Fits a line, in code written for one vendor."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.cuda.amp import autocast


class Line(nn.Module):
    def __init__(self, device="cuda"):
        super().__init__()
        self.layer = nn.Linear(1, 1, device=device)

    def forward(self, x):
        assert x.is_cuda and x.device.type == "cuda"
        return self.layer(x.cuda(non_blocking=True))


def main(rank: int):
    torch.cuda.set_device(rank)
    torch.cuda.manual_seed_all(0)
    dist.init_process_group("nccl", init_method=os.environ["STORE"], rank=rank, world_size=1)
    device = torch.device("cuda", torch.cuda.current_device())
    model = nn.parallel.DistributedDataParallel(Line().cuda(rank))
    x = torch.linspace(-1, 1, 16).reshape(16, 1).pin_memory().to(device, non_blocking=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(200):
        torch.cuda.nvtx.range_push("step")
        with torch.cuda.stream(torch.cuda.Stream()):
            with autocast(enabled=False):
                loss = ((model(x) - 3 * x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.nvtx.range_pop()
    end.record()
    torch.cuda.synchronize(device=f"cuda:{rank}")
    with torch.cuda.device(rank):
        state = torch.cuda.get_rng_state(rank)
        torch.cuda.set_rng_state(state, device=rank)
    assert start.elapsed_time(end) > 0 and torch.cuda.default_generators[0].initial_seed() == 0
    assert torch.cuda.get_device_properties(0).total_memory > 0 <= torch.cuda.memory_allocated(rank)
    torch.cuda.empty_cache()
    torch.save(model.state_dict(), "model.pt")
    torch.load("model.pt", map_location=f"cuda:{rank}")
    dist.destroy_process_group()
    print(torch.cuda.device_count() > 0, loss.item() < 1e-3)


if __name__ == "__main__":
    main(0)
'''


def test_a_ported_program_runs_on_the_cpu(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    result = port_file(str(path), write=True)
    assert (result.problem, result.left) == ("", 0) and result.changes > 20
    text = path.read_text()
    assert "cuda" not in text.replace("from torch.cuda.amp import autocast", "")
    env = {"OPFORGE_ACCELERATOR": "cpu", "STORE": f"file://{tmp_path / 'store'}"}
    assert child_processes.run_with_torch(text, env=env, cwd=tmp_path).split() == ["True", "True"]
