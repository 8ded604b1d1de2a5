"""A real GPU: chosen without a CUDA context, then used for streams, graphs, memory, ranges and pinning."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import opforge
from opforge.accelerator import Target
from opforge.accelerator.devices.cuda import CUDAAccelerator
from opforge.accelerator.vendors import nvml

_reason = CUDAAccelerator().unavailable_reason()
pytestmark = [pytest.mark.device, pytest.mark.skipif(bool(_reason), reason=f"needs a CUDA or ROCm device: {_reason}")]

MIB = 1 << 20
CHOOSE = """
import os, sys, torch
from opforge.accelerator import candidates, get_accelerator
accelerator = get_accelerator()
assert accelerator.name == "cuda", accelerator.name
assert any(candidate.name == "cuda" and candidate.available for candidate in candidates())
assert not torch.cuda.is_initialized()
paths = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if
         os.path.islink(f"/proc/self/fd/{number}")]
assert not [path for path in paths if path.startswith(("/dev/nvidia", "/dev/kfd"))], paths
child = os.fork()
if child == 0:
    value = torch.arange(10, device=accelerator.device_name()).sum().item()
    os._exit(0 if value == 45 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the fork could not use the device"
print(torch.ones(3, device=accelerator.device_name()).sum().item())
"""


@pytest.fixture(scope="module")
def accelerator():
    return CUDAAccelerator()


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the code in a new process without a setting that names an accelerator."""
    environment = dict(os.environ, PYTHONPATH=os.path.dirname(next(iter(opforge.__path__))), **variables)
    for name in ("OPFORGE_ACCELERATOR", "DS_ACCELERATOR", "PYTORCH_NVML_BASED_CUDA_CHECK"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc/self/fd")
def test_choosing_opens_no_device_and_a_fork_can_use_it():
    done = run(CHOOSE)
    assert (done.returncode, done.stdout) == (0, "3.0\n"), done.stderr


def test_the_cpu_is_chosen_if_devices_are_hidden_and_naming_cuda_is_an_error():
    code = "from opforge.accelerator import get_accelerator, set_accelerator; print(get_accelerator().name)\n"
    code += "try: set_accelerator('cuda')\nexcept RuntimeError as error: print(error)"
    done = run(code, CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="")
    assert done.stdout.startswith("cpu\n") and "_VISIBLE_DEVICES=''" in done.stdout, done.stdout + done.stderr


def test_streams_wait_for_each_other(accelerator):
    side, result = accelerator.Stream(), torch.zeros(1 << 20, device="cuda")
    side.wait_stream(accelerator.current_stream())
    with accelerator.stream(side):
        assert accelerator.current_stream() == side
        for _ in range(50):
            result.add_(1)
    accelerator.current_stream().wait_stream(side)
    assert result.sum().item() == 50 * (1 << 20)


def test_events_time_the_devices_work(accelerator):
    start, end = accelerator.Event(enable_timing=True), accelerator.Event(enable_timing=True)
    start.record()
    torch.cuda._sleep(10_000_000)
    end.record()
    assert not end.query()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) > 1


def test_a_graph_captures_without_running_and_replays(accelerator):
    inputs, graph = torch.ones(64, device="cuda"), accelerator.create_graph()
    torch.relu(inputs)  # a capture may not initialise the allocator or load the kernel
    with accelerator.capture_to_graph(graph):
        assert accelerator.is_current_stream_capturing()
        result = torch.relu(inputs) * 2
    assert not accelerator.is_current_stream_capturing()
    for value in (3.0, 5.0):
        inputs.fill_(value)
        accelerator.replay_graph(graph)
        accelerator.synchronize()
        assert result.tolist() == [2 * value] * 64


def test_pinned_memory_is_copied_asynchronously(accelerator):
    pinned = accelerator.pin_empty(1024, dtype=torch.float32)
    assert accelerator.is_pinned(pinned)
    pinned.fill_(7)
    copy = pinned.to("cuda", non_blocking=True)
    accelerator.synchronize()
    assert copy.sum().item() == 7 * 1024
    assert accelerator.is_pinned(accelerator.pin_memory(torch.ones(3))) and not accelerator.is_pinned(torch.ones(3))


def test_host_memory_is_registered_for_the_device(accelerator):
    memory = torch.ones(1 << 20, dtype=torch.uint8)
    assert accelerator.register_host_memory(memory.data_ptr(), memory.numel()) is True
    try:
        assert accelerator.is_pinned(memory)
    finally:
        accelerator.unregister_host_memory(memory.data_ptr())
    assert not accelerator.is_pinned(memory)


def test_memory_figures_follow_an_allocation(accelerator):
    accelerator.empty_cache()
    accelerator.reset_peak_memory_stats()
    before, (free_before, total) = accelerator.memory_allocated(), accelerator.mem_get_info()
    block = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    accelerator.synchronize()
    assert accelerator.memory_allocated() - before == 256 * MIB
    assert accelerator.max_memory_allocated() >= before + 256 * MIB
    assert accelerator.memory_reserved() >= accelerator.memory_allocated()
    free, total_now = accelerator.mem_get_info()
    assert total_now == total == accelerator.total_memory() and free_before - free >= 200 * MIB
    del block
    accelerator.empty_cache()
    assert accelerator.available_memory() > free


def test_free_memory_excludes_what_another_process_uses(accelerator):
    accelerator.synchronize()
    before = accelerator.available_memory()
    code = f"import torch; block = torch.empty({512 * MIB}, dtype=torch.uint8, device='cuda'); print(1, flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "1\n"
            assert before - accelerator.available_memory() >= 500 * MIB
        finally:
            other.kill()


@pytest.mark.skipif(torch.version.hip is not None, reason="NVML is NVIDIA's")
def test_nvml_and_cuda_report_the_same(accelerator):
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py (pip install 'opforge[cuda]')")
    accelerator.synchronize()
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    by_number, by_uuid = nvml.memory_info(0), nvml.memory_info(0, uuid)
    assert abs(by_number[0] - by_uuid[0]) < 64 * MIB and by_number[1] == by_uuid[1]
    assert abs(by_uuid[0] - torch.cuda.mem_get_info(0)[0]) < 2048 * MIB
    assert nvml.compute_capabilities()[0] == torch.cuda.get_device_capability(0)


def test_ranges_can_be_opened_and_closed(accelerator):
    accelerator.range_push("outer", domain="tests", category="device")
    accelerator.range_push("inner")
    accelerator.range_pop()
    accelerator.range_pop("tests")


def test_the_generators_state_can_be_saved_and_restored(accelerator):
    accelerator.manual_seed_all(5)
    state = accelerator.get_rng_state(0)
    first = torch.rand(8, device="cuda:0")
    accelerator.set_rng_state(state, 0)
    assert torch.equal(torch.rand(8, device="cuda:0"), first)


def test_capabilities_are_those_of_the_gpu(accelerator):
    capabilities, properties = accelerator.capabilities(), torch.cuda.get_device_properties(0)
    assert capabilities.device == "cuda" and capabilities.device_name == properties.name
    assert capabilities.device_count == torch.cuda.device_count()
    assert capabilities.total_memory == properties.total_memory
    assert capabilities.graphs and {"float32", "float64"} <= set(capabilities.dtypes)
    if torch.version.hip is None:
        assert capabilities.compute_capability == torch.cuda.get_device_capability()
        assert f"sm_{properties.major}{properties.minor}" in accelerator.target().arch
    assert Target.parse(str(accelerator.target())) == accelerator.target()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch is built without torch.distributed")
def test_the_accelerator_starts_nccl(tmp_path):
    code = (
        "import sys, torch; from opforge.accelerator.devices.cuda import CUDAAccelerator\n"
        "CUDAAccelerator().init_distributed(init_method='file://' + sys.argv[1], rank=0, world_size=1)\n"
        "value = torch.ones(3, device='cuda'); torch.distributed.all_reduce(value)\n"
        "print(torch.distributed.get_backend(), value.sum().item()); torch.distributed.destroy_process_group()\n"
    ).replace("sys.argv[1]", repr(str(tmp_path / "rendezvous")))
    done = run(code)
    assert (done.returncode, done.stdout) == (0, "nccl 3.0\n"), done.stderr
