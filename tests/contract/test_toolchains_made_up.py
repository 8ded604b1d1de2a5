"""Device compilers that are only pretended: another version, no answer, a refusal, none at all."""

from __future__ import annotations

import os
import shutil

import pytest
from support import sample_ops, text_files
from support.compilers.installed_compilers import made

from opforge.builders.planner import make_plan
from opforge.builders.spec.op_spec import root_paths
from opforge.builders.toolchains import find_toolchain, nvcc
from opforge.cache.current import current_store
from opforge.errors import ToolchainError, ToolchainNotFoundError

pytestmark = pytest.mark.compile


@pytest.fixture
def bin(tmp_path, monkeypatch):
    """A folder that is all of PATH but for the system's tools, and no other way to a device compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("CUDA_HOME", "CUDA_PATH", "ROCM_HOME", "ROCM_PATH", "HIP_PATH", "CMPLR_ROOT", "ONEAPI_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(nvcc, "_packaged", list)
    return folder


NVCC = """\
top="$(dirname "$(dirname "$0")")"
case "$*" in
  *--version*) echo "Cuda compilation tools, release 14.2, V14.2.@BUILD@";;
  *--list-gpu*) echo "compute_90 sm_90 compute_150 sm_150";;
  *-E*) @HOST@;;
  *--dryrun*sm_150z*) exit 1;;
  *--dryrun*) printf '#$ TOP=%s\\n#$ CICC_PATH=%s\\n#$ INCLUDES="-I%s/include"\\n' "$top" "$top" "$top" >&2;;
esac
"""


def fake_nvcc(folder, build="1", host="exit 0"):
    text_files.write_script(folder, "nvcc", NVCC.replace("@BUILD@", build).replace("@HOST@", host))
    return made("nvcc")


def test_another_version_of_a_compiler_is_another_toolchain(bin):
    first = fake_nvcc(bin)
    assert first.release == "14.2" and first.target_problem("cuda", ("sm_90", "sm_150a", "ptx")) is None
    assert "does not know sm_150z" in first.target_problem("cuda", ("sm_150z",))
    second = fake_nvcc(bin, build="22")
    assert first.identity() != second.identity()


def test_a_host_compiler_that_nvcc_refuses_is_named_with_the_way_out(bin):
    words = "unsupported GNU version! gcc versions later than 15 are not supported!"
    refusing = fake_nvcc(bin, host=f"echo 'x.h:1:2: error: #error -- {words} Use at your own risk' >&2; exit 1")
    said = refusing.target_problem("cuda", ("sm_90",))
    assert f"nvcc 14.2 does not accept {refusing.host.argv[0]}: {words}; set NVCC_CCBIN" in said


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("exit 1", "ended with 1: it printed nothing"),
        ("echo 'fatal: broken' >&2; exit 3", "ended with 3: fatal: broken"),
        ("echo unheard of", "prints 'unheard of', no release"),
    ],
)
def test_an_nvcc_that_does_not_work_is_said_to(body, says, bin):
    text_files.write_script(bin, "nvcc", body)
    with pytest.raises(ToolchainError) as refused:
        made("nvcc").identity()
    assert says in str(refused.value) and "Set CUDA_HOME" in str(refused.value)


def test_a_compiler_that_hangs_is_given_up(bin, monkeypatch):
    from opforge.builders.toolchains import probe

    monkeypatch.setattr(probe, "PROBE_TIMEOUT", 0.2)
    text_files.write_script(bin, "nvcc", "exec sleep 30")
    with pytest.raises(ToolchainError, match="did not run to its end"):
        made("nvcc").identity()


@pytest.mark.parametrize(
    ("name", "program", "how"),
    [
        ("nvcc", "CUDA", "pip install nvidia-cuda-nvcc"),
        ("sycl", "SYCL", "setvars.sh"),
        ("hipcc", "HIP", "apt install hipcc"),
    ],
)
def test_a_compiler_that_is_not_here_says_how_to_get_it(name, program, how, tmp_path, monkeypatch, bin):
    for tool in ("g++", "as", "ld"):
        os.symlink(shutil.which(tool), bin / tool)
    monkeypatch.setenv("PATH", str(bin))
    if name == "hipcc" and os.path.exists("/opt/rocm/bin/hipcc"):
        pytest.skip("ROCm is in /opt/rocm, where it is found whatever PATH says")
    with pytest.raises(ToolchainNotFoundError) as refused:
        made(name)
    assert f"No {program} compiler was found." in str(refused.value) and how in str(refused.value)


def test_a_home_that_holds_no_compiler_is_an_error_and_no_silence(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(ToolchainNotFoundError, match="which has no bin/nvcc\nCorrect CUDA_HOME, or unset it"):
        nvcc.find()


def test_sycl_compiles_with_icpx_and_links_with_it(bin, tmp_path):
    text_files.write_script(bin, "icpx", "echo 'Intel(R) oneAPI DPC++/C++ Compiler 2031.2.0 (2031.2.0.1)'")
    text_files.write(tmp_path, "scale.sycl", "")
    text_files.write(tmp_path, "face.cpp", "")
    cls = sample_ops.builder_class(tmp_path, "scale", sources=["scale.sycl", "face.cpp"], devices=["xpu"])
    builder = cls("xpu:pvc+bmg")
    found = find_toolchain(builder.spec(), current_store())
    plan = make_plan(builder.spec(), found)
    steps = {
        step.title: list(step.argv)
        for step in found.steps(plan, root_paths(builder.spec(), found.root_paths()), "scale.so")
    }
    assert steps["compile scale.sycl"][0] == str(bin / "icpx")
    assert "-fsycl-targets=spir64_gen,spir64" in steps["compile scale.sycl"]
    assert steps["compile face.cpp"][0].endswith("g++")
    assert steps["link scale"][0] == str(bin / "icpx") and "-device bmg,pvc" in steps["link scale"]
    assert "libtorch_xpu.so" in plan.stubs and ("USE_XPU", "") in plan.defines
    assert "spir64_gen" not in str(found.device_flags((), ())), "without a name there is SPIR-V alone"
