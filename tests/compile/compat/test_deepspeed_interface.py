"""Every name of DeepSpeed's accelerator interface, on each device, and DeepSpeed's own use of it on two ranks."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch
from support import child_processes, deepspeed_job
from support.paths import CHECKOUT

if not deepspeed_job.is_installed():
    pytest.skip(deepspeed_job.MISSING, allow_module_level=True)

PROGRAM = "from support.compat import deepspeed_interface; deepspeed_interface.main()"


@pytest.fixture(scope="module")
def printed():
    """What the program printed: the page's table, and the names that differ."""
    output = child_processes.run_with_torch(PROGRAM, timeout=280, env={"DS_ACCELERATOR": "cpu"})
    return json.loads(output.splitlines()[-1])


@pytest.mark.skipif(torch.__version__[:5] != "2.13.", reason="the page is of torch 2.13: xpu has other functions")
def test_the_page_has_what_each_name_returns_on_each_device(printed):
    text = pathlib.Path(CHECKOUT, "docs/deepspeed-interface.md").read_text()
    table = text[text.index("| name |") :].strip()
    assert table == printed["page"], "print the table by: python tests/support/compat/deepspeed_interface.py"


def test_what_differs_on_purpose_is_a_row_of_the_migration_guide(printed):
    text = pathlib.Path(CHECKOUT, "docs/migrating.md").read_text()
    rows = text[text.index("These differ on purpose") : text.index("Further methods")]
    makers = {name for name in printed["differences"] if name.endswith("Tensor")} - {"BFloat16Tensor"}  # one row
    assert [name for name in printed["differences"] if name not in makers and f"`{name}" not in rows] == []


BEFORE = """
import json, os, pathlib, tempfile
import pytest, torch
from support.devices import vendor_modules

patch = pytest.MonkeyPatch()
ours, fake = vendor_modules.install("cuda", patch, pathlib.Path(tempfile.mkdtemp(dir=os.environ["HOME"])))
# What torch asks of an accelerator that it is built for.
patch.setattr(torch.accelerator, "current_accelerator", lambda *args, **kwargs: torch.device("cuda"))
patch.setattr(torch.accelerator, "device_count", lambda: 2)
import opforge
import opforge.compat.deepspeed as compat
opforge.set_accelerator(ours)
passed = []
compat.install()
import deepspeed, deepspeed.comm as dist
from deepspeed.accelerator import get_accelerator
"""
RANK = """
init = torch.distributed.init_process_group
def recorded(backend, *, device_id=None, **options):
    passed.append(device_id)
    return init(backend, device_id=device_id, **options)
recorded.__signature__ = __import__("inspect").signature(init)
torch.distributed.init_process_group = recorded
deepspeed.init_distributed("gloo")
ones = torch.ones(3)
dist.all_reduce(ones)
print(json.dumps({"device": str(passed[0]), "bound": str(torch.distributed.group.WORLD.bound_device_id),
    "sum": ones.tolist(), "name": get_accelerator()._name, "rank": dist.get_rank()}), flush=True)
dist.all_reduce(torch.ones(1))
os._exit(0)  # gloo's threads end the process by an error at times, if its other rank has gone before
"""


def test_two_ranks_start_on_cuda_and_bind_their_devices(tmp_path):
    results = deepspeed_job.fork_two_ranks(BEFORE, RANK, tmp_path)
    assert results == [
        {
            "device": f"cuda:{rank}",
            "bound": f"cuda:{rank}",
            "sum": [2.0] * 3,
            "name": "cuda",
            "rank": rank,
        }
        for rank in range(2)
    ]
