"""Two ranks of DeepSpeed on opforge: its inference_all_reduce goes through opforge's shared memory."""

from __future__ import annotations

import pytest
from support import deepspeed_job

from opforge.builders.cpu.share_mem_comm import ShareMemCommBuilder

if not deepspeed_job.is_installed():
    pytest.skip(deepspeed_job.MISSING, allow_module_level=True)

PROGRAM = """
import json, os, opforge.compat.deepspeed as compat
compat.install()
import torch, deepspeed, deepspeed.comm as dist
deepspeed.init_distributed("gloo")
rank, results = dist.get_rank(), {}
for dtype in (torch.float32, torch.bfloat16, torch.float64):
    x = torch.full((3, 4), rank + 1).to(dtype)[:, ::2]
    dist.inference_all_reduce(x)
    results[str(dtype)] = x.unique().tolist()
from opforge.ops.shm import inference
results["ours"] = inference._World.group.size
files = [name for name in os.listdir("/dev/shm") if "deepspeed" in name]
results["files"] = [name for name in files if os.environ["MASTER_PORT"] in name]
dist.barrier()
print(json.dumps(results))
"""


@pytest.mark.long("imports DeepSpeed in two ranks")
def test_inference_all_reduce_of_two_ranks(builds_are_shared, tmp_path):
    ShareMemCommBuilder().load()
    results = deepspeed_job.run_two_ranks(PROGRAM, tmp_path, LOCAL_SIZE="1")
    sums = {"torch.float32": [3.0], "torch.bfloat16": [3.0], "torch.float64": [3.0]}
    assert results == [{**sums, "ours": 2, "files": []}] * 2
