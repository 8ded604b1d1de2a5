"""Ops that a project of CMake builds, installed by CMake alone; test_backends.py makes a wheel by scikit-build-core."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from support import child_processes, text_files

import opforge.cmake

pytestmark = [
    pytest.mark.compile,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for a level of x86-64"),
    pytest.mark.skipif(not shutil.which("cmake"), reason="not run: apt install cmake"),
]
LISTS = """\
cmake_minimum_required(VERSION 3.18)
project(mine LANGUAGES NONE)
find_package(opforge REQUIRED)
"""
OP = "opforge_add_op(answer PACKAGE mine ABI c SOURCES mine/answer.cpp TARGETS cpu:x86-64)\n"
MADE = """\
add_custom_command(OUTPUT made.cpp COMMAND ${CMAKE_COMMAND} -E copy ${CMAKE_SOURCE_DIR}/answer.cpp.in made.cpp
                   DEPENDS answer.cpp.in)
opforge_add_op(answer PACKAGE mine ABI c SOURCES made.cpp TARGETS cpu:x86-64)
"""
NESTED = MADE.replace("PACKAGE mine", "PACKAGE acme.mine")
SOURCE = '#include "answer.h"\nextern "C" __attribute__((visibility("default"))) int answer() { return ANSWER; }\n'
LOAD = "from mine._opforge_answer import load; op = load(); print(op.answer(), op.origin)"


@pytest.fixture
def project(tmp_path):
    """A function that writes a project of CMake and returns its folder, whose name has a space."""

    def write(lists):
        root = tmp_path / "my project"
        package = root / ("acme/mine" if lists == NESTED else "mine")
        package.mkdir(parents=True)
        text_files.write(package, "__init__.py", "")
        text_files.write(package, "answer.h", "#define ANSWER 42\n")
        text_files.write(root, "answer.cpp.in", SOURCE)
        if lists == OP:
            text_files.write(package, "answer.cpp", SOURCE)
        text_files.write(root, "CMakeLists.txt", LISTS + lists)
        return root

    return write


def cmake(*arguments, **env):
    """Runs CMake. Returns its status, and all that was printed."""
    done = subprocess.run(
        ["cmake", *arguments],
        env=child_processes.environment(**env),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def configured(root, *options):
    """Configures a project with this Python. Returns the status, and what was printed."""
    where = [f"-Dopforge_ROOT={opforge.cmake.__path__[0]}", f"-DPython_EXECUTABLE={sys.executable}"]
    return cmake("-S", str(root), "-B", str(root / "build"), *where, *options)


def built(root):
    """Builds a project that was configured. Returns what was printed."""
    status, printed = cmake("--build", str(root / "build"))
    assert status == 0, printed
    return printed


@pytest.mark.parametrize(
    ("lists", "package"), [(OP, "mine"), (NESTED, "acme.mine")], ids=["source", "source that CMake makes, nested"]
)
def test_an_op_is_built_installed_and_loaded_without_a_compiler(project, tmp_path, own_store, lists, package):
    root, top = project(lists), package.partition(".")[0]
    status, printed = configured(root)
    assert status == 0, printed
    assert "built" in built(root)
    assert "cached" in built(root), "the second build is a hit"
    site = tmp_path / "site"
    shutil.copytree(root / top, site / top)  # what installs the package's own files
    assert cmake("--install", str(root / "build"), "--prefix", str(site))[0] == 0
    empty = tmp_path / "empty"
    empty.mkdir()
    path = os.pathsep.join([str(site), child_processes.environment()["PYTHONPATH"]])
    env = {"PYTHONPATH": path, "PATH": str(empty), "CXX": None, "OPFORGE_CACHE_DIR": str(empty / "store")}
    answer, origin = child_processes.run_python(LOAD.replace("mine", package), env=env, cwd=empty).split()
    assert (answer, origin) == ("42", str(site / top / "_opforge_ops"))


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ("opforge_add_op(a SOURCES a.cpp)", "opforge_add_op(a): there is no PACKAGE, the name of the package"),
        ("opforge_add_op(a PACKAGE mine)", "opforge_add_op(a): expected either SOURCES or BUILDER"),
        ("opforge_add_op(a PACKAGE mine SOURCE a.cpp)", "opforge_add_op(a): unknown: SOURCE;a.cpp. Expected PACKAGE"),
        ("opforge_add_op(a PACKAGE other SOURCES a.cpp)", "src/other: set DIRECTORY to the package's"),
    ],
)
def test_wrong_arguments_are_one_message(project, lists, message):
    status, printed = configured(project(f"{lists}\n"))
    assert status != 0 and message in " ".join(printed.split()), printed


def test_an_editable_install_builds_no_declared_op(project):
    lists = "opforge_add_op(answer PACKAGE mine BUILDER mine.ops:AnswerBuilder)\n"
    status, printed = configured(project(lists), "-DSKBUILD_STATE=editable")
    assert status == 0, printed
    assert "opforge_add_op(answer): an editable install builds the op when it is loaded" in printed


@pytest.mark.parametrize("lists", [OP, MADE], ids=["source", "source that CMake makes"])
def test_an_op_of_an_editable_install_is_built_from_the_projects_sources_when_it_is_loaded(
    project, tmp_path, own_store, lists
):
    root, site = project(lists), tmp_path / "site"
    assert configured(root, "-DSKBUILD_STATE=editable")[0] == 0
    assert cmake("--build", str(root / "build"))[0] == 0
    assert cmake("--install", str(root / "build"), "--prefix", str(site))[0] == 0
    assert not (site / "mine" / "_opforge_ops").exists()
    # As scikit-build-core's finder has it: the package's folders are where it was installed, and the project's.
    text_files.write(site, "mine/__init__.py", "")
    env = {"PYTHONPATH": os.pathsep.join([str(site), child_processes.environment()["PYTHONPATH"]])}
    assert child_processes.run_python(LOAD, env=env).split() == ["42", "built"]
    text_files.write(root / "mine", "answer.h", "#define ANSWER 43\n")
    assert child_processes.run_python(LOAD, env=env).split() == ["43", "built"]


def test_a_python_without_opforge_and_a_cross_compiled_project_are_refused(project, tmp_path):
    root = project(OP)
    python = text_files.write_script(tmp_path, "python", "exit 1")
    status, printed = configured(root, f"-DPython_EXECUTABLE={python}")
    assert status != 0
    assert f"the Python '{python}' has no opforge: install it there, or set Python_EXECUTABLE" in " ".join(
        printed.split()
    )
    shutil.rmtree(root / "build")
    status, printed = configured(root, "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")
    assert status != 0
    assert "opforge_add_op(answer): this project is cross-compiled for aarch64" in " ".join(printed.split()), printed


def test_an_op_whose_source_is_wrong_fails_the_build(project, own_store):
    root = project(OP)
    text_files.write(root / "mine", "answer.cpp", "int broken(\n")
    assert configured(root)[0] == 0
    status, printed = cmake("--build", str(root / "build"))
    assert status != 0
    text = "opforge_add_op(answer): building mine._opforge_answer:AnswerBuilder failed; see the lines above"
    assert text in printed and "answer.cpp:1" in printed
