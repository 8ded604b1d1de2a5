"""Fake device compilers: another version, one that fails, one that hangs, none at all."""

from __future__ import annotations

import os
import shutil
import time

import pytest
from support import fake_disk, sample_ops, text_files
from support.compilers.installed_compilers import toolchain_of

from opforge.builders.declaration.op_spec import root_paths
from opforge.builders.planner import make_plan
from opforge.builders.toolchains import find_toolchain, nvcc, zig
from opforge.builders.toolchains.discovery import probe
from opforge.cache.current_store import current_store, prepare
from opforge.cache.filesystem.disk import Disk
from opforge.errors import ToolchainError, ToolchainNotFoundError

pytestmark = pytest.mark.compile


@pytest.fixture
def bin(tmp_path, monkeypatch):
    """The first folder on PATH; device compilers are found in no other way."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("CUDA_HOME", "CUDA_PATH", "ROCM_HOME", "ROCM_PATH", "HIP_PATH", "CMPLR_ROOT", "ONEAPI_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(nvcc, "packaged_paths", list)
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
    return toolchain_of("nvcc")


def test_another_version_of_a_compiler_has_another_identity(bin):
    first = fake_nvcc(bin)
    assert first.release == "14.2" and first.target_problem("cuda", ("sm_90", "sm_150a", "ptx")) is None
    assert "does not know sm_150z" in first.target_problem("cuda", ("sm_150z",))
    second = fake_nvcc(bin, build="22")
    assert first.identity() != second.identity()


def test_a_host_compiler_that_nvcc_does_not_accept_is_a_problem_with_what_to_do(bin):
    message = "unsupported GNU version! gcc versions later than 15 are not supported!"
    toolchain = fake_nvcc(bin, host=f"echo 'x.h:1:2: error: #error -- {message} Use at your own risk' >&2; exit 1")
    problem = toolchain.target_problem("cuda", ("sm_90",))
    assert f"nvcc 14.2 does not accept {toolchain.host.argv[0]}: {message}; set NVCC_CCBIN" in problem


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("exit 1", "ended with 1: it printed nothing"),
        ("echo 'fatal: broken' >&2; exit 3", "ended with 3: fatal: broken"),
        ("echo unheard of", "prints 'unheard of', not a release"),
    ],
)
def test_an_nvcc_that_does_not_work_is_an_error(body, message, bin):
    text_files.write_script(bin, "nvcc", body)
    with pytest.raises(ToolchainError) as error:
        toolchain_of("nvcc").identity()
    assert message in str(error.value) and "Set CUDA_HOME" in str(error.value)


def test_a_compiler_that_hangs_is_stopped(bin, monkeypatch):
    monkeypatch.setattr(probe, "PROBE_TIMEOUT", 0.2)
    text_files.write_script(bin, "nvcc", "exec sleep 30")
    with pytest.raises(ToolchainError, match="--version` failed"):
        toolchain_of("nvcc").identity()


@pytest.mark.parametrize(
    ("name", "language", "advice"),
    [
        ("nvcc", "CUDA", "pip install nvidia-cuda-nvcc"),
        ("sycl", "SYCL", "setvars.sh"),
        ("hipcc", "HIP", "apt install hipcc"),
    ],
)
def test_the_error_for_a_missing_compiler_says_how_to_install_it(name, language, advice, tmp_path, monkeypatch, bin):
    for tool in ("g++", "as", "ld"):
        os.symlink(shutil.which(tool), bin / tool)
    monkeypatch.setenv("PATH", str(bin))
    if name == "hipcc" and os.path.exists("/opt/rocm/bin/hipcc"):
        pytest.skip("ROCm is in /opt/rocm: there it is found without PATH")
    with pytest.raises(ToolchainNotFoundError) as error:
        toolchain_of(name)
    assert f"No {language} compiler was found." in str(error.value) and advice in str(error.value)


def test_a_cuda_home_without_nvcc_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(ToolchainNotFoundError, match="which has no bin/nvcc\nCorrect CUDA_HOME, or unset it"):
        nvcc.find()


ICPX = "echo 'Intel(R) oneAPI DPC++/C++ Compiler 2031.@.0'"
HIPCC = """\
top="$(dirname "$(dirname "$(realpath "$0")")")"
case "$*" in
  *--version*) echo "HIP version: 6.@.0";;
  *) printf 'ROCM_PATH=%s\\n' "$top";;
