"""Which rank gets which cores and memory, on fake hosts of many shapes."""

from __future__ import annotations

import os

import pytest
from support.hosts import fake_hosts

from opforge.errors import CoresError, SettingError
from opforge.launch.bind_options import BindOptions
from opforge.launch.binding.devices import DEVICE_KINDS, device_nodes
from opforge.launch.binding.machine import Machine
from opforge.launch.binding.rank_binding import check_environment, chosen_bindings, slot_bindings
from opforge.launch.core_list import format_list


@pytest.fixture
def bind(tmp_path, monkeypatch):
    """Returns a function: the bindings of the slots of a fake host, by default with every core in the affinity mask."""

    def slots_of(shape, slots, allowed=None, environ=None, **options):
        root = shape(tmp_path)
        mask = fake_hosts.threads(root) if allowed is None else set(allowed)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: mask)
        return slot_bindings(slots, BindOptions(**{"bind": True, **options}), environ or {}, root)

    return slots_of


def core_lists(bindings):
    return [format_list(binding.cpus) for binding in bindings]


def memories(bindings):
    return [(binding.policy, *binding.memory) for binding in bindings]


def threads(bindings):
    return [binding.threads for binding in bindings]


def test_one_rank_a_socket_gets_the_socket_and_its_memory(bind):
    bindings = bind(fake_hosts.two_sockets, 2)
    assert core_lists(bindings) == ["0-3,8-11", "4-7,12-15"]
    assert memories(bindings) == [("bind", 0), ("bind", 1)]
    assert threads(bindings) == [4, 4]


def test_no_core_is_left_over(bind):
    bindings = bind(fake_hosts.two_sockets, 3)
    assert threads(bindings) == [3, 3, 2]
    assert core_lists(bindings) == ["0-2,8-10", "3-5,11-13", "6-7,14-15"]
    assert memories(bindings) == [("bind", 0), ("bind", 0, 1), ("bind", 1)]


def test_ranks_stay_on_one_node_if_some_split_allows_it(bind):
    nodes = {0: fake_hosts.runs(0, 6), 1: fake_hosts.runs(6, 5), 2: fake_hosts.runs(11, 5)}
    bindings = bind(lambda root: fake_hosts.host(root, nodes), 7)
    assert core_lists(bindings) == ["0-1", "2-3", "4-5", "6-8", "9-10", "11-13", "14-15"]


def test_smt_skip_takes_the_first_thread_of_each_core(bind):
    assert core_lists(bind(fake_hosts.two_sockets, 2, smt="skip")) == ["0-3", "4-7"]


def test_cores_that_are_numbered_alternately_are_grouped_by_node(bind):
    assert core_lists(bind(fake_hosts.interleaved, 2)) == ["0,2,4,6", "1,3,5,7"]


def test_fast_and_slow_cores_are_dealt_out_evenly(bind):
    bindings = bind(fake_hosts.hybrid, 2)
    assert core_lists(bindings) == ["0-5,12-15", "6-11,16-19"] and threads(bindings) == [7, 7]
    bindings = bind(fake_hosts.hybrid, 4)
    assert core_lists(bindings) == ["0-3,12-13", "4-7,14-15", "8-9,16-17", "10-11,18-19"]


def test_cores_of_different_capacity_are_dealt_out_evenly(bind):
    assert core_lists(bind(fake_hosts.hybrid_arm, 2)) == ["0-1,4", "2-3,5"]


def test_hbm_in_flat_mode_is_preferred_on_the_nearest_node(bind):
    assert memories(bind(fake_hosts.hbm_flat, 2)) == [("preferred", 2), ("preferred", 3)]
    assert memories(bind(fake_hosts.hbm_flat, 1)) == [("bind", 0, 1)]


def test_hbm_of_the_other_socket_is_not_preferred(bind):
    def masked(root):
        path = fake_hosts.hbm_flat(root)
        (root / "proc/self").mkdir(parents=True, exist_ok=True)
        (root / "proc/self/status").write_text("Mems_allowed_list:\t0-2\n")
        return path

    assert memories(bind(masked, 2)) == [("preferred", 2), ("bind", 1)]


