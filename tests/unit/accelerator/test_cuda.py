"""NVIDIA's and AMD's devices: what the driver tells without being opened, and what CUDA and NVML are asked."""

from __future__ import annotations

import multiprocessing
import os
import sys
from types import SimpleNamespace

import pytest
import torch
from support.devices import vendor_modules
from support.devices.fake_nvml import DIVIDED, TWO, Nvml, free, serve
from support.devices.vendor_modules import FREE, TOTAL

from opforge.accelerator import Target, candidates, select
from opforge.accelerator.devices import cuda
from opforge.accelerator.vendors import nvidia, nvml, rocm

INFORMATION = "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-{}\nDevice Minor: \t 0\n"


@pytest.fixture
def made(monkeypatch, tmp_path):
    """(accelerator, its recorded device) on a machine with two NVIDIA GPUs, CUDA not started."""
    monkeypatch.setattr(nvml, "_started", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    accelerator, device = vendor_modules.install("cuda", monkeypatch, tmp_path)
    monkeypatch.setattr(accelerator._device_module(), "is_initialized", lambda: False)
    return accelerator, device


@pytest.fixture
def hip(made, monkeypatch, tmp_path):
    accelerator, device = made
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "7.1.25424")
    vendor_modules.write_files(
        tmp_path,
        {
            "dev/kfd": "",
            "sys/class/kfd/kfd/topology/nodes/0/gpu_id": "0\n",
            "sys/class/kfd/kfd/topology/nodes/1/gpu_id": "51110\n",
        },
    )
    device.properties.gcnArchName = "gfx942:sramecc+:xnack-"
    return accelerator, device


def test_the_made_up_nvml_has_the_real_ones_names():
    real = pytest.importorskip("pynvml", reason="needs nvidia-ml-py (pip install 'opforge[cuda]')")
    assert {name for name in vars(Nvml) if not name.startswith("__")} <= set(dir(real))


def test_two_files_of_the_driver_are_two_devices(made):
    assert made[0].is_available() and made[0].unavailable_reason() == ""


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (None, "no driver: libcuda.so.1 cannot be loaded"),
        (
            (12, 4),
            "the driver is too old: it speaks CUDA 12.4, and this torch is built with 13.0; update the driver, or"
            " install a torch for CUDA 12",
        ),
    ],
)
def test_a_driver_that_is_missing_or_too_old_is_the_reason(made, monkeypatch, driver, reason):
    monkeypatch.setattr(nvidia, "driver_version", lambda: driver)
    assert made[0].unavailable_reason() == reason


