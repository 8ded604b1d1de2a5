"""Jobs on several hosts (network namespaces): ranks communicate, and when anything fails no process is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from support import child_processes, polling

if not shutil.which("ip"):
    pytest.skip("network namespaces need iproute2: apt install iproute2", allow_module_level=True)
if os.geteuid():
    pytest.skip("only root can make network namespaces: run the tests as root", allow_module_level=True)

FIRST, SECOND = "10.77.0.1", "10.77.0.2"
REMOTE_SHELL = """\
#!@PYTHON@
# Replaces ssh: a process that copies bytes both ways, so that its death is the end of the connection.
import os, subprocess, sys, threading
host, command = sys.argv[1], " ".join(sys.argv[2:])
with open("@FOLDER@/connections", "a") as file:
    file.write(f"{os.getpid()} {host}\\n")
os.write(1, b"Welcome\\n")  # as a login shell may
argv = ["ip", "netns", "exec", "@PREFIX@" + host, "sh", "-c", command]
far = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)

def carry(source, target):
    while part := os.read(source.fileno(), 65536):
        os.write(target.fileno(), part)
    target.close()

threading.excepthook = lambda problem: None  # the far side is gone
threading.Thread(target=carry, args=(sys.stdin, far.stdin), daemon=True).start()
carry(far.stdout, sys.stdout)
sys.exit(far.wait())
"""
COMMUNICATE = """
import json, os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([2 ** dist.get_rank()])
dist.all_reduce(total)
names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
with open(os.path.join(os.path.dirname(__file__), "rank" + os.environ["RANK"]), "w") as file:
    address = os.popen("ip -4 -o addr show eth0").read().split()[3]
    json.dump({"total": total.item(), "address": address, **{name: os.environ.get(name) for name in names}}, file)
