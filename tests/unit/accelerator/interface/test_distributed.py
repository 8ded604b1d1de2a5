"""Starting torch.distributed with an accelerator's backend."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch.distributed
from support.devices import vendor_modules
from support.processes import forked_python

import opforge
from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.errors import CommunicationError

RANK = """
import os, torch, torch.distributed as distributed
from opforge import get_accelerator
accelerator, rank = get_accelerator(), int(os.environ["LOCAL_RANK"])
assert accelerator.current_device() == rank and accelerator.device_count() == 1
accelerator.set_device(rank)
with accelerator.device(torch.device("cpu", rank)):
    accelerator.init_distributed()
accelerator.init_distributed(init_method="file:///nowhere/that/exists", rank=7, world_size=9)  # it has begun already
assert (distributed.get_backend(), distributed.get_world_size()) == ("gloo", 2)
value = torch.full((4,), rank + 1.0, device=accelerator.current_device_name())
accelerator.synchronize(rank)
distributed.all_reduce(value)
# Not to the output, which the ranks share: torch 2.10 writes lines of gloo's there, in parts.
with open(f"{rank}.txt", "w") as file:
    file.write(f"rank {rank} on device {accelerator.current_device()} has {value.sum().item()}")
distributed.destroy_process_group()
"""


@pytest.fixture
def started_with(monkeypatch):
    """The options that torch gets at each start, instead of starting anything."""
    calls = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: True)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda **options: calls.append(options))
    return calls


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch is built without torch.distributed")
@pytest.mark.test_all("three processes with torch; tests/spine launches ranks")
def test_two_ranks_of_torchrun_share_one_numa_node_and_a_second_start_does_nothing(tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    python = forked_python.python()  # --no-python: the ranks are forked too
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python", python]
    environment = dict(
        os.environ,
        PYTHONPATH=os.path.dirname(next(iter(opforge.__path__))),
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
        OPFORGE_ACCELERATOR="cpu",
        OPFORGE_VISIBLE_NUMA_NODES="0",
    )
    done = subprocess.run(
        [*command, "rank.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    texts = [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)]
    assert texts == [f"rank {rank} on device {rank} has 12.0" for rank in range(2)]


def test_options_are_passed_to_torch_and_can_name_another_backend(started_with):
    CPUAccelerator().init_distributed(timeout=5)
    CPUAccelerator().init_distributed(backend="cpu:gloo,cuda:nccl", rank=1)
    assert started_with == [{"backend": "gloo", "timeout": 5}, {"backend": "cpu:gloo,cuda:nccl", "rank": 1}]


def test_every_vendor_starts_its_own_backend(started_with, monkeypatch, tmp_path):
    import types

    hccl = "habana_frameworks.torch.distributed.hccl"
    for name in vendor_modules.VENDORS:
        accelerator, _ = vendor_modules.install(name, monkeypatch, tmp_path)
        if name == "hpu":
            monkeypatch.setitem(sys.modules, hccl.rpartition(".")[0], types.ModuleType("distributed"))
            monkeypatch.setitem(sys.modules, hccl, types.ModuleType("hccl"))
        accelerator.init_distributed()
        assert started_with[-1] == {"backend": accelerator.communication_backend_name()}
    assert len(started_with) == len(vendor_modules.VENDORS)


def test_a_torch_without_distributed_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(CommunicationError) as raised:
        CPUAccelerator().init_distributed()
    assert str(raised.value) == (
        "torch.distributed cannot start the backend 'gloo' for the accelerator 'cpu': this torch is built without"
        " torch.distributed. Install what provides it, or choose another, such as init_distributed(backend='gloo')."
    )


def test_a_backend_that_torch_lacks_is_an_error_with_its_name(monkeypatch, tmp_path):
    accelerator, _ = vendor_modules.install("npu", monkeypatch, tmp_path)
    with pytest.raises(
        CommunicationError, match="the backend 'hccl' for the accelerator 'npu': this torch has no such"
    ):
        accelerator.init_distributed()
    with pytest.raises(
        CommunicationError, match="the backend 'smoke' for the accelerator 'npu': this torch has no such"
    ):
        accelerator.init_distributed(backend="cpu:gloo,npu:smoke")


def test_a_backends_package_that_cannot_be_imported_is_the_reason(started_with, monkeypatch, tmp_path):
    accelerator, _ = vendor_modules.install("hpu", monkeypatch, tmp_path)
    with pytest.raises(CommunicationError, match=r"'hccl' .* its package cannot be imported: "):
        accelerator.init_distributed()
    accelerator.init_distributed(backend="gloo")
    assert started_with == [{"backend": "gloo"}]
