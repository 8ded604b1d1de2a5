"""From what is typed to what would be started: the engines' commands, and what is refused before anything starts."""

from __future__ import annotations

import json
import os
import socket
import sys

import pytest
from click.testing import CliRunner
from support import text_files

from opforge.accelerator import use_accelerator
from opforge.accelerator.devices.null import NullAccelerator
from opforge.cli import group
from opforge.errors import LauncherNotFoundError, LaunchError, SettingError
from opforge.launch.engines import mpi, slurm, torchrun
from opforge.launch.numbers import Numbers, first_host, read_numbers
from opforge.launch.plan import Options, make_plan

SHIM = [sys.executable, "-m", "opforge.launch.rank", "--engine"]
TWO = "a slots=2\nb slots=1\n"


def typed(*words):
    return CliRunner().invoke(group, ["launch", *words])


@pytest.fixture
def plan(tmp_path):
    """Gives a function: the plan of options, with a hostfile of these lines if there are any."""

    def make(hosts="", environ=None, **options):
        if hosts:
            file = tmp_path / "hosts"
            file.write_text(hosts)
            options["hostfile"] = str(file)
        return make_plan(Options(program=("train.py", "--lr", "1"), **options), environ or {})

    return make


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Gives a function that makes programs of these names, the only ones on PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(**bodies):
        for name, body in bodies.items():
            text_files.write_script(folder, name, body)

    return make


def test_torchrun_on_one_host_picks_its_own_port(plan):
    made = plan(num_accelerators=2)
    (host,) = made.hosts
    assert torchrun.engine_command(made, host) == [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--standalone", "--local-addr", "127.0.0.1", "--no-python"),
        *(*SHIM, "torchrun", "--slots", "2", "--chosen", "0,1", "--"),
        *(sys.executable, "-u", "train.py", "--lr", "1"),
    ]


def test_torchrun_on_several_hosts_has_an_agent_on_each(plan):
    made = plan(TWO, bind=True, smt="skip", environ={"OMP_NUM_THREADS": "3"})
    first, second = (torchrun.engine_command(made, host) for host in made.hosts)
    meeting = ["--master-addr", "a", "--master-port", "29500", "--no-python"]
    assert first[3:12] == ["--nproc-per-node", "2", "--nnodes", "2", "--node-rank", "0", *meeting[:3]]
    assert second[3:14] == ["--nproc-per-node", "1", "--nnodes", "2", "--node-rank", "1", *meeting]
    wishes = ["--keep-threads", "--bind", "--smt", "skip", "--accelerator", "cpu", "--"]
    assert second[14:-5] == [*SHIM, "torchrun", "--slots", "1", "--chosen", "0", *wishes]


def test_open_mpi_gets_a_part_for_each_host(plan):
    made = plan(TWO, launcher="mpi", ssh="ssh -p 22", environ={"OMP_PLACES": "cores", "HOME": "/root"})
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    rank = [*SHIM, "openmpi", "--slots"]
    tail = ["--master-addr", "a", "--master-port", "29500", "--", sys.executable, "-u", "train.py", "--lr", "1"]
    assert mpi.engine_command(made, "mpirun", "openmpi") == [
        *("mpirun", *root, "--mca", "plm_rsh_agent", "ssh -p 22", "--wdir", os.getcwd()),
        *("-n", "2", "--host", "a:2", "--map-by", "slot", "--bind-to", "none", "-x", "OMP_PLACES"),
        *(*rank, "2", "--chosen", "0,1", *tail),
        *(":", "-n", "1", "--host", "b:1", "--map-by", "slot", "--bind-to", "none", "-x", "OMP_PLACES"),
        *(*rank, "1", "--chosen", "0", *tail),
    ]


def test_hydra_gets_one_list_of_hosts(plan):
    argv = mpi.engine_command(plan(TWO, launcher="mpi", ssh="rsh"), "mpirun", "hydra")
    reached = ["-launcher", "ssh", "-launcher-exec", "rsh", "-genvall", "-bind-to", "none", "-wdir", os.getcwd()]
    assert argv[1:19] == [*reached, "-hosts", "a:2,b:1", "-n", "2", *SHIM, "hydra"]
    assert argv[argv.index(":") :][:7] == [":", "-n", "1", *SHIM]


