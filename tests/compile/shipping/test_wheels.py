"""Wheels that hold ops: built by pip, installed without a compiler, loaded without any setting."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch
from support import sample_ops, text_files
from support.paths import CHECKOUT

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for the levels of x86-64"),
]
IGNORED = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "docs", "tests", "benchmarks")


def build(source, folder, store, **env):
    """Builds the wheel of a copy of a source tree in this environment; returns its path and pip's output."""
    tree = folder / "tree"
    shutil.copytree(source, tree, symlinks=True, ignore=IGNORED)
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-v", "-w", str(folder), "."]
    ours = ("OPFORGE_", "PYTHONDONTWRITEBYTECODE")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env = {**clean, "OPFORGE_CACHE_DIR": str(store), "PIP_DISABLE_PIP_VERSION_CHECK": "1", **env}
    process = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=280)
    wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
    return os.path.join(folder, wheels[0]) if wheels else "", process.stdout + process.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory, shared_store):
    """(the example's wheel, opforge's own wheel with one op)."""
    example, own = tmp_path_factory.mktemp("example"), tmp_path_factory.mktemp("own")
    first, output = build(os.path.join(CHECKOUT, "examples", "prebuilt_op"), example, shared_store)
    assert first, output
    variables = {"OPFORGE_BUILD_OPS": "UtilsBuilder", "OPFORGE_BUILD_TARGETS": "cpu:x86-64"}
    second, output = build(CHECKOUT, own, shared_store, **variables)
    assert second, output
    return first, second


@pytest.fixture(scope="module")
def fresh_environment(wheels, tmp_path_factory):
    """A function that runs code in an environment with both wheels and torch, without a compiler or a cache."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = str(folder / "venv" / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "--no-compile", *wheels], check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    )
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", query], check=True, capture_output=True, text=True).stdout.strip()
    with open(os.path.join(site, "torch.pth"), "w") as file:
        file.write(os.path.dirname(os.path.dirname(torch.__file__)) + "\n")
    (folder / "home").mkdir()

    def run(code, **env):
        bare = {"PATH": str(folder / "home"), "HOME": str(folder / "home"), **env}
        return subprocess.run([python, "-I", "-c", code], env=bare, cwd=folder, capture_output=True, text=True)

    run.site = site
    return run


OWN_OPS = """\
from opforge import OpBuilder

class Op(OpBuilder):
    name, sources, abi = "op", ["relu.cpp"], "c"
"""
PYPROJECT = """\
[build-system]
requires = ["setuptools", "opforge"]
build-backend = "setuptools.build_meta"
[project]
name = "mine"
version = "1"
[tool.setuptools]
packages = ["mine"]
"""
LOAD_BOTH = """
import torch, prebuilt_op
print(prebuilt_op.squared_relu(torch.tensor([-1.0, 3.0])).tolist(), prebuilt_op.op().origin)
from opforge.builders.cpu.byte_tensor import UtilsBuilder
op = UtilsBuilder().load()
print(op.cast_to_byte_tensor(torch.tensor([1, -1], dtype=torch.int16)).tolist(), op.origin)
"""


def test_an_installed_op_loads_without_a_compiler_a_cache_or_any_setting(fresh_environment):
    """That of a package, and one in opforge's own wheel."""
    process, site = fresh_environment(LOAD_BOTH), fresh_environment.site
    expected = [f"[0.0, 9.0] {site}/prebuilt_op/_opforge_ops", f"[1, 0, 255, 255] {site}/opforge/_opforge_ops"]
    assert process.stdout.splitlines() == expected, process.stderr


def test_a_wheel_with_ops_holds_no_bytecode_of_the_process_that_built_them(wheels):
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            assert not [name for name in archive.namelist() if name.endswith(".pyc")]


