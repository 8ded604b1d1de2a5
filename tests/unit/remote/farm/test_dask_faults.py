"""Farms that lose a worker, are interrupted, or differ: with a real Dask scheduler and workers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from support import child_processes
from support.polling import wait_for
from support.remote import farm as farms

pytestmark = [pytest.mark.compile, pytest.mark.timeout(1800)]
long = pytest.mark.long("takes minutes")


@pytest.fixture(scope="module")
def farm(tmp_path_factory, remote):
    with farms.dask_farm(tmp_path_factory.mktemp("farm"), "a", **remote.env) as farm:
        farm.start_worker("b", CXX="g++ -fno-common")
        farm.wait_for_workers(2)
        yield farm


def start(farm, names, folder, remote, *arguments):
    """Starts `build-ops --on` in a session of its own."""
    code = "from opforge.cli import build_ops as command; command()"
    words = [sys.executable, "-c", code, *names, "--on", farm.url, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = child_processes.environment(**remote.asking)
    return subprocess.Popen(words, cwd=folder, env=env, start_new_session=True, **pipes)


def test_ctrl_c_ends_the_compilers_of_all_workers(farm, remote, tmp_path):
    names = farms.ops_module(tmp_path / "ops", [f"slow{n}" for n in range(4)], farms.SLOW, "slow_ops")
    process = start(farm, names, tmp_path / "ops", remote)
    wait_for(lambda: len(child_processes.compilers_in(farm.folder)) >= 2, 60, "two compilers")
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert not child_processes.compilers_in(farm.folder)
    assert not remote.claims()


def test_same_toolchain_names_both_workers(farm, remote, tmp_path):
    names = farms.ops_module(tmp_path, ["same"], module="same_ops")
    done = farms.build_ops(farm.url, *names, "--same-toolchain", folder=tmp_path, **remote.asking)
    assert done.returncode == 1
    host = os.uname().nodename
    assert "error: --same-toolchain: " in done.stderr, done.stderr
    assert done.stderr.count(f"{host} (tcp://") == 2 and " has g++" in done.stderr
    assert not [offer for offer in remote.offers() if offer.name == "same"]


@long
def test_same_toolchain_needs_workers_to_compare(tmp_path, remote):
    (tmp_path / "farm").mkdir()
    names = farms.ops_module(tmp_path / "ops", ["none"], module="none_ops")
    with farms.dask_farm(tmp_path / "farm", **remote.env) as farm:
        done = farms.build_ops(farm.url, *names, "--same-toolchain", folder=tmp_path / "ops", **remote.asking)
    assert done.returncode == 1 and "no worker is connected that could be compared" in done.stderr, done.stderr


@long
def test_a_worker_that_is_killed_is_replaced_by_the_other(farm, remote, tmp_path):
    folder = tmp_path / "ops"
    names = farms.ops_module(folder, [f"killed{n}" for n in range(3)], farms.SLOW, "killed_ops")
    farm.start_worker("c", "--nanny")
    farm.wait_for_workers(3)
    process = start(farm, names, folder, remote, "--json")
    compiler = wait_for(lambda: child_processes.compilers_in(os.path.join(farm.folder, "c")), 60, "a compiler of c")
    (worker,) = [pid for pid, text in child_processes.matching("spawn_main").items() if is_below(farm, "c", pid)]
    os.kill(worker, signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    outcomes = json.loads(out)["ops"]
    assert [outcome["state"] for outcome in outcomes] == ["built"] * 3, err
    wait_for(lambda: not {*compiler} & {*child_processes.compilers_in(farm.folder)}, 10, "an orphan")
    farm.kill("c")


def is_below(farm, name, pid):
    """Returns whether a process is a child of a farm's process."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1]) == farm.processes[name].pid


@long
def test_one_of_two_workers_is_killed_at_a_random_moment_twenty_times(tmp_path, remote):
    seed = int(os.environ.get("OPFORGE_SEED", time.time()))
    print("seed", seed)
    chance = random.Random(seed)
    (tmp_path / "farm").mkdir()
    with farms.dask_farm(tmp_path / "farm", "a0", "b0", **remote.env) as farm:
        workers = {"a": "a0", "b": "b0"}
        farm.wait_for_workers(2)
        seconds = 12.0
        for turn in range(20):
            folder = tmp_path / f"ops{turn}"
            text = f"// {turn}\n" + farms.SLOW
            names = farms.ops_module(folder, [f"op{turn}x{n}" for n in range(8)], text, f"turn{turn}_ops")
            began = time.monotonic()
            process = start(farm, names, folder, remote, "--json")
            time.sleep(chance.uniform(0.5, seconds))
            place = chance.choice("ab")
            is_running = process.poll() is None
            farm.kill(workers[place])
            workers[place] = f"{place}{turn + 1}"
            out, err = process.communicate(timeout=300)
            seconds = min(20.0, time.monotonic() - began)
            outcomes = json.loads(out)["ops"]
            states = Counter(outcome["state"] for outcome in outcomes)
            assert {*states} <= {"built", "cached", "prebuilt"}, (turn, states, err)
            assert {offer.name for offer in remote.offers()} >= {f"op{turn}x{n}" for n in range(8)}
            all_workers = [f"{place}{n}" for place in "ab" for n in range(turn + 2)]
            built = Counter(event["op"] for event in farm.events(*all_workers))
            assert max(built.values()) <= 2, (turn, built)
            runs = max(outcome["runs"] for outcome in outcomes)
            wait_for(lambda: not child_processes.compilers_in(farm.folder), 10, "an orphan compiler")
            print(turn, f"{seconds:.1f} s", dict(states), "runs", runs, "" if is_running else "(it had ended)")
            farm.start_worker(workers[place])
            farm.wait_for_workers(2)


@long
def test_a_scheduler_that_is_gone_fails_the_rest_and_ends_the_compilers(tmp_path, remote):
    (tmp_path / "farm").mkdir()
    with farms.dask_farm(tmp_path / "farm", "a", **remote.env) as farm:
        farm.wait_for_workers(1)
        names = farms.ops_module(tmp_path / "ops", [f"gone{n}" for n in range(20)], farms.SLOW, "gone_ops")
        process = start(farm, names, tmp_path / "ops", remote, "--json")
        wait_for(lambda: child_processes.compilers_in(farm.folder), 60, "a compiler")
        farm.kill("scheduler")
        out, err = process.communicate(timeout=120)
        outcomes = json.loads(out)["ops"]
        assert process.returncode == 1 and len(outcomes) == 20, err
        assert {outcome["state"] for outcome in outcomes} <= {"built", "failed"}
        assert outcomes[-1]["state"] == "failed" and outcomes[-1]["kind"] == "FarmError", outcomes[-1]
        wait_for(lambda: not child_processes.compilers_in(farm.folder), 60, "still compiling")
        print(process.returncode, outcomes[-1]["reason"], err[-1500:])


@long
def test_compilers_end_when_who_asked_is_killed(tmp_path, farm, remote):
    folder = tmp_path / "ops"
    names = farms.ops_module(folder, [f"dead{n}" for n in range(40)], farms.SLOW, "dead_ops")
    process = start(farm, names, folder, remote)
    wait_for(lambda: child_processes.compilers_in(farm.folder), 60, "a compiler")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not child_processes.compilers_in(farm.folder), 90, "still compiling")
    time.sleep(5)
    assert not child_processes.compilers_in(farm.folder)
