"""The packages under examples/, each installed by itself, read-only, and tested by its own tests and our contract."""

from __future__ import annotations

import ast
import glob
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from support import child_processes, paths, text_files
from support.paths import CHECKOUT, TESTS

import opforge
import opforge.accelerator

pytestmark = pytest.mark.compile
EXAMPLES = os.path.join(CHECKOUT, "examples")
PACKAGES = ("opforge-opencl", "opforge-sycl")
ASKED_FOR = {name: os.environ[name] for name in ("OPFORGE_TEST_SYCL",) if name in os.environ}
"""What the packages' own tests are told, as it was before conftest.py took opforge's variables away."""
PUBLIC = {"opforge": opforge.__all__, "opforge.accelerator": opforge.accelerator.__all__, "opforge.errors": None}
"""What the documentation promises: the modules, and the names in each (None: all)."""


def files(folder, ending):
    return sorted(os.path.join(at, one) for at, _, names in os.walk(folder) for one in names if one.endswith(ending))


def outsiders(path):
    """The imports of opforge's in a file that are no public names."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(one.name, None) for one in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [(node.module, one.name) for one in node.names]
        else:
            continue
        for module, name in names:
            if module.partition(".")[0] == "opforge":
                known = PUBLIC.get(module, ())
                if known is not None and (not known or (name is not None and name not in known)):
                    yield f"{path}:{node.lineno}: {module} {name or ''}"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_uses_public_names_only(package):
    sources = files(os.path.join(EXAMPLES, package), ".py")
    assert len(sources) > 4
    assert [wrong for path in sources for wrong in outsiders(path)] == []


def test_a_private_name_would_be_seen(tmp_path):
    (tmp_path / "wrong.py").write_text("import opforge.cache\nfrom opforge import OpBuilder, settings\n")
    assert len(list(outsiders(str(tmp_path / "wrong.py")))) == 2


@pytest.fixture(scope="session", params=PACKAGES)
def installed(request, tmp_path_factory):
    """A package as `pip install` puts it, made read-only; gives (its checkout's copy, where it is installed)."""
    root = tmp_path_factory.mktemp(request.param)
    source, site = root / "source", root / "site"
    shutil.copytree(os.path.join(EXAMPLES, request.param), source)  # setuptools builds inside the checkout
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-compile"]
    done = subprocess.run([*pip, "--target", site, source], capture_output=True, text=True, timeout=120)
    if "No module named pip" in done.stderr:
        pytest.skip("this Python has no pip: apt install python3-venv")
    assert done.returncode == 0, done.stderr
    for at, _, names in os.walk(site):
        for name in names:
            os.chmod(os.path.join(at, name), 0o444)
        os.chmod(at, 0o555)
    yield source, site
    for at, _, _ in os.walk(site):
        os.chmod(at, 0o755)


def run_tests(site, *arguments):
    """Run pytest where the package is installed, beside the opforge of this checkout, in this test's own cache."""
    path = os.pathsep.join([str(site), paths.SOURCE_TREE])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *map(str, arguments)]
    env = child_processes.environment(PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", **ASKED_FOR)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)


def skip_as_it_did(told):
    """Skip here too, with the reason, where a package skipped tests for want of a system package."""
    missing = [line for line in told.splitlines() if line.startswith("SKIPPED") and "apt install" in line]
    if missing:
        pytest.skip(missing[0].partition(": ")[2])


def test_a_packages_own_tests_pass_where_it_is_installed(installed):
    source, site = installed
    before = text_files.tree(site)
    done = run_tests(site, "-c", source / "pyproject.toml", "--rootdir", source, source / "tests")
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
    assert text_files.tree(site) == before  # kernels are read in place, and nothing is written beside them
    skip_as_it_did(done.stdout)


def test_an_added_accelerator_keeps_the_contract(installed):
    source, site = installed
    if source.parent.name.startswith("opforge-sycl"):
        assert "opforge.accelerators" not in (source / "pyproject.toml").read_text()  # it adds ops to one of ours
        return
    contract = sorted(glob.glob(os.path.join(TESTS, "contract", "test_accelerator*.py")))
    done = run_tests(site, "-c", os.path.join(CHECKOUT, "pyproject.toml"), *contract, "-k", "opencl")
    assert done.returncode == 0, done.stdout + done.stderr
    skip_as_it_did(done.stdout)
    assert " passed" in done.stdout


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
from opforge.builders.spec.description import describe
builder = pkgutil.resolve_name(os.environ["BUILDER"])(os.environ["TARGET"])
print(json.dumps([(root, path) for root, path, _digest in describe(builder.spec()).sources]))
"""


def test_the_sources_of_a_package_are_described_by_its_kernel_root(installed):
    source, site = installed
    (package,) = [name for name in PACKAGES if source.parent.name.startswith(name)]
    builder, target, sources = SOURCES[package]
    path = os.pathsep.join([str(site), paths.SOURCE_TREE])
    output = child_processes.run_python(DESCRIBE, env={"PYTHONPATH": path, "BUILDER": builder, "TARGET": target})
    assert [tuple(item) for item in json.loads(output)] == sources


def test_the_guide_shows_what_is_in_the_packages():
    root = os.path.dirname(EXAMPLES)
    with open(os.path.join(root, "docs", "external.md"), encoding="utf-8") as file:
        blocks = re.findall(r"```\w+\n\s*# (examples/\S+)\n(.*?)```", file.read(), re.DOTALL)
    assert len(blocks) > 6
    missing = []
    for path, block in blocks:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            there = {line.strip() for line in file}
        missing += [f"{path}: {line.strip()}" for line in block.splitlines() if line.strip() not in there]
    assert missing == []
