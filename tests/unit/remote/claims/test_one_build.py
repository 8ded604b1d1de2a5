"""One build in the cluster, with processes of their own as machines."""

from __future__ import annotations

import json
import signal
import threading

import pytest
from support.polling import wait_for
from support.remote.machines import LOAD, events, node

from opforge.cache.keys import canonical
from opforge.remote import claims, gc
from opforge.remote.stores import open_store

SLOW_COMPILER = """\
#!/bin/sh
for word; do
    if [ "$word" = -c ]; then
        sleep $SECONDS_TO_COMPILE
    fi
done
exec g++ "$@"
"""


@pytest.fixture
def slow_compiler(tmp_path):
    """The path of a compiler that takes SECONDS_TO_COMPILE for a unit, of which it needs no processor."""
    path = tmp_path / "slow-g++"
    path.write_text(SLOW_COMPILER)
    path.chmod(0o755)
    return str(path)


@pytest.mark.long("takes half a minute of both cores")
def test_twenty_machines_and_a_slow_compiler_make_one_build(nodes, builder, slow_compiler, tmp_path):
    """As with an op of 90 s: three quarters of the time that a claim may be renewed without progress."""
    code = "import opforge.remote.claims as c; c.VOID_SECONDS = 20.0; c.RENEW_SECONDS = 0.5; c.STALLED_SECONDS = 16.0\n"
    settings = {"CXX": slow_compiler, "SECONDS_TO_COMPILE": "12"}
    processes = [node(nodes, f"machine{number}", tmp_path / "op", code + LOAD, **settings) for number in range(20)]
    outs = [process.communicate(timeout=240) for process in processes]
    assert sorted(out.strip() for out, _err in outs) == sorted(["built", *[nodes.url] * 19]), outs
    assert len(events(nodes, "build")) == 1


def test_a_load_waits_for_a_claim_no_longer_than_for_a_lock(nodes, builder, tmp_path):
    """The claim of a machine that hangs, but renews it: no progress is ever made."""
    stop = threading.Event()
    claim_name, store = [], open_store(nodes.url)

    def renew():
        count = 0
        while not stop.wait(0.1):
            count += 1
            for listed in store.list(gc.CLAIMS):
                claim_name.append(listed.name)
                text = canonical({"who": "elsewhere", "count": count, "state": "building", "progress": 1})
                stored = store.get(listed.name, claims.MAX_BYTES)
                if stored:
                    store.put_if_unchanged(listed.name, text, stored.version)

    pause = "import opforge.remote.claims as c\nc.FIRST_PAUSE = 0.1\n"
    hold = pause + "take = c.Claim.take\nc.Claim.take = lambda self, before: take(self, before) and False\n"
    thread = threading.Thread(target=renew)
    thread.start()
    try:
        process = node(nodes, "a", tmp_path / "op", hold + LOAD, OPFORGE_LOCK_TIMEOUT="1")
        out, err = process.communicate(timeout=60)
        assert out == "built\n" and "elsewhere has not published it within 1 s" in err, err
    finally:
        stop.set()
        thread.join()
    assert claim_name


def test_four_nodes_build_once_if_the_builder_is_killed(nodes, builder, slow_compiler, tmp_path):
    code = "import opforge.remote.claims as c; c.VOID_SECONDS = 4.0; c.RENEW_SECONDS = 0.5\n" + LOAD
    settings = {"CXX": slow_compiler, "SECONDS_TO_COMPILE": "2"}
    nodes_of_it = (node(nodes, name, tmp_path / "op", code, **settings) for name in "abcd")
    processes = {process.pid: process for process in nodes_of_it}
    store = open_store(nodes.url)
    (claim,) = wait_for(lambda: list(store.list(gc.CLAIMS)), 60, "no claim")
    first = processes.pop(int(json.loads(store.get(claim.name, claims.MAX_BYTES).data)["who"].split()[1]))
    first.send_signal(signal.SIGKILL)
    assert first.communicate()[0] == ""
    outs = [process.communicate(timeout=120) for process in processes.values()]
    assert sorted(out.strip() for out, _err in outs) == sorted(["built", *[nodes.url] * 2]), outs
    assert len(events(nodes, "build")) == 1 and len(events(nodes, "fetch")) == 2
    assert not list(store.list(gc.CLAIMS))
    for event in (*events(nodes, "fetch"), *events(nodes, "push")):
        assert event["bytes"] > 0 and event["seconds"] > 0 and event["path"] == nodes.url, event
