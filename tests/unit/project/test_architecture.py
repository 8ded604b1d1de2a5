"""The package as a whole: what its modules import and call, what `import opforge` does, and its public names."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest
from support import child_processes

import opforge

PACKAGE = os.path.dirname(os.path.abspath(opforge.__file__))
HEAVY = (
    "torch",
    "triton",
    "filelock",
    "platformdirs",
    "click",
    "rich",
    "importlib.metadata",
    "numpy",
    "packaging",
)


def modules():
    """Yields the path of every module of the package."""
    for folder, subfolders, files in os.walk(PACKAGE, followlinks=True):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        yield from (os.path.join(folder, name) for name in files if name.endswith(".py"))


def imports(path):
    """Yields the (module, line) of every absolute import in a file."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or "", node.lineno


def test_the_modules_of_every_folder_are_checked():
    folders = {os.path.relpath(path, PACKAGE).split(os.sep)[0] for path in modules()}
    assert folders >= {"__init__.py", "errors", "foundation", "accelerator", "builders", "cache"}


def test_no_test_is_inside_the_package():
    assert [path for path in modules() if os.path.basename(path).startswith(("test_", "conftest"))] == []


def test_no_module_imports_torch_or_triton_when_it_is_imported():
    top_level = []
    for path in modules():
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for node in ast.parse(text, path).body if re.search("torch|triton", text) else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            top_level += [f"{path}:{node.lineno}" for name in names if name.split(".")[0] in ("torch", "triton")]
    files = ("accelerator/fallback/graph.py", "jits/triton_cache.py")  # what derives from a class of theirs
    allowed = tuple(os.path.join(PACKAGE, name) for name in ("ops", "testing", *files))
    assert [location for location in top_level if not location.startswith(allowed)] == []


VENDOR_MODULES = ("cuda", "xpu")
VENDOR_FOLDERS = ("accelerator", "compat", "port")
"""The only folders of the package that may name torch's modules of one vendor; the others use the accelerator."""


def vendor_uses(tree):
    """Yields (line, name) of each use of `torch.cuda` or `torch.xpu`, and of their private functions in `torch._C`.

    A comparison of a device's type with a vendor's, such as `device.type == "cuda"`, is such a use too.
    """
    modules = {f"torch.{name}" for name in VENDOR_MODULES}
    private = tuple(f"torch._C._{name}" for name in VENDOR_MODULES)
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and len(node.args) > 1:
            value = node.args[1]
            names = [f"{ast.unparse(node.args[0])}.{value.value}"] if isinstance(value, ast.Constant) else []
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(side, ast.Attribute) and side.attr == "type" for side in sides):
                strings = [part.value for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant)]
                names = [f"torch.{string}" for string in strings]
        for name in names:
            if name in modules or name.startswith(private) or ".".join(name.split(".")[:2]) in modules:
                yield node.lineno, name


@pytest.mark.parametrize(
    "code",
    [
        "torch.cuda.current_stream()",
        "import torch.cuda",
        "import torch.xpu.memory as memory",
        "from torch import cuda",
        "from torch.cuda import Stream",
        "torch._C._cuda_getCurrentRawStream(0)",
        "getattr(torch, 'xpu')",
        "tensor.device.type == 'cuda'",
        "device.type in ('cpu', 'xpu')",
    ],
)
def test_a_use_of_a_vendors_module_is_recognized(code):
    assert list(vendor_uses(ast.parse(code)))


def test_only_the_accelerators_and_the_ports_of_other_code_use_torchs_vendor_modules():
    allowed = tuple(os.path.join(PACKAGE, folder) + os.sep for folder in VENDOR_FOLDERS)
    uses = []
    for path in modules():
        if not path.startswith(allowed):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            tree = ast.parse(text, path) if re.search("|".join(VENDOR_MODULES), text) else ast.Module([], [])
            uses += [f"{path}:{line}: {name}" for line, name in vendor_uses(tree)]
    assert uses == []


SCRIPTS = (
    "supervisor.py",
    "source_translation.py",
    "triton_worker.py",
    "launch/agent.py",
    "launch/rank.py",
    "engines/elastic.py",
    "cmake/op.py",
)
"""Programs that other processes run. They may exit."""
FORKS = "check/own_process.py"
"""Its child must not run what its parent registered for its end."""


def test_no_library_module_prints_exits_or_changes_the_environment():
    forbidden = []
    command_line = tuple(os.path.join(PACKAGE, name) for name in ("cli", "__main__.py"))
    for path in modules():
        if path.startswith(command_line):
            continue
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if not re.search(r"\b(?:print|_?exit|quit|chdir|putenv|system)\b", text):
            continue  # parsing all files would take seconds
        for node in ast.walk(ast.parse(text, path)):
            if not isinstance(node, ast.Call):
                continue
            function = ast.unparse(node.func)
            if function in ("print", "exit", "quit", "os._exit", "os.chdir", "os.putenv", "os.system") or (
                function == "sys.exit" and not path.endswith(SCRIPTS)
            ):
                if (function, path.endswith(FORKS)) == ("os._exit", True):
                    continue
                forbidden.append(f"{path}:{node.lineno}: {function}")
    assert forbidden == []


@pytest.mark.parametrize("name", ["utils", "helper", "helpers", "manager", "common", "misc"])
def test_no_module_has_a_name_without_meaning(name):
    assert [path for path in modules() if os.path.basename(path) == f"{name}.py"] == []


IMPORT = """
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


def test_importing_opforge_imports_nothing_heavy_and_changes_nothing(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    env = {"HOME": str(home), "OPFORGE_CACHE_DIR": None, "XDG_CACHE_HOME": None, "OPFORGE_JOBS": "not read at import"}
    assert child_processes.run_python(IMPORT % (HEAVY,), env=env, cwd=tmp_path).split() == []
    assert os.listdir(home) == []


def test_a_folder_named_like_a_checkout_does_not_hide_the_package(tmp_path):
    (tmp_path / "opforge").mkdir()
    code = "import opforge; print(opforge.__version__)"
    process = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (process.stdout.strip(), process.stderr) == (opforge.__version__, "")


def test_opforge_lists_its_public_names_and_has_no_others():
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
def test_every_public_name_can_be_used(name):
    assert callable(getattr(opforge, name))


def test_the_supervisor_imports_only_the_standard_library():
    path = os.path.join(PACKAGE, "builders", "run", "supervisor.py")
    names = {name.split(".")[0] for name, _line in imports(path)}
    assert names <= set(sys.stdlib_module_names)


def test_the_supervisor_exits_with_the_status_of_its_command(tmp_path):
    path = os.path.join(PACKAGE, "builders", "run", "supervisor.py")
    for command, status in [(["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137)]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", path, str(tmp_path / "peak"), *command],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.wait(20) == status
        process.stdin.close()


def test_the_import_error_on_another_system_names_the_supported_ones():
    code = "import sys; sys.platform = 'win32'; import opforge"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stderr.splitlines()[-1] == (
        "ImportError: opforge runs on Linux, and on macOS without building, not on win32"
    )
