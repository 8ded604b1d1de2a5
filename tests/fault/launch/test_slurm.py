"""Jobs under a real Slurm: these tests start a controller and two nodes on the loopback."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys

import pytest
from support import child_processes, polling
from support.remote import farm as farms

PATH = os.environ.get("PATH", "") + ":/usr/sbin"
PARTS = {"srun": "slurm-client", "slurmctld": "slurmctld", "slurmd": "slurmd", "munged": "munge"}
MISSING = [package for program, package in PARTS.items() if not shutil.which(program, path=PATH)]
if MISSING:
    pytest.skip(f"needs apt install {' '.join(MISSING)}", allow_module_level=True)
if os.geteuid():
    pytest.skip("slurmd needs root: run the tests as root", allow_module_level=True)

CONFIGURATION = """
ClusterName=opforge
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=@FOLDER@/munge.sock
CredType=cred/munge
SlurmctldPort=@PORT0@
StateSaveLocation=@FOLDER@/state
SlurmdSpoolDir=@FOLDER@/spool-%n
SlurmctldPidFile=@FOLDER@/slurmctld.pid
SlurmdPidFile=@FOLDER@/slurmd-%n.pid
SlurmctldLogFile=@FOLDER@/slurmctld.log
SlurmdLogFile=@FOLDER@/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName=n[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[@PORT1@,@PORT2@] CPUs=2
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
"""
SHOW = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURMD_NODENAME")
with open(os.path.join(os.path.dirname(__file__), "rank" + os.environ["RANK"]), "w") as file:
    json.dump({name: os.environ.get(name) for name in names}, file)
"""
FAIL = """
import os, pathlib, sys, time
pathlib.Path(__file__ + os.environ["RANK"]).touch()
while not pathlib.Path(__file__ + "1").exists():
    time.sleep(0.02)
if os.environ["RANK"] == "0":
    sys.exit(7)
time.sleep(1000)
"""


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Starts Slurm. Returns the path of its configuration."""
    folder = tmp_path_factory.mktemp("slurm")
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)  # munged refuses other permissions
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    text = CONFIGURATION.replace("@FOLDER@", str(folder))
    for number, port in enumerate(free_ports(3)):
        text = text.replace(f"@PORT{number}@", str(port))
    (folder / "slurm.conf").write_text(text)
    env = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    munge = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "seed-file": "munge.seed"}
    commands = [
        ["munged", "--foreground", "--force", *(f"--{name}={folder / file}" for name, file in munge.items())],
        ["slurmctld", "-D", "-f", str(folder / "slurm.conf")],
        *(["slurmd", "-D", "-N", name] for name in ("n1", "n2")),
    ]
    running = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("ab") as log:
                running.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
            if command[0] == "munged":
                polling.wait_for((folder / "munge.sock").exists)

        def is_idle():
            sinfo = subprocess.run(["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True)
            return sinfo.stdout.split() == ["idle"]

        try:
            polling.wait_for(is_idle, 20)
        except AssertionError:
            logs = "\n".join(log.read_text()[-400:] for log in folder.glob("*.out"))
            pytest.skip(f"Slurm does not start in this container: {logs}")
        yield folder / "slurm.conf"
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def launch(slurm, tmp_path, code, *options):
    (tmp_path / "job.py").write_text(code)
    argv = [sys.executable, "-m", "opforge", "launch", "--launcher", "slurm", *options, str(tmp_path / "job.py")]
    env = child_processes.environment(SLURM_CONF=str(slurm))
    return subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)


def test_ranks_on_the_nodes_of_a_hostfile_have_their_numbers(slurm, tmp_path):
    (tmp_path / "hosts").write_text("n1 slots=2\nn2 slots=2\n")
    done = launch(slurm, tmp_path, SHOW, "--hostfile", str(tmp_path / "hosts"), "--master-port", "7000")
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in range(4)]
    assert [(rank["LOCAL_RANK"], rank["SLURMD_NODENAME"]) for rank in ranks] == [
        ("0", "n1"),
        ("1", "n1"),
        ("0", "n2"),
        ("1", "n2"),
    ]
    names = ("WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert {tuple(rank[name] for name in names) for rank in ranks} == {("4", "2", "n1", "7000")}


def test_without_a_hostfile_slurm_chooses_the_hosts_and_the_first_is_the_master(slurm, tmp_path):
    done = launch(slurm, tmp_path, SHOW, "--num-accelerators", "1")
    assert done.returncode == 0, done.stderr
    rank = json.loads((tmp_path / "rank0").read_text())
    assert rank["MASTER_ADDR"] == rank["SLURMD_NODENAME"] and rank["MASTER_PORT"] == "29500"


def test_a_dry_run_contacts_the_hosts_by_srun_and_starts_nothing(slurm, tmp_path):
    done = launch(slurm, tmp_path, SHOW, "--num-accelerators", "1", "--bind-cores-to-rank", "--dry-run", "--json")
    (row,) = json.loads(done.stdout)["ranks"]
    assert (row["rank"], row["host"], row["local_rank"]) == (0, socket.gethostname(), 0) and row["threads"] >= 1
    assert not (tmp_path / "rank0").exists()


def test_when_a_rank_fails_every_rank_is_ended(slurm, tmp_path):
    done = launch(slurm, tmp_path, FAIL, "--num-accelerators", "2")
    assert done.returncode == 1 and "The launch failed: the ranks on localhost ended with status" in done.stderr
    polling.wait_for(lambda: not child_processes.matching(tmp_path))


def test_the_tasks_of_an_array_build_a_share_each(slurm, tmp_path):
    names = farms.ops_module(tmp_path, ["alpha", "beta", "gamma"], module="array_ops")
    code = "from opforge.cli import build_ops as command; command()"
    words = [sys.executable, "-c", code, *names, "--shard", "auto", "--report"]
    build = f'{shlex.join(words)} "report-$SLURM_ARRAY_TASK_ID.json"'
    (tmp_path / "job.sh").write_text(f'#!/bin/sh\n{build}\necho $? > "done-$SLURM_ARRAY_TASK_ID"\n')
    env = child_processes.environment(SLURM_CONF=str(slurm), OPFORGE_CACHE_DIR=str(tmp_path / "cache"))
    sbatch = ["sbatch", "--array=3-9:6", f"--chdir={tmp_path}", "--output=%a.log", str(tmp_path / "job.sh")]
    subprocess.run(sbatch, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    polling.wait_for(lambda: len([*tmp_path.glob("done-*")]) == 2, 100, "the tasks do not end")
    logs = "".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert [(tmp_path / f"done-{task}").read_text() for task in (3, 9)] == ["0\n"] * 2, logs
    reports = [json.loads((tmp_path / f"report-{task}.json").read_text()) for task in (3, 9)]
    assert [report["shard"] for report in reports] == [[1, 2], [2, 2]]
    units = [unit for report in reports for unit in report["units"]]
    assert sorted(unit["name"] for unit in units) == sorted(names)
    assert {unit["state"] for unit in units} == {"built"}
