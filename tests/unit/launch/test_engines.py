"""The engines' commands, and finding the engines' programs."""

from __future__ import annotations

import os
import sys

import pytest

from opforge.accelerator.select import get_accelerator
from opforge.errors import LauncherNotFoundError, SettingError
from opforge.launch.engines import mpi, slurm, torchrun
from opforge.launch.planner import Options, make_plan
from opforge.launch.run import engine_starts

RANK = [sys.executable, "-m", "opforge.launch.rank", "--engine"]
TWO_HOSTS = "a slots=2\nb slots=1\n"


def test_torchrun_on_one_host_chooses_its_own_port(planned):
    plan = planned(num_accelerators=2)
    (host,) = plan.hosts
    assert torchrun.engine_command(plan, host) == [
        *(sys.executable, "-m", "opforge.launch.engines.elastic", "--nproc-per-node", "2"),
        *("--standalone", "--local-addr", "127.0.0.1", "--no-python"),
        *(*RANK, "torchrun", "--slots", "2", "--chosen", "0,1", "--"),
        *(sys.executable, "-u", "train.py", "--lr", "1"),
    ]


def test_torchrun_runs_once_on_each_host(planned):
    plan = planned(TWO_HOSTS, bind=True, smt="skip", environ={"OMP_NUM_THREADS": "3"})
    first, second = (torchrun.engine_command(plan, host) for host in plan.hosts)
    master = ["--master-addr", "a", "--master-port", "29500", "--no-python"]
    assert first[3:12] == ["--nproc-per-node", "2", "--nnodes", "2", "--node-rank", "0", *master[:3]]
    assert second[3:14] == ["--nproc-per-node", "1", "--nnodes", "2", "--node-rank", "1", *master]
    options = ["--keep-threads", "--bind", "--smt", "skip", "--accelerator", "cpu", "--"]
    assert second[14:-5] == [*RANK, "torchrun", "--slots", "1", "--chosen", "0", *options]


def test_open_mpi_gets_a_part_for_each_host(planned):
    plan = planned(TWO_HOSTS, launcher="mpi", ssh="ssh -p 22", environ={"OMP_PLACES": "cores", "HOME": "/root"})
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    rank_command = [*RANK, "openmpi", "--slots"]
    tail = ["--master-addr", "a", "--master-port", "29500", "--", sys.executable, "-u", "train.py", "--lr", "1"]
    assert mpi.engine_command(plan, "mpirun", "openmpi") == [
        *("mpirun", *root, "--mca", "plm_rsh_agent", "ssh -p 22", "--wdir", os.getcwd()),
        *("-n", "2", "--host", "a:2", "--map-by", "slot", "--bind-to", "none", "-x", "OMP_PLACES"),
        *(*rank_command, "2", "--chosen", "0,1", *tail),
        *(":", "-n", "1", "--host", "b:1", "--map-by", "slot", "--bind-to", "none", "-x", "OMP_PLACES"),
        *(*rank_command, "1", "--chosen", "0", *tail),
    ]


def test_hydra_gets_one_list_of_hosts(planned):
    argv = mpi.engine_command(planned(TWO_HOSTS, launcher="mpi", ssh="rsh"), "mpirun", "hydra")
    remote_shell = ["-launcher", "ssh", "-launcher-exec", "rsh", "-genvall", "-bind-to", "none", "-wdir", os.getcwd()]
    assert argv[1:19] == [*remote_shell, "-hosts", "a:2,b:1", "-n", "2", *RANK, "hydra"]
    assert argv[argv.index(":") :][:7] == [":", "-n", "1", *RANK]


def test_intel_mpi_gets_a_host_for_each_part(planned):
    argv = mpi.engine_command(planned(TWO_HOSTS, launcher="mpi", ssh="rsh"), "mpirun", "intel")
    remote_shell = ["-bootstrap", "ssh", "-bootstrap-exec", "rsh", "-genvall", "-genv", "I_MPI_PIN", "off"]
    assert argv[1:16] == [*remote_shell, "-wdir", os.getcwd(), "-n", "2", "-host", "a", sys.executable]
    assert argv[argv.index(":") :][:9] == [":", "-n", "1", "-host", "b", *RANK]


def test_hydra_accepts_no_arguments_of_ssh(planned):
    with pytest.raises(SettingError, match="--ssh='ssh -p 22' cannot be used: expected one program without arguments"):
        mpi.engine_command(planned(TWO_HOSTS, launcher="mpi", ssh="ssh -p 22"), "mpirun", "hydra")


def test_mpirun_accepts_no_argument_that_is_a_colon():
    plan = make_plan(Options(program=("a.py", ":"), launcher="mpi", num_accelerators=1), {}, get_accelerator)
    with pytest.raises(SettingError, match="expected no argument that is only a colon"):
        mpi.engine_command(plan, "mpirun", "openmpi")


