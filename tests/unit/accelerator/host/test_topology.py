"""Cores and NUMA nodes of fake machines: offline cores, HBM nodes, affinity masks and quotas."""

from __future__ import annotations

import os

import pytest
from support.devices.files import write_files

from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.host.files import parse_list
from opforge.accelerator.host.topology import Topology
from opforge.errors import SettingError


def two_sockets(hbm: bool = False) -> dict[str, str]:
    """Returns the files of two sockets of four cores with two threads each: 0-3,8-11 and 4-7,12-15."""
    node = "sys/devices/system/node"
    files = {
        f"{node}/online": "0-1\n",
        f"{node}/node0/cpulist": "0-3,8-11\n",
        f"{node}/node1/cpulist": "4-7,12-15\n",
        f"{node}/node0/meminfo": "Node 0 MemTotal:       1000 kB\nNode 0 MemFree:  1 kB\n",
        f"{node}/node1/meminfo": "Node 1 MemTotal:       2000 kB\n",
        "sys/devices/system/cpu/online": "0-15\n",
        "proc/meminfo": "MemTotal:  3000 kB\nMemAvailable: 2000 kB\n",
    }
    for cpu in range(16):
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu % 8},{cpu % 8 + 8}\n"
    if hbm:
        files |= {
            f"{node}/online": "0-3\n",
            f"{node}/node2/cpulist": "\n",
            f"{node}/node2/meminfo": "Node 2 MemTotal:       64 kB\n",
            f"{node}/node3/cpulist": "\n",
            f"{node}/node3/meminfo": "Node 3 MemTotal:       64 kB\n",
            "proc/self/status": "Name:\tpython\nMems_allowed_list:\t0-2\n",
        }
    return files


def test_both_sockets_are_nodes_and_hardware_threads_share_cores(tmp_path):
    host = Topology.read(write_files(tmp_path, two_sockets()), allowed=range(16))
    assert [(node.number, node.memory) for node in host.nodes] == [(0, 1000 * 1024), (1, 2000 * 1024)]
    assert host.nodes[1].cpus == (4, 5, 6, 7, 12, 13, 14, 15)
    assert (host.cores, host.threads) == (8, 16)
    assert host.memory_only_nodes == ()


def test_a_node_outside_the_affinity_mask_is_not_counted(tmp_path):
    host = Topology.read(write_files(tmp_path, two_sockets()), allowed={1, 2, 9})
    assert [(node.number, node.cpus) for node in host.nodes] == [(0, (1, 2, 9))]
    assert (host.cores, host.threads) == (2, 3)


def test_a_node_whose_cores_are_outside_the_affinity_mask_is_no_memory_only_node(tmp_path):
    host = Topology.read(write_files(tmp_path, two_sockets(hbm=True)), allowed={0})
    assert [node.number for node in host.memory_only_nodes] == [2]


def test_hbm_without_cores_is_a_memory_only_node_if_the_cpuset_allows_it(tmp_path):
    host = Topology.read(write_files(tmp_path, two_sockets(hbm=True)), allowed=range(16))
    assert [(node.number, node.memory, node.cpus) for node in host.memory_only_nodes] == [(2, 64 * 1024, ())]
    assert len(host.nodes) == 2


def test_offline_cores_are_left_out(tmp_path):
    files = two_sockets() | {"sys/devices/system/cpu/online": "0-3\n"}
    host = Topology.read(write_files(tmp_path, files), allowed=range(16))
    assert [node.cpus for node in host.nodes] == [(0, 1, 2, 3)]
    assert (host.cores, host.threads) == (4, 4)


def test_256_threads_on_eight_nodes_are_counted(tmp_path):
    files = {"sys/devices/system/node/online": "0-7", "sys/devices/system/cpu/online": "0-255"}
    for node in range(8):
        files[f"sys/devices/system/node/node{node}/cpulist"] = (
            f"{node * 16}-{node * 16 + 15},{node * 16 + 128}-{node * 16 + 143}"
        )
    for cpu in range(256):
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu % 128},{cpu % 128 + 128}"
    host = Topology.read(write_files(tmp_path, files), allowed=range(256))
    assert (len(host.nodes), host.cores, host.threads) == (8, 128, 256)