def test_a_driver_of_the_same_major_is_new_enough(made, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    assert made[0].is_available()


def test_the_real_drivers_version_is_read_or_missing():
    version = nvidia.driver_version()
    assert version is None or version >= (9, 0)


def test_a_torch_without_cuda_says_so(made, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert made[0].unavailable_reason() == f"this torch ({torch.__version__}) is built without CUDA and without ROCm"


def test_a_driver_without_devices_says_so(made, monkeypatch, tmp_path):
    monkeypatch.setattr(type(made[0]), "root", str(tmp_path / "elsewhere"))
    assert made[0].unavailable_reason() == "no device: there is no /dev/nvidia[0-9]* that this process may open"
    vendor_modules.write_files(tmp_path / "elsewhere", {"dev/dxg": ""})
    assert made[0].is_available()


@pytest.mark.parametrize("value", ["", "-1", "2", "NoDevFiles", "0,0", "GPU-cc"])
def test_a_variable_that_leaves_no_device_is_the_reason(made, monkeypatch, tmp_path, value):
    vendor_modules.write_files(tmp_path, {"proc/driver/nvidia/gpus/0000:01:00.0/information": INFORMATION.format("aa")})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert made[0].unavailable_reason() == f"CUDA_VISIBLE_DEVICES={value!r} leaves none of 2 devices"


@pytest.mark.parametrize("value", ["1", "1,0", "GPU-aa", "MIG-1234"])
def test_a_variable_that_leaves_some_is_heeded(made, monkeypatch, tmp_path, value):
    vendor_modules.write_files(tmp_path, {"proc/driver/nvidia/gpus/0000:01:00.0/information": INFORMATION.format("aa")})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert made[0].is_available()


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        (None, None),
        ("", ()),
        ("0,1", ("0", "1")),
        (" 1 , 0 ", ("1", "0")),
        ("1gpu,02", ("1", "2")),
        ("0,-1,1", ("0",)),
        ("0,,1", ("0",)),
        ("1,1", ()),
        ("GPU-a,GPU-b,0", ("GPU-a", "GPU-b")),
        ("0,GPU-a", ("0",)),
        ("MIG-a,GPU-b", ("MIG-a",)),
        ("MIG-GPU-a/1/0", ("MIG-GPU-a/1/0",)),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(monkeypatch, value, entries):
    if value is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert nvidia.visible_devices() == entries


def use_in_child(pipe):
    module = torch.get_device_module("cuda")
    pipe.send((module.device_count(), module.is_initialized()))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_probe_opens_no_device_and_a_fork_can_use_it(made, monkeypatch):
    accelerator, _ = made
    module, opened = accelerator._device_module(), []
    for name in ("device_count", "is_available", "current_device", "get_device_properties", "get_device_capability"):
        monkeypatch.setattr(module, name, lambda *given, name=name: opened.append(name) or 1)
    monkeypatch.setattr(select, "entry_points", lambda group: [])
    monkeypatch.setattr(select, "DRIVER_FILES", {**dict.fromkeys(select.DRIVER_FILES, ()), "cuda": ("/dev/null",)})
    monkeypatch.setattr(select, "_active", None)
    assert select.get_accelerator().name == "cuda"
    assert all(candidate.reason for candidate in candidates())
    assert opened == []
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=use_in_child, args=(theirs,))
    child.start()
    assert ours.poll(30) and ours.recv() == (1, False)
    child.join(30)
    assert child.exitcode == 0


@pytest.mark.parametrize(
    ("variable", "index", "expected"),
    [
        (None, 0, "GPU-aaaa-1"),
        (None, 1, "GPU-aabb-2"),
        ("1,0", 0, "GPU-aabb-2"),
        ("GPU-aabb", 0, "GPU-aabb-2"),
        ("GPU-aab,GPU-aaa", 1, "GPU-aaaa-1"),
    ],
)
def test_free_memory_is_of_the_device_that_cuda_numbers_so(made, monkeypatch, variable, index, expected):
    serve(monkeypatch, *TWO)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert nvml.memory(index) == (free(expected), TOTAL)
    assert made[0].available_memory(index) == free(expected)
    assert made[0].mem_get_info(index) == (min(free(expected), TOTAL), TOTAL)


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, "MIG-dddd-7"),
        ("0", "MIG-dddd-7"),
        ("MIG-eeee-8", "MIG-eeee-8"),
        ("MIG-e", "MIG-eeee-8"),
        ("1", "GPU-aabb-2"),
    ],
)
def test_the_parts_of_a_divided_gpu_have_memory_of_their_own(made, monkeypatch, variable, expected):
    serve(monkeypatch, *DIVIDED)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert made[0].available_memory() == free(expected)


def test_a_generator_can_be_had_before_anything_has_started_cuda(made, monkeypatch):
    accelerator, device = made
    module = accelerator._device_module()
    monkeypatch.setattr(module, "default_generators", ())  # as torch has it until then
    monkeypatch.setattr(module, "init", lambda: setattr(module, "default_generators", tuple(device.generators)))
    assert accelerator.default_generator(1) is device.generators[1]


def test_a_started_cuda_names_its_device_itself(made, monkeypatch):
    accelerator, device = made
    serve(monkeypatch, *TWO)
    monkeypatch.setattr(accelerator._device_module(), "is_initialized", lambda: True)
    device.properties.uuid = "aabb-2"
    assert accelerator.available_memory(0) == free("GPU-aabb-2")


