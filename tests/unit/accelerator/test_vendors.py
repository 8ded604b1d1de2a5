"""The makers' accelerators: what differs between them, and why one cannot be used."""

from __future__ import annotations

import os
import sys
import types

import pytest
import torch
from support.devices import vendor_modules
from support.devices.vendor_modules import ALLOCATED, TOTAL

from opforge.accelerator import Target, candidates, select
from opforge.errors import AcceleratorUnavailableError

VENDORS = sorted(vendor_modules.MAKERS)
PACKAGES = {
    "npu": "torch_npu",
    "mlu": "torch_mlu",
    "sdaa": "torch_sdaa",
    "supa": "torch_supa",
    "hpu": "habana_frameworks",
}
BACKENDS = {"npu": "hccl", "hpu": "hccl", "mlu": "cncl", "sdaa": "tccl", "supa": "bccl", "cuda": "nccl", "mps": "gloo"}
VARIABLES = {
    "npu": ["ASCEND_RT_VISIBLE_DEVICES"],
    "hpu": ["HABANA_VISIBLE_MODULES"],
    "mlu": ["MLU_VISIBLE_DEVICES"],
    "sdaa": ["SDAA_VISIBLE_DEVICES"],
    "supa": ["SUPA_VISIBLE_DEVICES"],
    "cuda": ["CUDA_VISIBLE_DEVICES"],
    "xpu": ["ZE_AFFINITY_MASK"],
    "mps": [],
}


@pytest.fixture
def install(monkeypatch, tmp_path):
    """install("npu"): (accelerator, its recorded device), on a machine that has one."""
    return lambda name: vendor_modules.install(name, monkeypatch, tmp_path)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """bare("npu"): the accelerator, on a machine with no driver's files at all."""

    def make(name):
        made = vendor_modules.accelerator_class(name)
        monkeypatch.setattr(made, "root", str(tmp_path))
        return made()

    return make


@pytest.mark.parametrize("name", VENDORS)
def test_names_and_variables_are_the_makers(install, name):
    accelerator, _ = install(name)
    assert accelerator.visible_devices_envs() == VARIABLES[name]
    assert accelerator.communication_backend_name() == BACKENDS.get(name, "xccl")
    assert accelerator.get_compile_backend() == ("hpu_backend" if name == "hpu" else "inductor")
    assert not accelerator.is_synchronized_device() and not accelerator.use_host_timers()
    assert accelerator.resolves_data_dependency() == (name in {"hpu", "mps"})
    assert accelerator.handles_memory_backpressure() == (name == "hpu")
    assert accelerator.is_fp64_supported() == (name not in {"hpu", "mps", "xpu"})
    assert accelerator.total_memory() == TOTAL and accelerator.memory_allocated() == ALLOCATED


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_package_that_is_not_installed_is_named(bare, name):
    accelerator = bare(name)
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
@pytest.mark.parametrize("name", ["npu", "mlu", "sdaa", "supa"])
def test_a_variable_that_hides_every_device_is_named(install, name, value, monkeypatch):
    accelerator, _ = install(name)
    monkeypatch.setenv(VARIABLES[name][0], value)
    assert accelerator.unavailable_reason() == f"{VARIABLES[name][0]}={value!r} hides every device"
    monkeypatch.setenv(VARIABLES[name][0], "0")
    assert accelerator.is_available()


def test_a_package_that_fails_to_import_says_what_it_said(install, monkeypatch, tmp_path):
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
    vendor_modules.write_files(tmp_path / "elsewhere", {"dev/dxg": ""})
    assert accelerator.unavailable_reason() == f"this torch ({torch.__version__}) is built without XPU"


def test_mps_needs_macos(bare, monkeypatch, install):
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(sysname="Linux", machine="x86_64"))
    assert bare("mps").unavailable_reason() == "no device: Metal needs macOS, and this is Linux"
    accelerator, _ = install("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert accelerator.unavailable_reason() == "no device: torch.backends.mps.is_available() is False"
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: False)
    assert accelerator.unavailable_reason() == f"this torch ({torch.__version__}) is built without MPS"


def test_targets_name_the_device(install):
    assert install("npu")[0].target() == Target("npu", ("RecordedNPU",))
    for name in ("hpu", "mlu", "sdaa", "supa", "xpu", "mps"):
        assert install(name)[0].target() == Target(name)


def test_triton_is_supported_where_there_is_one_and_it_is_installed(install, monkeypatch):
    import importlib.util

    for found in (None, object()):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, found=found: found)
        for name in VENDORS:
            expected = found is not None and name in {"cuda", "xpu", "mlu", "supa"}
            assert install(name)[0].is_triton_supported() == expected, name


def test_ranges_go_to_the_makers_profiler(install):
    for name in ("npu", "mlu", "supa"):
        accelerator, device = install(name)
        accelerator.range_push("outer")
        accelerator.range_push("inner")
        assert device.ranges == ["outer", "inner"]
        for _ in range(3):
            accelerator.range_pop()
        assert device.ranges == []


def test_a_profiler_that_is_not_installed_leaves_ranges_without_effect(install):
    def missing(*given):
        raise RuntimeError("CNPX functions not installed.")  # as torch_mlu's stub does

    accelerator, _ = install("mlu")
    ranges, calls = accelerator._device_module().cnpx, []
    ranges.range_push = ranges.range_pop = lambda *given: calls.append(given) or missing()
    accelerator.range_push("unseen")
    accelerator.range_pop()
    assert calls == [("unseen",), ()]