def test_the_error_for_a_level_that_the_wheel_lacks_says_what_it_holds(fresh_environment):
    code = """
from prebuilt_op.builders import SquaredReluBuilder
SquaredReluBuilder("cpu:x86-64-v2").build(exact=True)
"""
    process = fresh_environment(code, OPFORGE_PREBUILT="require")
    assert "PrebuiltRequiredError" in process.stderr and "OPFORGE_PREBUILT=require forbids building" in process.stderr
    for level in ("x86-64", "x86-64-v3"):
        assert f"it is built for cpu:{level}, not for cpu:x86-64-v2" in process.stderr
    process = fresh_environment(code)
    assert "ToolchainNotFoundError: No C++ compiler was found." in process.stderr
    assert "it is built for cpu:x86-64-v3, not for cpu:x86-64-v2" in process.stderr


def test_an_entry_of_the_wheel_is_not_used_after_its_source_was_edited(fresh_environment):
    search = """
from opforge.builders.load_op import find
from prebuilt_op.builders import SquaredReluBuilder
builder = SquaredReluBuilder()
entry, rejected = find(builder.spec())
print(entry is not None, *(skipped.reason for skipped in rejected))
"""
    path = os.path.join(fresh_environment.site, "prebuilt_op", "csrc", "squared.h")
    with open(path) as file:
        text = file.read()
    try:
        with open(path, "a") as file:
            file.write("// edited\n")
        assert (
            fresh_environment(search).stdout.startswith("False")
            and f"{path} has changed" in fresh_environment(search).stdout
        )
    finally:
        with open(path, "w") as file:
            file.write(text)
    assert fresh_environment(search).stdout.startswith("True"), "contents are compared, not times"


def test_the_wheel_has_the_right_files_and_tag(wheels):
    for wheel in wheels:
        name = os.path.basename(wheel)
        assert re.search(r"-py3-none-manylinux_2_\d+_x86_64\.whl$", name), name
    with zipfile.ZipFile(wheels[0]) as archive:
        names = archive.namelist()
        assert "Root-Is-Purelib: false" in archive.read("prebuilt_op-0.1.0.dist-info/WHEEL").decode()
    assert sum(name.endswith(".so") for name in names) == 2
    assert "prebuilt_op/csrc/squared.h" in names and not any(name.endswith("CACHEDIR.TAG") for name in names)


def test_auditwheel_finds_the_same_tag(wheels):
    pytest.importorskip("auditwheel", reason="needs auditwheel (pip install auditwheel)")
    for wheel in wheels:
        command = [sys.executable, "-m", "auditwheel", "show", wheel]
        process = subprocess.run(command, capture_output=True, text=True)
        output = " ".join(process.stdout.split())
        (allowed,) = re.findall(r'constrains the platform tag to "(manylinux_2_\d+_x86_64)"', output)
        assert wheel.endswith(f"-{allowed}.whl"), output


def project(folder, table):
    """Writes a project of one package that leaves its source out of the wheel; its pyproject.toml ends with `table`."""
    package = folder / "mine"
    package.mkdir(parents=True)
    text_files.write(package, "__init__.py", "")
    text_files.write(package, "ops.py", OWN_OPS)
    text_files.write(package, "relu.cpp", sample_ops.EXPORT + " int value() { return 1; }\n")
    text_files.write(folder, "pyproject.toml", PYPROJECT + table)
    return folder


def test_a_source_that_the_wheel_lacks_fails_the_build(tmp_path, own_store):
    source = project(tmp_path / "project", '[tool.opforge]\nops = ["mine.ops:Op"]\ntargets = ["cpu:x86-64"]')
    wheel, output = build(source, tmp_path, own_store)
    assert wheel == "" and "names 'relu.cpp', which does not exist" in output
    assert "opforge: building mine.ops:Op failed; see the lines above" in output
    assert output.count("hint: the wheel does not hold relu.cpp of mine. Add to pyproject.toml:") == 1
    assert re.search(r'\[tool.setuptools.package-data\]\n +mine = \["\*.cpp"\]\n', output)
