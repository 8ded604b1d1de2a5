"""Publishing in the background, with processes of their own as nodes."""

from __future__ import annotations

import os
import time

import pytest
from support import child_processes, sample_ops
from support.polling import wait_for
from support.remote.machines import LOAD, events, node

from opforge.remote import background, gc

long = pytest.mark.long("takes half a minute")


def test_what_is_built_is_published_before_the_process_ends(nodes, builder, tmp_path):
    process = node(nodes, "a", tmp_path / "op")
    out, err = process.communicate(timeout=60)
    assert out == "built\n", err
    (pushed,) = events(nodes, "push")
    assert pushed["op"] == "plain" and pushed["bytes"] > 0
    match, _rejected = nodes.fetch(builder)
    assert match.origin == nodes.url
    assert not list(nodes.store.list(gc.CLAIMS))


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


@pytest.mark.parametrize("count", [4, pytest.param(64, marks=long)])
def test_many_processes_of_a_node_fetch_once(nodes, entry, tmp_path, count):
    sample_ops.plain_op(tmp_path / "op")
    processes = [node(nodes, "a", tmp_path / "op", OPFORGE_PREBUILT="require") for _number in range(count)]
    outs = [process.communicate(timeout=120) for process in processes]
    assert {out.strip() for out, _err in outs} == {nodes.url}, outs
    assert len(events(nodes, "fetch")) == 1, outs


def test_a_process_that_fetches_and_is_killed_stops_no_other(nodes, entry, tmp_path):
    sample_ops.plain_op(tmp_path / "op")
    stop = "import opforge.remote.take as f, time\nf._place = lambda *a: time.sleep(3600)\n"
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