def test_ascend_registers_whole_pages_and_says_when_it_cannot(install, monkeypatch):
    accelerator, device = install("npu")
    assert accelerator.pin_memory_alignment() == 4096
    assert accelerator.register_host_memory(4096, 4096) is True
    assert device.calls == ["register 2"]
    runtime = accelerator._device_module().npurt()
    monkeypatch.setattr(runtime, "npuHostRegister", lambda *given: 107002)
    monkeypatch.setattr(runtime, "npuHostUnregister", lambda address: 107002)
    assert accelerator.register_host_memory(4096, 4096) is False
    with pytest.raises(RuntimeError, match=r"npuHostUnregister\(0x1000\) failed with code 107002"):
        accelerator.unregister_host_memory(4096)


def test_gaudi_without_lazy_mode_records_graphs_on_the_host(install):
    accelerator, _ = install("hpu")
    assert accelerator.capabilities().graphs
    del accelerator._device_module().HPUGraph
    object.__setattr__(accelerator._device_module(), "_real", frozenset())
    graph, given = accelerator.create_graph(), torch.ones(2)
    with accelerator.capture_to_graph(graph):
        assert accelerator.is_current_stream_capturing()
        doubled = given * 2
    given.fill_(3)
    accelerator.replay_graph(graph)
    assert doubled.tolist() == [6.0, 6.0] and not accelerator.is_current_stream_capturing()


def test_gaudis_memory_has_torchs_names_too(install):
    accelerator, _ = install("hpu")
    stats = accelerator.memory_stats()
    assert stats["InUse"] == stats["allocated_bytes.all.current"] == ALLOCATED
    assert accelerator.mem_get_info() == (TOTAL - ALLOCATED, TOTAL)
    assert accelerator.device_name(3) == "hpu"


def test_waiting_for_metals_streams_waits_for_its_queue(install):
    accelerator, device = install("mps")
    accelerator.current_stream().synchronize()
    stream = accelerator.Stream()
    assert stream.query() is True and device.calls == ["synchronize", "synchronize"]
    with accelerator.stream(stream):
        accelerator.Event().wait(accelerator.current_stream())
    assert device.calls[-1] == "wait" and accelerator.current_stream() is accelerator.default_stream()
    assert accelerator.mem_get_info() == (TOTAL - vendor_modules.RESERVED, TOTAL)
    assert accelerator.capabilities().device_name == "Apple M4"


def test_a_recorded_module_offers_nothing_that_the_real_one_lacks():
    with pytest.raises(AssertionError, match=r"the real torch\.mps has no \['manual_seed_all'\]"):
        vendor_modules.Recorded("mps", {"manual_seed_all": print})
    module = vendor_modules.Recorded("xpu", {"device_count": lambda: 1, "synchronize": lambda device=None: None})
    with pytest.raises(AttributeError, match="recorded_xpu has no default_stream"):
        module.default_stream
    with pytest.raises(AssertionError, match="recorded_xpu must answer current_stream: the real one has it"):
        module.current_stream
    with pytest.raises(TypeError):
        module.device_count(0)


@pytest.mark.parametrize("name", [*PACKAGES, "cuda", "xpu"])
def test_a_device_is_chosen_by_itself(install, name, monkeypatch):
    monkeypatch.setattr(select, "entry_points", lambda group: [])
    monkeypatch.setattr(select, "DRIVER_FILES", {**dict.fromkeys(select.DRIVER_FILES, ()), name: ("/dev/null",)})
    monkeypatch.setattr(select, "_active", None)
    install(name)
    assert select.get_accelerator().name == name
    (found,) = [candidate for candidate in candidates() if candidate.name == name]
    assert found.available and found.reason == "available"


def test_a_choice_by_name_that_cannot_be_had_says_why(bare, monkeypatch):
    monkeypatch.setattr(select, "entry_points", lambda group: [])
    monkeypatch.setattr(select, "_active", None)
    monkeypatch.setenv("OPFORGE_ACCELERATOR", "MLU")
    bare("mlu")
    with pytest.raises(AcceleratorUnavailableError) as refused:
        select.get_accelerator()
    assert str(refused.value) == (
        "The accelerator 'mlu', requested by OPFORGE_ACCELERATOR, cannot be used here: the package torch_mlu is not"
        " installed; no device: the driver has made no /dev/cambricon_dev[0-9]*. Fix that, or unset it to let opforge"
        " choose."
    )


def test_without_a_drivers_file_nothing_of_the_makers_is_imported(install, monkeypatch):
    monkeypatch.setattr(select, "entry_points", lambda group: [])
    monkeypatch.setattr(select, "DRIVER_FILES", dict.fromkeys(select.DRIVER_FILES, ("/dev/no/such/file",)))
    monkeypatch.setattr(select, "_active", None)
    install("cuda")
    asked = []
    monkeypatch.setattr(select, "attempt", lambda name, *rest: asked.append(name) or (name, "", None))
    assert select._choose() == "cpu" and asked == ["cpu"]


def test_a_torch_built_without_the_device_is_not_asked_further(monkeypatch):
    monkeypatch.setattr(select, "DRIVER_FILES", {"cuda": ("/dev/null",)})
    for cuda, hip, expected in ((None, None, False), ("13.0", None, True), (None, "7.1", True)):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)
        assert select._may_be_there("cuda") is expected
