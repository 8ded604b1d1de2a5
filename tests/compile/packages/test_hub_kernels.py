"""Kernels of the hub, unmodified: each is packed, and gives right results here and in the hub's own loader.

OPFORGE_HUB_KERNELS names a folder of kernels with build.toml; those that state a CPU backend are tried. What packing
took is what `pytest --durations=0` prints as the setup.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import SOURCE_TREE

from opforge.packages.form import toml_file
from opforge.packages.pack import variant_checks
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

FOLDER = os.environ.get("OPFORGE_HUB_KERNELS", "")  # conftest.py removes opforge's variables before a test
SUPPORT = Path(__file__).parents[2]
"""The folder in which `support` lies."""


def with_cpu(folder):
    """Returns the repository of each kernel in a folder that is for the CPU, with the kernel's folder."""
    kernels = {}
    for path in sorted(Path(folder).glob("*/build.toml")):
        general = toml_file.read(str(path), "a build.toml")["general"]
        if "cpu" in general.get("backends", ()):
            kernels[general["hub"]["repo-id"]] = path.parent
    return kernels


KERNELS = with_cpu(FOLDER) if FOLDER else {}
pytestmark = [
    pytest.mark.compile,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not FOLDER, reason="OPFORGE_HUB_KERNELS names no folder of kernels; eight take ten minutes"),
    pytest.mark.skipif(
        importlib.util.find_spec("kernels") is None, reason="not run: needs pip install kernels==0.17.2"
    ),
]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A function that packs a kernel, once, and returns its folder and its outcomes."""
    base = tmp_path_factory.mktemp("hub")

    @functools.cache
    def pack_once(repository):
        folder = base / KERNELS[repository].name
        shutil.copytree(KERNELS[repository], folder, dirs_exist_ok=True)  # one that could not be packed is packed again
        needed = {name: pack_once(name)[0] for name in others_of(repository)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOCAL_KERNELS", ":".join(f"{name}={path}" for name, path in needed.items()))
            variants = pack(reading.read(str(folder)), str(folder), Options(), pass_over=lambda _backend: None)
        return folder, variants

    return pack_once


def others_of(repository):
    """Returns the kernels that a kernel's tests load beside it."""
    texts = [path.read_text() for path in KERNELS[repository].glob("tests/*.py")]
    loaded = {name for text in texts for name in variant_checks.LOADED.findall(text)}
    return sorted(loaded & KERNELS.keys() - {repository})


@pytest.fixture(scope="module", params=[*KERNELS] or [""])
def kernel(request, packed):
    return request.param, *packed(request.param)


def run(*command, **environment):
    """Runs a command without a network; returns what it prints."""
    path = os.pathsep.join((str(SUPPORT), SOURCE_TREE))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", **environment}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_packed_and_its_own_tests_pass(kernel):
    repository, folder, variants = kernel
    outcomes = [part.checks for part in variants if part.metadata.backend == "cpu"]
    has_tests = (folder / "tests").is_dir()
    for checks in outcomes:
        assert checks["import"] == "passed"
        assert checks["tests"].startswith("passed") if has_tests else "has none" in checks["tests"]
    assert outcomes, repository


@pytest.mark.parametrize("loader", ["opforge", "kernels"])
def test_its_results_are_right(kernel, loader):
    repository, folder, _variants = kernel
    compared = run("-m", "support.kernels.hub_checks", loader, str(folder)).split()
    assert compared or (folder / "tests").is_dir(), f"nothing compares {repository}: add its functions to hub_checks.py"


def test_its_own_tests_pass_with_what_opforge_loads(kernel, packed):
    repository, folder, _variants = kernel
    if not (folder / "tests").is_dir():
        pytest.skip("the kernel has no tests")
    local = {name: packed(name)[0] for name in (repository, *others_of(repository))}
    named = ":".join(f"{name}={path}" for name, path in local.items())
    plugins = ("no:cacheprovider", "opforge.packages.pack.device_tests", "support.kernels.through_opforge")
    words = [word for plugin in plugins for word in ("-p", plugin)]
    printed = run("-m", "pytest", "-q", *words, str(folder / "tests"), LOCAL_KERNELS=named)
    assert re.search(r"^\d+ passed", printed, re.MULTILINE), printed


@pytest.mark.parametrize("loader", ["opforge", "kernels"])
def test_all_are_right_side_by_side_in_one_process(packed, loader):
    """Symbols of one must not be those of another."""
    folders = [str(packed(repository)[0]) for repository in KERNELS]
    assert len(run("-m", "support.kernels.hub_checks", loader, *folders).splitlines()) == len(folders)
