"""`opforge.launch.rank`: cores, memory policy and variables are set before the rank's program begins."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys

import pytest
from support import child_processes

from opforge.launch.protocol import RANK_MARK

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the launcher runs on Linux")

NUMBERS = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
SHOW = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT", "CARDS")
print(json.dumps({"cpus": sorted(os.sched_getaffinity(0)), "torch": "torch" in sys.modules,
                  "policy": open("/proc/self/numa_maps").readline().split()[1],
                  "arguments": sys.argv[1:], **{name: os.environ.get(name) for name in names}}))
"""
FORBID = """
import ctypes, os, struct, sys
NUMBER = {"x86_64": 238, "aarch64": 237}[os.uname().machine]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, NUMBER), (0x06, 0, 0, 0x00050000 | int(sys.argv[1])), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
kernel = ctypes.CDLL(None, use_errno=True)
assert kernel.prctl(38, 1, 0, 0, 0) == 0 and kernel.prctl(22, 2, filter, 0, 0) == 0, ctypes.get_errno()
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""Forbids set_mempolicy, as containers do, and becomes another Python. argv[1] is the errno of the call."""


def run_rank(*words, environ=None, before=()):
    env = dict.fromkeys((*NUMBERS, "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT", "LOCAL_SIZE"))
    argv = [sys.executable, *before, "-m", "opforge.launch.rank", *words, "--", sys.executable, "-c", SHOW, "--lr", "1"]
    env = child_processes.environment(**{**env, **(NUMBERS if environ is None else environ)})
    return subprocess.run(argv, env=env, capture_output=True, text=True)


def test_the_program_is_bound_and_has_its_variables():
    (first, *_) = sorted(os.sched_getaffinity(0))
    done = run_rank("--engine", "torchrun", "--bind", "--cores", str(first), "--set", "CARDS=1,3")
    program = json.loads(done.stdout)
    assert done.stderr == "" or "memory is not bound" in done.stderr
    assert program["cpus"] == [first] and program["OMP_NUM_THREADS"] == "1" and program["torch"] is False
    assert (program["RANK"], program["LOCAL_SIZE"], program["CARDS"]) == ("1", "1", "1,3")
    assert program["arguments"] == ["--lr", "1"]
    if not done.stderr:
        assert re.fullmatch(r"bind:\d+", program["policy"])


def test_threads_that_the_user_set_are_kept():
    done = run_rank("--engine", "torchrun", "--keep-threads", environ={**NUMBERS, "OMP_NUM_THREADS": "7"})
    assert json.loads(done.stdout)["OMP_NUM_THREADS"] == "7"


def test_the_master_address_is_set_for_engines_that_do_not_set_it():
    environ = {f"OMPI_COMM_WORLD_{name}": value for name, value in (("RANK", "0"), ("SIZE", "1"))}
    environ |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    words = ("--engine", "openmpi", "--master-addr", "h", "--master-port", "7")
    program = json.loads(run_rank(*words, environ=environ).stdout)
    assert program == {**program, "MASTER_ADDR": "h", "MASTER_PORT": "7", "RANK": "0", "WORLD_SIZE": "1"}


def test_with_slurm_the_master_address_is_the_first_host():
    environ = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1", "SLURM_NODEID": "2"}
    environ |= {"SLURM_STEP_TASKS_PER_NODE": "2(x3)", "SLURM_STEP_NODELIST": "gpu[04-06]"}
    program = json.loads(run_rank("--engine", "slurm", "--master-port", "7", environ=environ).stdout)
    assert program == {**program, "MASTER_ADDR": "gpu04", "RANK": "5", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}


def test_with_report_a_rank_prints_where_it_would_run():
    done = run_rank("--engine", "torchrun", "--bind", "--report")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(RANK_MARK)]
    row = json.loads(line.removeprefix(RANK_MARK))
    assert row["rank"] == 1 and row["cores"] and row["threads"] >= 1


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"),
    reason="the filter has the system call numbers of these machines only",
)
@pytest.mark.parametrize(("errno", "reason"), [(1, "Operation not permitted"), (38, "Function not implemented")])
def test_a_forbidden_memory_policy_is_one_warning_and_cores_are_bound(errno, reason):
    first = min(os.sched_getaffinity(0))
    for local_rank, warns in (("0", True), ("1", False)):
        numbers = {**NUMBERS, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": "2"}
        words = ("--engine", "torchrun", "--slots", "1", "--chosen", "0,0", "--bind", "--cores", str(first))
        done = run_rank(*words, environ=numbers, before=("-c", FORBID, str(errno)))
        warning = (
            f"opforge launch: warning: memory is not bound: set_mempolicy: {reason}. The ranks' cores are bound.\n"
        )
        assert done.stderr == (warning if warns else "")
        assert json.loads(done.stdout)["cpus"] == [first]


def test_a_policy_for_a_missing_node_is_refused_with_a_reason():
    code = "from opforge.launch.binding.memory_policy import set_policy; print(set_policy('bind', [1023]))"
    assert child_processes.run_python(code).startswith("set_mempolicy: ")


@pytest.mark.parametrize(
    ("words", "environ", "text"),
    [
        (["--engine", "torchrun"], {}, "RANK is not set. Start this process by `opforge launch"),
        (
            ["--engine", "torchrun", "--bind", "--cores", "99999"],
            None,
            "--bind-core-list names core 99999, which",
        ),
        (["--engine", "torchrun", "--bind", "--slots", "9999"], None, "9999 ranks need a core each"),
        (
            ["--engine", "torchrun", "--bind"],
            {**NUMBERS, "KMP_AFFINITY": "compact"},
            "KMP_AFFINITY='compact' cannot be",
        ),
        (["--engine", "torchrun", "--chosen", "0"], {**NUMBERS, "LOCAL_RANK": "1"}, ", where 1 were planned"),
    ],
)
def test_a_rank_that_cannot_be_bound_does_not_start_its_program(words, environ, text):
    done = run_rank(*words, environ=environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("opforge launch: error: ") and text in done.stderr


def test_signals_that_python_ignores_are_not_ignored_in_the_program():
    env = child_processes.environment(**NUMBERS)
    program = ["sh", "-c", "grep SigIgn /proc/self/status"]
    argv = [sys.executable, "-m", "opforge.launch.rank", "--engine", "torchrun", "--", *program]
    (_, ignored) = subprocess.run(argv, env=env, capture_output=True, text=True).stdout.split()
    assert not int(ignored, 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_a_missing_program_is_named():
    env = child_processes.environment(**NUMBERS)
    argv = [sys.executable, "-m", "opforge.launch.rank", "--engine", "torchrun", "--", "/nonexistent/program"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "opforge launch: error: '/nonexistent/program' could not be started: No such file or directory\n"
    )
