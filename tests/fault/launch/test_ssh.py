"""Jobs over a real ssh: these tests start an sshd on the loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from support import child_processes, polling, text_files
from support.hosts.installed_mpis import MPIS, folder_of

from opforge.launch.core_list import format_list

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin")
if not SSHD or not shutil.which("ssh"):
    pytest.skip("needs an ssh and an sshd: apt install openssh-server", allow_module_level=True)
if os.geteuid() or not sys.platform.startswith("linux"):
    pytest.skip("sshd needs root and Linux: run the tests as root", allow_module_level=True)

FAR = "127.0.0.2"
"""A loopback address that the launcher does not recognise as this machine."""
PRINT_AND_WAIT = """
import os, sys, time
words = ["rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ["OMP_PLACES"], *sys.argv[1:]]
os.write(1, (" ".join(words) + "\\n").encode())  # one write: the ranks share the pipe
open(__file__ + os.environ["RANK"], "w").close()
time.sleep(1000)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind((FAR, 0))
        return probe.getsockname()[1]


@pytest.fixture
def ssh(tmp_path):
    """Starts an sshd. Returns the command that reaches it, with a key made for it."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    os.makedirs("/run/sshd", exist_ok=True)
    port = free_port()
    options = ["ListenAddress=" + FAR, "PidFile=none", "UsePAM=no", "StrictModes=no", "PermitRootLogin=yes"]
    options += [f"AuthorizedKeysFile={tmp_path}/user.pub", f"HostKey={tmp_path}/host", f"Port={port}"]
    argv = [SSHD, "-D", "-e", "-f", "/dev/null", *(word for option in options for word in ("-o", option))]
    server = subprocess.Popen(argv, stderr=subprocess.PIPE)
    try:
        line = server.stderr.readline()
        assert b"Server listening" in line, line
        yield (
            f"ssh -F /dev/null -p {port} -i {tmp_path}/user -o BatchMode=yes -o LogLevel=ERROR"
            f" -o StrictHostKeyChecking=no -o UserKnownHostsFile={tmp_path}/known"
        )
    finally:
        server.kill()
        server.communicate()


def test_a_job_over_ssh_ends_with_its_connection(ssh, tmp_path):
    job = tmp_path / "the job.py"
    job.write_text(PRINT_AND_WAIT)
    (tmp_path / "hosts").write_text(f"{FAR} slots=2\n")
    argv = [sys.executable, "-m", "opforge", "launch", "--hostfile", str(tmp_path / "hosts"), "--ssh", ssh]
    argv += ["--master-port", str(free_port()), str(job), "it's", "$HOME;"]
    env = child_processes.environment(OMP_PLACES="cores", OMP_NUM_THREADS="1")
    lines, out = [f"rank {rank} of 2 cores it's $HOME;" for rank in (0, 1)], tmp_path / "out"

    def printed():
        return sorted(out.read_text().splitlines())

    with open(out, "w") as file:
        done = subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=file, stderr=subprocess.PIPE, text=True)
    try:
        # What a rank has written may still be on its way when its connection is killed.
        polling.wait_for(lambda: printed() == lines or done.poll() is not None, 90)
        (pid,) = child_processes.matching(f"ssh -F /dev/null -p {ssh.split()[4]}", but=[done.pid])
        os.kill(pid, signal.SIGKILL)
        _, err = done.communicate(timeout=90)
    finally:
        done.kill()
        done.communicate()
    assert printed() == lines, err
    assert done.returncode == 1
    assert f"the ranks on {FAR}, or the connection to it, ended by signal 9" in err
    polling.wait_for(lambda: not child_processes.matching(job))


@pytest.mark.parametrize("dialect", MPIS)
def test_mpi_reaches_other_hosts_over_the_same_ssh(ssh, tmp_path, monkeypatch, dialect):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    monkeypatch.setenv("PATH", f"{folder_of(dialect, tmp_path)}:{os.environ['PATH']}")
    shell = text_files.write_script(tmp_path, "rsh", f'echo >> {tmp_path}/called; exec {ssh} "$@"')
    (tmp_path / "hosts").write_text(f"localhost slots=1\n{FAR} slots=2\n")
    argv = [sys.executable, "-m", "opforge", "launch", "--launcher", "mpi", "--hostfile", str(tmp_path / "hosts")]
    argv += ["--ssh", shell, "--master-addr", socket.gethostname(), "--bind-core-list", f"{cores[0]},{cores[1]}"]
    show = 'printf "%s\\n" "$RANK $LOCAL_RANK $LOCAL_SIZE $MASTER_ADDR $OMP_PLACES" > "$0$RANK"'
    env = child_processes.environment(OMP_PLACES="cores")
    options = {"env": env, "cwd": tmp_path, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([*argv, "--no-python", "sh", "-c", show, str(tmp_path / "rank")], **options)
    assert done.returncode == 0, done.stderr
    numbers = [(tmp_path / f"rank{rank}").read_text().split()[:3] for rank in range(3)]
    assert numbers == [["0", "0", "1"], ["1", "0", "2"], ["2", "1", "2"]]
    assert (tmp_path / "rank2").read_text().split()[3:] == [socket.gethostname(), "cores"]
    dry_run = subprocess.run([*argv, "--dry-run", "--json", "job.py"], **options)
    rows = json.loads(dry_run.stdout)["ranks"]
    assert [(row["rank"], row["local_rank"], row["cores"]) for row in rows] == [
        (0, 0, format_list(cores[:2])),
        (1, 0, str(cores[0])),
        (2, 1, str(cores[1])),
    ]
    assert len((tmp_path / "called").read_text().splitlines()) == 2  # once for the job, once for the dry run