def test_intel_mpi_gets_a_host_for_each_part(plan):
    argv = mpi.engine_command(plan(TWO, launcher="mpi", ssh="rsh"), "mpirun", "intel")
    reached = ["-bootstrap", "ssh", "-bootstrap-exec", "rsh", "-genvall", "-genv", "I_MPI_PIN", "off"]
    assert argv[1:16] == [*reached, "-wdir", os.getcwd(), "-n", "2", "-host", "a", sys.executable]
    assert argv[argv.index(":") :][:9] == [":", "-n", "1", "-host", "b", *SHIM]


def test_hydra_takes_no_arguments_for_ssh(plan):
    with pytest.raises(SettingError, match="--ssh='ssh -p 22' cannot be used: expected one program without arguments"):
        mpi.engine_command(plan(TWO, launcher="mpi", ssh="ssh -p 22"), "mpirun", "hydra")


def test_a_bare_colon_is_mpiruns_own(tmp_path):
    made = make_plan(Options(program=("a.py", ":"), launcher="mpi", num_accelerators=1), {})
    with pytest.raises(SettingError, match="expected no argument that is a bare colon"):
        mpi.engine_command(made, "mpirun", "openmpi")


def test_slurm_chooses_the_hosts_of_the_allocation(plan):
    argv = slurm.engine_command(plan(launcher="slurm", num_accelerators=4, master_port=7000), "srun")
    assert argv == [
        *("srun", "--ntasks-per-node", "4", "--cpu-bind=none", "--mem-bind=none", "--kill-on-bad-exit=1"),
        *("--chdir", os.getcwd(), *SHIM, "slurm", "--master-port", "7000", "--"),
        *(sys.executable, "-u", "train.py", "--lr", "1"),
    ]


def test_slurm_is_told_the_hosts_of_a_hostfile(plan):
    argv = slurm.engine_command(plan("n1 slots=2\nn2 slots=2\n", launcher="slurm"), "srun")
    assert argv[1:9] == ["--nodes", "2", "--ntasks", "4", "--nodelist", "n1,n2", "--ntasks-per-node", "2"]
    assert argv[argv.index("--master-addr") + 1] == "n1"


def test_slurm_takes_the_same_slots_on_each_host_only(plan):
    with pytest.raises(SettingError, match="--hostfile='b' cannot be used: expected the same slots on each host"):
        slurm.engine_command(plan(TWO, launcher="slurm"), "srun")


def test_an_accelerator_without_a_device_needs_a_number_of_processes(plan):
    class Empty(NullAccelerator):
        name = "empty"

        def device_count(self):
            return 0

    with use_accelerator(Empty()):
        with pytest.raises(SettingError, match="--num-accelerators=0 cannot be used: expected a whole number, 1 or"):
            plan()
        assert plan(num_accelerators=2).hosts[0].slots == 2


def test_slots_of_an_accelerator_become_its_visible_devices(plan):
    class Cards(NullAccelerator):
        name = "cards"

        def visible_devices_envs(self):
            return ["CARDS"]

    with use_accelerator(Cards()):
        made = plan("a slots=4\n", include="a:1,3")
        here = plan("localhost slots=4\n", include="localhost:1,3", environ={"CARDS": "4,5,6,7"})
    assert made.visible == {"a": {"CARDS": "1,3"}} and here.visible == {"localhost": {"CARDS": "5,7"}}
    argv = torchrun.engine_command(made, made.hosts[0])
    assert argv[argv.index("--set") + 1] == "CARDS=1,3"


def test_what_remote_hosts_get_is_named_by_the_accelerator(plan):
    environ = {"OMP_PLACES": "cores", "GLOO_SOCKET_IFNAME": "eth0", "HOME": "/root", "OPFORGE_JOBS": "2", "SECRET": "x"}
    assert plan(TWO, environ=environ).exports == {
        name: environ[name] for name in ("GLOO_SOCKET_IFNAME", "OMP_PLACES", "OPFORGE_JOBS")
    }
    assert plan(num_accelerators=1, environ=environ).exports == {}


def test_this_machines_own_name_is_no_remote_host(plan):
    made = plan(f"{socket.gethostname()} slots=1\nelsewhere slots=1\n")
    assert [host.name for host in made.remote] == ["elsewhere"]


