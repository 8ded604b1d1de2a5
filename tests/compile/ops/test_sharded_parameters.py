"""Optimizers over parameters that are sharded over two processes: DTensors, and FSDP2's."""

from __future__ import annotations

import pytest
from support import child_processes
from support.processes import forked_python

from opforge.ops.host_op import host_op

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]

RANK = """
import os, copy, torch, torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, DTensor, distribute_tensor, init_device_mesh
from opforge.ops import CPUAdam, CPULion, FusedAdam, FusedLamb

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", store=dist.FileStore(os.environ["STORE"], 2), rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))


def sharded(values, *placements):
    param = torch.nn.Parameter(distribute_tensor(values.clone(), mesh, placements))
    param.grad = distribute_tensor(torch.ones_like(values), mesh, placements)
    return param


def whole(values):
    param = torch.nn.Parameter(values.clone())
    param.grad = torch.ones_like(param)
    return param


torch.manual_seed(0)
values = torch.randn(5, 3)  # one process has 3 of the rows, the other has 2
for kind, placement in [(CPUAdam, Shard(0)), (FusedAdam, Shard(1)), (CPULion, Replicate()), (FusedLamb, Replicate())]:
    param, other, plain = sharded(values, placement), whole(values * 2), whole(values)
    optimizer, peer = kind([param, other], lr=0.1), kind([plain], lr=0.1)
    for _ in range(2):
        optimizer.step()
        peer.step()
    assert torch.equal(param.full_tensor(), plain), kind
    assert isinstance(optimizer.state[param]["exp_avg"], DTensor)


def error_of(optimizer):
    try:
        optimizer.step()
    except RuntimeError as error:
        return str(error)


partial = sharded(values, Replicate())
partial.grad = DTensor.from_local(torch.ones(5, 3), mesh, [Partial()])
first, second = error_of(CPUAdam([partial])), error_of(FusedLamb([sharded(values, Shard(0))]))
assert torch.equal(partial.full_tensor(), values)

flat = FullyShardedDataParallel(torch.nn.Linear(8, 7), use_orig_params=True, device_id=torch.device("cpu"))
flat(torch.ones(2, 8)).sum().backward()
third = error_of(FusedLamb(flat.parameters()))

model = torch.nn.Sequential(torch.nn.Linear(8, 7), torch.nn.Linear(7, 3))
plain = copy.deepcopy(model)
for part in [*model, model]:
    fully_shard(part, mesh=mesh)
optimizer, peer = CPUAdam(model.parameters(), lr=0.1), torch.optim.AdamW(plain.parameters(), lr=0.1, weight_decay=0.0)
for step in range(3):
    for module, its_optimizer in ((model, optimizer), (plain, peer)):
        module(torch.full((2, 8), step + 1.0)).square().mean().backward()
        its_optimizer.step()
        its_optimizer.zero_grad()
    set_optimizer_state_dict(model, optimizer, get_optimizer_state_dict(model, optimizer))
for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
    torch.testing.assert_close(mine.full_tensor(), other)
dist.barrier()
dist.destroy_process_group()
print(first, second, third, sep="\\n")
"""


def test_each_process_updates_its_part_and_rules_that_need_whole_parameters_are_rejected(tmp_path, shared_store):
    for builder in ("CPUAdamBuilder", "FusedAdamBuilder", "CPULionBuilder", "FusedLambBuilder"):
        host_op(builder)  # a rank that builds lets the other one wait
    env = {"STORE": str(tmp_path / "ranks"), "OPFORGE_CACHE_DIR": str(shared_store)}
    other = child_processes.start_python(RANK, forked_python.python(), env={**env, "RANK": "1"})
    try:
        output = child_processes.run_with_torch(RANK, env={**env, "RANK": "0"})
        _, err = other.communicate(timeout=60)
    finally:
        other.kill()
    assert other.returncode == 0, err
    assert output.splitlines() == [
        "CPUAdam: the gradient of a parameter of shape (5, 3) is sharded over processes as (Partial(sum),), expected "
        "that of the parameter, (Replicate(),): redistribute it",
        "FusedLamb: a parameter of shape (5, 3) is sharded over processes as (Shard(dim=0),), expected a whole one: "
        "the rule needs norms of whole parameters; use an optimizer such as FusedAdam, or DistributedDataParallel",
        "FusedLamb: a parameter of shape (32,) is FullyShardedDataParallel's, which splits and joins parameters, "
        "expected a whole one: the rule needs norms of whole parameters; use an optimizer such as FusedAdam, or "
        "DistributedDataParallel",
    ]