def test_slurm_chooses_the_hosts_of_the_allocation(planned):
    argv = slurm.engine_command(planned(launcher="slurm", num_accelerators=4, master_port=7000), "srun")
    assert argv == [
        *("srun", "--ntasks-per-node", "4", "--cpu-bind=none", "--mem-bind=none", "--kill-on-bad-exit=1"),
        *("--chdir", os.getcwd(), *RANK, "slurm", "--master-port", "7000", "--"),
        *(sys.executable, "-u", "train.py", "--lr", "1"),
    ]


def test_slurm_gets_the_hosts_of_a_hostfile(planned):
    argv = slurm.engine_command(planned("n1 slots=2\nn2 slots=2\n", launcher="slurm"), "srun")
    assert argv[1:9] == ["--nodes", "2", "--ntasks", "4", "--nodelist", "n1,n2", "--ntasks-per-node", "2"]
    assert argv[argv.index("--master-addr") + 1] == "n1"


def test_slurm_requires_the_same_slots_on_each_host(planned):
    with pytest.raises(SettingError, match="--hostfile='b' cannot be used: expected the same slots on each host"):
        slurm.engine_command(planned(TWO_HOSTS, launcher="slurm"), "srun")


def test_a_launcher_that_is_not_installed_names_its_package(add_programs):
    with pytest.raises(LauncherNotFoundError) as refused:
        mpi.find()
    assert str(refused.value) == (
        "The launcher 'mpi' cannot be used here: there is no mpirun on PATH."
        " Install one: apt install openmpi-bin, apt install mpich, or Intel MPI."
    )
    with pytest.raises(LauncherNotFoundError) as refused:
        slurm.find()
    assert str(refused.value) == (
        "The launcher 'slurm' cannot be used here: there is no srun on PATH. Install it: apt install slurm-client."
    )


@pytest.mark.parametrize(
    ("output", "dialect"),
    [
        ("mpirun (Open MPI) 4.1.4", "openmpi"),
        ("orterun (OpenRTE) 4.1.4", "openmpi"),
        ("HYDRA build details:\n    Version:  4.0.2", "hydra"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626", "intel"),
    ],
)
def test_the_dialect_of_an_mpirun_is_read_from_its_version_output(add_programs, output, dialect):
    add_programs(mpirun=f"echo '{output}'")
    assert mpi.find()[1] == dialect


@pytest.mark.parametrize(
    ("launcher", "output", "problem"),
    [
        ("impi", "mpirun (Open MPI) 4.1.4", "is Open MPI's, expected Intel MPI's or MPICH's"),
        ("mpich", "mpirun (Open MPI) 4.1.4", "is Open MPI's, expected MPICH's or Intel MPI's"),
        ("openmpi", "HYDRA build details:", "is MPICH's, expected Open MPI's"),
        ("impi", "HYDRA build details:", ""),
        ("impi", "Intel(R) MPI Library for Linux* OS", ""),
        ("mpi", "mpirun (Open MPI) 4.1.4", ""),
    ],
)
def test_a_launcher_that_names_an_mpi_refuses_the_mpirun_of_another_one(
    add_programs, planned, launcher, output, problem
):
    add_programs(mpirun=f"echo '{output}'")
    plan = planned(launcher=launcher, num_accelerators=1)
    if not problem:
        assert engine_starts(plan)[0].argv[0].endswith("mpirun")
        return
    with pytest.raises(LauncherNotFoundError) as refused:
        engine_starts(plan)
    text = str(refused.value)
    assert text.startswith(f"The launcher '{launcher}' cannot be used here: /") and f"mpirun {problem}. Put" in text
    assert text.endswith("Put that one first on PATH, or choose mpi, which takes any mpirun.")


@pytest.mark.parametrize(
    ("launcher", "word", "whose"),
    [("mpi", "--map-by", "Open MPI"), ("impi", "I_MPI_PIN", "Intel MPI"), ("mpich", "-hosts", "MPICH")],
)
def test_an_offline_plan_needs_no_mpirun(add_programs, planned, launcher, word, whose):
    (start,) = engine_starts(planned(launcher=launcher, num_accelerators=1), offline=True)
    assert start.argv[0] == "mpirun" and word in start.argv
    assert start.assumed == f"there is no mpirun on PATH: this is the command of {whose}"


def test_an_offline_plan_needs_no_srun(add_programs, planned):
    (start,) = engine_starts(planned(launcher="slurm", num_accelerators=1), offline=True)
    assert start.argv[0] == "srun" and start.assumed == "there is no srun on PATH: this is the command of Slurm"


def test_an_mpirun_that_does_not_start_is_refused(add_programs, tmp_path):
    add_programs(mpirun="")
    (tmp_path / "tools" / "mpirun").write_bytes(b"no program")
    with pytest.raises(LauncherNotFoundError, match=r"mpirun --version failed: \[Errno 8\] Exec format error"):
        mpi.find()


def test_an_unknown_mpirun_is_refused(add_programs):
    add_programs(mpirun="echo some other; exit 3")
    with pytest.raises(LauncherNotFoundError, match=r"mpirun --version prints 'some other': expected Open MPI, MPICH"):
        mpi.find()
