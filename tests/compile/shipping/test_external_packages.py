"""The packages in examples/, each installed read-only and tested by its own tests, which run opforge's contracts."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from support import child_processes, paths, text_files
from support.paths import CHECKOUT
from support.processes import forked_python

import opforge
import opforge.accelerator
import opforge.testing
from opforge.ops import cases

pytestmark = pytest.mark.compile
EXAMPLES = os.path.join(CHECKOUT, "examples")
PACKAGES = ("opforge-opencl", "opforge-sycl")
PASSED = {name: os.environ[name] for name in ("OPFORGE_TEST_SYCL",) if name in os.environ}
"""The variables that the packages' own tests get, read before conftest.py removes opforge's variables."""
PUBLIC = {
    "opforge": opforge.__all__,
    "opforge.accelerator": opforge.accelerator.__all__,
    "opforge.errors": None,
    "opforge.ops.cases": cases.__all__,
    "opforge.testing": opforge.testing.__all__,
}
"""The documented modules, and the public names of each (None: all)."""


def files(folder, ending):
    paths = (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sorted(path for path in paths if path.endswith(ending))


def private_imports(path):
    """Yields the imports in a file of names of opforge that are not public."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        for module, name in names:
            if module.partition(".")[0] == "opforge":
                public = PUBLIC.get(module, ())
                if public is not None and (not public or (name is not None and name not in public)):
                    yield f"{path}:{node.lineno}: {module} {name or ''}"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_public_names(package):
    sources = files(os.path.join(EXAMPLES, package), ".py")
    assert len(sources) > 4
    assert [problem for path in sources for problem in private_imports(path)] == []


def test_an_import_of_a_private_name_is_found(tmp_path):
    (tmp_path / "wrong.py").write_text("import opforge.cache\nfrom opforge import OpBuilder, settings\n")
    assert len(list(private_imports(str(tmp_path / "wrong.py")))) == 2


@pytest.fixture(scope="session", params=PACKAGES)
def installed(request, tmp_path_factory):
    """(copy of a package's source, folder that it is installed in): installed by pip, then made read-only."""
    source, site = install(request.param, tmp_path_factory.mktemp(request.param))
    for folder, _, names in os.walk(site):
        for name in names:
            os.chmod(os.path.join(folder, name), 0o444)
        os.chmod(folder, 0o555)
    yield source, site
    for folder, _, _ in os.walk(site):
        os.chmod(folder, 0o755)


def install(package, root):
    """Installs a copy of a package's source by pip; returns (the copy, the folder that it is installed in)."""
    source, site = root / "source", root / "site"
    shutil.copytree(os.path.join(EXAMPLES, package), source)  # setuptools builds inside the checkout
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-compile"]
    process = subprocess.run([*pip, "--target", site, source], capture_output=True, text=True, timeout=120)
    if "No module named pip" in process.stderr:
        pytest.skip("this Python has no pip: apt install python3-venv")
    assert process.returncode == 0, process.stderr
    return source, site


def run_tests(site, *arguments, seconds=280):
    """Runs pytest with the installed package and the opforge of this checkout, with this test's own store."""
    path = os.pathsep.join([str(site), paths.SOURCE_TREE])
    # The tests and the processes that they start are forked from one that has torch.
    python = forked_python.python()
    code = f"import sys, pytest; sys.executable = {python!r}; raise SystemExit(pytest.main(sys.argv[1:]))"
    command = [python, "-c", code, "-p", "no:cacheprovider", "-q", *map(str, arguments)]
    env = child_processes.environment(PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", **PASSED)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds)


def skip_if_skipped(output):
    """Skips this test too, with the reason, if the package skipped tests because a system package is missing."""
    missing = [line for line in output.splitlines() if line.startswith("SKIPPED") and "apt install" in line]
    if missing:
        pytest.skip(missing[0].partition(": ")[2])


@pytest.mark.usefixtures("precompiled")
def test_the_tests_of_an_installed_package_pass(installed):
    source, site = installed
    before = text_files.tree(site)
    process = run_tests(site, "-c", source / "pyproject.toml", "--rootdir", source, source / "tests")
    assert process.returncode == 0 and " passed" in process.stdout, process.stdout + process.stderr
    assert text_files.tree(site) == before  # kernels are read in place, and nothing is written next to them
    skip_if_skipped(process.stdout)
    if source.parent.name.startswith("opforge-opencl"):  # the other one adds ops for a device that is not here
        (count,) = re.findall(r"(\d+) passed", process.stdout)
        assert int(count) >= 50, "the package runs the contracts of opforge.testing"


@pytest.mark.long("Warp compiles in eight processes")
@pytest.mark.timeout(1200)
def test_the_adapter_of_an_installed_package_keeps_the_contract_of_adapters(tmp_path):
    pytest.importorskip("warp", reason="the extra jits has Warp")
    source, site = install("opforge-warp", tmp_path)
    arguments = ("-c", source / "pyproject.toml", "--rootdir", source, source / "tests")
    process = run_tests(site, *arguments, seconds=1100)
    assert process.returncode == 0 and "5 passed" in process.stdout, process.stdout + process.stderr


SOURCES = {
    "opforge-opencl": (
        "opforge_opencl.builders.adam.OpenCLAdamBuilder",
        "opencl",
        [("opencl:opforge_opencl/csrc", "adam.cpp"), ("opencl:opforge_opencl/csrc", "adam.cl")],
    ),
    "opforge-sycl": (
        "opforge_sycl.builders.softmax.SYCLSoftmaxBuilder",
        "xpu",
        [("sycl:opforge_sycl", "csrc/softmax.cpp"), ("sycl:opforge_sycl", "csrc/softmax.sycl")],
    ),
}
"""Package -> a builder, its target, and its sources as (root, path)."""
DESCRIBE = """
import json, os, pkgutil
from opforge.builders.declaration.description import describe
builder = pkgutil.resolve_name(os.environ["BUILDER"])(os.environ["TARGET"])
print(json.dumps([(root, path) for root, path, _digest in describe(builder.spec())["sources"]]))
"""


def test_the_sources_of_a_package_are_described_by_its_kernel_root(installed):
    source, site = installed
    (package,) = [name for name in PACKAGES if source.parent.name.startswith(name)]
    builder, target, sources = SOURCES[package]
    path = os.pathsep.join([str(site), paths.SOURCE_TREE])
    output = child_processes.run_with_torch(DESCRIBE, {"PYTHONPATH": path, "BUILDER": builder, "TARGET": target})
    assert [tuple(item) for item in json.loads(output)] == sources


def test_the_code_in_the_guide_is_that_of_the_packages():
    root = os.path.dirname(EXAMPLES)
    with open(os.path.join(root, "docs", "external.md"), encoding="utf-8") as file:
        blocks = re.findall(r"```\w+\n\s*# (examples/\S+)\n(.*?)```", file.read(), re.DOTALL)
    assert len(blocks) > 6
    missing = []
    for path, block in blocks:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            lines = {line.strip() for line in file}
        missing += [f"{path}: {line.strip()}" for line in block.splitlines() if line.strip() not in lines]
    assert missing == []