os.write(1, f"rank {dist.get_rank()} is done\\n".encode())  # one write: the ranks share the pipe
dist.destroy_process_group()
"""
RUN_UNTIL_FAIL = """
import os, subprocess, time
from pathlib import Path
here = Path(__file__).parent
subprocess.Popen(["setsid", "sh", "-c", "sleep 1000; : " + str(here)])
(here / ("up" + os.environ["RANK"])).write_text(" ".join(os.environ[name] for name in ("LOCAL_RANK", "LOCAL_SIZE")))
while True:
    time.sleep(0.05)
    if (here / ("fail" + os.environ["RANK"])).exists():
        raise SystemExit(9)
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def prefix():
    """Two network namespaces with a virtual cable. Returns the prefix of their names, which end with the addresses."""
    start = f"opforge{os.getpid()}-"
    names = [start + FIRST, start + SECOND]
    created = []
    try:
        try:
            for name in names:
                ip("netns", "add", name)
                created.append(name)
            ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this kernel or container has no network namespaces: {error.stderr.decode().strip()}")
        for name, address in zip(names, (FIRST, SECOND), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield start
    finally:
        for name in created:
            ip("netns", "del", name)


@pytest.fixture
def cluster(tmp_path, prefix):
    """Returns a function that launches a script on both hosts. What it leaves alive is killed afterwards."""
    shell = tmp_path / "rsh"
    filled = REMOTE_SHELL.replace("@FOLDER@", str(tmp_path)).replace("@PREFIX@", prefix)
    shell.write_text(filled.replace("@PYTHON@", sys.executable))
    shell.chmod(0o755)
    (tmp_path / "hosts").write_text(f"{FIRST} slots=1\n{SECOND} slots=2\n")
    launched = []

    def launch(code, *options, hosts="hosts", **environ):
        (tmp_path / "job.py").write_text(code)
        argv = [sys.executable, "-m", "opforge", "launch", "--hostfile", str(tmp_path / hosts), "--ssh", str(shell)]
        env = child_processes.environment(GLOO_SOCKET_IFNAME="eth0", OMP_NUM_THREADS=None, **environ)
        argv += [*options, str(tmp_path / "job.py")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        launched.append(subprocess.Popen(argv, env=env, cwd=tmp_path, **pipes))
        return launched[-1]

    yield launch
    for process in launched:
        process.kill()
        process.communicate()
    for pid in child_processes.matching(tmp_path):
        os.kill(pid, signal.SIGKILL)


def connection(tmp_path, host):
    """Returns the pid of the process that is the connection to a host."""
    lines = (tmp_path / "connections").read_text().splitlines()
    (pid,) = [int(line.split()[0]) for line in lines if line.split()[1] == host]
    return pid


def all_ranks_run(tmp_path):
    return all((tmp_path / f"up{rank}").exists() for rank in range(3))


def no_process_left(tmp_path, *excluded):
    return not child_processes.matching(tmp_path, but=excluded)


def test_ranks_of_two_hosts_communicate(cluster, tmp_path):
    (tmp_path / "one").write_text(f"{FIRST} slots=1\n{SECOND} slots=1\n")
    done = cluster(COMMUNICATE, hosts="one")
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    ranks = [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in range(2)]
    assert [(rank["total"], rank["WORLD_SIZE"]) for rank in ranks] == [(3, "2")] * 2
    assert [rank["address"] for rank in ranks] == [f"{FIRST}/24", f"{SECOND}/24"]
    assert {(rank["MASTER_ADDR"], rank["GLOO_SOCKET_IFNAME"]) for rank in ranks} == {(FIRST, "eth0")}
    lines = sorted(line for line in out.splitlines() if line)
    assert lines == ["Welcome", "Welcome", *(f"rank {rank} is done" for rank in range(2))]
    assert no_process_left(tmp_path)


def test_a_dry_run_contacts_every_host_and_starts_nothing(cluster, tmp_path):
    options = ("--dry-run", "--json", "--bind-cores-to-rank", "--include", f"{SECOND}:1@{FIRST}")
    done = cluster("open(__file__ + '.ran', 'w')", *options)
    out, _ = done.communicate(timeout=60)
    rows = json.loads(out[out.index("{") :])["ranks"]
    assert [(row["rank"], row["host"], row["local_rank"]) for row in rows] == [(0, FIRST, 0), (1, SECOND, 0)]
    cores = sorted(os.sched_getaffinity(0))
    assert rows[0]["cores"] and (len(cores) < 2 or rows[1]["cores"] != rows[0]["cores"])
    assert len((tmp_path / "connections").read_text().splitlines()) == 2
    assert not (tmp_path / "job.py.ran").exists() and no_process_left(tmp_path)


def test_an_unreachable_host_stops_the_launch_before_anything_starts(cluster, tmp_path):
    (tmp_path / "more").write_text(f"{FIRST} slots=1\n10.77.0.99 slots=1\n")
    done = cluster(RUN_UNTIL_FAIL, hosts="more")
    out, err = done.communicate(timeout=60)
    assert done.returncode == 1 and "rank" not in out
    assert "The launch failed: no response from 10.77.0.99: rsh ended with status 255 and printed 'Welcome'." in err
    assert not any((tmp_path / f"up{rank}").exists() for rank in range(2)) and no_process_left(tmp_path)


def test_a_host_with_too_few_cores_stops_the_launch_before_anything_starts(cluster, tmp_path):
    (tmp_path / "more").write_text(f"{FIRST} slots=1\n{SECOND} slots=9999\n")
    done = cluster(RUN_UNTIL_FAIL, "--bind-cores-to-rank", hosts="more")
    _, err = done.communicate(timeout=60)
    assert (
        done.returncode == 1 and f"on {SECOND}: Cores cannot be assigned to ranks: 9999 ranks need a core each" in err
    )
    assert "Nothing was started" in err and not (tmp_path / "up0").exists() and no_process_left(tmp_path)


OVER_SSH = pytest.mark.long("test_ssh.py ends a connection of a real ssh")


@pytest.mark.parametrize(
    "failure", ["the launcher is killed", "a rank fails", pytest.param("a connection ends", marks=OVER_SSH)]
)
def test_when_one_part_fails_no_process_is_left(cluster, tmp_path, failure):
    done = cluster(RUN_UNTIL_FAIL)
    polling.wait_for(lambda: all_ranks_run(tmp_path) or done.poll() is not None, 90)
    assert done.poll() is None
    polling.wait_for(lambda: [(tmp_path / f"up{rank}").read_text() for rank in range(3)] == ["0 1", "0 2", "1 2"])
    polling.wait_for(lambda: len(child_processes.matching("sleep 1000; : " + str(tmp_path))) == 3)
    if failure == "the launcher is killed":
        done.kill()
        done.wait()
    elif failure == "a connection ends":
        os.kill(connection(tmp_path, SECOND), signal.SIGKILL)
    else:
        (tmp_path / "fail0").touch()
    polling.wait_for(lambda: no_process_left(tmp_path, done.pid), 60, str(child_processes.matching(tmp_path)))
    _, err = done.communicate(timeout=60)
    if failure == "a connection ends":
        assert f"the ranks on {SECOND}, or the connection to it, ended by signal 9" in err and done.returncode == 1
    if failure == "a rank fails":
        assert f"the ranks on {FIRST}, or the connection to it, ended with status 1" in err and done.returncode == 1
    assert no_process_left(tmp_path)
