"""How many more processes may be started: from fake /proc and cgroup trees, and from the real kernel."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest
from support import child_processes
from support.devices.files import write_files

from opforge.accelerator.host import cgroup, process_limit

V2 = {
    "proc/self/cgroup": "0::/slice/job\n",
    "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
}


@pytest.fixture
def limit_for_user(monkeypatch):
    """A function that makes this process look like one of user 1000 with a limit on processes."""

    def limit(count):
        monkeypatch.setattr(os, "getuid", lambda: 1000)
        monkeypatch.setattr(resource, "getrlimit", lambda _kind: (count, resource.RLIM_INFINITY))

    return limit


def status(user, threads, capabilities=0):
    return f"Name:\tx\nUid:\t{user}\t{user}\t{user}\t{user}\nThreads:\t{threads}\nCapEff:\t{capabilities:016x}\n"


def test_without_a_limit_there_is_none(tmp_path, limit_for_user):
    limit_for_user(resource.RLIM_INFINITY)
    files = V2 | {"sys/fs/cgroup/slice/job/pids.max": "max\n", "sys/fs/cgroup/slice/job/pids.current": "5\n"}
    assert process_limit.processes_left(write_files(tmp_path, files)) is None


def test_the_tightest_group_counts(tmp_path):
    files = V2 | {
        "sys/fs/cgroup/slice/job/pids.max": "100\n",
        "sys/fs/cgroup/slice/job/pids.current": "5\n",
        "sys/fs/cgroup/slice/pids.max": "50\n",
        "sys/fs/cgroup/slice/pids.current": "30\n",
    }
    assert cgroup.processes_left(write_files(tmp_path, files)) == 20


def test_a_group_of_version_1_counts_and_is_never_below_zero(tmp_path):
    files = {
        "proc/self/cgroup": "8:pids:/docker/abc\n",
        "proc/self/mountinfo": "30 20 0:26 /docker/abc /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n",
        "sys/fs/cgroup/pids/pids.max": "8\n",
        "sys/fs/cgroup/pids/pids.current": "9\n",
    }
    assert cgroup.processes_left(write_files(tmp_path, files)) == 0


def test_the_users_own_limit_counts_the_threads_of_all_its_processes(tmp_path, limit_for_user):
    limit_for_user(40)
    files = {"proc/7/status": status(1000, 12), "proc/8/status": status(1000, 3), "proc/9/status": status(0, 99)}
    root = write_files(tmp_path, {**files, "proc/self/status": status(1000, 12)})
    assert process_limit.processes_left(root) == 25


@pytest.mark.parametrize("capability", [21, 24])
def test_the_users_own_limit_does_not_apply_to_those_whom_the_kernel_exempts(tmp_path, limit_for_user, capability):
    limit_for_user(40)
    root = write_files(tmp_path, {"proc/self/status": status(1000, 12, 1 << capability)})
    assert process_limit.processes_left(root) is None


PRINT_AND_FORK = """
import os, resource
from opforge.accelerator.host.process_limit import processes_left
os.setgid(65534)
os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (int(os.environ["LIMIT"]),) * 2)
left, children = processes_left(), 0
try:
    while children < 100:
        if not os.fork():
            os.read(os.pipe()[0], 1)
        children += 1
except BlockingIOError:
    pass
print(left, children)
os.killpg(0, 9)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become a user without processes")
def test_as_many_processes_start_as_were_announced():
    done = subprocess.run(
        [sys.executable, "-u", "-c", PRINT_AND_FORK],
        env=child_processes.environment(LIMIT="20"),
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
    )
    left, children = map(int, done.stdout.split())
    assert left == children < 20, done.stderr
