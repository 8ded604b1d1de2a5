"""What each target of the Makefile installs. pip and every tool are stand-ins that write down how they were called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.paths import CHECKOUT

README = Path(CHECKOUT, "README.md")
TOOLS = ("python", "ruff", "mypy", "lint-imports", "clang-format", "mdformat", "check-jsonschema")
RECORDER = '#!/bin/sh\necho "$(basename "$0") $*" >> "$(dirname "$0")/../../calls"\ncat /dev/null\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Returns a folder with the Makefile, what it depends on, and an environment whose tools only note their calls."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py"):
        shutil.copy(os.path.join(CHECKOUT, name), tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in TOOLS:
        tool = tmp_path / ".venv" / "bin" / name
        tool.write_text(RECORDER)
        tool.chmod(0o755)
    return tmp_path


def installed_by(checkout: Path, *targets: str) -> list[str]:
    """Makes the targets. Returns what pip was asked to install, call by call, each with the constraints."""
    calls = checkout / "calls"
    calls.unlink(missing_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(checkout)}
    command = ["make", "-s", "-C", str(checkout), f"PYTHON={sys.executable}", *targets]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    requests = [line for line in calls.read_text().splitlines() if "-m pip" in line]
    assert all(" -c constraints.txt " in line for line in requests), requests
    return [re.sub(r".* -c constraints.txt ", "", line) for line in requests]


@pytest.mark.parametrize(
    ("target", "installed"),
    [
        ("run", ["-e ."]),
        ("format", ["-e .", "-e .[check]"]),
        ("dist", ["-e .", "-e .[check]"]),
        ("docs", ["-e .", "-e .[docs]"]),
        ("test", ["-e .", "-e .[test]"]),
        ("torture", ["-e .", "-e .[test-all]"]),
        ("matrix", ["-e .", "-e .[test-all]"]),
        ("check", ["-e .", "-e .[check]", "-e .[test-all]", "-e .[bench]"]),
        ("bench", ["-e .", "-e .[bench]", "-e .[test-all]"]),
        ("projects", ["-e .", "-e .[projects]"]),
        (
            "test-all",
            [
                *("-e .", "-e .[test-all]", "-e .[bench]"),
                *("setuptools wheel py-cpuinfo", "--no-build-isolation deepspeed"),
            ],
        ),
        (
            "test-long",
            [
                *("-e .", "-e .[test-all]", "-e .[bench]", "-e .[jits]"),
                *("setuptools wheel py-cpuinfo", "--no-build-isolation deepspeed"),
            ],
        ),
    ],
)
def test_a_target_installs_what_it_needs_and_only_once(checkout, target, installed):
    assert installed_by(checkout, target) == installed
    assert installed_by(checkout, target) == []


def test_a_target_adds_what_the_one_before_did_not_install(checkout):
    installed_by(checkout, "run")
    assert installed_by(checkout, "docs") == ["-e .[docs]"]
    assert installed_by(checkout, "run", "docs") == []
    os.utime(checkout / "pyproject.toml", (4e9, 4e9))
    assert installed_by(checkout, "docs") == ["-e .", "-e .[docs]"]


def required_by(name: str, extra: str) -> list[Requirement]:
    """Returns what a distribution requires with an extra: opforge as pyproject.toml states it, others as installed."""
    if name == "opforge":
        project = tomllib.loads(Path(CHECKOUT, "pyproject.toml").read_text())["project"]
        return [*map(Requirement, project["optional-dependencies"][extra] if extra else project["dependencies"])]
    return [*map(Requirement, metadata.requires(name) or ())]


def needed_by(name: str, extra: str = "") -> set[str]:
    """Returns a distribution with all that it requires here, with an extra or without."""
    found: set[tuple[str, str]] = set()
    pending = [(name, ""), (name, extra)]
    while pending:
        name, extra = canonicalize_name(pending[-1][0]), pending.pop()[1]
        if (name, extra) not in found:
            found.add((name, extra))
            for part in required_by(name, extra):
                if not part.marker or part.marker.evaluate({"extra": extra}):
                    pending += [(part.name, ""), *((part.name, wanted) for wanted in part.extras)]
    return {name for name, _extra in found}


def test_a_run_needs_as_few_packages_as_the_readme_says():
    torch = pytest.importorskip("torch")
    if torch.version.cuda or torch.version.hip:
        pytest.skip("a torch for a GPU brings that GPU's libraries as packages")
    needed = needed_by("opforge")
    stated = re.search(r"`make run` opforge, torch and their\s+dependencies\s+\((\d+) packages", README.read_text())
    assert stated and len(needed | {"pip", "setuptools"}) <= int(stated[1]) <= 25, sorted(needed)
    assert {"torch", "ninja"} <= needed and needed.isdisjoint({"numpy", "pytest", "triton", "deepspeed"})


def test_the_tests_need_as_few_packages_as_the_readme_says():
    torch = pytest.importorskip("torch")
    if torch.version.cuda or torch.version.hip:
        pytest.skip("a torch for a GPU brings that GPU's libraries as packages")
    needed = needed_by("opforge", "test") | {"pip"}
    stated = re.search(r"`make test` also the\s+packages\s+of\s+the\s+tests\s+\((\d+) packages", README.read_text())
    assert stated and len(needed) <= int(stated[1]) <= 40, sorted(needed)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_a_page_begins_with_pip_install_and_an_op_and_make_run_follows_at_once(page):
    blocks = re.findall(r"```(\w*)\n(.*?)```", Path(CHECKOUT, page).read_text(), re.DOTALL)
    commands = [text for language, text in blocks if not language]
    assert commands[0].startswith("pip install .") and commands[1].startswith("make run ")
    before = [language for language, text in blocks[: blocks.index(("", commands[1]))]]
    assert before in (["", "cpp", "python"], ["", "python"])


NOT_LISTED = {
    "nvidia-cuda-toolkit": "the nvcc of the tests comes from PyPI",
    "clang-14": "the clang of Debian 12",
    "python3-venv": "the environment that the Makefile makes has pip",
}
"""Packages that a skip names and .ci/run need not install, and why."""


def packages_that_skips_name() -> dict[str, set[str]]:
    """Returns, for each Debian package that a skip of the tests asks for, the files in which one does."""
    named: dict[str, set[str]] = {}
    for file in Path(CHECKOUT, "tests").rglob("*.py"):
        code = file.read_text()
        # Quotes of the product's own messages are not skips: those are compared with `in` and `match`.
        for skip in re.findall(r"""(?:skip\(|reason=|REASON = |\w+": ")[^\n]*apt install ([a-z0-9+. -]+)""", code):
            for package in skip.strip(" .").split():
                named.setdefault(package, set()).add(os.path.relpath(file, CHECKOUT))
    return named


def test_ci_installs_what_tests_would_skip_for():
    script = Path(CHECKOUT, ".ci", "run").read_text()
    listed = re.sub("#.*", "", script[script.index("packages=(") :].partition("\nif ")[0])
    installed = set(re.findall(r"[a-z0-9][a-z0-9+.-]+", listed.replace("packages=(", "")))
    named = packages_that_skips_name()
    assert len(named) > 10, "no skips are found: has their text another form now?"
    missing = {package: files for package, files in named.items() if package not in installed}
    assert missing.keys() <= NOT_LISTED.keys(), f"add to the packages of .ci/run: {missing}"
