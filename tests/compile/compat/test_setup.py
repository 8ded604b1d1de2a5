"""An unmodified project with CppExtension and BuildExtension, built by its setup.py on opforge."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from support import child_processes, sample_ops, text_files
from support.paths import CHECKOUT

pytest.importorskip("torch", reason="pip install torch")

SETUP = """\
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="twicely",
    version="1",
    packages=["twicely"],
    ext_modules=[
        CppExtension(
            "twicely._C",
            ["twicely/module.cpp", "twicely/factor.cpp"],
            include_dirs=["include"],
            define_macros=[("OFFSET", "1"), ("NOTHING", None)],
            undef_macros=["__OPTIMIZE__"],
            extra_compile_args={"cxx": ["-O1"]},
        ),
        CppExtension("twicely._limited", ["twicely/module.cpp", "twicely/factor.cpp"], include_dirs=["include"],
                     define_macros=[("OFFSET", "2")], py_limited_api=True),
        CppExtension("twicely._optional", ["twicely/wrong.cpp"], optional=True),
        Extension("twicely._plain", ["twicely/plain.c"]),
    ],
    cmdclass={"build_ext": BuildExtension},
)
"""
MODULE = """\
#include <Python.h>
#include <cassert>
#if defined(__OPTIMIZE__) && OFFSET == 1
#error "undef_macros is not heeded"
#endif
int factor();
static PyObject* twice(PyObject*, PyObject* x) {
  assert(false);  // Python's own flags have NDEBUG
  return PyLong_FromLong(factor() * PyLong_AsLong(x) + OFFSET);
}
static PyMethodDef methods[] = {{"twice", twice, METH_O, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "module", nullptr, -1, methods};
#define NAMED(name) PyInit_##name
#define INIT(name) NAMED(name)
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&definition); }
"""
PLAIN = """\
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_plain", NULL, -1, NULL};
PyMODINIT_FUNC PyInit__plain(void) { return PyModule_Create(&definition); }
"""
USE = """
import torch
from twicely import _C, _limited, _plain
print(_C.twice(4), _limited.twice(4), _plain.__name__)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The project's sources, and a store; gives both folders."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("one/twicely", "one/include"):
        (folder / name).mkdir(parents=True)
    files = {
        "setup.py": SETUP,
        "twicely/__init__.py": "",
        "twicely/module.cpp": MODULE,
        "twicely/factor.cpp": '#include "factor.h"\nint factor() { return FACTOR; }\n',
        "twicely/plain.c": PLAIN,
        "twicely/wrong.cpp": "int wrong\n",
        "include/factor.h": "#define FACTOR 2\n",
    }
    for name, text in files.items():
        text_files.write(folder / "one", name, text)
    return folder / "one", folder / "store"


def build(folder, store, *command):
    """Run the project's setup.py on opforge; gives the finished process and what happened in the store."""
    log = f"{store}.{sample_ops.unique_name('events')}"
    env = child_processes.environment(OPFORGE_CACHE_DIR=str(store), OPFORGE_LOG=log)
    argv = [sys.executable, "-m", "opforge.compat.cpp_extension", "setup.py", *(command or ("build_ext", "--inplace"))]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=250)
    with open(log, encoding="utf-8") as file:
        events = [json.loads(line) for line in file]
    return done, [(one["event"], one["op"]) for one in events if one["event"] in ("hit", "build")]


@pytest.fixture(scope="module")
def built(project):
    return build(*project)


def test_its_extensions_are_built_into_the_store_and_put_in_place(built, project):
    done, events = built
    assert done.returncode == 0, done.stderr
    assert events == [("build", "_C"), ("build", "_limited")]
    assert child_processes.run_python(USE, cwd=project[0]) == "9 10 twicely._plain\n"


def test_what_is_not_torchs_is_left_to_it_with_the_reason(built):
    reason = "twicely/plain.c is no C++ or CUDA source"
    assert f"twicely._plain is left to torch's BuildExtension: {reason}" in built[0].stderr


def test_an_optional_extension_may_fail_and_its_error_is_opforges(built):
    text = built[0].stdout + built[0].stderr
    assert 'building extension "twicely._optional" failed: _optional: compile twicely/wrong.cpp failed:' in text
    assert "wrong.cpp:1:" in text and "full log: " in text


def test_a_limited_extension_is_named_so_and_names_no_library_of_torchs_python(built, project):
    from opforge.builders.inspection.elf import read_library

    folder = project[0] / "twicely"
    assert "libtorch_python.so" not in read_library(str(folder / "_limited.abi3.so"))["needs"]
    (module,) = folder.glob("_C.cpython-*.so")
    assert {"libtorch_python.so", "libtorch.so", "libc10.so"} <= set(read_library(str(module))["needs"])
    assert os.access(module, os.X_OK)


