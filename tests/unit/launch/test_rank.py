"""The shim before each rank's program: cores, memory policy and variables are set before the program begins."""

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

from opforge.launch.binding.memory_policy import set_policy
from opforge.launch.rank import TOLD

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the launcher runs on Linux")

PLACE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
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
"""Forbids set_mempolicy, as containers do, and becomes another Python: argv[1] is the errno."""


def rank(*words, environ=None, code=SHOW, before=(), **changes):
    env = dict.fromkeys((*PLACE, "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT", "LOCAL_SIZE"))
    argv = [sys.executable, *before, "-m", "opforge.launch.rank", *words, "--", sys.executable, "-c", code, "--lr", "1"]
    env = child_processes.environment(**{**env, **(PLACE if environ is None else environ)})
    return subprocess.run(argv, env=env, capture_output=True, text=True, **changes)


def test_the_program_finds_itself_bound():
    (first, *_) = sorted(os.sched_getaffinity(0))
    done = rank("--engine", "torchrun", "--bind", "--cores", str(first), "--set", "CARDS=1,3")
    told = json.loads(done.stdout)
    assert done.stderr == "" or "memory is not bound" in done.stderr
    assert told["cpus"] == [first] and told["OMP_NUM_THREADS"] == "1" and told["torch"] is False
    assert (told["RANK"], told["LOCAL_SIZE"], told["CARDS"]) == ("1", "1", "1,3")
    assert told["arguments"] == ["--lr", "1"]
    if not done.stderr:
        assert re.fullmatch(r"bind:\d+", told["policy"])


def test_threads_that_the_user_set_are_kept():
    done = rank("--engine", "torchrun", "--keep-threads", environ={**PLACE, "OMP_NUM_THREADS": "7"})
    assert json.loads(done.stdout)["OMP_NUM_THREADS"] == "7"


def test_an_engine_without_an_address_is_given_one():
    environ = {f"OMPI_COMM_WORLD_{name}": value for name, value in (("RANK", "0"), ("SIZE", "1"))}
    environ |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    told = json.loads(rank("--engine", "openmpi", "--master-addr", "h", "--master-port", "7", environ=environ).stdout)
    assert (told["MASTER_ADDR"], told["MASTER_PORT"], told["RANK"], told["WORLD_SIZE"]) == ("h", "7", "0", "1")


def test_slurms_first_host_is_where_ranks_meet():
    environ = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1", "SLURM_NODEID": "2"}
    environ |= {"SLURM_STEP_TASKS_PER_NODE": "2(x3)", "SLURM_STEP_NODELIST": "gpu[04-06]"}
    told = json.loads(rank("--engine", "slurm", "--master-port", "7", environ=environ).stdout)
    assert (told["MASTER_ADDR"], told["RANK"], told["LOCAL_RANK"], told["LOCAL_SIZE"]) == ("gpu04", "5", "1", "2")


def test_a_rank_can_tell_where_it_would_run():
    done = rank("--engine", "torchrun", "--bind", "--tell")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(TOLD)]
    told = json.loads(line.removeprefix(TOLD))
    assert told["rank"] == 1 and told["cores"] and told["threads"] >= 1


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the filter knows these machines' calls")
@pytest.mark.parametrize(("errno", "reason"), [(1, "Operation not permitted"), (38, "Function not implemented")])
def test_a_forbidden_memory_policy_is_one_warning_and_cores_are_bound(errno, reason):
    first = min(os.sched_getaffinity(0))
    for local_rank, said in (("0", True), ("1", False)):
        place = {**PLACE, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": "2"}
        words = ("--engine", "torchrun", "--slots", "1", "--chosen", "0,0", "--bind", "--cores", str(first))
        done = rank(*words, environ=place, before=("-c", FORBID, str(errno)), code=SHOW)
        warning = f"opforge launch: warning: memory is not bound (set_mempolicy: {reason}); the ranks' cores are\n"
        assert done.stderr == (warning if said else "")
        assert json.loads(done.stdout)["cpus"] == [first]


def test_a_policy_for_a_node_that_is_not_there_is_refused_with_a_reason():
    refused = child_processes.run_python(
        "from opforge.launch.binding.memory_policy import set_policy; print(set_policy('bind', [1023]))"
    )
    assert refused.startswith("set_mempolicy: ") and callable(set_policy)


@pytest.mark.parametrize(
    ("words", "environ", "said"),
    [
        (["--engine", "torchrun"], {}, "this process was started with no RANK. Start it through `opforge launch"),
        (
            ["--engine", "torchrun", "--bind", "--cores", "99999"],
            None,
            "--bind-core-list names core 99999, which",
        ),
        (["--engine", "torchrun", "--bind", "--slots", "9999"], None, "9999 ranks want cores"),
        (["--engine", "torchrun", "--bind"], {**PLACE, "KMP_AFFINITY": "compact"}, "KMP_AFFINITY='compact' cannot be"),
        (["--engine", "torchrun", "--chosen", "0"], {**PLACE, "LOCAL_RANK": "1"}, "which was to run 1"),
    ],
)
def test_a_rank_that_cannot_be_placed_does_not_run(words, environ, said):
    done = rank(*words, environ=environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("opforge launch: error: ") and said in done.stderr


def test_a_program_gets_the_signals_that_python_ignores_back():
    env = child_processes.environment(**PLACE)
    program = ["sh", "-c", "grep SigIgn /proc/self/status"]
    argv = [sys.executable, "-m", "opforge.launch.rank", "--engine", "torchrun", "--", *program]
    (_, ignored) = subprocess.run(argv, env=env, capture_output=True, text=True).stdout.split()
    assert not int(ignored, 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_a_program_that_is_not_there_is_named():
    env = child_processes.environment(**PLACE)
    argv = [sys.executable, "-m", "opforge.launch.rank", "--engine", "torchrun", "--", "/nonexistent/program"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "opforge launch: error: '/nonexistent/program' could not be started: No such file or directory\n"
    )
