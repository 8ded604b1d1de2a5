"""NVML: the memory and architectures of the devices that this process may use, and what happens without NVML."""

from __future__ import annotations

import os

import pytest
from support.devices import fake_nvml
from support.devices.fake_devices import FREE, TOTAL
from support.devices.fake_nvml import GPU_WITH_MIG, TWO_GPUS, FakeNvml, free_bytes

from opforge.accelerator import Target
from opforge.accelerator.vendors import nvml


@pytest.mark.test_all("needs nvidia-ml-py")
def test_the_fake_nvml_has_the_names_of_the_real_one():
    real = pytest.importorskip("pynvml", reason="needs nvidia-ml-py (pip install 'opforge[cuda]')")
    assert {name for name in vars(FakeNvml) if not name.startswith("__")} <= set(dir(real))


@pytest.mark.parametrize(
    ("variable", "index", "uuid"),
    [
        (None, 0, "GPU-aaaa-1"),
        (None, 1, "GPU-aabb-2"),
        ("1,0", 0, "GPU-aabb-2"),
        ("GPU-aabb", 0, "GPU-aabb-2"),
        ("GPU-aab,GPU-aaa", 1, "GPU-aaaa-1"),
    ],
)
def test_free_memory_is_that_of_the_device_with_cudas_number(cuda_machine, monkeypatch, variable, index, uuid):
    accelerator, _ = cuda_machine
    fake_nvml.install(monkeypatch, *TWO_GPUS)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert nvml.memory_info(index) == (free_bytes(uuid), TOTAL)
    assert accelerator.available_memory(index) == free_bytes(uuid)
    assert accelerator.mem_get_info(index) == (min(free_bytes(uuid), TOTAL), TOTAL)


@pytest.mark.parametrize(
    ("variable", "uuid"),
    [
        (None, "MIG-dddd-7"),
        ("0", "MIG-dddd-7"),
        ("MIG-eeee-8", "MIG-eeee-8"),
        ("MIG-e", "MIG-eeee-8"),
        ("1", "GPU-aabb-2"),
    ],
)
def test_free_memory_is_that_of_the_mig_device_if_a_gpu_is_divided(cuda_machine, monkeypatch, variable, uuid):
    fake_nvml.install(monkeypatch, *GPU_WITH_MIG)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert cuda_machine[0].available_memory() == free_bytes(uuid)


def test_a_started_cuda_selects_the_device_by_its_uuid(cuda_machine, monkeypatch):
    accelerator, device = cuda_machine
    fake_nvml.install(monkeypatch, *TWO_GPUS)
    monkeypatch.setattr(device.module, "is_initialized", lambda: True)
    device.properties.uuid = "aabb-2"
    assert accelerator.available_memory(0) == free_bytes("GPU-aabb-2")


@pytest.mark.parametrize("value", ["GPU-aa", "GPU-cc", "7"])
def test_torchs_figure_is_used_if_an_id_matches_no_device_or_several(cuda_machine, monkeypatch, value):
    fake_nvml.install(monkeypatch, *TWO_GPUS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(nvml.NvmlUnavailableError, match="NVML sees 0 devices that this process may use, and no cuda:0"):
        nvml.memory_info(0)
    assert cuda_machine[0].available_memory() == FREE


def test_different_models_need_the_order_of_the_bus(cuda_machine, monkeypatch):
    fake_nvml.install(monkeypatch, ("GPU-1", "A100", (8, 0), None), ("GPU-2", "H200", (9, 0), None))
    with pytest.raises(nvml.NvmlUnavailableError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        nvml.memory_info(0)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert nvml.memory_info(1) == (free_bytes("GPU-2"), TOTAL)


def test_torchs_figure_is_used_if_nvml_is_not_installed_and_the_log_has_the_reason(cuda_machine, caplog):
    caplog.set_level("DEBUG", logger="opforge")
    assert cuda_machine[0].mem_get_info() == (FREE, TOTAL)
    assert (
        "cuda: using torch's figure for the free memory: the package nvidia-ml-py is not installed (pip install"
        " 'opforge[cuda]')" in caplog.text
    )


def test_torchs_figure_is_used_if_nvml_fails(cuda_machine, monkeypatch):
    accelerator, _ = cuda_machine
    module = fake_nvml.install(monkeypatch, *TWO_GPUS)

    def fail(*arguments):
        raise module.NVMLError("Driver/library version mismatch")

    monkeypatch.setattr(module, "nvmlDeviceGetMemoryInfo", fail)
    assert accelerator.available_memory() == FREE
    monkeypatch.setattr(module, "nvmlDeviceGetCudaComputeCapability", fail)
    assert accelerator.target() == Target("cuda", ("sm_90",))
    nvml.reset()
    monkeypatch.setattr(module, "nvmlInit", fail)
    with pytest.raises(nvml.NvmlUnavailableError, match="NVML does not start: Driver/library version mismatch"):
        nvml.memory_info(0)


def test_a_started_devices_memory_is_read_without_listing_the_devices_again(monkeypatch):
    module = fake_nvml.install(monkeypatch, *TWO_GPUS, *GPU_WITH_MIG)
    assert nvml.memory_info(0, "GPU-aabb-2") == (free_bytes("GPU-aabb-2"), TOTAL)
    monkeypatch.setattr(module, "nvmlDeviceGetCount", pytest.fail)
    for uuid in ("GPU-aabb-2", "GPU-aaaa-1", "MIG-eeee-8"):
        assert nvml.memory_info(0, uuid) == (free_bytes(uuid), TOTAL)


def test_a_missing_package_is_looked_for_once(monkeypatch):
    searches: list[str] = []

    def search(name):
        searches.append(name)
        raise ModuleNotFoundError(name)

    nvml.reset()
    monkeypatch.setattr(nvml.importlib, "import_module", search)
    for _ in range(3):
        with pytest.raises(nvml.NvmlUnavailableError, match="nvidia-ml-py is not installed"):
            nvml.memory_info(0)
    assert searches == ["pynvml"]


def test_nvml_starts_once_in_a_process_and_again_in_its_fork(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    module = fake_nvml.install(monkeypatch, *TWO_GPUS)
    nvml.memory_info(0)
    nvml.memory_info(1)
    assert module.starts == 1
    monkeypatch.setattr(os, "getpid", lambda: 1)
    nvml.memory_info(0)
    assert module.starts == 2
