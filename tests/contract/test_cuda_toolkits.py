"""Several CUDA toolkits and a recorded driver: the newest that the driver serves is taken, or the error comes early."""

from __future__ import annotations

import os

import pytest
from support import sample_ops, text_files

from opforge.accelerator.vendors import nvidia
from opforge.builders.declaration import machine
from opforge.builders.toolchains import find_toolchain, nvcc
from opforge.cache.current_store import current_store
from opforge.errors import OpIncompatibleError

pytestmark = pytest.mark.compile
NVCC = """\
top="$(dirname "$(dirname "$0")")"
case "$*" in
  *--version*) echo "Cuda compilation tools, release @RELEASE@, V@RELEASE@.1";;
  *--list-gpu*) echo "compute_80 sm_80 compute_90 sm_90";;
  *-E*) exit 0;;
  *--dryrun*) printf '#$ TOP=%s\\n#$ CICC_PATH=%s\\n#$ INCLUDES="-I%s/include"\\n' "$top" "$top" "$top" >&2;;
  *) touch "$top/compiled"; exit 1;;
esac
"""


@pytest.fixture
def toolkits(tmp_path, monkeypatch):
    """Two toolkits: CUDA 13.1 first on PATH, and 12.4 in a folder of packages; returns their folders by release."""
    for name in ("CUDA_HOME", "CUDA_PATH", "NVCC_CCBIN"):
        monkeypatch.delenv(name, raising=False)
    folders = {release: tmp_path / f"cuda-{release}" for release in ("13.1", "12.4")}
    for release, folder in folders.items():
        (folder / "bin").mkdir(parents=True)
        text_files.write_script(folder / "bin", "nvcc", NVCC.replace("@RELEASE@", release))
    monkeypatch.setenv("PATH", f"{folders['13.1']}/bin:/usr/bin:/bin")
    monkeypatch.setattr(nvcc, "packaged_paths", lambda: [str(folders["12.4"] / "bin" / "nvcc")])
    return folders


@pytest.fixture
def recorded(monkeypatch):
    """Records a machine: its driver, its devices and the CUDA release of its torch."""

    def record(driver, devices=("sm_90",), torch=None):
        monkeypatch.setattr(nvidia, "driver_version", lambda: driver)
        monkeypatch.setattr(machine, "present", lambda device: devices if device == "cuda" else ())
        monkeypatch.setattr(machine, "torch_states", lambda _folder, _name: torch)

    return record


def chosen(tmp_path, target="cuda:sm_90"):
    """Returns the release of the toolkit that the op is built with."""
    text_files.write(tmp_path, "scale.cu", "")
    cls = sample_ops.builder_class(tmp_path, "scale", abi="c", sources=["scale.cu"], devices=["cuda"])
    return find_toolchain(cls(target).spec(), current_store()).release


@pytest.mark.parametrize(
    ("driver", "torch", "release"),
    [
        ((13, 1), None, "13.1"),
        ((13, 0), None, "13.1"),  # within a major release any minor one runs
        ((12, 8), None, "12.4"),
        ((12, 2), None, "12.4"),
        ((13, 1), "12.4", "12.4"),
        ((13, 1), "12.6", "12.4"),
        ((12, 8), "13.1", "12.4"),
        ((13, 1), "11.8", "13.1"),
    ],
)
def test_the_newest_toolkit_that_the_driver_serves_is_taken_and_torchs_own_preferred(
    tmp_path, toolkits, recorded, driver, torch, release
):
    recorded(driver, torch=torch)
    assert chosen(tmp_path) == release


def test_ptx_that_the_driver_has_to_compile_must_not_be_newer_than_the_driver(tmp_path, toolkits, recorded):
    recorded((13, 0))
    assert chosen(tmp_path, "cuda:compute_80") == "12.4"
    assert chosen(tmp_path, "cuda:sm_90+ptx") == "13.1", "the device runs the machine code"


def test_the_order_does_not_depend_on_path(tmp_path, toolkits, recorded, monkeypatch):
    monkeypatch.setenv("PATH", f"{toolkits['12.4']}/bin:{os.environ['PATH']}")
    recorded((13, 1))
    assert chosen(tmp_path) == "13.1"


@pytest.mark.parametrize(
    ("driver", "packages"),
    [((12, 2), "cuda-toolkit-12-2"), ((13, 0), "'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-cccl==13.0.*'")],
)
def test_if_no_toolkit_fits_the_error_comes_before_compiling_and_names_packages(
    tmp_path, toolkits, recorded, monkeypatch, driver, packages
):
    monkeypatch.setattr(nvcc, "packaged_paths", list)
    recorded(driver)
    with pytest.raises(OpIncompatibleError) as error:
        chosen(tmp_path, "cuda:sm_90" if driver[0] == 12 else "cuda:compute_80")
    release = ".".join(map(str, driver))
    assert f"the driver here supports CUDA up to {release}, and nvcc is of 13.1" in str(error.value)
    assert packages in str(error.value)
    assert not (toolkits["13.1"] / "compiled").exists()


def test_cuda_home_is_checked_and_not_overruled(tmp_path, toolkits, recorded, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(toolkits["13.1"]))
    recorded((12, 8))
    with pytest.raises(OpIncompatibleError, match=r"supports CUDA up to 12\.8, and nvcc is of 13\.1"):
        chosen(tmp_path)


@pytest.mark.parametrize("devices", [(), ("sm_80",)])
def test_a_build_for_another_machine_takes_the_first_toolkit(tmp_path, toolkits, recorded, devices):
    recorded((12, 8), devices)
    assert chosen(tmp_path) == "13.1"


def test_a_toolkit_that_does_not_work_is_passed_over(tmp_path, toolkits, recorded):
    text_files.write_script(toolkits["13.1"] / "bin", "nvcc", "exit 3")
    recorded((13, 1))
    assert chosen(tmp_path) == "12.4"