def test_hbm_in_cache_mode_changes_nothing(bind):
    assert memories(bind(fake_hosts.hbm_cache, 2)) == [("bind", 0), ("bind", 1)]


def test_memory_behind_a_bus_is_not_preferred(bind):
    assert memories(bind(fake_hosts.expander, 2)) == [("bind", 0), ("bind", 0)]


def test_sub_numa_clusters_keep_ranks_on_one_cluster_and_then_on_one_socket(bind):
    assert core_lists(bind(fake_hosts.clusters, 8))[:4] == ["0-2", "6-8", "12-14", "18-20"]
    by_socket = bind(fake_hosts.clusters, 2)
    assert core_lists(by_socket) == ["0-2,6-8,12-14,18-20", "3-5,9-11,15-17,21-23"]
    assert memories(by_socket) == [("bind", 0, 2, 4, 6), ("bind", 1, 3, 5, 7)]


def test_only_the_cores_of_the_affinity_mask_are_shared_out(bind):
    bindings = bind(fake_hosts.two_sockets, 3, allowed={2, 3, 4, 10, 12})
    assert core_lists(bindings) == ["2,10", "3", "4,12"] and threads(bindings) == [1, 1, 1]


def test_a_quota_limits_the_threads_and_not_the_cores(bind, tmp_path):
    for path, text in (("proc/self/cgroup", "0::/job\n"), ("sys/fs/cgroup/job/cpu.max", "300000 100000\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    bindings = bind(fake_hosts.two_sockets, 2)
    assert core_lists(bindings) == ["0-3,8-11", "4-7,12-15"] and threads(bindings) == [1, 1]
    assert threads(bind(fake_hosts.two_sockets, 2, bind=False)) == [1, 1]


def test_a_node_without_memory_is_in_no_memory_policy(bind):
    def bare(root):
        return fake_hosts.host(root, {0: fake_hosts.runs(0, 2), 1: fake_hosts.runs(2, 2)}, memory={1: 0})

    assert memories(bind(bare, 2)) == [("bind", 0), ("",)]


def test_memory_that_the_cpuset_excludes_is_in_no_memory_policy(bind, tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("Mems_allowed_list:\t1\n")
    assert memories(bind(fake_hosts.two_sockets, 2)) == [("",), ("bind", 1)]


def test_a_host_without_sys_files_is_shared_out_by_its_affinity_mask(bind, tmp_path):
    bindings = bind(str, 2, allowed={0, 1, 2})
    assert core_lists(bindings) == ["0-1", "2"]


def test_ranks_are_bound_near_their_devices(bind):
    bindings = bind(fake_hosts.eight_gpus, 8, accelerator="cuda")
    assert core_lists(bindings)[:5] == ["16-19,48-51", "20-23,52-55", "24-27,56-59", "28-31,60-63", "0-3,32-35"]
    assert memories(bindings) == [("bind", 1)] * 4 + [("bind", 0)] * 4


def test_visible_devices_assign_devices_to_slots(bind):
    bindings = bind(fake_hosts.eight_gpus, 2, accelerator="cuda", environ={"CUDA_VISIBLE_DEVICES": "7,0"})
    assert core_lists(bindings) == ["0-15,32-47", "16-31,48-63"]


@pytest.mark.parametrize("visible", ["GPU-8932f937,GPU-1", "0,9", "3"])
def test_ranks_are_spread_evenly_if_a_device_has_no_known_node(bind, visible):
    bindings = bind(fake_hosts.eight_gpus, 2, accelerator="cuda", environ={"CUDA_VISIBLE_DEVICES": visible})
    assert core_lists(bindings) == ["0-15,32-47", "16-31,48-63"]


def test_ranks_are_spread_evenly_if_a_device_is_near_unusable_cores(bind):
    bindings = bind(fake_hosts.eight_gpus, 2, accelerator="cuda", allowed=range(8))
    assert core_lists(bindings) == ["0-3", "4-7"]


def test_cores_of_clusters_without_a_device_go_to_the_nearest_device_of_the_socket(bind):
    def with_gpus(root):
        path = fake_hosts.clusters(root)
        for gpu, node in enumerate((2, 3)):
            folder = root / f"sys/bus/pci/devices/0000:0{gpu + 1}:00.0"
            folder.mkdir(parents=True)
            for name, text in (("vendor", "0x1002"), ("class", "0x038000"), ("numa_node", str(node))):
                (folder / name).write_text(text + "\n")
        return path

    bindings = bind(with_gpus, 2, accelerator="cuda")
    assert core_lists(bindings) == ["0-2,6-8,12-14,18-20", "3-5,9-11,15-17,21-23"]


def test_devices_of_an_unknown_accelerator_have_no_nodes(tmp_path):
    assert device_nodes("cuda", 1, {}, str(tmp_path)) is None, "there is no PCI bus"
    assert device_nodes("sdaa", 1, {}, fake_hosts.eight_gpus(tmp_path)) is None
    assert device_nodes("cuda", 8, {}, str(tmp_path)) == (1, 1, 1, 1, 0, 0, 0, 0)
    assert device_nodes("npu", 1, {}, str(tmp_path)) is None
    assert set(DEVICE_KINDS) <= {"cuda", "xpu", "npu", "hpu", "mlu", "sdaa", "supa"}


def test_the_cores_of_unused_slots_stay_free(tmp_path, monkeypatch):
    root = fake_hosts.two_sockets(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert core_lists(chosen_bindings(4, (1, 3), BindOptions(bind=True), {}, root)) == ["2-3,10-11", "6-7,14-15"]


def test_without_binding_only_the_number_of_threads_is_set(bind):
    bindings = bind(fake_hosts.two_sockets, 3, bind=False)
    assert [(binding.cpus, binding.policy, binding.threads) for binding in bindings] == [((), "", 2)] * 3


def test_only_listed_cores_are_used(bind):
    bindings = bind(fake_hosts.two_sockets, 2, core_list=(1, 2, 4, 5, 9))
    assert core_lists(bindings) == ["1-2,9", "4-5"]


def test_a_listed_core_that_does_not_exist_is_refused(bind):
    with pytest.raises(CoresError) as refused:
        bind(fake_hosts.two_sockets, 2, core_list=(0, 99))
    assert str(refused.value) == (
        "Cores cannot be assigned to ranks: --bind-core-list names core 99, which does not exist or is offline."
        " This process may use 0-15."
    )


def test_a_listed_core_outside_the_affinity_mask_is_refused(bind):
    with pytest.raises(CoresError) as refused:
        bind(fake_hosts.two_sockets, 2, allowed=range(4), core_list=(3, 4))
    assert str(refused.value) == (
        "Cores cannot be assigned to ranks: --bind-core-list names core 4, which this process may not use: the"
        " affinity mask or the cpuset excludes it. This process may use 0-3."
    )


def test_more_ranks_than_cores_are_refused(bind):
    with pytest.raises(CoresError) as refused:
        bind(fake_hosts.two_sockets, 9)
    assert str(refused.value) == (
        "Cores cannot be assigned to ranks: 9 ranks need a core each, and 8 cores may be used."
        " Start fewer ranks, or allow more cores (affinity mask, cpuset, --bind-core-list)."
    )


@pytest.mark.parametrize("value", ["granularity=fine,compact,1,0", "0-3"])
@pytest.mark.parametrize("name", ["KMP_AFFINITY", "GOMP_CPU_AFFINITY"])
def test_openmp_affinity_variables_are_refused(name, value):
    with pytest.raises(SettingError) as refused:
        check_environment({name: value})
    assert str(refused.value) == (
        f"{name}={value!r} cannot be used: expected it to be unset with --bind-cores-to-rank,"
        " which binds each rank itself."
    )
    check_environment({name: ""})
    check_environment({name: "disabled"})


def test_this_machine_is_read():
    machine = Machine.read()
    cpus = [cpu for core in machine.cores for cpu in core.threads]
    assert sorted(cpus) == sorted(os.sched_getaffinity(0)) and len(cpus) == len(set(cpus))
