"""NVIDIA's GPUs: whether there is one, what it can do, and that finding out opens none."""

from __future__ import annotations

import multiprocessing
import sys
from types import SimpleNamespace

import pytest
import torch
from support.devices import fake_nvml
from support.devices.files import write_files

from opforge.accelerator import Target, candidates, get_accelerator, registry, select
from opforge.accelerator.devices import cuda
from opforge.accelerator.vendors import nvidia

INFORMATION = "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-{}\nDevice Minor: \t 0\n"


def test_two_files_of_the_driver_are_two_devices(cuda_machine):
    accelerator, _ = cuda_machine
    assert accelerator.is_available() and accelerator.unavailable_reason() == ""


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (None, "no driver: libcuda.so.1 cannot be loaded"),
        (
            (12, 4),
            "the driver is too old: it supports CUDA up to 12.4, and this torch is built with 13.0; update the driver,"
            " or install a torch for CUDA 12",
        ),
    ],
)
def test_a_missing_or_old_driver_is_the_reason(cuda_machine, monkeypatch, driver, reason):
    monkeypatch.setattr(nvidia, "driver_version", lambda: driver)
    assert cuda_machine[0].unavailable_reason() == reason


def test_a_driver_of_the_same_major_version_is_new_enough(cuda_machine, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    assert cuda_machine[0].is_available()


def test_a_torch_without_cuda_is_the_reason(cuda_machine, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    reason = f"this torch ({torch.__version__}) is built without CUDA and without ROCm"
    assert cuda_machine[0].unavailable_reason() == reason


def test_a_driver_without_devices_is_the_reason_unless_it_is_wsls(cuda_machine, monkeypatch, tmp_path):
    accelerator, _ = cuda_machine
    monkeypatch.setattr(type(accelerator), "root", str(tmp_path / "elsewhere"))
    assert accelerator.unavailable_reason() == "no device: there is no /dev/nvidia[0-9]* that this process may open"
    write_files(tmp_path / "elsewhere", {"dev/dxg": ""})
    assert accelerator.is_available()


@pytest.fixture
def gpu_with_uuid_aa(tmp_path):
    """The driver reports the uuid of one GPU."""
    files = {"proc/driver/nvidia/gpus/0000:01:00.0/information": INFORMATION.format("aa")}
    write_files(tmp_path, files)


@pytest.mark.parametrize("value", ["", "-1", "2", "NoDevFiles", "0,0", "GPU-cc"])
def test_a_variable_that_leaves_no_device_is_the_reason(cuda_machine, gpu_with_uuid_aa, monkeypatch, value):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert cuda_machine[0].unavailable_reason() == f"CUDA_VISIBLE_DEVICES={value!r} leaves none of 2 devices"


@pytest.mark.parametrize("value", ["1", "1,0", "GPU-aa", "MIG-1234"])
def test_a_variable_that_leaves_a_device_does_not_matter(cuda_machine, gpu_with_uuid_aa, monkeypatch, value):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert cuda_machine[0].is_available()


def use_in_child(pipe):
    module = torch.get_device_module("cuda")
    pipe.send((module.device_count(), module.is_initialized()))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_choosing_opens_no_device_and_a_fork_can_use_it(cuda_machine, monkeypatch):
    _, device = cuda_machine
    opened = []
    for name in ("device_count", "is_available", "current_device", "get_device_properties", "get_device_capability"):
        monkeypatch.setattr(device.module, name, lambda *arguments, name=name: opened.append(name) or 1)
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    monkeypatch.setattr(select, "DRIVER_FILES", {**dict.fromkeys(select.DRIVER_FILES, ()), "cuda": ("/dev/null",)})
    assert get_accelerator().name == "cuda"
    assert all(candidate.reason for candidate in candidates())
    assert opened == []
    receiver, sender = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=use_in_child, args=(sender,))
    child.start()
    assert receiver.poll(30) and receiver.recv() == (1, False)
    child.join(30)
    assert child.exitcode == 0


def test_the_target_has_every_architecture_that_nvml_reports_and_opens_nothing(cuda_machine, monkeypatch):
    accelerator, device = cuda_machine
    fake_nvml.install(monkeypatch, ("GPU-1", "A100", (8, 0), None), ("GPU-2", "A100", (8, 0), None))
    monkeypatch.delattr(device.module, "get_device_capability")
    assert accelerator.target() == Target("cuda", ("sm_80",))


def test_a_generator_exists_before_cuda_is_started(cuda_machine, monkeypatch):
    accelerator, device = cuda_machine
    module = device.module
    monkeypatch.setattr(module, "default_generators", ())  # as in torch before CUDA is started
    monkeypatch.setattr(module, "init", lambda: setattr(module, "default_generators", tuple(device.generators)))
    assert accelerator.default_generator(1) is device.generators[1]


@pytest.mark.parametrize(
    ("capability", "fp16", "allowed_fp16", "bf16", "grouped"),
    [
        ((5, 2), False, False, False, False),
        ((6, 1), False, True, False, False),
        ((7, 5), True, True, False, False),
        ((8, 6), True, True, True, True),
        ((9, 0), True, True, True, False),
        ((12, 0), True, True, True, False),
    ],
)
def test_dtypes_and_triton_depend_on_the_compute_capability(
    cuda_machine, monkeypatch, capability, fp16, allowed_fp16, bf16, grouped
):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    accelerator, device = cuda_machine
    device.capability = capability
    assert (accelerator.is_fp16_supported(), accelerator.is_bf16_supported()) == (fp16, bf16)
    assert (accelerator.is_triton_supported(), accelerator.prefer_triton_grouped_mm()) == (bf16, grouped)
    monkeypatch.setenv("DS_ALLOW_DEPRECATED_FP16", "1")
    assert accelerator.is_fp16_supported() == allowed_fp16
    monkeypatch.setenv("OPFORGE_ALLOW_DEPRECATED_FP16", "0")
    assert accelerator.is_fp16_supported() == fp16


@pytest.fixture
def put_nvtx(monkeypatch):
    """Puts a module in place of the package nvtx: put_nvtx(module), or None as if it were not installed."""

    def put(module):
        monkeypatch.setitem(sys.modules, "nvtx", module)
        cuda.nvtx_package.cache_clear()

    yield put
    cuda.nvtx_package.cache_clear()


def test_ranges_have_domains_if_nvtx_is_installed(cuda_machine, put_nvtx):
    accelerator, device = cuda_machine
    calls = []
    put_nvtx(
        SimpleNamespace(
            push_range=lambda message, domain=None, category=None: calls.append((message, domain, category)),
            pop_range=lambda domain=None: calls.append(domain),
        )
    )
    assert accelerator.supports_nvtx_domain
    accelerator.range_push("step", domain="train", category="outer")
    accelerator.range_pop("train")
    assert calls == [("step", "train", "outer"), "train"]
    put_nvtx(None)
    accelerator = type(accelerator)()
    assert not accelerator.supports_nvtx_domain
    accelerator.range_push("step", domain="train")
    assert device.ranges == ["step"]
    accelerator.range_pop("train")
    assert device.ranges == []


def test_each_device_has_its_own_architecture(cuda_machine, monkeypatch):
    accelerator, device = cuda_machine
    of_device = {0: (9, 0), 1: (8, 0)}
    monkeypatch.setattr(
        device.module, "get_device_capability", lambda index: of_device[device.current if index is None else index]
    )
    assert [accelerator.device_arch(index) for index in (0, 1, "cuda:1")] == ["sm_90", "sm_80", "sm_80"]
    accelerator.set_device(1)
    assert accelerator.device_arch() == "sm_80"


@pytest.mark.parametrize(("capability", "is_supported"), [((8, 0), False), ((8, 9), True), ((9, 0), True)])
def test_products_in_float8_need_compute_capability_8_9(cuda_machine, capability, is_supported):
    accelerator, device = cuda_machine
    device.capability = capability
    assert accelerator.is_fp8_supported() is is_supported
