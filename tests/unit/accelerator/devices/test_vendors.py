"""The vendors' accelerators: what differs between them, and why one cannot be used."""

from __future__ import annotations

import os
import sys
import types

import pytest
import torch
from support.devices import vendor_modules
from support.devices.fake_devices import ALLOCATED, RESERVED, TOTAL
from support.devices.files import write_files
from support.devices.recorded_modules import RecordedModule

from opforge.accelerator import Target

VENDORS = sorted(vendor_modules.VENDORS)
PACKAGES = {
    "npu": "torch_npu",
    "mlu": "torch_mlu",
    "sdaa": "torch_sdaa",
    "supa": "torch_supa",
    "klxpu": "torch_xmlir",
    "hpu": "habana_frameworks",
}
BACKENDS = {
    "npu": "hccl",
    "hpu": "hccl",
    "mlu": "cncl",
    "sdaa": "tccl",
    "supa": "bccl",
    "klxpu": "nccl",
    "cuda": "nccl",
    "mps": "gloo",
}
VARIABLES = {
    "npu": ["ASCEND_RT_VISIBLE_DEVICES"],
    "hpu": ["HABANA_VISIBLE_MODULES"],
    "mlu": ["MLU_VISIBLE_DEVICES"],
    "sdaa": ["SDAA_VISIBLE_DEVICES"],
    "supa": ["SUPA_VISIBLE_DEVICES"],
    "klxpu": ["CUDA_VISIBLE_DEVICES"],
    "cuda": ["CUDA_VISIBLE_DEVICES"],
    "xpu": ["ZE_AFFINITY_MASK"],
    "mps": [],
}


@pytest.fixture
def install(monkeypatch, tmp_path):
    """install("npu") makes this a machine with the device, and returns the accelerator and its fake device."""
    return lambda name: vendor_modules.install(name, monkeypatch, tmp_path)


@pytest.fixture
def without_driver(monkeypatch, tmp_path):
    """without_driver("npu") returns the accelerator on a machine without any driver's files."""

    def make(name):
        kind = vendor_modules.accelerator_class(name)
        monkeypatch.setattr(kind, "root", str(tmp_path))
        return kind()

    return make


@pytest.mark.parametrize("name", VENDORS)
def test_each_vendor_has_its_backend_variables_and_guarantees(install, name):
    accelerator, _ = install(name)
    assert accelerator.visible_devices_envs() == VARIABLES[name]
    assert accelerator.communication_backend_name() == BACKENDS.get(name, "xccl")
    assert accelerator.get_compile_backend() == ("hpu_backend" if name == "hpu" else "inductor")
    assert not accelerator.is_synchronized_device() and accelerator.use_host_timers() == (name == "klxpu")
    assert accelerator.resolves_data_dependency() == (name in {"hpu", "mps"})
    assert accelerator.handles_memory_backpressure() == (name == "hpu")
    assert accelerator.is_fp64_supported() == (name not in {"hpu", "mps", "xpu"})
    assert accelerator.total_memory() == TOTAL and accelerator.memory_allocated() == ALLOCATED


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_package_that_is_not_installed_is_the_reason(without_driver, name):
    accelerator = without_driver(name)
    assert not accelerator.is_available()
    assert accelerator.unavailable_reason() == (
        f"the package {PACKAGES[name]} is not installed; no device: the driver has made no /{accelerator.device_files}"
    )


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_package_without_a_device_is_not_enough(install, name, tmp_path, monkeypatch):
    accelerator, _ = install(name)
    assert accelerator.is_available()
    monkeypatch.setattr(type(accelerator), "root", str(tmp_path / "elsewhere"))
    assert not accelerator.is_available()
    assert accelerator.unavailable_reason() == f"no device: the driver has made no /{accelerator.device_files}"


