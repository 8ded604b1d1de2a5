"""Which code runs on which device, and the target of a build that names no architecture."""

from __future__ import annotations

import pytest
from support import sample_ops, text_files

from opforge.accelerator import archs
from opforge.accelerator.target import Target
from opforge.builders.declaration import machine, targets
from opforge.builders.declaration.machine import Machine
from opforge.builders.lookup import fit
from opforge.builders.lookup.device_requirements import device_problem, driver_floor
from opforge.errors import SettingError

BINARY = {"target": "cuda:sm_80+sm_90", "requires": {"cuda": "13.1"}}


@pytest.mark.parametrize(
    ("value", "arch"),
    [
        ("8.0 9.0a 10.0f+PTX;12.0", ("sm_80", "sm_90a", "sm_100f", "sm_120", "compute_100f")),
        ("9.0", ("sm_90",)),
        ("9.0+PTX", ("sm_90", "ptx")),
        ("9.0;8.0;", ("sm_80", "sm_90")),
        ("Hopper", ("sm_90", "ptx")),
        ("Volta+Tegra;Ampere", ("sm_72", "sm_80", "sm_86", "ptx")),
        ("8.0;Volta", ("sm_70", "sm_80", "compute_70")),
        ("native", ("native",)),
        ("32.1", ("sm_321",)),
    ],
)
def test_torchs_list_of_cuda_architectures_is_parsed(value, arch):
    assert archs.parse_list("cuda", "TORCH_CUDA_ARCH_LIST", value) == arch


@pytest.mark.parametrize(
    ("device", "value", "message"),
    [
        ("cuda", "8.0;x.y", "TORCH_CUDA_ARCH_LIST='8.0;x.y' cannot be used: expected architectures such as 9.0;9.0a"),
        ("cuda", "8.0;x.y", "at column 5, not 'x.y'."),
        ("cuda", "ptx", "at column 1, not 'ptx'."),
        ("hip", "gfx90a;sm_90", "PYTORCH_ROCM_ARCH='gfx90a;sm_90' cannot be used: expected an architecture such as"),
    ],
)
def test_the_error_for_a_malformed_list_names_the_column(device, value, message, monkeypatch):
    monkeypatch.setenv(archs.VARIABLES[device], value)
    with pytest.raises(SettingError) as caught:
        archs.from_environment(device)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("here", "arch", "mode"),
    [
        ("sm_80", "sm_80", "native"),
        ("sm_86", "sm_80", "native"),
        ("sm_80", "sm_86", ""),
        ("sm_90", "sm_80", ""),
        ("sm_90", "sm_80+ptx", "ptx"),
        ("sm_80", "sm_90+ptx", ""),
        ("sm_90", "sm_80+sm_90+ptx", "native"),
        ("sm_90", "sm_90a", "native"),
        ("sm_103", "sm_100a", ""),
        ("sm_103", "sm_100f", "native"),
        ("sm_120", "sm_100f+ptx", ""),
        ("sm_103", "compute_100f", "ptx"),
        ("sm_103", "compute_100a", ""),
        ("sm_321", "compute_90", "ptx"),
    ],
)
def test_cuda_code_runs_on_the_devices_that_nvidia_documents(here, arch, mode):
    assert archs.run_mode("cuda", here, tuple(arch.split("+"))) == mode


@pytest.mark.parametrize(
    ("here", "arch", "mode"),
    [
        ("gfx942:sramecc+:xnack-", "gfx942", "native"),
        ("gfx942:sramecc+:xnack-", "gfx942:xnack-", "native"),
        ("gfx942:sramecc+:xnack-", "gfx942:xnack+", ""),
        ("gfx942", "gfx90a", ""),
    ],
)
def test_hip_code_runs_only_on_its_own_device(here, arch, mode):
    assert archs.run_mode("hip", here, (arch,)) == mode


def test_equal_targets_have_the_same_spelling():
    assert archs.canonical("cuda", ("ptx", "sm_90", "sm_80", "compute_90")) == ("sm_80", "sm_90", "ptx")
    assert archs.resolve_ptx(("sm_80", "sm_90a", "ptx")) == ("sm_80", "sm_90a", "compute_80")


def machine_with(*devices, driver=(13, 0)):
    """Returns a machine with these CUDA devices."""
    return Machine(processor="x86_64", level="x86-64-v3", device="cuda", devices=devices, driver=driver)


@pytest.fixture
def present(monkeypatch):
    """A dict for the architectures of this machine's devices, by kind of device."""
    devices: dict[str, tuple[str, ...]] = {}
    monkeypatch.setattr(machine, "present", lambda device: devices.get(device, ()))
    for name in archs.VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    return devices