@pytest.mark.parametrize("value", ["GPU-aa", "GPU-cc", "7"])
def test_an_id_that_names_no_device_or_several_leaves_the_answer_to_torch(made, monkeypatch, value):
    serve(monkeypatch, *TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(nvml.NvmlUnavailableError, match="NVML sees 0 devices that this process may use, and no cuda:0"):
        nvml.memory(0)
    assert made[0].available_memory() == FREE


def test_different_models_are_numbered_alike_only_by_place(made, monkeypatch):
    serve(monkeypatch, ("GPU-1", "A100", (8, 0), None), ("GPU-2", "H200", (9, 0), None))
    with pytest.raises(nvml.NvmlUnavailableError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        nvml.memory(0)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert nvml.memory(1) == (free("GPU-2"), TOTAL)


def test_without_nvml_torch_is_asked_and_the_log_says_why(made, caplog):
    caplog.set_level("DEBUG", logger="opforge")
    assert made[0].mem_get_info() == (FREE, TOTAL)
    assert (
        "cuda: free memory is asked of torch: the package nvidia-ml-py is not installed (pip install 'opforge[cuda]')"
        in caplog.text
    )


def test_an_nvml_that_fails_leaves_the_answer_to_torch(made, monkeypatch):
    module = serve(monkeypatch, *TWO)

    def fail(*given):
        raise module.NVMLError("Driver/library version mismatch")

    monkeypatch.setattr(module, "nvmlDeviceGetMemoryInfo", fail)
    assert made[0].available_memory() == FREE
    monkeypatch.setattr(module, "nvmlDeviceGetCudaComputeCapability", fail)
    assert made[0].target() == Target("cuda", ("sm_90",))
    monkeypatch.setattr(nvml, "_started", None)
    monkeypatch.setattr(module, "nvmlInit", fail)
    with pytest.raises(nvml.NvmlUnavailableError, match="NVML does not start: Driver/library version mismatch"):
        nvml.memory(0)


def test_nvml_starts_once_in_a_process_and_again_in_its_fork(made, monkeypatch):
    module = serve(monkeypatch, *TWO)
    nvml.memory(0)
    nvml.memory(1)
    assert module.starts == 1
    monkeypatch.setattr(os, "getpid", lambda: 1)
    nvml.memory(0)
    assert module.starts == 2


def test_the_target_is_every_architecture_that_is_here_and_opens_nothing(made, monkeypatch):
    accelerator, _ = made
    serve(monkeypatch, ("GPU-1", "A100", (8, 0), None), ("GPU-2", "A100", (8, 0), None))
    monkeypatch.delattr(accelerator._device_module(), "get_device_capability")
    assert accelerator.target() == Target("cuda", ("sm_80",))


@pytest.mark.parametrize(
    ("capability", "fp16", "allowed", "bf16", "grouped"),
    [
        ((5, 2), False, False, False, False),
        ((6, 1), False, True, False, False),
        ((7, 5), True, True, False, False),
        ((8, 6), True, True, True, True),
        ((9, 0), True, True, True, False),
        ((12, 0), True, True, True, False),
    ],
)
def test_what_a_device_computes_in_follows_its_capability(made, monkeypatch, capability, fp16, allowed, bf16, grouped):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    accelerator, device = made
    device.capability = capability
    assert (accelerator.is_fp16_supported(), accelerator.is_bf16_supported()) == (fp16, bf16)
    assert (accelerator.is_triton_supported(), accelerator.prefer_triton_grouped_mm()) == (bf16, grouped)
    monkeypatch.setenv("DS_ALLOW_DEPRECATED_FP16", "1")
    assert accelerator.is_fp16_supported() == allowed
    monkeypatch.setenv("OPFORGE_ALLOW_DEPRECATED_FP16", "0")
    assert accelerator.is_fp16_supported() == fp16


def test_ranges_have_domains_where_nvtx_is_installed(made, monkeypatch):
    accelerator, device = made
    calls = []
    theirs = SimpleNamespace(
        push_range=lambda message, domain=None, category=None: calls.append((message, domain, category)),
        pop_range=lambda domain=None: calls.append(domain),
    )
    monkeypatch.setattr(cuda, "_nvtx", lambda: theirs)
    assert accelerator.supports_nvtx_domain
    accelerator.range_push("step", domain="train", category="outer")
    accelerator.range_pop("train")
    assert calls == [("step", "train", "outer"), "train"]
    monkeypatch.setattr(cuda, "_nvtx", lambda: None)
    assert not accelerator.supports_nvtx_domain
    accelerator.range_push("step", domain="train")
    assert device.ranges == ["step"]
    accelerator.range_pop("train")
    assert device.ranges == []


def test_rocm_is_told_apart(hip):
    accelerator, _ = hip
    assert accelerator.is_available()
    assert accelerator.target() == Target("hip", ("gfx942",))
    assert accelerator.device_name(0) == "cuda:0"
    assert accelerator.visible_devices_envs() == ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
    assert accelerator.export_envs() == ["NCCL_", "TORCH_NCCL_", "RCCL_", "HSA_"]
    assert accelerator.is_bf16_supported() and accelerator.is_fp16_supported()
    assert accelerator.communication_backend_name() == "nccl" and not accelerator.supports_nvtx_domain
    assert accelerator.capabilities().compute_capability is None
    assert accelerator.mem_get_info() == (FREE, TOTAL)


def test_rocm_without_a_device_says_why(hip, monkeypatch, tmp_path):
    accelerator, _ = hip
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    assert accelerator.unavailable_reason() == "HIP_VISIBLE_DEVICES='' hides every device"
    monkeypatch.delenv("HIP_VISIBLE_DEVICES")
    (tmp_path / "sys/class/kfd/kfd/topology/nodes/1/gpu_id").write_text("0\n")
    assert accelerator.unavailable_reason() == "no device: no /sys/class/kfd/kfd/topology/nodes/*/gpu_id names a GPU"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert rocm.obstacle(str(tmp_path)) == (
        "this user may not open /dev/kfd: it must be in the group that owns it (render)"
    )
    (tmp_path / "dev/kfd").unlink()
    assert accelerator.unavailable_reason() == "no driver: there is no /dev/kfd"
    (tmp_path / "dev/dxg").write_text("")
    assert accelerator.is_available()
