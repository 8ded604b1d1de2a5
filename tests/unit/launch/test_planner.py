"""Options resolved to a plan, and what is refused before anything starts."""

from __future__ import annotations

import socket
import sys

import pytest

from opforge.accelerator import use_accelerator
from opforge.accelerator.devices.null import NullAccelerator
from opforge.errors import LauncherNotFoundError, SettingError
from opforge.launch.engines import torchrun

TWO_HOSTS = "a slots=2\nb slots=1\n"


def test_without_a_device_the_number_of_processes_must_be_named(planned):
    class NoDevices(NullAccelerator):
        name = "none"

        def device_count(self):
            return 0

    with use_accelerator(NoDevices()):
        with pytest.raises(SettingError, match="--num-accelerators=0 cannot be used: expected a whole number, 1 or"):
            planned()
        assert planned(num_accelerators=2).hosts[0].slots == 2


def test_chosen_slots_become_the_visible_devices(planned):
    class Cards(NullAccelerator):
        name = "cards"

        def visible_devices_envs(self):
            return ["CARDS"]

    with use_accelerator(Cards()):
        plan = planned("a slots=4\n", include="a:1,3")
        local = planned("localhost slots=4\n", include="localhost:1,3", environ={"CARDS": "4,5,6,7"})
    assert plan.visible == {"a": {"CARDS": "1,3"}} and local.visible == {"localhost": {"CARDS": "5,7"}}
    argv = torchrun.engine_command(plan, plan.hosts[0])
    assert argv[argv.index("--set") + 1] == "CARDS=1,3"


def test_remote_hosts_get_opforges_and_the_accelerators_variables(planned):
    environ = {"OMP_PLACES": "cores", "GLOO_SOCKET_IFNAME": "eth0", "HOME": "/root", "OPFORGE_JOBS": "2", "SECRET": "x"}
    assert planned(TWO_HOSTS, environ=environ).exports == {
        name: environ[name] for name in ("GLOO_SOCKET_IFNAME", "OMP_PLACES", "OPFORGE_JOBS")
    }
    assert planned(num_accelerators=1, environ=environ).exports == {}


def test_this_machines_own_name_is_not_remote(planned):
    plan = planned(f"{socket.gethostname()} slots=1\nelsewhere slots=1\n")
    assert [host.name for host in plan.remote] == ["elsewhere"]


def test_this_machine_under_two_names_is_refused(planned):
    with pytest.raises(SettingError, match=r"--hostfile='127\.0\.0\.1' .* once; localhost is this machine too\."):
        planned("localhost slots=1\n127.0.0.1 slots=1\n")


def test_a_program_may_be_a_module_or_need_no_python(planned):
    assert planned(num_accelerators=1, module=True).command[:3] == (sys.executable, "-u", "-m")
    assert planned(num_accelerators=1, no_python=True).command == ("train.py", "--lr", "1")
    with pytest.raises(SettingError, match="expected either --module or --no-python, not both"):
        planned(num_accelerators=1, module=True, no_python=True)


def test_by_default_there_is_one_process_a_device(planned, monkeypatch):
    monkeypatch.setenv("LOCAL_SIZE", "3")  # the CPU's number of devices
    assert len(planned().hosts[0].chosen) == 3


def test_an_address_that_other_hosts_cannot_reach_is_refused(planned):
    with pytest.raises(SettingError) as refused:
        planned("localhost slots=1\nb slots=1\n")
    assert str(refused.value) == (
        "--master-addr='localhost' cannot be used:"
        " expected an address of the first host that the other hosts can reach."
    )
    assert planned("localhost slots=1\nb slots=1\n", master_addr="10.0.0.1").master_addr == "10.0.0.1"


def test_an_unknown_launcher_is_refused(planned):
    with pytest.raises(LauncherNotFoundError) as refused:
        planned(launcher="ray")
    assert str(refused.value) == (
        "The launcher 'ray' cannot be used here: there is no such launcher."
        " Choose torchrun (or pdsh), mpi (or openmpi, mpich, impi) or slurm."
    )


@pytest.mark.parametrize(
    ("name", "launcher"),
    [("openmpi", "mpi"), ("mpich", "mpi"), ("impi", "mpi"), ("pdsh", "torchrun"), ("SLURM", "slurm")],
)
def test_the_names_of_deepspeed_are_accepted(planned, name, launcher):
    assert planned(launcher=name, num_accelerators=1).launcher == launcher


@pytest.mark.parametrize(("options", "bind"), [({}, False), ({"smt": "skip"}, True), ({"core_list": "0"}, True)])
def test_options_about_cores_turn_binding_on(planned, options, bind):
    assert planned(num_accelerators=1, **options).bind_options.bind is bind