def test_the_default_target_is_the_device_present_or_torchs_list(present, monkeypatch):
    assert str(targets.concrete(Target("cuda"))) == "cuda:sm_80+sm_90+ptx"
    present["cuda"] = ("sm_120",)
    assert str(targets.concrete(Target("cuda"))) == "cuda:sm_120"
    assert str(targets.concrete(Target.parse("cuda:native+sm_90"))) == "cuda:sm_90+sm_120"
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0+PTX;8.0")
    assert str(targets.concrete(Target("cuda"))) == "cuda:sm_80+sm_90+ptx"
    assert str(targets.concrete(Target.parse("cuda:sm_89"))) == "cuda:sm_89"
    monkeypatch.setenv("PYTORCH_ROCM_ARCH", "gfx942;gfx90a:xnack-")
    assert str(targets.concrete(Target("hip"))) == "hip:gfx90a:xnack-+gfx942"
    assert str(targets.concrete(Target("xpu"))) == "xpu"
    assert str(targets.concrete(Target("npu", ("910b",)))) == "npu:910b"


def test_a_target_without_a_default_is_an_error(present):
    with pytest.raises(SettingError, match="its architecture, such as hip:gfx942, by --target or PYTORCH_ROCM_ARCH"):
        targets.concrete(Target("hip"))
    with pytest.raises(SettingError, match="a cuda device here, or its name by --target cuda:ARCH or TORCH_CUDA_ARCH"):
        targets.concrete(Target.parse("cuda:native"))


def test_a_prebuilt_op_must_have_code_for_the_devices_present():
    assert device_problem(BINARY, ("sm_70",), machine_with("sm_86")) is None
    assert device_problem(BINARY, (), machine_with("sm_86", "sm_75")) == (
        "it holds code for sm_80+sm_90, but the cuda device here is sm_75"
    )


def test_without_a_device_a_prebuilt_op_must_have_code_for_the_requested_target():
    assert device_problem(BINARY, ("sm_90", "ptx"), machine_with(driver=None)) is None
    assert device_problem(BINARY, ("sm_100",), machine_with(driver=None)) == (
        "it holds code for sm_80+sm_90, but the target is sm_100"
    )


def test_the_driver_must_support_the_cuda_release_of_the_build():
    assert device_problem(BINARY, (), machine_with("sm_90", driver=(12, 8))) == (
        "it was built with CUDA 13.1, and the driver supports CUDA up to 12.8: update the driver"
    )
    assert device_problem(BINARY, (), machine_with("sm_90")) is None, "minor releases are compatible"


def test_ptx_is_accepted_if_the_driver_can_compile_it_and_jit_is_allowed():
    binary = {**BINARY, "target": "cuda:sm_90+ptx"}
    newer, older = (machine_with("sm_100", driver=driver) for driver in ((13, 1), (13, 0)))
    assert device_problem(binary, (), newer) is None
    assert "it holds only PTX for sm_100" in device_problem(binary, (), newer, jit=False)
    assert device_problem(binary, (), older) == (
        "it holds PTX of CUDA 13.1 for this device, and the driver compiles PTX of CUDA 13.0 and older"
    )


def test_an_entry_with_machine_code_is_preferred_to_one_with_ptx(tmp_path):
    text_files.write(tmp_path, "scale.cu", "")
    builder = sample_ops.builder_class(tmp_path, "scale", sources=["scale.cu"], devices=["cuda"], abi="c")(
        "cuda:sm_100"
    )
    record = {**BINARY, "machine": "x86_64", "floors": {}, "abi": "c", "interface": 1}
    here = machine_with("sm_100", driver=(13, 1))
    ptx, code = (
        fit.fit({**record, "target": target}, here, builder.spec()) for target in ("cuda:sm_90+ptx", "cuda:sm_100")
    )
    assert (ptx.problem, code.problem) == ("", "") and code.rank > ptx.rank


def test_code_for_another_device_is_not_loaded(present):
    present["cuda"] = ("sm_90",)
    assert targets.load_problems(Target.parse("cuda:sm_100"), ("cuda",), "c") == [
        "the cuda device here is sm_90, which does not run code for cuda:sm_100"
    ]
    assert targets.load_problems(Target.parse("cuda:sm_90"), ("cuda",), "c") == []


def test_no_device_of_an_unknown_kind_is_present():
    assert machine.present("no_such_device") == ()


@pytest.mark.parametrize(
    ("target", "built", "floor"),
    [
        ("cuda:sm_80", "12.8", "12.0"),
        ("cuda:sm_80+ptx", "12.8", "12.0"),
        ("cuda:compute_90", "12.8", "12.8"),
        ("cuda:sm_80", "", ""),
        ("hip:gfx942", "12.8", ""),
        ("cpu", "", ""),
    ],
)
def test_the_oldest_driver_is_that_of_the_toolkits_major_release(target, built, floor):
    """Machine code runs with any minor release of a major one; PTX needs a driver that knows its CUDA."""
    record = {"target": target, "requires": {"cuda": built} if built else {}}
    assert driver_floor(record) == floor
