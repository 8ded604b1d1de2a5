"""Two ranks of DeepSpeed on opforge: its inference_all_reduce goes through opforge's shared memory."""

from __future__ import annotations

import json
import os
import socket

import pytest
from support import child_processes, deepspeed_job

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
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_SIZE": "1"}
    job |= {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    ranks = [{"RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    processes = [child_processes.start_python(PROGRAM, env={**os.environ, **job, **rank}) for rank in ranks]
    try:
        for process in processes:
            out, err = process.communicate(timeout=200)
            assert process.returncode == 0, out + err
            results = json.loads(out.splitlines()[-1])
            assert results == {
                "torch.float32": [3.0],
                "torch.bfloat16": [3.0],
                "torch.float64": [3.0],
                "ours": 2,
                "files": [],
            }
    finally:
        for process in processes:
            process.kill()
            process.wait()