esac
"""
ZIG = """\
case "$*" in
  version) echo 0.@.0;;
  *-v*) printf '#include <...> search starts here:\\n /usr/include\\nEnd of search list.\\n' >&2;;
esac
"""
CACHE = 'unable to open global cache directory "/nonexistent/.cache/zig": AccessDenied'


def test_the_error_of_a_zig_that_cannot_write_its_cache_says_where_to_set_another(bin, monkeypatch):
    """As of a user without a home folder. CXX names another compiler: it changes nothing."""
    text_files.write_script(bin, "zig", f"[ $1 = version ] && echo 0.17.0 && exit\necho 'error: {CACHE}' >&2\nexit 1\n")
    monkeypatch.setattr(zig, "find", lambda: str(bin / "zig"))
    with pytest.raises(ToolchainError, match="ZIG_GLOBAL_CACHE_DIR") as error:
        toolchain_of("zig").identity()
    assert CACHE in str(error.value) and "CXX" not in str(error.value)


BEHIND_LINKS = {
    "nvcc": ("nvcc", NVCC.replace("@BUILD@", "@").replace("@HOST@", "exit 0")),
    "sycl": ("icpx", ICPX),
    "hipcc": ("hipcc", HIPCC),
    "zig": ("zig", ZIG),
}


@pytest.mark.parametrize("linked", ["program", "folder"])
@pytest.mark.parametrize("name", BEHIND_LINKS)
def test_a_switched_link_is_another_compiler(name, linked, tmp_path, monkeypatch, bin):
    program, script = BEHIND_LINKS[name]
    for number in ("1", "2"):
        (tmp_path / number / "bin").mkdir(parents=True)
        text_files.write_script(tmp_path / number / "bin", program, script.replace("@", number))
    prepare(current_store().layout.root, frozenset({0, os.geteuid()}))
    os.rmdir(bin)
    if linked == "program":
        bin.mkdir()
    link = bin / program if linked == "program" else bin
    monkeypatch.setattr(zig, "find", lambda: str(bin / program))
    monkeypatch.setattr(Disk, "now_ns", lambda _self: time.time_ns() + 10 * fake_disk.SECOND)
    states = []
    for number in ("1", "2", "1"):
        target = tmp_path / number / "bin" / (program if linked == "program" else "")
        os.symlink(target, tmp_path / "new")
        os.replace(tmp_path / "new", link)
        for _process in range(2):
            probe.reset()
            toolchain = toolchain_of(name)
            states.append((toolchain.identity(), toolchain.programs()))
    identities, programs = zip(*states, strict=True)
    assert identities[0] == identities[1] == identities[4] == identities[5]
    assert identities[2] == identities[3] != identities[0]
    assert programs[0] == programs[1] and programs[1] != programs[2] == programs[3] != programs[4]


def test_sycl_compiles_with_icpx_and_links_with_it(bin, tmp_path):
    text_files.write_script(bin, "icpx", "echo 'Intel(R) oneAPI DPC++/C++ Compiler 2031.2.0 (2031.2.0.1)'")
    text_files.write(tmp_path, "scale.sycl", "")
    text_files.write(tmp_path, "binding.cpp", "")
    cls = sample_ops.builder_class(tmp_path, "scale", sources=["scale.sycl", "binding.cpp"], devices=["xpu"])
    builder = cls("xpu:pvc+bmg")
    toolchain = find_toolchain(builder.spec(), current_store())
    plan = make_plan(builder.spec(), toolchain)
    steps = {
        step.title: list(step.argv)
        for step in toolchain.steps(plan, root_paths(builder.spec(), toolchain.root_paths()), "scale.so")
    }
    assert steps["compile scale.sycl"][0] == str(bin / "icpx")
    assert "-fsycl-targets=spir64_gen,spir64" in steps["compile scale.sycl"]
    assert steps["compile binding.cpp"][0].endswith("g++")
    assert steps["link scale"][0] == str(bin / "icpx") and "-device bmg,pvc" in steps["link scale"]
    assert "libtorch_xpu.so" in plan.stubs and ("USE_XPU", "") in plan.defines
    assert "spir64_gen" not in str(toolchain.device_flags((), ())), "without an architecture there is only SPIR-V"
