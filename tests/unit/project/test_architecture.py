"""The house itself: who imports whom, what an import costs, where tests may lie."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest
from support import child_processes

import opforge

PACKAGE = os.path.dirname(os.path.abspath(opforge.__file__))
PARTS = ("accelerator", "builders", "cache", "ops")
HEAVY = (
    "torch",
    "triton",
    "filelock",
    "platformdirs",
    "click",
    "rich",
    "importlib.metadata",
    "numpy",
    "elftools",
    "packaging",
)


def modules():
    for at, folders, files in os.walk(PACKAGE, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (os.path.join(at, name) for name in files if name.endswith(".py"))


def imports(path):
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or "", node.lineno


def test_the_package_is_looked_at_whole():
    found = {os.path.relpath(path, PACKAGE).split(os.sep)[0] for path in modules()}
    assert found >= {"__init__.py", "errors", "settings.py", "accelerator", "builders", "cache"}


def test_nothing_imports_a_part_by_its_bare_name():
    wrong = [
        f"{path}:{line}: import {name}"
        for path in modules()
        for name, line in imports(path)
        if name.split(".")[0] in PARTS
    ]
    assert wrong == []


def test_no_test_lies_inside_the_package():
    assert [path for path in modules() if os.path.basename(path).startswith(("test_", "conftest"))] == []


def test_every_module_defers_torch_and_triton():
    wrong = []
    for path in modules():
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read(), path)
        for node in tree.body:
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            wrong += [f"{path}:{node.lineno}" for name in names if name.split(".")[0] in ("torch", "triton")]
    may = tuple(os.path.join(PACKAGE, part) for part in ("ops", "accelerator/fallback/graph.py"))
    assert [place for place in wrong if not place.startswith(may)] == []


SCRIPTS = ("supervisor.py", "source_translation.py", "triton_worker.py", "launch/agent.py", "launch/rank.py")
"""Programs of their own, not modules of the library."""


def test_no_library_module_prints_exits_or_changes_the_environment():
    wrong = []
    command_line = tuple(os.path.join(PACKAGE, name) for name in ("cli", "__main__.py"))
    for path in modules():
        if path.startswith(command_line):
            continue
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read(), path)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            said = ast.unparse(node.func)
            guarded = path.endswith(SCRIPTS)
            if said in ("print", "exit", "quit", "os._exit", "os.chdir", "os.putenv", "os.system") or (
                said == "sys.exit" and not guarded
            ):
                wrong.append(f"{path}:{node.lineno}: {said}")
    assert wrong == []


def lines(path):
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def test_a_file_has_one_subject():
    assert {path: len(lines(path)) for path in modules() if len(lines(path)) > 400} == {}


@pytest.mark.parametrize("name", ["utils", "helper", "helpers", "manager", "common", "misc"])
def test_no_module_has_a_name_that_says_nothing(name):
    assert [path for path in modules() if os.path.basename(path) == f"{name}.py"] == []


LOOK = """
import os, sys
before_env, before_cwd, before_files = dict(os.environ), os.getcwd(), sorted(os.listdir("."))
events = []
watched = ("os.posix_spawn", "os.fork", "os.exec", "os.putenv", "os.unsetenv", "os.mkdir")
sys.addaudithook(lambda event, args: events.append(event)
    if event.split(".")[0] in ("subprocess", "socket") or event in watched else None)
import opforge
assert opforge.__version__ and dir(opforge)
assert dict(os.environ) == before_env and os.getcwd() == before_cwd and sorted(os.listdir(".")) == before_files
assert events == [], events
print(*[name for name in %r if name in sys.modules])
"""


def test_importing_opforge_brings_nothing_heavy_and_changes_nothing(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    env = {"HOME": str(home), "OPFORGE_CACHE_DIR": None, "XDG_CACHE_HOME": None, "OPFORGE_JOBS": "not read at import"}
    assert child_processes.run_python(LOOK % (HEAVY,), env=env, cwd=tmp_path).split() == []
    assert os.listdir(home) == []


def test_a_folder_named_like_a_checkout_does_not_hide_the_package(tmp_path):
    (tmp_path / "opforge").mkdir()
    code = "import opforge; print(opforge.__version__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (opforge.__version__, "")


def test_the_names_of_the_face_are_those_it_promises():
    assert set(opforge.__all__) >= {
        "OpBuilder",
        "get_accelerator",
        "load",
        "load_inline",
        "set_accelerator",
        "use_accelerator",
    }
    with pytest.raises(AttributeError, match="module 'opforge' has no attribute 'lod'"):
        opforge.lod
    assert opforge.OpBuilder.__module__ == "opforge.builders.base"


@pytest.mark.parametrize(
    "name", ["OpBuilder", "get_accelerator", "load", "load_inline", "set_accelerator", "use_accelerator"]
)
def test_every_promised_name_is_there(name):
    assert callable(getattr(opforge, name))


def test_the_supervisor_runs_with_the_standard_library_alone():
    path = os.path.join(PACKAGE, "builders", "run", "supervisor.py")
    names = {name.split(".")[0] for name, _line in imports(path)}
    assert names <= set(sys.stdlib_module_names)


def test_the_supervisor_gives_back_the_status_of_its_command(tmp_path):
    path = os.path.join(PACKAGE, "builders", "run", "supervisor.py")
    for command, status in [(["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137)]:
        done = subprocess.Popen(
            [sys.executable, "-I", "-S", path, str(tmp_path / "peak"), *command],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert done.wait(20) == status
        done.stdin.close()


def test_another_system_is_refused_in_a_sentence():
    code = "import sys; sys.platform = 'win32'; import opforge"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: opforge runs on Linux, and on macOS without building, not on win32"
    )
