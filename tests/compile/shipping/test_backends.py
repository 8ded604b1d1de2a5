"""Wheels with ops from other build backends: made without isolation, installed and loaded without a compiler."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from support import child_processes, text_files
from support.unpacked_wheel import load

pytestmark = [
    pytest.mark.compile,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for a level of x86-64"),
]
BUILDERS = """\
import ctypes
from opforge import OpBuilder

class AnswerBuilder(OpBuilder):
    name, sources, abi = "answer", ["answer.cpp"], "c"
    signatures = {"answer": (ctypes.c_int, [])}
"""
SOURCE = '#include "answer.h"\nextern "C" __attribute__((visibility("default"))) int answer() { return ANSWER; }\n'
HEAD = """\
[build-system]
requires = []
build-backend = "BACKEND"
[project]
name = "mine"
version = "1.5"
description = "An op"
[tool.setuptools]
packages = ["mine"]
[tool.setuptools.package-data]
mine = ["*.cpp", "*.h"]
"""
OPS = '[tool.opforge]\nops = ["mine.ops:AnswerBuilder"]\ntargets = ["cpu:x86-64"]\n'
HATCH = "[tool.hatch.build.targets.wheel.hooks.opforge]\n"
BACKENDS = {
    "setuptools": ("opforge.backend", OPS + 'backend = "setuptools.build_meta"\n'),
    "flit": ("opforge.backend", OPS + 'backend = "flit_core.buildapi"\n'),
    "meson-python": ("opforge.backend", OPS + 'backend = "mesonpy"\n'),
    "hatchling's hook": ("hatchling.build", HATCH + OPS),
}
MESON = """\
project('mine', version: '1.5')
python = import('python').find_installation(pure: true)
python.install_sources('mine/__init__.py', 'mine/ops.py', 'mine/answer.cpp', 'mine/answer.h', subdir: 'mine')
"""
MODULES = {"flit": "flit_core", "meson-python": "mesonpy", "hatchling's hook": "hatchling"}
LOAD = "from mine.ops import AnswerBuilder as B; op = B('cpu:x86-64').load(); print(op.answer(), op.origin)"


@pytest.fixture
def project(tmp_path):
    """A function that writes a project for a backend and returns its folder."""

    def write(backend, tables, folder="my project"):
        root = tmp_path / folder
        package = root / "mine"
        package.mkdir(parents=True)
        text_files.write(package, "__init__.py", '"""An op."""\n')
        text_files.write(package, "ops.py", BUILDERS)
        text_files.write(package, "answer.cpp", SOURCE)
        text_files.write(package, "answer.h", "#define ANSWER 42\n")
        text_files.write(root, "meson.build", MESON)
        text_files.write(root, "pyproject.toml", HEAD.replace("BACKEND", backend) + tables)
        return root

    return write


def build(root, *arguments, **env):
    """Builds the wheel of a project without isolation. Returns its path, or an empty text, and what was printed."""
    out = root.parent / "wheels"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check", "-o", str(out)]
    scripts = sysconfig.get_path("scripts")  # where meson is, of an environment that was not activated
    done = subprocess.run(
        [*command, *arguments, str(root)],
        env=child_processes.environment(**{"PATH": os.pathsep.join([scripts, os.environ["PATH"]]), **env}),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    wheels = [*out.glob("*.whl")] if done.returncode == 0 else []
    return str(wheels[0]) if wheels else "", done.stdout + done.stderr


@pytest.mark.parametrize("name", BACKENDS)
def test_a_wheel_of_each_backend_has_the_op_and_loads_without_a_compiler(project, tmp_path, own_store, name):
    if name in MODULES:
        pytest.importorskip(MODULES[name], reason=f"not run: pip install {MODULES[name]}")
    if name == "hatchling's hook" and not importlib.metadata.entry_points(group="hatch", name="opforge"):
        pytest.skip("not run: opforge was installed before it had this entry point: install it again")
    wheel, printed = build(project(*BACKENDS[name]))
    assert wheel, printed
    assert os.path.basename(wheel) == "mine-1.5-py3-none-manylinux_2_5_x86_64.whl", printed
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read("mine-1.5.dist-info/WHEEL").decode()
    assert len([file for file in names if file.startswith("mine/_opforge_ops/") and file.endswith(".so")]) == 1
    assert not [file for file in names if file.endswith(".pyc")] and len(names) == len(set(names))
    assert "Root-Is-Purelib: false" in metadata and "Tag: py3-none-manylinux_2_5_x86_64" in metadata
    answer, origin = load(wheel, tmp_path / "site", LOAD).split()
    assert (answer, origin) == ("42", str(tmp_path / "site" / "mine" / "_opforge_ops"))


def test_the_wheels_list_has_the_digest_of_every_file_and_two_builds_the_same_bytes(project, tmp_path, own_store):
    from wheel.wheelfile import WheelFile

    root = project(*BACKENDS["setuptools"])
    first, printed = build(root, SOURCE_DATE_EPOCH="1700000000")
    assert first, printed
    with WheelFile(first) as archive:  # it compares each file with the list
        listed = {line.partition(",")[0] for line in archive.read("mine-1.5.dist-info/RECORD").decode().splitlines()}
        assert listed == set(archive.namelist())
        for name in archive.namelist():
            archive.read(name)
    with open(first, "rb") as file:
        content = file.read()
    second, printed = build(root, SOURCE_DATE_EPOCH="1700000000")
    with open(second, "rb") as file:
        assert file.read() == content, printed


def test_a_source_that_the_wheel_lacks_fails_the_build(project, own_store):
    without = 'backend = "setuptools.build_meta"\n[tool.setuptools.exclude-package-data]\nmine = ["*.h"]\n'
    wheel, printed = build(project("opforge.backend", OPS + without))
    assert not wheel and "answer.h" in printed
    assert "opforge.backend: building mine.ops:AnswerBuilder failed; see the lines above" in printed, printed
