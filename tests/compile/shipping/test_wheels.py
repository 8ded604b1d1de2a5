"""Wheels that carry ops: built by pip, installed where there is no compiler, loaded without a setting."""

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
    """The wheel of a copy of a source tree, built with this environment's packages; gives its path and pip's words."""
    tree = folder / "tree"
    shutil.copytree(source, tree, symlinks=True, ignore=IGNORED)
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-v", "-w", str(folder), "."]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPFORGE_")}
    env = {**clean, "OPFORGE_CACHE_DIR": str(store), "PIP_DISABLE_PIP_VERSION_CHECK": "1", **env}
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=280)
    wheels = [one for one in os.listdir(folder) if one.endswith(".whl")]
    return os.path.join(folder, wheels[0]) if wheels else "", done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The example's wheel, and opforge's own with one op in it."""
    example, own = tmp_path_factory.mktemp("example"), tmp_path_factory.mktemp("own")
    store = tmp_path_factory.mktemp("stores") / "store"
    first, told = build(os.path.join(CHECKOUT, "examples", "prebuilt_op"), example, store)
    assert first, told
    ours = {"OPFORGE_BUILD_OPS": "CPULionBuilder", "OPFORGE_BUILD_TARGETS": "cpu:x86-64"}
    second, told = build(CHECKOUT, own, store, **ours)
    assert second, told
    return first, second


@pytest.fixture(scope="module")
def elsewhere(wheels, tmp_path_factory):
    """A fresh environment with both wheels and a sight of torch, a home without a cache, no compiler: runs code."""
    place = tmp_path_factory.mktemp("elsewhere")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "venv")], check=True)
    python = str(place / "venv" / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", *wheels]
    subprocess.run(pip, check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    with open(os.path.join(site, "torch_here.pth"), "w") as file:
        file.write(os.path.dirname(os.path.dirname(torch.__file__)) + "\n")
    (place / "home").mkdir()

    def run(code, **env):
        bare = {"PATH": str(place / "home"), "HOME": str(place / "home"), **env}
        return subprocess.run([python, "-I", "-c", code], env=bare, cwd=place, capture_output=True, text=True)

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
SQUARED = """
import torch, prebuilt_op
print(prebuilt_op.squared_relu(torch.tensor([-1.0, 3.0])).tolist(), prebuilt_op.op().origin)
"""


def test_an_installed_op_loads_without_a_compiler_a_cache_or_a_setting(elsewhere):
    done = elsewhere(SQUARED)
    assert done.stdout == f"[0.0, 9.0] {elsewhere.site}/prebuilt_op/_opforge_ops\n", done.stderr


def test_opforge_itself_can_ship_its_ops(elsewhere):
    code = """
import torch
from opforge.builders.cpu.lion import CPULionBuilder
from opforge.ops import CPULion
weight = torch.nn.Parameter(torch.ones(3))
weight.grad = torch.ones(3)
CPULion([weight], lr=0.5, weight_decay=0.0).step()
print(CPULionBuilder().load().origin, weight.tolist())
"""
    done = elsewhere(code)
    assert done.stdout == f"{elsewhere.site}/opforge/_opforge_ops [0.5, 0.5, 0.5]\n", done.stderr


def test_a_wheel_for_another_level_is_a_clear_error_and_says_what_it_holds(elsewhere):
    code = """
from prebuilt_op.builders import SquaredReluBuilder
SquaredReluBuilder("cpu:x86-64-v2").build(exact=True)
"""
    done = elsewhere(code, OPFORGE_PREBUILT="require")
    assert "PrebuiltRequiredError" in done.stderr and "OPFORGE_PREBUILT=require forbids building" in done.stderr
    for level in ("x86-64", "x86-64-v3"):
        assert f"it is built for cpu:{level}, and cpu:x86-64-v2 is wanted" in done.stderr
    done = elsewhere(code)
    assert "ToolchainNotFoundError: No C++ compiler was found." in done.stderr
    assert "it is built for cpu:x86-64-v3, and cpu:x86-64-v2 is wanted" in done.stderr


def test_an_installed_source_that_was_edited_is_not_answered_by_the_wheel(elsewhere):
    look = """
from opforge.builders.lookup.finder import find
from prebuilt_op.builders import SquaredReluBuilder
builder = SquaredReluBuilder()
entry, rejected = find(builder.spec())
print(entry is not None, *(skipped.reason for skipped in rejected))
"""
    path = os.path.join(elsewhere.site, "prebuilt_op", "csrc", "squared.h")
    with open(path) as file:
        text = file.read()
    try:
        with open(path, "a") as file:
            file.write("// edited\n")
        assert elsewhere(look).stdout.startswith("False") and f"{path} has changed" in elsewhere(look).stdout
    finally:
        with open(path, "w") as file:
            file.write(text)
    assert elsewhere(look).stdout.startswith("True"), "contents count, not times"


def test_the_wheel_holds_what_it_should_and_says_whom_it_serves(wheels):
    for wheel in wheels:
        name = os.path.basename(wheel)
        assert re.search(r"-py3-none-manylinux_2_\d+_x86_64\.whl$", name), name
    with zipfile.ZipFile(wheels[0]) as archive:
        names = archive.namelist()
        assert "Root-Is-Purelib: false" in archive.read("prebuilt_op-0.1.0.dist-info/WHEEL").decode()
    assert sum(name.endswith(".so") for name in names) == 2
    assert "prebuilt_op/csrc/squared.h" in names and not any(name.endswith("CACHEDIR.TAG") for name in names)


def test_auditwheel_agrees_with_the_tag(wheels):
    pytest.importorskip("auditwheel", reason="needs auditwheel (pip install auditwheel)")
    for wheel in wheels:
        command = [sys.executable, "-m", "auditwheel", "show", wheel]
        done = subprocess.run(command, capture_output=True, text=True)
        said = " ".join(done.stdout.split())
        (allowed,) = re.findall(r'constrains the platform tag to "(manylinux_2_\d+_x86_64)"', said)
        assert wheel.endswith(f"-{allowed}.whl"), said


def project(folder, table):
    """A project of one package, which forgets to ship its source; its pyproject.toml ends with `table`."""
    package = folder / "mine"
    package.mkdir(parents=True)
    text_files.write(package, "__init__.py", "")
    text_files.write(package, "ops.py", OWN_OPS)
    text_files.write(package, "relu.cpp", sample_ops.EXPORT + " int value() { return 1; }\n")
    text_files.write(folder, "pyproject.toml", PYPROJECT + table)
    return folder


def test_a_source_that_is_left_out_of_the_wheel_fails_its_build(tmp_path, own_store):
    source = project(tmp_path / "project", '[tool.opforge]\nops = ["mine.ops:Op"]\ntargets = ["cpu:x86-64"]')
    wheel, told = build(source, tmp_path, own_store)
    assert wheel == "" and "names 'relu.cpp', which does not exist" in told
    assert "opforge: building mine.ops:Op failed; the lines above say why" in told
