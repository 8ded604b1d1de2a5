"""Hostfiles and the selection of hosts and slots: what parses, and the text of each error."""

from __future__ import annotations

import pytest

from opforge.errors import HostfileError, SettingError
from opforge.launch.hostfile import Host, first_slots, read_hostfile, select

HOSTS = (Host.whole("a", 4), Host.whole("b", 2))


def write_hostfile(tmp_path, text):
    file = tmp_path / "hosts"
    file.write_text(text)
    return str(file)


def test_a_hostfile_is_read_in_its_order(tmp_path):
    path = write_hostfile(tmp_path, "\ufeff# the cluster\nworker-2 slots=4\n\nroot@10.0.0.1  slots=2 # the other\n")
    hosts = read_hostfile(path)
    assert [(host.name, host.address, host.slots, host.chosen) for host in hosts] == [
        ("worker-2", "worker-2", 4, (0, 1, 2, 3)),
        ("root@10.0.0.1", "10.0.0.1", 2, (0, 1)),
    ]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a slots=1\nb 2\n", 2, "'b 2': it does not parse. Expected a line such as `worker-1 slots=4`."),
        ("a\n", 1, "'a': it does not parse. Expected a line such as `worker-1 slots=4`."),
        ("a slots=two\n", 1, "'a slots=two': it does not parse. Expected a line such as `worker-1 slots=4`."),
        (
            "a slots=1 slots=2\n",
            1,
            "'a slots=1 slots=2': it does not parse. Expected a line such as `worker-1 slots=4`.",
        ),
        ("-oProxyCommand=x slots=1\n", 1, "it does not parse. Expected a line such as `worker-1 slots=4`."),
        ("a slots=0\n", 1, "'a slots=0': a host without a slot runs nothing. Expected slots=1 or more."),
        (
            "a slots=1\n\na slots=2\n",
            3,
            "'a slots=2': the host 'a' was named before. Expected each host once, with all its slots.",
        ),
        ("# nobody\n", 1, "'': the file names no host. Expected a line such as `worker-1 slots=4`."),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, text, line, problem):
    path = write_hostfile(tmp_path, text)
    with pytest.raises(HostfileError) as refused:
        read_hostfile(path)
    assert str(refused.value).startswith(f"{path}, line {line}: ") and str(refused.value).endswith(problem)


def test_a_missing_hostfile_is_refused(tmp_path):
    with pytest.raises(
        SettingError, match=r"--hostfile='.*nowhere' cannot be used: expected a readable text file .*No such file"
    ):
        read_hostfile(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("include", "exclude", "chosen"),
    [
        ("", "", {"a": (0, 1, 2, 3), "b": (0, 1)}),
        ("b", "", {"b": (0, 1)}),
        ("b:1@a:2,0", "", {"a": (0, 2), "b": (1,)}),
        ("", "b", {"a": (0, 1, 2, 3)}),
        ("", "a:0,1@b:1", {"a": (2, 3), "b": (0,)}),
        ("", "a:0,1,2,3", {"b": (0, 1)}),
    ],
)
def test_hosts_and_slots_are_selected(include, exclude, chosen):
    hosts = select(HOSTS, include, exclude)
    assert {host.name: host.chosen for host in hosts} == chosen
    assert all(host.slots == {"a": 4, "b": 2}[host.name] for host in hosts)


def test_a_host_whose_name_has_a_colon_can_be_selected():
    hosts = (Host.whole("fe80::1", 2), Host.whole("b", 1))
    assert [host.chosen for host in select(hosts, include="fe80::1")] == [(0, 1)]
    assert [host.chosen for host in select(hosts, include="fe80::1:1")] == [(1,)]


@pytest.mark.parametrize(
    ("include", "exclude", "text"),
    [
        ("a", "b", "--exclude='b' cannot be used: expected either --include or --exclude, not both."),
        ("c", "", "--include='c' cannot be used: expected hosts joined by @, .*; the hosts are a, b."),
        ("a:x", "", "--include='a:x' cannot be used: expected hosts joined by @, with or without slots"),
        ("a:7", "", "--include='a:7' cannot be used: expected slots that a has: 0 to 3, not 7."),
        ("a@a:1", "", "--include='a@a:1' cannot be used: .*; a is named twice."),
        ("", "a@b", "--exclude='a@b' cannot be used: expected at least one slot that is not excluded."),
    ],
)
def test_an_impossible_selection_is_refused(include, exclude, text):
    with pytest.raises(SettingError, match=text):
        select(HOSTS, include, exclude)


def test_a_number_of_processes_takes_the_first_slots():
    assert [host.chosen for host in first_slots(HOSTS, 2)] == [(0, 1), (0, 1)]
    with pytest.raises(SettingError) as refused:
        first_slots(HOSTS, 3)
    assert str(refused.value) == "--num-accelerators=3 cannot be used: expected at most 2, the slots of b."