@pytest.mark.parametrize("value", ["", "-1"])
@pytest.mark.parametrize("name", ["npu", "mlu", "sdaa", "supa", "klxpu"])
def test_a_variable_that_hides_every_device_is_the_reason(install, name, value, monkeypatch):
    accelerator, _ = install(name)
    monkeypatch.setenv(VARIABLES[name][0], value)
    assert accelerator.unavailable_reason() == f"{VARIABLES[name][0]}={value!r} hides every device"
    monkeypatch.setenv(VARIABLES[name][0], "0")
    assert accelerator.is_available()


def test_a_package_that_fails_to_import_is_the_reason_with_its_error(install, monkeypatch, tmp_path):
    accelerator, _ = install("npu")
    (tmp_path / "torch_npu.py").write_text("raise OSError('libascend_hal.so: cannot open shared object file')")
    monkeypatch.delitem(sys.modules, "torch_npu")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert accelerator.unavailable_reason() == (
        "importing torch_npu failed: OSError: libascend_hal.so: cannot open shared object file"
    )
    (tmp_path / "torch_npu.py").write_text("import decorator_of_cann")
    assert accelerator.unavailable_reason() == "importing torch_npu failed: No module named 'decorator_of_cann'"


def test_xpu_needs_a_torch_for_it_and_an_intel_device(install, monkeypatch, tmp_path):
    accelerator, _ = install("xpu")
    assert accelerator.is_available()
    (tmp_path / "sys/class/drm/renderD128/device/vendor").write_text("0x1002\n")
    assert accelerator.unavailable_reason() == "no device: none of renderD128 is Intel's"
    monkeypatch.setattr(torch.version, "xpu", None)
    monkeypatch.setattr(type(accelerator), "root", str(tmp_path / "elsewhere"))
    assert accelerator.unavailable_reason() == (
        f"this torch ({torch.__version__}) is built without XPU; no device: the driver has made no"
        " /dev/dri/renderD[0-9]*"
    )
    write_files(tmp_path / "elsewhere", {"dev/dxg": ""})
    assert accelerator.unavailable_reason() == f"this torch ({torch.__version__}) is built without XPU"


def test_mps_needs_macos_and_a_torch_for_it(without_driver, monkeypatch, install):
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(sysname="Linux", machine="x86_64"))
    assert without_driver("mps").unavailable_reason() == "no device: Metal needs macOS, and this is Linux"
    accelerator, _ = install("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert accelerator.unavailable_reason() == "no device: torch.backends.mps.is_available() is False"
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: False)
    assert accelerator.unavailable_reason() == f"this torch ({torch.__version__}) is built without MPS"


def test_targets_name_the_device_and_ascends_its_processor(install):
    assert install("npu")[0].target() == Target("npu", ("RecordedNPU",))
    for name in ("hpu", "mlu", "sdaa", "supa", "klxpu", "xpu", "mps"):
        assert install(name)[0].target() == Target(name)


def test_triton_is_supported_if_it_is_installed_and_compiles_for_the_device(install, monkeypatch):
    import importlib.util

    for spec in (None, object()):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=spec: spec)
        for name in VENDORS:
            expected = spec is not None and name in {"cuda", "xpu", "mlu", "supa"}
            assert install(name)[0].is_triton_supported() == expected, name


@pytest.mark.parametrize("name", ["npu", "mlu", "supa", "klxpu"])
def test_ranges_go_to_the_vendors_profiler(install, name):
    accelerator, device = install(name)
    accelerator.range_push("outer")
    accelerator.range_push("inner")
    assert device.ranges == ["outer", "inner"]
    for _ in range(3):
        accelerator.range_pop()
    assert device.ranges == []


def test_ranges_do_nothing_if_the_profiler_is_not_installed(install):
    def missing(*arguments):
        raise RuntimeError("CNPX functions not installed.")  # as torch_mlu's stub does

    accelerator, device = install("mlu")
    ranges, calls = device.module.cnpx, []
    ranges.range_push = ranges.range_pop = lambda *arguments: calls.append(arguments) or missing()
    accelerator.range_push("unseen")
    accelerator.range_pop()
    assert calls == [("unseen",), ()]


