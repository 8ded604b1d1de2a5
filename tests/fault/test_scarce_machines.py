"""Machines on which no process can be started and no file opened: an error that says so, and a store as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from support import child_processes, sample_ops

pytestmark = [pytest.mark.compile, pytest.mark.timeout(120)]
LOAD = """
import os, resource
from support import sample_ops
from opforge.builders.toolchains import probe
from opforge.errors import OpforgeError
limited = getattr(resource, os.environ["LIMIT"])
usual = resource.getrlimit(limited)
for number in [*map(int, os.environ["NUMBERS"].split()), usual[0]]:
    probe.reset()
    resource.setrlimit(limited, (number, usual[1]))
    builder = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")()
    builder.is_compatible()
    probe.reset()
    try:
        print("loaded", builder.load().value())
    except OpforgeError as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""


@pytest.fixture
def loads(tmp_path, own_store):
    """What a process says that loads a cold op under each of some limits; afterwards, without a limit, it succeeds."""
    sample_ops.plain_op(tmp_path / "op")

    def said(limit, numbers, before=()):
        env = {"FOLDER": str(tmp_path / "op"), "LIMIT": limit, "NUMBERS": " ".join(map(str, numbers))}
        command = [*before, sys.executable, "-c", LOAD]
        done = subprocess.run(
            command, env=child_processes.environment(**env), capture_output=True, text=True, timeout=100, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert lines[0].startswith("BuildResourceError ") and lines[-1] == "loaded 1"
        return lines[:-1]

    yield said
    assert len(os.listdir(own_store / "v1" / "plans")) == 1, "what a compiler could not answer was not taken for a no"
    assert os.listdir(own_store / "v1" / "staging") == []


def test_no_more_processes_is_an_error_that_says_so(loads):
    """Each number lets the build come a little further: the compiler asked, the supervisor, ninja, its compilers."""
    before = []
    if os.geteuid() == 0:  # whom the limit does not bind
        if not shutil.which("setpriv"):
            pytest.skip("needs setpriv (apt install util-linux)")
        able = "+dac_override,+dac_read_search"
        user = str(100_000 + os.getpid())
        before = ["setpriv", f"--reuid={user}", "--clear-groups", f"--inh-caps={able}", f"--ambient-caps={able}"]
        probe = subprocess.run([*before, "true"], capture_output=True, text=True, check=False)
        if probe.returncode:
            pytest.skip(f"cannot become another user here: {probe.stderr.strip()}")
    for line in loads("RLIMIT_NPROC", (0, 3, 5, 6), before):
        assert line == "loaded 1" or (line.startswith("BuildResourceError ") and "`ulimit -u`" in line)


def test_no_more_open_files_is_an_error_that_says_so(loads):
    for line in loads("RLIMIT_NOFILE", (6, 9, 10)):
        assert line == "loaded 1" or "Too many open files" in line or "`ulimit -n`" in line