def test_another_checkout_of_it_takes_the_same_libraries_from_the_store(built, project):
    first, store = project
    second = first.parent / "two"
    shutil.copytree(first, second, ignore=shutil.ignore_patterns("*.so", "build"))
    done, events = build(second, store)
    assert done.returncode == 0, done.stderr
    assert events == [("hit", "_C"), ("hit", "_limited")]
    assert (second / "twicely" / "_limited.abi3.so").read_bytes() == (
        first / "twicely" / "_limited.abi3.so"
    ).read_bytes()


def with_entry_points(folder):
    """A folder for PYTHONPATH that says of opforge's entry points what its own pyproject.toml does."""
    from setuptools.config.pyprojecttoml import load_file

    groups = load_file(os.path.join(CHECKOUT, "pyproject.toml"))["project"]["entry-points"]
    told = folder / "site" / "opforge_here-1.dist-info"
    told.mkdir(parents=True)
    text_files.write(told, "METADATA", "Metadata-Version: 2.1\nName: opforge-here\nVersion: 1\n")
    lines = [f"{name} = {place}" for name, place in groups["setuptools.finalize_distribution_options"].items()]
    text_files.write(told, "entry_points.txt", "\n".join(["[setuptools.finalize_distribution_options]", *lines, ""]))
    return str(told.parent)


def test_pip_builds_on_opforge_where_the_variable_asks_for_it(built, project, tmp_path):
    first, store = project
    tree, log = tmp_path / "tree", tmp_path / "events"
    shutil.copytree(first, tree, ignore=shutil.ignore_patterns("*.so", "build"))
    path = os.pathsep.join([with_entry_points(tmp_path), os.path.join(CHECKOUT, "src")])
    own = {"OPFORGE_CPP_EXTENSION": "1", "OPFORGE_CACHE_DIR": str(store), "OPFORGE_LOG": str(log)}
    env = child_processes.environment(**own, PYTHONPATH=path, PIP_DISABLE_PIP_VERSION_CHECK="1")
    argv = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(tmp_path), "."]
    done = subprocess.run(argv, cwd=tree, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in log.read_text().splitlines()]
    served = [(one["event"], one["op"]) for one in events if one["event"] in ("hit", "build")]
    assert served == [("hit", "_C"), ("hit", "_limited")]
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {"twicely/_limited.abi3.so", "twicely/__init__.py"} <= set(archive.namelist())


def test_the_hook_does_nothing_unasked_and_a_projects_own_way_to_build_an_extension_stays(monkeypatch, caplog):
    from setuptools import Distribution
    from torch.utils.cpp_extension import BuildExtension

    from opforge.compat.setuptools_hook import finalize

    class Own(BuildExtension):
        def build_extension(self, ext):
            raise AssertionError("not called here")

    class Inherited(BuildExtension):
        pass

    unasked = Distribution({"cmdclass": {"build_ext": BuildExtension}})
    finalize(unasked)
    assert unasked.cmdclass["build_ext"] is BuildExtension
    commands = {}
    monkeypatch.setenv("OPFORGE_CPP_EXTENSION", "1")
    for command in (Own, Inherited, BuildExtension.with_options(use_ninja=False)):
        distribution = Distribution({"cmdclass": {"build_ext": command}})
        finalize(distribution)
        commands[command] = distribution.cmdclass["build_ext"]
        finalize(distribution)
        assert distribution.cmdclass["build_ext"] is commands[command]
    assert [given is made for given, made in commands.items()] == [True, False, False]
    assert all(issubclass(made, given) for given, made in commands.items())
    said = {record.getMessage() for record in caplog.records}
    assert len(said) == 1 and said.pop().endswith("Own builds its extensions in its own way")


def test_a_changed_header_is_no_hit_and_an_error_ends_the_build_in_a_sentence(built, project):
    first, store = project
    third = first.parent / "three"
    shutil.copytree(first, third, ignore=shutil.ignore_patterns("*.so", "build"))
    text_files.write(third, "include/factor.h", "#define FACTOR two\n")
    done, events = build(third, store)
    assert done.returncode == 1
    assert events == []
    assert "error: _C: compile twicely/factor.cpp failed: " in done.stderr and "Traceback" not in done.stderr


def test_other_sources_and_extensions_without_torch_are_not_opforges_to_build():
    from setuptools import Extension

    from opforge.compat.cpp_extension.extension_builder import refusal

    assert refusal(Extension("a._C", ["a.cpp", "a.sycl"], libraries=["torch"])).startswith("a.sycl is no C++ or CUDA")
    assert refusal(Extension("a._C", ["a.cpp"])) == "it does not link with torch"
    assert refusal(Extension("a._C", ["a.cpp"], libraries=["torch"])) == ""


def test_a_script_that_is_not_named_gets_the_usage():
    done = subprocess.run(
        [sys.executable, "-m", "opforge.compat.cpp_extension"],
        env=child_processes.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "usage: python -m opforge.compat.cpp_extension {SCRIPT | -m MODULE} [ARGUMENT ...]\n"