@pytest.mark.parametrize("name", ["cuda", "supa"])
def test_host_memory_is_registered_by_the_runtime_library(install, name):
    accelerator, device = install(name)
    assert accelerator.register_host_memory(4096, 4096) is True
    assert accelerator.unregister_host_memory(4096) is None
    assert device.calls == ["register", "unregister"]


def test_ascend_registers_whole_pages_and_reports_a_refusal(install, monkeypatch):
    accelerator, device = install("npu")
    assert accelerator.pin_memory_alignment() == 4096
    assert accelerator.register_host_memory(4096, 4096) is True
    assert device.calls == ["register 2"]
    runtime = device.module.npurt()
    monkeypatch.setattr(runtime, "npuHostRegister", lambda *arguments: 107002)
    monkeypatch.setattr(runtime, "npuHostUnregister", lambda address: 107002)
    assert accelerator.register_host_memory(4096, 4096) is False
    with pytest.raises(RuntimeError, match=r"npuHostUnregister\(0x1000\) failed with code 107002"):
        accelerator.unregister_host_memory(4096)


def test_gaudi_without_lazy_mode_emulates_graphs_on_the_host(install):
    accelerator, device = install("hpu")
    assert accelerator.capabilities().graphs
    device.module.remove("HPUGraph")
    graph, inputs = accelerator.create_graph(), torch.ones(2)
    with accelerator.capture_to_graph(graph):
        assert accelerator.is_current_stream_capturing()
        doubled = inputs * 2
    inputs.fill_(3)
    accelerator.replay_graph(graph)
    assert doubled.tolist() == [6.0, 6.0] and not accelerator.is_current_stream_capturing()


def test_gaudis_memory_counters_have_torchs_names_too(install):
    accelerator, _ = install("hpu")
    stats = accelerator.memory_stats()
    assert stats["InUse"] == stats["allocated_bytes.all.current"] == ALLOCATED
    assert accelerator.mem_get_info() == (TOTAL - ALLOCATED, TOTAL)
    assert accelerator.device_name(3) == "hpu"


def test_synchronizing_a_metal_stream_waits_for_the_one_queue(install):
    accelerator, device = install("mps")
    accelerator.current_stream().synchronize()
    stream = accelerator.Stream()
    assert stream.query() is True and device.calls == ["synchronize", "synchronize"]
    with accelerator.stream(stream):
        accelerator.Event().wait(accelerator.current_stream())
    assert device.calls[-1] == "wait" and accelerator.current_stream() is accelerator.default_stream()
    assert accelerator.mem_get_info() == (TOTAL - RESERVED, TOTAL)
    assert accelerator.capabilities().device_name == "Apple M4"


def test_a_recorded_module_offers_nothing_that_the_real_one_lacks():
    with pytest.raises(AssertionError, match=r"the real torch\.mps has no \['manual_seed_all'\]"):
        RecordedModule("mps", {"manual_seed_all": print})
    module = RecordedModule("xpu", {"device_count": lambda: 1, "synchronize": lambda device=None: None})
    with pytest.raises(AttributeError, match="recorded_xpu has no default_stream"):
        module.default_stream
    with pytest.raises(AssertionError, match="recorded_xpu must offer current_stream: the real module has it"):
        module.current_stream
    with pytest.raises(TypeError):
        module.device_count(0)


def test_kunluns_events_measure_time_only_with_a_variable(install, monkeypatch):
    accelerator, _ = install("klxpu")
    for value, expected in (("0", True), ("1", False)):
        monkeypatch.setenv("XPU_EVENT_KL3_ENABLE", value)
        assert accelerator.use_host_timers() == expected


def test_kunluns_devices_are_torchs_cuda_devices(install):
    accelerator, _ = install("klxpu")
    assert accelerator.device_name(1) == "cuda:1" and accelerator.export_envs()[:3] == ["BKCL", "XPU", "XMLIR"]
    assert not accelerator.supports_nvtx_domain and not accelerator.prefer_triton_grouped_mm()
    assert accelerator.op_builder_dir().startswith("opforge.builders.")
