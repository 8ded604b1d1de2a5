"""Real jobs on this machine by torchrun and each MPI: ranks have their own cores, and no process is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support import child_processes, polling
from support.hosts.installed_mpis import MPIS, folder_of
from support.processes import forked_python

from opforge.launch.engines import elastic, mpi

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the launcher runs on Linux")

SHOW_PLACE = """
import json, os, sys
assert "torch" not in sys.modules
cpus, total = sorted(os.sched_getaffinity(0)), 0
if "communicate" in sys.argv:
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor([2 ** dist.get_rank()])
    dist.all_reduce(total)
    total = total.item()
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])
    dist.destroy_process_group()
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "OMP_NUM_THREADS", "MASTER_ADDR")
with open(os.path.join(os.path.dirname(__file__), "rank" + os.environ["RANK"]), "w") as file:
    json.dump({"cpus": cpus, "total": total, **{name: os.environ[name] for name in names}}, file)
"""
RUN_UNTIL_FAIL = """
import os, pathlib, sys, time
pathlib.Path(__file__ + os.environ["RANK"]).touch()
while True:
    time.sleep(0.02)
    if os.environ["RANK"] == "1" and os.path.exists(__file__ + ".fail"):
        sys.exit(7)
"""
NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE")
NEED_TWO = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@pytest.fixture
def launch(tmp_path):
    """Returns a function that launches a script in two processes. What it leaves alive is killed afterwards."""
    launched = []

    def start(code, *options, program=(), python=sys.executable, **environ):
        job = tmp_path / "job.py"
        job.write_text(code)
        argv = [python, "-m", "opforge", "launch", "--num-accelerators", "2", *options, str(job), *program]
        env = child_processes.environment(OMP_NUM_THREADS=None, **environ)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        launched.append(subprocess.Popen(argv, env=env, cwd=tmp_path, **pipes))
        return launched[-1]

    yield start
    for process in launched:
        process.kill()
        process.communicate()
    for pid in child_processes.matching(tmp_path):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=MPIS)
def mpirun(request, tmp_path, monkeypatch):
    """Puts the mpirun of one MPI first on PATH. Returns its dialect."""
    monkeypatch.setenv("PATH", f"{folder_of(request.param, tmp_path)}:{os.environ['PATH']}")
    return request.param


def results(tmp_path):
    return [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in range(2)]


def both_ranks_run(tmp_path):
    return all((tmp_path / f"job.py{rank}").exists() for rank in range(2))


@NEED_TWO
@pytest.mark.long(
    "test_hosts.py has ranks that communicate, tests/spine/test_commands.py two that have their own cores"
)
def test_two_ranks_communicate_and_have_their_own_cores(launch, tmp_path):
    done = launch(SHOW_PLACE, "--bind-cores-to-rank", program=["communicate"])
    _, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    first, second = results(tmp_path)
    assert set(first["cpus"]) | set(second["cpus"]) == os.sched_getaffinity(0)
    assert not set(first["cpus"]) & set(second["cpus"])
    assert (first["total"], second["total"]) == (3, 3) and first["LOCAL_SIZE"] == "2"
    assert "OMP_NUM_THREADS environment variable" not in err  # torchrun's warning


@NEED_TWO
def test_mpi_ranks_are_bound_and_have_their_numbers(launch, tmp_path, mpirun):
    assert mpi.find()[1] == mpirun
    done = launch(SHOW_PLACE, "--launcher", "mpi", "--bind_cores_to_rank")
    _, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    first, second = results(tmp_path)
    assert set(first["cpus"]) | set(second["cpus"]) == os.sched_getaffinity(0)
    assert not set(first["cpus"]) & set(second["cpus"])
    assert [[rank[name] for name in NUMBERS] for rank in (first, second)] == [
        ["0", "2", "0", "2"],
        ["1", "2", "1", "2"],
    ]
    assert first["MASTER_ADDR"] == "127.0.0.1"


def test_the_cores_of_unused_slots_stay_free(launch, tmp_path, mpirun):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    done = launch(SHOW_PLACE, "--launcher", "mpi", "--bind-cores-to-rank", "--include", "localhost:1")
    _, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    only = json.loads((tmp_path / "rank0").read_text())
    assert cores[-1] in only["cpus"] and cores[0] not in only["cpus"] and only["WORLD_SIZE"] == "1"


def test_when_an_mpi_rank_fails_every_rank_is_ended(launch, tmp_path, mpirun):
    done = launch(RUN_UNTIL_FAIL, "--launcher", "mpi")
    polling.wait_for(lambda: both_ranks_run(tmp_path) or done.poll() is not None)
    (tmp_path / "job.py.fail").touch()
    _, err = done.communicate(timeout=60)
    assert done.returncode == 1 and "The launch failed: the ranks on localhost ended with status 7." in err
    assert not child_processes.matching(tmp_path)


@pytest.mark.parametrize("mpirun", ["openmpi"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_when_the_launcher_is_ended_every_rank_is_ended(launch, tmp_path, mpirun, number):
    done = launch(RUN_UNTIL_FAIL, "--launcher", "mpi")
    polling.wait_for(lambda: both_ranks_run(tmp_path) or done.poll() is not None)
    done.send_signal(number)
    assert done.wait(60) == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    if number == signal.SIGKILL:  # it cannot wait for them
        polling.wait_for(lambda: not child_processes.matching(tmp_path))
    assert not child_processes.matching(tmp_path)


def test_more_ranks_than_cores_start_nothing(launch, tmp_path):
    done = launch(SHOW_PLACE, "--num-accelerators", "9999", "--bind-cores-to-rank")
    _, err = done.communicate(timeout=60)
    assert (
        done.returncode == 1 and "on localhost: Cores cannot be assigned to ranks: 9999 ranks need a core each" in err
    )
    assert "Nothing was started" in err and not list(tmp_path.glob("rank*"))


FAIL = """
import os, signal, time
if os.environ["RANK"] == "1":
    raise SystemExit(3)
time.sleep(60)
"""


def test_the_rank_that_failed_is_named_with_its_status_after_torchruns_block(launch):
    done = launch(FAIL, python=forked_python.python())
    _, err = done.communicate(timeout=120)
    text = r"rank 1 failed first: its process \d+ ended with exit status 3"
    block, _, after = err.rpartition("=" * 20)
    assert done.returncode == 1 and "Root Cause" in block
    assert re.fullmatch(rf"=*\nopforge launch: {text}\nerror: The launch failed: .*\nhint: .*\n", after), err
    assert "Traceback (most recent call last)" not in err


def test_the_signal_that_ended_a_rank_is_named():
    failure = SimpleNamespace(pid=7, exitcode=-signal.SIGSEGV)
    text = "rank 1 failed first: its process 7 ended by signal 11 (Segmentation fault)"
    assert elastic.failure_text(1, failure) == text