def test_this_machine_under_two_names_is_refused(plan):
    with pytest.raises(SettingError, match=r"--hostfile='127\.0\.0\.1' .* once; localhost is this machine too\."):
        plan("localhost slots=1\n127.0.0.1 slots=1\n")


def test_a_module_and_a_program_without_python(plan):
    assert plan(num_accelerators=1, module=True).command[:3] == (sys.executable, "-u", "-m")
    assert plan(num_accelerators=1, no_python=True).command == ("train.py", "--lr", "1")
    with pytest.raises(SettingError, match="expected not to be given together with --no-python"):
        plan(num_accelerators=1, module=True, no_python=True)


def test_without_a_number_there_is_a_process_a_device(plan, monkeypatch):
    monkeypatch.setenv("LOCAL_SIZE", "3")  # what the CPU takes for its devices
    assert len(plan().hosts[0].chosen) == 3


def test_an_address_that_other_hosts_cannot_reach_is_refused(plan):
    with pytest.raises(SettingError) as refused:
        plan("localhost slots=1\nb slots=1\n")
    assert str(refused.value) == (
        "--master-addr='localhost' cannot be used:"
        " expected an address of the first host that the other hosts can reach."
    )
    assert plan("localhost slots=1\nb slots=1\n", master_addr="10.0.0.1").master_addr == "10.0.0.1"


def test_an_unknown_launcher_is_refused(plan):
    with pytest.raises(LauncherNotFoundError) as refused:
        plan(launcher="pdsh")
    assert str(refused.value) == (
        "The launcher 'pdsh' cannot be used here: there is none of that name."
        " Choose torchrun, mpi (Open MPI, MPICH and Intel MPI) or slurm."
    )


def test_a_launcher_that_is_not_installed_names_its_package(tools):
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
    ("said", "dialect"),
    [
        ("mpirun (Open MPI) 4.1.4", "openmpi"),
        ("orterun (OpenRTE) 4.1.4", "openmpi"),
        ("HYDRA build details:\n    Version:  4.0.2", "hydra"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626", "intel"),
    ],
)
def test_mpirun_is_told_by_what_it_says(tools, said, dialect):
    tools(mpirun=f"echo '{said}'")
    assert mpi.find()[1] == dialect


def test_an_mpirun_that_cannot_be_asked_is_refused(tools, tmp_path):
    tools(mpirun="")
    (tmp_path / "tools" / "mpirun").write_bytes(b"no program")
    with pytest.raises(LauncherNotFoundError, match=r"mpirun --version failed: \[Errno 8\] Exec format error"):
        mpi.find()


def test_an_mpirun_of_nobodys_is_refused(tools):
    tools(mpirun="echo some other; exit 3")
    with pytest.raises(LauncherNotFoundError, match=r"mpirun --version says 'some other', which is none of Open MPI"):
        mpi.find()


