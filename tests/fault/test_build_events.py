"""OPFORGE_LOG during builds and loads: each step is an event, with the reasons for it."""

from __future__ import annotations

import json
import os
import re
import socket
import time

import pytest
from support import child_processes, gate, polling, sample_ops

pytestmark = [pytest.mark.compile, pytest.mark.timeout(120)]


@pytest.fixture
def folder(tmp_path):
    """The folder of an op's source."""
    return tmp_path / "op"


@pytest.fixture
def log(tmp_path, monkeypatch):
    """The file that OPFORGE_LOG names."""
    monkeypatch.setenv("OPFORGE_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def read_and_remove(log):
    """Returns the events so far."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    log.unlink()
    return events


def test_every_step_of_a_load_is_an_event_with_its_reasons(folder, own_store, log):
    cls = sample_ops.plain_op(folder, value=5)
    cls().load()
    miss, build, load = read_and_remove(log)
    assert [event["event"] for event in (miss, build, load)] == ["miss", "build", "load"]
    assert miss["op"] == "plain" and miss["reasons"] == [f"{own_store}: nothing was built from this plan yet"]
    assert build["op"] == "plain" and build["seconds"] > 0 and len(build["plan"]) == 32
    assert build["result"] == os.path.basename(os.path.dirname(load["path"])), "the key that `opforge ls` shows"
    assert load["origin"] == "built" and load["path"].endswith(".so") and load["seconds"] >= 0
    sample_ops.set_value(folder, 6)
    cls().build()
    reason = f"{own_store}/v2/entries/{build['result']}: {folder}/value.h has changed"
    assert read_and_remove(log)[0]["reasons"] == [reason]
    entry = cls().build()
    (hit,) = read_and_remove(log)
    assert (hit["event"], hit["op"], hit["origin"], hit["path"]) == ("hit", "plain", "cache", entry.folder)
    cls().build(force=True)
    assert read_and_remove(log)[0]["reasons"] == ["it was requested"]


def test_a_damaged_entry_is_an_event(folder, log):
    cls = sample_ops.plain_op(folder)
    entry = cls().build()
    os.chmod(entry.library, 0o700)
    os.truncate(entry.library, 100)
    log.unlink()
    cls().build()
    events = read_and_remove(log)
    assert [event["event"] for event in events] == ["quarantine", "miss", "build"]
    assert events[0]["path"] == entry.folder
    assert events[0]["reasons"][0].startswith("the library has 100 bytes instead of")


WAIT = """
import os
from support import sample_ops
from opforge.cache.filesystem import lock
from opforge.errors import LockTimeoutError
lock.FIRST_NOTICE = 0.2
try:
    op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
    print(op.value(), op.origin)
except LockTimeoutError as error:
    print(error)
"""


def test_a_wait_is_an_event_and_its_messages_name_the_owner(folder, log):
    sample_ops.plain_op(folder, source=gate.SOURCE, value=5)
    gate.close_gate(folder)
    env = {"FOLDER": str(folder)}
    builder = child_processes.start_python(WAIT, env=env)
    polling.wait_for(lambda: child_processes.compilers_in(folder))
    waiter = child_processes.start_python(WAIT, env=env)
    message = child_processes.run_python(WAIT, env={**env, "OPFORGE_LOCK_TIMEOUT": "0.3"}, timeout=30)
    owner = rf"process {builder.pid} on {re.escape(socket.gethostname())}, which has been building since \d\d:\d\d:\d\d"
    advice = r"Raise OPFORGE_LOCK_TIMEOUT to wait longer, or end that process\."
    assert re.fullmatch(rf"plain: waited 0\.3 s for {owner}[^\n]*\. {advice}\n", message), message
    time.sleep(0.5)
    gate.open_gate(folder)
    out, err = waiter.communicate(timeout=30)
    assert out == "5 cache\n"
    assert re.search(rf"plain: waiting for {owner}", err), err
    assert builder.communicate(timeout=30)[0] == "5 built\n"
    (wait,) = [event for event in read_and_remove(log) if event["event"] == "wait"]
    assert (wait["pid"], wait["op"]) == (waiter.pid, "plain") and wait["seconds"] > 0.2 and wait["lock"]
