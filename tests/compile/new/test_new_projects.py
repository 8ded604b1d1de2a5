"""New projects are built, installed and tested: as wheels, by opforge's commands, and for devices that are not here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest
from click.testing import CliRunner
from support import child_processes, tiers
from support.gpu import triton_parts
from support.paths import SOURCE_TREE
from support.processes import forked_python

from opforge.builders.toolchains import nvcc
from opforge.cli import group
from opforge.errors import ToolchainNotFoundError
from opforge.new.project import BUILD_SYSTEMS, create

pytestmark = pytest.mark.compile
LONG = tiers.is_long()


def run(command, folder, **env):
    """Runs a command in a project's folder, with this checkout's opforge. Returns its output."""
    env = child_processes.environment(PYTHONPATH=SOURCE_TREE, PIP_DISABLE_PIP_VERSION_CHECK="1", **env)
    process = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=250)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout + process.stderr


def installed(folder, site):
    """Builds the wheel of a project in this environment, and unpacks it into the folder `site`."""
    pip = [sys.executable, "-m", "pip"]
    run([*pip, "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(folder.parent / "dist"), "."], folder)
    (wheel,) = (folder.parent / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return wheel


@pytest.mark.parametrize(
    "build_system",
    [
        name if name in ("setuptools", "flit") else pytest.param(name, marks=pytest.mark.long("it takes what git has"))
        for name in BUILD_SYSTEMS
    ],
)
def test_an_sdist_has_every_file_of_the_project_whatever_makes_it(tmp_path, build_system):
    folder = tmp_path / "my-op"
    files = {os.path.relpath(path, folder) for path in create(str(folder), "cpu", build_system)}
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path / "dist"), "."]
    run(command, folder, PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))  # meson is there
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert files <= {name.partition("/")[2] for name in archive.getnames()}


def run_tests(folder, site, **env):
    """Runs a project's tests with the installed package. Returns pytest's output."""
    path = os.pathsep.join([str(site), SOURCE_TREE])
    command = [forked_python.python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    env = child_processes.environment(PYTHONPATH=path, **env)
    process = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=250)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def build_ops(folder, monkeypatch, *arguments):
    """Runs build-ops in a project's folder. Returns (exit code, output)."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    result = CliRunner().invoke(group, ["build-ops", *arguments])
    return result.exit_code, result.output


@pytest.mark.long(
    "takes 20 s; docs/new-project.md, which is typed, tests such a project, and test_wheels.py has wheels"
)
def test_an_op_of_the_cpu_is_shipped_in_its_wheel_and_fulfils_the_contract_without_a_compiler(tmp_path):
    folder, site = tmp_path / "my-op", tmp_path / "site"
    create(str(folder), "cpu")
    wheel = installed(folder, site)
    assert "-py3-none-manylinux_" in wheel.name, "one wheel for all Pythons"
    output = run_tests(folder, site, PATH=str(tmp_path), OPFORGE_PREBUILT="require")
    assert " passed" in output and "failed" not in output


@pytest.mark.long("packs a project and tries it, as tests/compile/packages do")
def test_its_kernel_package_passes_torchs_checks(tmp_path):
    folder = tmp_path / "my-op"
    create(str(folder), "cpu")
    output = run([sys.executable, "-m", "opforge", "pack", "--cpu-level", sysconfig_level()], folder)
    assert "import passed, opcheck passed, graph passed" in output


def sysconfig_level():
    """Returns the base level of this processor."""
    return "aarch64" if "aarch64" in sysconfig.get_platform() else "x86-64"


def test_an_accelerator_its_compiler_and_its_op_fulfil_their_contracts(tmp_path):
    folder, site = tmp_path / "my-device", tmp_path / "site"
    create(str(folder), "accelerator")
    wheel = installed(folder, site)
    assert wheel.name.endswith("-py3-none-any.whl")
    output = run_tests(folder, site)
    assert int(output.rpartition(" passed")[0].split()[-1]) > 40, output


def test_an_op_in_triton_is_compiled_without_a_gpu(tmp_path, monkeypatch):
    """In the third tier its tests are run too, which interpret the kernels."""
    if triton_parts.needs_triton.args[0]:
        pytest.skip("needs triton: pip install triton")
    folder = tmp_path / "triton-op"
    create(str(folder), "triton")
    code, output = build_ops(folder, monkeypatch, "triton_op.builders:TritonOpBuilder", "--target", "cuda:sm_90")
    assert code == 0, output
    assert not LONG or " passed" in run_tests(folder, folder)


def find_hipcc():
    if shutil.which("hipcc") is None:
        pytest.skip("hipcc is not installed: apt install hipcc")


@pytest.mark.parametrize(
    ("find", "target"), [(nvcc.find, "cuda:sm_80+sm_90+ptx"), (find_hipcc, "hip:gfx90a")], ids=["nvcc", "hipcc"]
)
def test_an_op_in_cuda_is_planned_for_both_vendors(find, target, tmp_path, monkeypatch):
    """In the third tier it is also compiled, which takes 20 seconds."""
    try:
        find()
    except ToolchainNotFoundError as error:
        pytest.skip(str(error))
    folder = tmp_path / "cuda-op"
    create(str(folder), "cuda")
    dry = () if LONG else ("--dry-run",)
    code, output = build_ops(folder, monkeypatch, "cuda_op.builders:CudaOpBuilder", "--target", target, *dry)
    assert code == 0 and target.partition("+")[0] in output, output


def test_an_op_in_sycl_is_found_and_its_missing_compiler_is_named(tmp_path, monkeypatch):
    create(str(tmp_path / "sycl-op"), "sycl")
    for variable in ("CMPLR_ROOT", "ONEAPI_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    target = ("--target", "xpu", "--dry-run")
    code, output = build_ops(tmp_path / "sycl-op", monkeypatch, "sycl_op.builders:SyclOpBuilder", *target)
    assert code == 0 or "No SYCL compiler was found" in output, output
