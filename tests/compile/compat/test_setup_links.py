"""A setup script that links what its options, its command and its own libraries name: it is built, and imported."""

from __future__ import annotations

import subprocess

import pytest
from support import child_processes, text_files
from support.processes import forked_python

pytest.importorskip("torch", reason="pip install torch")

SETUP = """\
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

class Own(BuildExtension):
    def build_extensions(self):
        self.compiler.add_library("own")
        super().build_extensions()

setup(
    name="linked",
    version="1",
    ext_modules=[
        CppExtension("linked", ["module.cpp"], extra_objects=["lib/libfirst.a"], library_dirs=["lib"],
                     extra_compile_args=["-Iinc"],
                     extra_link_args=["-Wl,--version-script=exports.map", "-Wl,-Map=out.map"]),
    ],
    libraries=[("clib", {"sources": ["clib.c"]})],
    cmdclass={"build_ext": Own.with_options(use_ninja=False)},
)
"""
MODULE = """\
#include <Python.h>
#include "here.h"
extern "C" int first(), config(), line(), object(), clib(), own();
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "linked", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_linked() {
  PyObject* module = PyModule_Create(&definition);
  PyModule_AddIntConstant(module, "sum", HERE + first() + config() + line() + object() + clib() + own());
  return module;
}
"""
CONFIG = "[build_ext]\nlibrary_dirs = lib\nlink_objects = lib/object.o\n[build_clib]\ninclude_dirs = .\n"
NAMES = {"first": 1, "second": 10, "line": 100, "object": 1000, "clib": 10000, "own": 100000}


def test_all_that_the_command_names_is_linked_in_its_order(tmp_path):
    sources = {name: f"int {name}(void) {{ return {number}; }}\n" for name, number in NAMES.items()}
    sources["first"] = "int second(void); int first(void) { return 1 + second(); }\n"
    sources["config"] = "int config(void) { return 0; }\n"
    files = {f"{name}.c": text for name, text in sources.items()}
    files |= {"setup.py": SETUP, "module.cpp": MODULE, "setup.cfg": CONFIG, "inc/here.h": "#define HERE 1000000\n"}
    files["exports.map"] = "{ global: PyInit_linked; local: *; };\n"
    (tmp_path / "lib").mkdir()
    (tmp_path / "inc").mkdir()
    for name, text in files.items():
        text_files.write(tmp_path, name, text)
    names = [name for name in sources if name != "clib"]
    script = " && ".join(
        f"gcc -fPIC -c {name}.c -o lib/{name}.o && ar rcsD lib/lib{name}.a lib/{name}.o" for name in names
    )
    subprocess.run(script, shell=True, cwd=tmp_path, check=True)
    env = child_processes.environment(OPFORGE_CACHE_DIR=str(tmp_path / "store"))
    argv = [
        forked_python.python(),
        "-m",
        "opforge.compat.cpp_extension",
        "setup.py",
        "build_clib",
        "build_ext",
        "--inplace",
    ]
    argv += ["--libraries", "line,config,second"]
    process = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=250)
    assert process.returncode == 0, process.stderr
    assert (
        child_processes.run_python("import torch, linked; print(linked.sum)", forked_python.python(), cwd=tmp_path)
        == "1111111\n"
    )
    assert "libfirst.a" in (tmp_path / "out.map").read_text()
