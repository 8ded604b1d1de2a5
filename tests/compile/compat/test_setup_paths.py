"""A setup script that names its own folders by absolute paths: pip builds each time in a new folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from support import child_processes, text_files
from support.processes import forked_python

pytest.importorskip("torch", reason="pip install torch")

SETUP = """\
import os
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
here = os.path.dirname(os.path.abspath(__file__))
setup(
    name="thirds",
    version="1",
    ext_modules=[
        CppExtension("thirds", ["module.cpp"], extra_compile_args={"cxx": ["-I" + os.path.join(here, "third_party/")]},
                     extra_link_args=["-L" + os.path.join(here, "third_party")]),
    ],
    cmdclass={"build_ext": BuildExtension},
)
"""
MODULE = """\
#include <Python.h>
#include <number.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "thirds", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_thirds() {
  PyObject* module = PyModule_Create(&definition);
  PyModule_AddIntConstant(module, "number", NUMBER);
  return module;
}
"""


@pytest.mark.long("builds a project twice by setuptools")
def test_a_project_that_names_its_folders_by_path_is_a_hit_in_another_folder(tmp_path):
    first, second = tmp_path / "first", tmp_path / "deeper" / "second"
    (first / "third_party").mkdir(parents=True)
    files = {"setup.py": SETUP, "module.cpp": MODULE, "third_party/number.h": "#define NUMBER 3\n"}
    for name, text in files.items():
        text_files.write(first, name, text)
    shutil.copytree(first, second)
    events = tmp_path / "events"
    env = child_processes.environment(OPFORGE_LOG=str(events), OPFORGE_CACHE_DIR=str(tmp_path / "store"))
    for folder in (first, second):
        argv = [sys.executable, "-m", "opforge.compat.cpp_extension", "setup.py", "build_ext", "--inplace"]
        process = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=250)
        assert process.returncode == 0, process.stderr
        assert (
            child_processes.run_python("import torch, thirds; print(thirds.number)", forked_python.python(), cwd=folder)
            == "3\n"
        )
    lines = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert [event for event in lines if event in ("build", "hit")] == ["build", "hit"]