@pytest.mark.parametrize(
    ("engine", "environ", "numbers"),
    [
        ("torchrun", {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (3, 4, 1, 2)),
        (
            "slurm",
            {
                "SLURM_PROCID": "4",
                "SLURM_NTASKS": "7",
                "SLURM_LOCALID": "0",
                "SLURM_NODEID": "2",
                "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
            },
            (4, 7, 0, 3),
        ),
    ],
)
def test_a_rank_reads_its_place(engine, environ, numbers):
    assert read_numbers(engine, environ) == Numbers(*numbers)


def test_a_rank_without_a_place_says_so():
    with pytest.raises(LaunchError) as refused:
        read_numbers("openmpi", {})
    assert str(refused.value) == (
        "The launch failed: this process was started with no OMPI_COMM_WORLD_RANK."
        " Start it through `opforge launch --launcher mpi`."
    )
    known = dict.fromkeys(("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"), "0")
    with pytest.raises(LaunchError, match="started with SLURM_STEP_TASKS_PER_NODE='x'"):
        read_numbers("slurm", known | {"SLURM_STEP_TASKS_PER_NODE": "x"})


@pytest.mark.parametrize(
    ("nodelist", "first"), [("gpu1", "gpu1"), ("node[07-09,12],gpu1", "node07"), ("a[3]b[1-2]", "a3b1"), ("x,y", "x")]
)
def test_the_first_host_of_slurms_list(nodelist, first):
    assert first_host(nodelist) == first


def test_options_are_spelt_either_way(tmp_path):
    for bind, number in (("--bind-cores-to-rank", "--num-accelerators"), ("--bind_cores_to_rank", "--num_gpus")):
        done = typed(number, "1", bind, "--dry-run", "--json", "train.py", "--epochs", "2")
        told = json.loads(done.stdout)
        assert done.exit_code == 0 and len(told["ranks"]) == 1 and told["launcher"] == "torchrun"
        assert told["ranks"][0]["command"].endswith("-u train.py --epochs 2") and told["ranks"][0]["threads"] >= 1
        assert told["engines"][0]["argv"][-3:] == ["train.py", "--epochs", "2"]
    names = {word for one in group.get_command(None, "launch").params for word in one.opts}
    for word in names:
        assert not word.startswith("--") or f"--{word[2:].replace('-', '_')}" in names


def test_a_dry_run_is_a_table_in_a_pipe():
    done = typed("--num-accelerators", "1", "--bind-cores-to-rank", "--dry-run", "train.py")
    first, second = done.stdout.splitlines()
    assert first.split("\t") == ["RANK", "HOST", "CORES", "MEMORY", "THREADS", "COMMAND"]
    assert second.split("\t")[:2] == ["0", "localhost"] and done.stderr.startswith("localhost: ")


def test_offline_leaves_remote_hosts_undecided(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("localhost slots=1\nfar slots=2\n")
    done = typed(
        *("--hostfile", str(file), "--master-addr", "10.0.0.1", "--ssh", "/nonexistent", "--bind-cores-to-rank"),
        *("--dry-run", "--offline", "--json", "a.py"),
    )
    rows = json.loads(done.stdout)["ranks"]
    assert [(row["rank"], row["host"], row["local_rank"]) for row in rows] == [
        (0, "localhost", 0),
        (1, "far", 0),
        (2, "far", 1),
    ]
    assert rows[0]["cores"] != "decided there" and {row["cores"] for row in rows[1:]} == {"decided there"}


def test_offline_slurm_says_who_decides(tools):
    tools(srun="exit 1")
    done = typed("--launcher", "slurm", "--num-accelerators", "1", "--dry-run", "--offline", "--json", "a.py")
    (row,) = json.loads(done.stdout)["ranks"]
    assert (row["rank"], row["host"], row["cores"]) == ("?", "chosen by Slurm", "decided there")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["a.py", "--json"], None, ""),
        (["--json", "a.py"], 2, "--json goes with --dry-run"),
        (["--offline", "a.py"], 2, "--offline goes with --dry-run"),
        (["--launcher", "pdsh", "a.py"], 1, "error: The launcher 'pdsh' cannot be used here"),
        (["--num-accelerators", "0", "a.py"], 2, "0 is not in the range x>=1"),
        (["--bind-core-list", "x", "a.py"], 1, "error: --bind-core-list='x' cannot be used"),
        (["--ssh", "ssh -o 'x", "a.py"], 1, "expected a command with its quotes closed, such as ssh or 'ssh -p 2222'"),
        (["--ssh", "", "a.py"], 1, "error: --ssh='' cannot be used: expected a command with"),
        (["--launcher", "slurm", "--include", "a", "--num-accelerators", "1", "a.py"], 1, "a hostfile beside it"),
        ([], 2, "Missing argument 'SCRIPT'"),
    ],
)
def test_wrong_usage_is_refused_before_anything_starts(words, code, said):
    if code is None:  # what follows the script is the script's own
        assert json.loads(typed("--dry-run", "--json", "--num-accelerators", "1", *words).stdout)["ranks"]
        return
    done = typed(*words)
    assert done.exit_code == code and said in done.output  # with --json it is a document


def test_wishes_about_cores_bind_by_themselves(plan):
    assert [plan(num_accelerators=1, **wish).wishes.bind for wish in ({}, {"smt": "skip"}, {"core_list": "0"})] == [
        False,
        True,
        True,
    ]


def test_affinity_variables_are_refused_when_binding(monkeypatch):
    monkeypatch.setenv("KMP_AFFINITY", "compact")
    done = typed("--num-accelerators", "1", "--bind-cores-to-rank", "a.py")
    assert done.exit_code == 1 and "KMP_AFFINITY='compact' cannot be used" in done.stderr


def test_another_system_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    done = typed("--num-accelerators", "1", "a.py")
    assert done.exit_code == 1 and "binding is by Linux's system calls, and this is darwin." in done.stderr
