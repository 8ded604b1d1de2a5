"""Publishing in the background, and one build in the cluster: both with processes of their own as nodes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest
from support import child_processes, sample_ops
from support.polling import wait_for

from opforge.cache.keys import canonical
from opforge.remote import background, claims, maintenance
from opforge.remote.stores import open_store

long = pytest.mark.skipif(not os.environ.get("OPFORGE_LONG_TESTS"), reason="takes half a minute: OPFORGE_LONG_TESTS=1")
LOAD = """
import os, sys, time
from support import sample_ops
builder = sample_ops.builder_class(os.environ["OP"], "plain", abi="c")()
op = builder.load()
print(op.origin, flush=True)
"""
SLOW = "#include <cstddef>\n" + "".join(
    f"template <int N> struct T{n} {{ static long f() {{ return T{n}<N - 1>::f() + N; }} }};"
    f" template <> struct T{n}<0> {{ static long f() {{ return 0; }} }};"
    f" long g{n}() {{ return T{n}<800>::f(); }}\n"
    for n in range(6)
)
"""Takes a second or two to compile."""


def node(nodes, name, op, code=LOAD, **env):
    """Starts a process on a node that loads the op, and publishes what it builds."""
    variables = {
        "OPFORGE_CACHE_DIR": str(nodes.folder / name),
        "XDG_CACHE_HOME": str(nodes.folder / f"{name}-caches"),
        "OPFORGE_REMOTES": f"{nodes.url}?push=1",
        "OPFORGE_LOG": str(nodes.folder / "log"),
        "OP": str(op),
    }
    return child_processes.start_python(code, env={**variables, **env})


def events(nodes, kind):
    try:
        lines = (nodes.folder / "log").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.fixture
def slow_op(tmp_path):
    sample_ops.plain_op(tmp_path / "op", source=sample_ops.PLAIN_SOURCE + SLOW)
    return tmp_path / "op"


def test_what_is_built_is_published_before_the_process_ends(nodes, builder, tmp_path):
    process = node(nodes, "a", tmp_path / "op")
    out, err = process.communicate(timeout=60)
    assert out == "built\n", err
    (pushed,) = events(nodes, "push")
    assert pushed["op"] == "plain" and pushed["bytes"] > 0
    match, _rejected = nodes.fetch(builder)
    assert match.origin == nodes.url
    assert not list(nodes.store.list(maintenance.CLAIMS))


def test_a_load_neither_waits_for_nor_fails_because_of_a_publication(nodes, builder, monkeypatch, caplog):
    monkeypatch.setenv("OPFORGE_REMOTES", f"{nodes.url}?push=1")
    monkeypatch.setattr(background, "_push", lambda job: time.sleep(3600))
    nodes.enter("a")
    began = time.monotonic()
    assert builder.build().origin == "built"
    assert time.monotonic() - began < 30
    began = time.monotonic()
    background.wait(0.3)
    assert time.monotonic() - began < 3
    assert "ends before all that it built was published" in caplog.text
    background._worker = None


def test_without_a_key_nothing_is_published_and_the_load_goes_on(nodes, tmp_path):
    os.unlink(nodes.folder / "config" / "opforge" / "keys" / "ci.secret")
    process = node(nodes, "a", tmp_path / "op")
    sample_ops.plain_op(tmp_path / "op")
    out, err = process.communicate(timeout=60)
    assert out == "built\n", err
    assert "it was not published" in err and "opforge key new NAME" in err
    assert not list(nodes.store.list(""))


def test_what_is_built_with_the_users_flags_is_not_published(nodes, builder, tmp_path):
    out, err = node(nodes, "a", tmp_path / "op", CXXFLAGS="-O1").communicate(timeout=60)
    assert out == "built\n", err
    assert "it was built with CXXFLAGS='-O1'" in err
    out, err = node(
        nodes, "b", tmp_path / "op", CXXFLAGS="-O1", OPFORGE_REMOTES=f"{nodes.url}?push=1&flags=1"
    ).communicate()
    assert out == "built\n", err
    assert events(nodes, "push")


def test_four_nodes_build_once(nodes, slow_op):
    processes = [node(nodes, name, slow_op) for name in "abcd"]
    outs = [process.communicate(timeout=120) for process in processes]
    assert sorted(out.strip() for out, _err in outs) == sorted(["built", *[nodes.url] * 3]), outs
    assert len(events(nodes, "build")) == 1
    assert len(events(nodes, "fetch")) == 3
    for event in (*events(nodes, "fetch"), *events(nodes, "push")):
        assert event["bytes"] > 0 and event["seconds"] > 0 and event["path"] == nodes.url, event


def test_four_nodes_build_once_if_the_builder_is_killed(nodes, slow_op):
    code = "import opforge.remote.claims as c; c.VOID_SECONDS = 4.0; c.RENEW_SECONDS = 0.5\n" + LOAD
    processes = {process.pid: process for process in (node(nodes, name, slow_op, code) for name in "abcd")}
    store = open_store(nodes.url)
    (claim,) = wait_for(lambda: list(store.list(maintenance.CLAIMS)), 60, "no claim")
    builder = processes.pop(int(json.loads(store.get(claim.name, claims.MAX_BYTES).data)["who"].split()[1]))
    builder.send_signal(signal.SIGKILL)
    assert builder.communicate()[0] == ""
    outs = [process.communicate(timeout=120) for process in processes.values()]
    assert sorted(out.strip() for out, _err in outs) == sorted(["built", *[nodes.url] * 2]), outs
    assert len(events(nodes, "build")) == 1 and len(events(nodes, "fetch")) == 2
    assert not list(store.list(maintenance.CLAIMS))


@pytest.mark.parametrize("count", [8, pytest.param(64, marks=long)])
def test_many_processes_of_a_node_fetch_once(nodes, entry, tmp_path, count):
    sample_ops.plain_op(tmp_path / "op")
    processes = [node(nodes, "a", tmp_path / "op", OPFORGE_PREBUILT="require") for _number in range(count)]
    outs = [process.communicate(timeout=120) for process in processes]
    assert {out.strip() for out, _err in outs} == {nodes.url}, outs
    assert len(events(nodes, "fetch")) == 1


def test_a_process_that_fetches_and_is_killed_stops_no_other(nodes, entry, tmp_path):
    sample_ops.plain_op(tmp_path / "op")
    stop = "import opforge.remote.fetch as f, time\nf._take = lambda *a: time.sleep(3600)\n"
    variables = {"OPFORGE_CACHE_DIR": str(nodes.folder / "a"), "OPFORGE_REMOTES": nodes.url, "OP": str(tmp_path / "op")}
    first = child_processes.start_python(stop + LOAD, env=variables)
    lock = nodes.folder / "a" / "v2" / "locks" / f"{entry.record['description']}.owner"
    wait_for(lock.exists, 60, "nothing is fetched")
    second = child_processes.start_python(LOAD, env=variables)
    time.sleep(0.3)
    first.kill()
    first.communicate()
    out, err = second.communicate(timeout=60)
    assert out == f"{nodes.url}\n", err


class TestClaim:
    @pytest.fixture
    def quick(self, monkeypatch):
        for name, seconds in (
            ("FIRST_PAUSE", 0.02),
            ("MAX_PAUSE", 0.05),
            ("VOID_SECONDS", 0.5),
            ("RENEW_SECONDS", 0.1),
        ):
            monkeypatch.setattr(claims, name, seconds)

    def test_it_is_taken_renewed_and_removed(self, nodes, quick):
        name = claims.name_of("description", "cpu")
        claim = claims.Claim(nodes.store, name).wait("relu", float("inf"))
        first = nodes.store.get(name, 4096).data
        wait_for(lambda: nodes.store.get(name, 4096).data != first, 5, "it is not renewed")
        claim.end(is_published=True)
        assert nodes.store.get(name, 4096) is None

    def test_one_that_is_not_renewed_is_taken_over(self, nodes, quick):
        name = claims.name_of("description", "cpu")
        nodes.store.put_if_absent(name, canonical({"who": "another", "count": 3, "state": "building"}))
        began = time.monotonic()
        claim = claims.Claim(nodes.store, name).wait("relu", float("inf"))
        assert claim and time.monotonic() - began >= 0.5
        claim.end(is_published=True)

    def test_a_failure_of_its_owner_lets_each_waiter_build(self, nodes, quick, monkeypatch):
        monkeypatch.setattr(claims, "VOID_SECONDS", 60.0)
        name = claims.name_of("description", "cpu")
        owner = claims.Claim(nodes.store, name).wait("relu", float("inf"))
        looked, results = threading.Event(), []

        class Waiter(claims.Claim):
            def _fields(self, stored):
                looked.set()
                return super()._fields(stored)

        waiter = threading.Thread(target=lambda: results.append(Waiter(nodes.store, name).wait("relu", 60.0)))
        waiter.start()
        assert looked.wait(60)
        owner.end(is_published=False)
        waiter.join(60)
        assert results == [None]
        later = claims.Claim(nodes.store, name).wait("relu", float("inf"))
        assert later
        later.end(is_published=True)

    def test_a_failure_is_noted_although_a_renewal_comes_first(self, nodes, monkeypatch):
        name = claims.name_of("description", "cpu")
        store = nodes.store
        owner = claims.Claim(store, name)
        assert owner.wait("relu", float("inf")) is owner
        put, renewals = store.put_if_unchanged, [7]

        def put_after_a_renewal(name, data, version):
            for count in renewals:
                renewals.clear()
                assert put(name, canonical({**json.loads(data), "state": "building", "count": count}), version)
            return put(name, data, version)

        monkeypatch.setattr(store, "put_if_unchanged", put_after_a_renewal)
        owner.end(is_published=False)
        assert renewals == [] and json.loads(store.get(name, 4096).data)["state"] == "failed"

    def test_a_failure_is_not_noted_in_the_claim_of_another(self, nodes):
        name = claims.name_of("description", "cpu")
        owner = claims.Claim(nodes.store, name)
        assert owner.wait("relu", float("inf")) is owner
        taken_over = canonical({"who": "another", "count": 3, "state": "building"})
        assert nodes.store.put_if_unchanged(name, taken_over, nodes.store.get(name, 4096).version)
        owner.end(is_published=False)
        assert nodes.store.get(name, 4096).data == taken_over

    def test_a_wait_that_costs_more_than_a_build_ends(self, nodes, quick, caplog):
        name = claims.name_of("description", "cpu")
        owner = claims.Claim(nodes.store, name).wait("relu", float("inf"))
        assert claims.Claim(nodes.store, name).wait("relu", 0.3) is None
        assert "the wait for process" in caplog.text
        owner.end(is_published=True)

    def test_its_owner_controls_no_terminal(self, nodes, quick, caplog):
        name = claims.name_of("description", "cpu")
        who = "process 7 on \x1b[2Jhost\n\u202e" + "x" * 1000
        assert nodes.store.put_if_absent(name, canonical({"who": who, "count": 3, "state": "building"}))
        assert claims.Claim(nodes.store, name).wait("relu", 0.3) is None
        (record,) = caplog.records
        assert "the wait for process 7 on  [2Jhost  xxx" in record.getMessage()
        assert record.getMessage().isprintable() and len(record.getMessage()) < 300

    def test_one_that_has_just_changed_is_not_void(self, nodes, quick, monkeypatch):
        """A waiter looks rarely: the time since its last look says nothing if the claim has changed meanwhile."""
        monkeypatch.setattr(claims, "FIRST_PAUSE", 2.0)
        monkeypatch.setattr(claims, "VOID_SECONDS", 1.5)  # on a busy machine its owner may be late
        name = claims.name_of("description", "cpu")
        owner = claims.Claim(nodes.store, name).wait("relu", float("inf"))
        assert claims.Claim(nodes.store, name).wait("relu", 2.5) is None
        owner.end(is_published=True)

    @pytest.mark.parametrize("data", [b"", b"garbage", b"[]", b'{"who": 3}'])
    def test_garbage_is_void_after_a_while(self, nodes, quick, data):
        name = claims.name_of("description", "cpu")
        nodes.store.put_if_absent(name, data)
        claim = claims.Claim(nodes.store, name).wait("relu", float("inf"))
        claim.end(is_published=True)

    def test_another_target_is_another_claim(self):
        assert claims.name_of("d", "cpu:x86-64-v3", False) != claims.name_of("d", "cpu:x86-64-v4", False)


FORK = """
import multiprocessing, os, sys
from support import sample_ops

def work():
    builder = sample_ops.builder_class(os.environ["OP"], "plain", abi="c")()
    print(builder.load().origin, flush=True)

child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
sys.exit(child.exitcode)
"""


def test_a_forked_process_publishes_what_it_has_built_before_it_ends(nodes, builder, tmp_path):
    process = node(nodes, "a", tmp_path / "op", FORK)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "built\n"), err
    assert nodes.fetch(builder)[0].origin == nodes.url
