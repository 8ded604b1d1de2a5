"""Machines on which no process can be started or no file opened: an error that says so, and a store without damage."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import child_processes, other_user, sample_ops, tiers

pytestmark = [pytest.mark.compile, pytest.mark.timeout(120)]
LOAD = """
import os, resource
from support import sample_ops
from opforge.builders.toolchains.discovery import probe
from opforge.errors import OpforgeError
resource_id = getattr(resource, os.environ["LIMIT"])
soft, hard = resource.getrlimit(resource_id)
for number in [*map(int, os.environ["NUMBERS"].split()), soft]:
    probe.reset()
    resource.setrlimit(resource_id, (number, hard))
    builder = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")()
    builder.is_compatible()
    probe.reset()
    try:
        print("loaded", builder.load().value())
    except OpforgeError as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""


@pytest.fixture
def load_with_limits(tmp_path, own_store):
    """A function that loads a cold op in a process under each of some limits, then without one.

    It returns what the loads under a limit printed. The first must fail for want of the resource, the last must work.
    """
    sample_ops.plain_op(tmp_path / "op")

    def load(limit, numbers, prefix=()):
        env = {"FOLDER": str(tmp_path / "op"), "LIMIT": limit, "NUMBERS": " ".join(map(str, numbers))}
        command = [*prefix, sys.executable, "-c", LOAD]
        done = subprocess.run(
            command, env=child_processes.environment(**env), capture_output=True, text=True, timeout=100, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert lines[0].startswith("BuildResourceError ") and lines[-1] == "loaded 1"
        return lines[:-1]

    yield load
    plans = os.listdir(own_store / "v2" / "plans")
    assert len(plans) == 1, "a probe that failed for lack of a resource was stored as the compiler's output"
    assert os.listdir(own_store / "v2" / "staging") == []


def test_too_few_processes_are_reported_at_every_step(load_with_limits):
    """With each number the build fails at a later step: the compiler's probe, the supervisor, ninja, its compilers."""
    prefix = other_user.with_all_files() if os.geteuid() == 0 else []  # the limit does not apply to root
    # gcc tries for 15 seconds to start a process.
    numbers = (0, 3, 5, 6) if tiers.is_long() else (0, 5)
    for line in load_with_limits("RLIMIT_NPROC", numbers, prefix):
        assert line == "loaded 1" or (line.startswith("BuildResourceError ") and "`ulimit -u`" in line)


def test_too_few_open_files_are_reported(load_with_limits):
    for line in load_with_limits("RLIMIT_NOFILE", (6, 9, 10)):
        assert line == "loaded 1" or "Too many open files" in line or "`ulimit -n`" in line
