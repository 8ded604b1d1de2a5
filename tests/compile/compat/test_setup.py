"""An unmodified project with CppExtension and BuildExtension, whose setup.py builds it on opforge."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from support import child_processes, sample_ops, text_files
from support.compat import installed_metadata
from support.paths import CHECKOUT
from support.processes import forked_python

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
#error "undef_macros has no effect"
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
FACTOR = """\
#include "factor.h"
namespace at { int get_num_threads(); }  // of torch's libraries, without its headers
int factor() { return at::get_num_threads() > 0 ? FACTOR : 0; }
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
    """The folders of the project's sources and of a store."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("one/twicely", "one/include"):
        (folder / name).mkdir(parents=True)
    files = {
        "setup.py": SETUP,
        "twicely/__init__.py": "",
        "twicely/module.cpp": MODULE,
        "twicely/factor.cpp": FACTOR,
        "twicely/plain.c": PLAIN,
        "twicely/wrong.cpp": "int wrong\n",
        "include/factor.h": "#define FACTOR 2\n",
    }
    for name, text in files.items():
        text_files.write(folder / "one", name, text)
    return folder / "one", folder / "store"


def build(folder, store, *command):
    """Runs the project's setup.py on opforge. Returns the finished process and the store's hits and builds."""
    log = f"{store}.{sample_ops.unique_name('events')}"
    env = child_processes.environment(OPFORGE_CACHE_DIR=str(store), OPFORGE_LOG=log)
    argv = [
        forked_python.python(),
        "-m",
        "opforge.compat.cpp_extension",
        "setup.py",
        *(command or ("build_ext", "--inplace")),
    ]
    process = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=250)
    with open(log, encoding="utf-8") as file:
        events = [json.loads(line) for line in file]
    return process, hits_and_builds(events)


def hits_and_builds(events):
    return [(event["event"], event["op"]) for event in events if event["event"] in ("hit", "build")]


@pytest.fixture(scope="module")
def built(project):
    return build(*project)


def test_extensions_are_built_into_the_store_and_copied_to_their_places(built, project):
    process, events = built
    assert process.returncode == 0, process.stderr
    assert events == [("build", "_C"), ("build", "_limited")]
    assert child_processes.run_with_torch(USE, cwd=project[0]) == "9 10 twicely._plain\n"


def test_an_extension_without_torch_is_left_to_torchs_command_with_the_reason(built):
    reason = "twicely/plain.c is not a C++ or CUDA source"
    assert f"twicely._plain is left to torch's BuildExtension: {reason}" in built[0].stderr


def test_an_optional_extension_may_fail_with_opforges_error(built):
    text = built[0].stdout + built[0].stderr
    assert 'building extension "twicely._optional" failed: _optional: compile twicely/wrong.cpp failed:' in text
    assert "wrong.cpp:1:" in text and "full log: " in text


def test_a_limited_extension_has_the_abi3_name_and_does_not_need_libtorch_python(built, project):
    from opforge.builders.inspection.elf import read_library

    folder = project[0] / "twicely"
    assert "libtorch_python.so" not in read_library(str(folder / "_limited.abi3.so"))["needs"]
    (module,) = folder.glob("_C.cpython-*.so")
    assert {"libtorch_python.so", "libtorch.so", "libc10.so"} <= set(read_library(str(module))["needs"])
    assert os.access(module, os.X_OK)


def test_another_checkout_takes_the_same_libraries_from_the_store(built, project):
    first, store = project
    second = first.parent / "two"
    shutil.copytree(first, second, ignore=shutil.ignore_patterns("*.so", "build"))
    process, events = build(second, store)
    assert process.returncode == 0, process.stderr
    assert events == [("hit", "_C"), ("hit", "_limited")]
    assert (second / "twicely" / "_limited.abi3.so").read_bytes() == (
        first / "twicely" / "_limited.abi3.so"
    ).read_bytes()


BACKEND = "import sys; from setuptools import build_meta; build_meta.__legacy__.build_wheel(sys.argv[1])"
"""What pip calls for a setup.py. It asks two things more, for each of which it starts a process that imports torch."""


def test_a_build_backend_builds_on_opforge_if_the_variable_is_set(built, project, tmp_path):
    first, store = project
    tree, log = tmp_path / "tree", tmp_path / "events"
    shutil.copytree(first, tree, ignore=shutil.ignore_patterns("*.so", "build"))
    path = os.pathsep.join([installed_metadata.with_entry_points(tmp_path), os.path.join(CHECKOUT, "src")])
    variables = {"OPFORGE_CPP_EXTENSION": "1", "OPFORGE_CACHE_DIR": str(store), "OPFORGE_LOG": str(log)}
    env = child_processes.environment(**variables, PYTHONPATH=path)
    argv = [forked_python.python(), "-c", BACKEND, str(tmp_path)]
    process = subprocess.run(argv, cwd=tree, env=env, capture_output=True, text=True, timeout=250)
    assert process.returncode == 0, process.stdout + process.stderr
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert hits_and_builds(events) == [("hit", "_C"), ("hit", "_limited")]
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {"twicely/_limited.abi3.so", "twicely/__init__.py"} <= set(archive.namelist())


def _distribution_with(command, extensions=()):
    from setuptools import Distribution

    distribution = Distribution({"name": "mine", "ext_modules": list(extensions)})
    distribution.cmdclass["build_ext"] = command  # after the hooks of other packages
    return distribution


def test_the_hook_puts_a_command_on_opforge_only_if_requested(monkeypatch):
    from torch.utils.cpp_extension import BuildExtension

    from opforge.compat.setuptools_hook import finalize

    class Inherited(BuildExtension):
        pass

    unchanged = _distribution_with(BuildExtension)
    finalize(unchanged)
    assert unchanged.cmdclass["build_ext"] is BuildExtension
    monkeypatch.setenv("OPFORGE_CPP_EXTENSION", "1")
    for command in (BuildExtension, Inherited, BuildExtension.with_options(use_ninja=False)):
        distribution = _distribution_with(command)
        finalize(distribution)
        final = distribution.cmdclass["build_ext"]
        finalize(distribution)
        assert distribution.cmdclass["build_ext"] is final
        assert issubclass(final, command) and final.on_opforge


@pytest.mark.parametrize("variable", ["1", "torch-facade"])
def test_a_projects_own_build_extension_is_called_first_and_what_it_passes_on_comes_to_opforge(monkeypatch, variable):
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    from opforge.compat.setuptools_hook import finalize

    caught = []

    class Optional(BuildExtension):
        def build_extension(self, ext):
            try:
                super().build_extension(ext)
            except Exception as error:
                caught.append(str(error))

    monkeypatch.setenv("OPFORGE_CPP_EXTENSION", variable)
    distribution = _distribution_with(Optional, [CppExtension("mine._C", ["missing.cpp"])])
    finalize(distribution)
    distribution.run_command("build_ext")
    assert len(caught) == 1 and "missing.cpp" in caught[0]


@pytest.mark.parametrize("variable", ["1", "torch-facade"])
def test_an_extension_that_a_project_builds_in_its_own_way_is_named(monkeypatch, caplog, variable):
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    from opforge.compat.setuptools_hook import finalize

    class WithCMake(BuildExtension):
        def build_extension(self, ext):
            pass

    monkeypatch.setenv("OPFORGE_CPP_EXTENSION", variable)
    distribution = _distribution_with(WithCMake, [CppExtension("mine._C", ["a.cpp"])])
    finalize(distribution)
    distribution.run_command("build_ext")
    messages = [record.getMessage() for record in caplog.records if record.name == "opforge"]
    assert messages == ["mine._C is not built by opforge: WithCMake builds it in its own way"]


def test_a_changed_header_is_a_miss_and_a_compile_error_has_no_traceback(built, project):
    first, store = project
    third = first.parent / "three"
    shutil.copytree(first, third, ignore=shutil.ignore_patterns("*.so", "build"))
    text_files.write(third, "include/factor.h", "#define FACTOR two\n")
    process, events = build(third, store)
    assert process.returncode == 1
    assert events == []
    assert "error: _C: compile twicely/factor.cpp failed: " in process.stderr and "Traceback" not in process.stderr


def test_without_a_script_the_command_prints_its_usage():
    process = subprocess.run(
        [sys.executable, "-m", "opforge.compat.cpp_extension"],
        env=child_processes.environment(),
        capture_output=True,
        text=True,
    )
    assert process.returncode == 1
    assert process.stderr == "usage: python -m opforge.compat.cpp_extension {SCRIPT | -m MODULE} [ARGUMENT ...]\n"


def test_a_script_that_does_not_exist_is_named(tmp_path):
    command = [sys.executable, "-m", "opforge.compat.cpp_extension", "stup.py", "build_ext"]
    process = subprocess.run(command, cwd=tmp_path, env=child_processes.environment(), capture_output=True, text=True)
    assert process.returncode == 1 and process.stderr.startswith(
        f"error: there is no file 'stup.py' in {tmp_path}\nusage: "
    )
