"""What each target of the Makefile installs. pip and every tool are stand-ins that write down how they were called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import CHECKOUT

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
        ("torture", ["-e .", "-e .[test]"]),
        ("check", ["-e .", "-e .[check]", "-e .[test]", "-e .[bench]"]),
        ("bench", ["-e .", "-e .[bench]", "-e .[test]"]),
        (
            "test",
            [
                *("-e .", "-e .[test]", "-e .[bench]"),
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