def test_a_version_2_quota_caps_the_cores_rounded_up(tmp_path):
    files = two_sockets() | {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "250000 100000\n"}
    host = Topology.read(write_files(tmp_path, files), allowed=range(16))
    assert (host.cores, host.threads, len(host.nodes)) == (3, 3, 2)


def test_a_version_1_quota_caps_the_cores(tmp_path):
    files = two_sockets() | {
        "proc/self/cgroup": "4:cpu,cpuacct:/job\n0::/\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert Topology.read(write_files(tmp_path, files), allowed=range(16)).cores == 1


def test_a_quota_of_max_caps_nothing(tmp_path):
    files = two_sockets() | {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "max 100000\n"}
    assert Topology.read(write_files(tmp_path, files), allowed=range(16)).threads == 16


def test_a_machine_without_sys_is_one_node(tmp_path):
    host = Topology.read(str(tmp_path), allowed={0, 1})
    assert [(node.number, node.cpus) for node in host.nodes] == [(0, (0, 1))]
    assert (host.cores, host.threads) == (2, 2)


@pytest.fixture
def two_socket_cpu(tmp_path, monkeypatch):
    """The CPU accelerator on a machine with two sockets and two HBM nodes, without a launcher's variables."""
    for variable in ("LOCAL_SIZE", "LOCAL_RANK", "OPFORGE_VISIBLE_NUMA_NODES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    return CPUAccelerator(write_files(tmp_path, two_sockets(hbm=True)))


def test_devices_are_the_nodes_with_cores(two_socket_cpu):
    assert two_socket_cpu.device_count() == 2


def test_a_launchers_local_size_is_the_device_count(two_socket_cpu, monkeypatch):
    monkeypatch.setenv("LOCAL_SIZE", "5")
    assert two_socket_cpu.device_count() == 5
    monkeypatch.setenv("LOCAL_SIZE", "0")
    assert two_socket_cpu.device_count() == 2


def test_visible_nodes_limit_the_device_count(two_socket_cpu, monkeypatch):
    environment: dict[str, str] = {}
    two_socket_cpu.set_visible_devices_envs(environment, [1])
    assert environment == {"OPFORGE_VISIBLE_NUMA_NODES": "1"}
    monkeypatch.setenv("OPFORGE_VISIBLE_NUMA_NODES", "1")
    assert two_socket_cpu.device_count() == 1
    monkeypatch.setenv("OPFORGE_VISIBLE_NUMA_NODES", "7")
    assert two_socket_cpu.device_count() == 1


@pytest.mark.parametrize("value", ["all", "0-", ",", "0;1"])
def test_visible_nodes_that_are_no_list_are_an_error(two_socket_cpu, monkeypatch, value):
    monkeypatch.setenv("OPFORGE_VISIBLE_NUMA_NODES", value)
    with pytest.raises(SettingError, match="expected a comma list of NUMA node numbers, such as 0,1 or 0-3"):
        two_socket_cpu.device_count()


def test_a_local_size_that_is_no_number_is_an_error(two_socket_cpu, monkeypatch):
    monkeypatch.setenv("LOCAL_SIZE", "four")
    with pytest.raises(SettingError) as raised:
        two_socket_cpu.device_count()
    assert str(raised.value) == (
        "LOCAL_SIZE='four' cannot be used: expected the number of processes on this machine, a whole number."
    )


def test_the_current_device_is_local_rank_until_it_is_set(two_socket_cpu, monkeypatch):
    assert two_socket_cpu.current_device() == 0
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert two_socket_cpu.current_device() == 3
    with two_socket_cpu.device(1):
        assert two_socket_cpu.current_device() == 1
    assert two_socket_cpu.current_device() == 3
    two_socket_cpu.set_device(2)
    assert two_socket_cpu.current_device() == 2


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8", (0, 1, 2, 3, 8)), ("", ()), ("\n", ()), ("5", (5,)), ("3,1,1-2", (1, 2, 3))]
)
def test_kernel_lists_are_parsed(text, numbers):
    assert parse_list(text) == numbers
