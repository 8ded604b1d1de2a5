"""Which rank gets which cores and memory, on made-up hosts of every shape."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hosts import fake_hosts

from opforge.accelerator.host.files import parse_list
from opforge.errors import CoresError, SettingError
from opforge.launch.binding.cores import Core, share_out
from opforge.launch.binding.devices import KINDS, device_nodes
from opforge.launch.binding.machine import Machine, format_list
from opforge.launch.binding.rank_binding import Wishes, bindings, bound, check_environment, parse_cores


@pytest.fixture
def placed(tmp_path, monkeypatch):
    """Gives a function: the bindings of so many slots on a made-up host, with an affinity mask if one is given."""

    def place(shape, slots, allowed=None, environ=None, **wishes):
        root = shape(tmp_path)
        mask = fake_hosts.threads(root) if allowed is None else set(allowed)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: mask)
        return bindings(slots, Wishes(**{"bind": True, **wishes}), environ or {}, root)

    return place


def lists(found):
    return [format_list(one.cpus) for one in found]


def memories(found):
    return [(one.policy, *one.memory) for one in found]


def test_one_rank_a_socket_gets_the_socket_and_its_memory(placed):
    found = placed(fake_hosts.two_sockets, 2)
    assert lists(found) == ["0-3,8-11", "4-7,12-15"]
    assert memories(found) == [("bind", 0), ("bind", 1)]
    assert [one.threads for one in found] == [4, 4]


def test_no_core_is_dropped_eight_cores_for_three_ranks_are_three_three_two(placed):
    found = placed(fake_hosts.two_sockets, 3)
    assert [one.threads for one in found] == [3, 3, 2]
    assert lists(found) == ["0-2,8-10", "3-5,11-13", "6-7,14-15"]
    assert memories(found) == [("bind", 0), ("bind", 0, 1), ("bind", 1)]


def test_ranks_stay_on_one_node_where_some_split_allows_it(placed):
    nodes = {0: fake_hosts.runs(0, 6), 1: fake_hosts.runs(6, 5), 2: fake_hosts.runs(11, 5)}
    found = placed(lambda root: fake_hosts.host(root, nodes), 7)
    assert lists(found) == ["0-1", "2-3", "4-5", "6-8", "9-10", "11-13", "14-15"]


def test_smt_skip_takes_the_first_thread_of_each_core(placed):
    assert lists(placed(fake_hosts.two_sockets, 2, smt="skip")) == ["0-3", "4-7"]


def test_cores_that_are_numbered_in_turn_are_told_apart_by_node(placed):
    assert lists(placed(fake_hosts.interleaved, 2)) == ["0,2,4,6", "1,3,5,7"]


def test_fast_and_slow_cores_are_dealt_out_evenly(placed):
    found = placed(fake_hosts.hybrid, 2)
    assert lists(found) == ["0-5,12-15", "6-11,16-19"] and [one.threads for one in found] == [7, 7]
    found = placed(fake_hosts.hybrid, 4)
    assert lists(found) == ["0-3,12-13", "4-7,14-15", "8-9,16-17", "10-11,18-19"]


def test_cores_of_different_capacity_are_dealt_out_evenly(placed):
    assert lists(placed(fake_hosts.hybrid_arm, 2)) == ["0-1,4", "2-3,5"]


def test_hbm_in_flat_mode_is_preferred_by_distance(placed):
    assert memories(placed(fake_hosts.hbm_flat, 2)) == [("preferred", 2), ("preferred", 3)]
    assert memories(placed(fake_hosts.hbm_flat, 1)) == [("bind", 0, 1)]


def test_hbm_beside_the_other_socket_is_not_preferred(placed):
    def masked(root):
        made = fake_hosts.hbm_flat(root)
        (root / "proc/self").mkdir(parents=True, exist_ok=True)
        (root / "proc/self/status").write_text("Mems_allowed_list:\t0-2\n")
        return made

    assert memories(placed(masked, 2)) == [("preferred", 2), ("bind", 1)]


def test_hbm_in_cache_mode_asks_for_nothing(placed):
    assert memories(placed(fake_hosts.hbm_cache, 2)) == [("bind", 0), ("bind", 1)]


def test_memory_behind_a_bus_is_not_taken_for_fast(placed):
    assert memories(placed(fake_hosts.expander, 2)) == [("bind", 0), ("bind", 0)]


def test_sub_numa_clusters_keep_ranks_on_one_cluster_and_then_on_one_socket(placed):
    assert lists(placed(fake_hosts.clusters, 8))[:4] == ["0-2", "6-8", "12-14", "18-20"]
    by_socket = placed(fake_hosts.clusters, 2)
    assert lists(by_socket) == ["0-2,6-8,12-14,18-20", "3-5,9-11,15-17,21-23"]
    assert memories(by_socket) == [("bind", 0, 2, 4, 6), ("bind", 1, 3, 5, 7)]


def test_a_containers_cpuset_is_all_that_is_shared_out(placed):
    found = placed(fake_hosts.two_sockets, 3, allowed={2, 3, 4, 10, 12})
    assert lists(found) == ["2,10", "3", "4,12"] and [one.threads for one in found] == [1, 1, 1]


def test_a_quota_bounds_the_threads_and_not_the_cores(placed, tmp_path):
    for path, text in (("proc/self/cgroup", "0::/job\n"), ("sys/fs/cgroup/job/cpu.max", "300000 100000\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = placed(fake_hosts.two_sockets, 2)
    assert lists(found) == ["0-3,8-11", "4-7,12-15"] and [one.threads for one in found] == [1, 1]
    assert [one.threads for one in placed(fake_hosts.two_sockets, 2, bind=False)] == [1, 1]


def test_a_node_without_memory_is_no_policys(placed):
    def bare(root):
        return fake_hosts.host(root, {0: fake_hosts.runs(0, 2), 1: fake_hosts.runs(2, 2)}, memory={1: 0})

    assert memories(placed(bare, 2)) == [("bind", 0), ("",)]


def test_memory_that_the_cpuset_withholds_is_no_policys(placed, tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("Mems_allowed_list:\t1\n")
    assert memories(placed(fake_hosts.two_sockets, 2)) == [("",), ("bind", 1)]


def test_a_host_that_tells_nothing_is_still_shared_out(placed, tmp_path):
    found = placed(str, 2, allowed={0, 1, 2})
    assert lists(found) == ["0-1", "2"]


def test_ranks_are_put_near_their_devices(placed):
    found = placed(fake_hosts.eight_gpus, 8, accelerator="cuda")
    assert lists(found)[:5] == ["16-19,48-51", "20-23,52-55", "24-27,56-59", "28-31,60-63", "0-3,32-35"]
    assert memories(found) == [("bind", 1)] * 4 + [("bind", 0)] * 4


def test_visible_devices_say_which_device_is_whose(placed):
    found = placed(fake_hosts.eight_gpus, 2, accelerator="cuda", environ={"CUDA_VISIBLE_DEVICES": "7,0"})
    assert lists(found) == ["0-15,32-47", "16-31,48-63"]


@pytest.mark.parametrize("visible", ["GPU-8932f937,GPU-1", "0,9", "3"])
def test_devices_that_cannot_be_placed_leave_the_even_spread(placed, visible):
    found = placed(fake_hosts.eight_gpus, 2, accelerator="cuda", environ={"CUDA_VISIBLE_DEVICES": visible})
    assert lists(found) == ["0-15,32-47", "16-31,48-63"]


def test_a_device_near_a_node_that_is_not_ours_leaves_the_even_spread(placed):
    found = placed(fake_hosts.eight_gpus, 2, accelerator="cuda", allowed=range(8))
    assert lists(found) == ["0-3", "4-7"]


def test_clusters_without_a_device_lend_their_cores_to_the_nearest_on_the_socket(placed):
    def with_gpus(root):
        made = fake_hosts.clusters(root)
        for gpu, node in enumerate((2, 3)):
            folder = root / f"sys/bus/pci/devices/0000:0{gpu + 1}:00.0"
            folder.mkdir(parents=True)
            for name, text in (("vendor", "0x1002"), ("class", "0x038000"), ("numa_node", str(node))):
                (folder / name).write_text(text + "\n")
        return made

    found = placed(with_gpus, 2, accelerator="cuda")
    assert lists(found) == ["0-2,6-8,12-14,18-20", "3-5,9-11,15-17,21-23"]


def test_an_unknown_accelerator_has_no_places(tmp_path):
    assert device_nodes("cuda", 1, {}, str(tmp_path)) is None, "there is no PCI bus"
    assert device_nodes("sdaa", 1, {}, fake_hosts.eight_gpus(tmp_path)) is None
    assert device_nodes("cuda", 8, {}, str(tmp_path)) == (1, 1, 1, 1, 0, 0, 0, 0)
    assert device_nodes("npu", 1, {}, str(tmp_path)) is None
    assert set(KINDS) <= {"cuda", "xpu", "npu", "hpu", "mlu", "sdaa", "supa"}


def test_unused_slots_keep_their_cores(tmp_path, monkeypatch):
    root = fake_hosts.two_sockets(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert lists(bound(4, (1, 3), Wishes(bind=True), {}, root)) == ["2-3,10-11", "6-7,14-15"]


def test_without_binding_there_are_threads_only(placed):
    found = placed(fake_hosts.two_sockets, 3, bind=False)
    assert [(one.cpus, one.policy, one.threads) for one in found] == [((), "", 2)] * 3


def test_a_list_of_cores_is_all_that_is_used(placed):
    found = placed(fake_hosts.two_sockets, 2, listed=(1, 2, 4, 5, 9))
    assert lists(found) == ["1-2,9", "4-5"]


def test_a_listed_core_that_does_not_exist_is_refused(placed):
    with pytest.raises(CoresError) as refused:
        placed(fake_hosts.two_sockets, 2, listed=(0, 99))
    assert str(refused.value) == (
        "Cores cannot be assigned to ranks: --bind-core-list names core 99, which does not exist or is offline."
        " This process may use 0-15."
    )


def test_a_listed_core_that_is_not_ours_is_refused(placed):
    with pytest.raises(CoresError) as refused:
        placed(fake_hosts.two_sockets, 2, allowed=range(4), listed=(3, 4))
    assert str(refused.value) == (
        "Cores cannot be assigned to ranks: --bind-core-list names core 4, which is not ours: the affinity mask or the"
        " cpuset leaves it out. This process may use 0-3."
    )


def test_more_ranks_than_cores_are_refused(placed):
    with pytest.raises(CoresError) as refused:
        placed(fake_hosts.two_sockets, 9)
    assert str(refused.value) == (
        "Cores cannot be assigned to ranks: 9 ranks want cores, and 8 cores may be used."
        " Start fewer ranks, or free more cores (affinity mask, cpuset, --bind-core-list)."
    )


@pytest.mark.parametrize("value", ["granularity=fine,compact,1,0", "0-3"])
@pytest.mark.parametrize("name", ["KMP_AFFINITY", "GOMP_CPU_AFFINITY"])
def test_variables_that_bind_threads_elsewhere_are_refused(name, value):
    with pytest.raises(SettingError) as refused:
        check_environment({name: value})
    assert str(refused.value) == (
        f"{name}={value!r} cannot be used: expected no such variable together with --bind-cores-to-rank,"
        " which binds each rank itself: unset it."
    )
    check_environment({name: ""})
    check_environment({name: "disabled"})


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-3", "1-2-3", "0-99999999999"])
def test_a_list_that_does_not_parse_is_refused(text):
    with pytest.raises(SettingError, match="expected numbers of cores and ranges of them, such as 0-51,56-107"):
        parse_cores(text)


def test_a_list_is_read():
    assert parse_cores("0-2, 8,2") == (0, 1, 2, 8)


@given(st.sets(st.integers(0, 300)))
def test_lists_are_written_as_they_are_read(numbers):
    assert parse_list(format_list(numbers)) == tuple(sorted(numbers))


@st.composite
def hosts(draw):
    """Cores on up to six nodes, of one or two kinds, with one or two threads."""
    cores, cpu = [], 0
    for node in range(draw(st.integers(1, 6))):
        for _ in range(draw(st.integers(1, 20))):
            count = draw(st.integers(1, 2))
            cores.append(Core(tuple(range(cpu, cpu + count)), node, draw(st.integers(0, 1))))
            cpu += count
    return cores


@settings(max_examples=150, deadline=None)
@given(hosts(), st.integers(1, 40))
def test_every_core_goes_to_one_rank_and_shares_are_even(cores, ranks):
    if ranks > len(cores):
        with pytest.raises(CoresError):
            share_out(cores, ranks)
        return
    shares = share_out(cores, ranks)
    assert len(shares) == ranks
    given_out = [core for share in shares for core in share]
    assert sorted(given_out, key=cores.index) == cores and len(given_out) == len(set(given_out))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    nodes = [{core.node for core in share} for share in shares]
    assert sum(len(its) > 1 for its in nodes) < len({core.node for core in cores})
    assert nodes == sorted(nodes, key=lambda its: (min(its), max(its)))  # ranks follow the nodes
    if all(len(its) == 1 for its in nodes):
        for node in {core.node for core in cores}:
            fast = [sum(core.kind == 0 for core in share) for share in shares if share[0].node == node]
            assert max(fast) - min(fast) <= 1


def split_exists(sizes, ranks):
    """Whether ranks can be put on nodes, each on one, with shares that differ by one: by trying all."""
    least, more = divmod(sum(sizes), ranks)

    def fits(left, small, big):
        if not left:
            return small == big == 0
        return any(
            fits(left[1:], small - (left[0] - many * (least + 1)) // least, big - many)
            for many in range(min(big, left[0] // (least + 1)) + 1)
            if (left[0] - many * (least + 1)) % least == 0 and (left[0] - many * (least + 1)) // least <= small
        )

    return fits(sizes, ranks - more, more)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 20))
def test_ranks_share_a_node_with_none_of_another_wherever_that_can_be(sizes, ranks):
    if ranks > sum(sizes):
        return
    cores = [Core((100 * node + at,), node) for node, size in enumerate(sizes) for at in range(size)]
    whole = all(len({core.node for core in share}) == 1 for share in share_out(cores, ranks))
    assert whole == split_exists(tuple(sizes), ranks)


def test_this_machine_is_read():
    machine = Machine.read()
    held = [cpu for core in machine.cores for cpu in core.threads]
    assert sorted(held) == sorted(os.sched_getaffinity(0)) and len(held) == len(set(held))
