"""What a worker answers for a unit, and what it leaves when it ends."""

from __future__ import annotations

import json
import os
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from support import child_processes

from opforge.builders.run import parallelism
from opforge.errors import FarmError
from opforge.remote.farm import build_on, session, unit, worker

pytestmark = pytest.mark.compile


def test_a_worker_whose_flags_are_set_or_that_has_no_key_refuses(ops, remote, monkeypatch):
    _module, builders = ops
    text = unit.unit_of(builders[0], f"{remote.url}?push=1", run="v1/claims/none.json").to_json()
    monkeypatch.setenv("CXXFLAGS", "-O1")
    assert "CXXFLAGS is set on this machine" in json.loads(worker.run(text))["reason"]
    monkeypatch.delenv("CXXFLAGS")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    answer = json.loads(worker.run(text))
    assert answer["state"] == "refused" and "opforge key new NAME" in answer["reason"]


def test_a_run_whose_claim_is_gone_is_not_begun(ops, remote):
    _module, builders = ops
    text = unit.unit_of(builders[0], f"{remote.url}?push=1", run="v1/claims/none.json").to_json()
    assert json.loads(worker.run(text))["state"] == "interrupted"
    assert not [offer for offer in remote.offers() if offer.name == builders[0].name and offer.problem]


@pytest.mark.parametrize(("jobs", "threads", "slots"), [(None, 3, 3), (2, 3, 2), (None, None, 5)])
def test_a_worker_builds_with_its_own_cores_unless_jobs_are_requested(ops, remote, monkeypatch, jobs, threads, slots):
    _module, builders = ops
    budgets = []

    @contextmanager
    def noted(_store, _claim, budget):
        budgets.append(budget)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(session, "of", noted)
    monkeypatch.setattr(worker, "_place", lambda: ("w", threads))
    monkeypatch.setattr(parallelism, "compiler_jobs", lambda *_arguments: 5)
    text = unit.unit_of(builders[0], f"{remote.url}?push=1", jobs=jobs).to_json()
    assert json.loads(worker.run(text))["state"] == "interrupted"
    assert budgets == [slots]


def test_a_builder_that_ends_its_process_fails_once(ops, remote, monkeypatch):
    """Its worker is not lost: it would run four times, and end others' units with it."""
    module, _builders = ops
    text = unit.unit_of(module.LeavingBuilder(), f"{remote.url}?push=1").to_json()
    monkeypatch.setenv("IN_WORKER", "1")
    answer = json.loads(worker.run(text))
    assert (answer["state"], answer["reason"]) == ("failed", "SystemExit: it has no licence")


def test_an_outcome_of_a_newer_opforge_is_read(ops, monkeypatch):
    _module, builders = ops
    run = worker.run
    monkeypatch.setattr(worker, "run", lambda text: json.dumps({**json.loads(run(text)), "later": 1}))
    with ThreadPoolExecutor(1) as executor:
        (outcome,) = build_on(executor, builders[:1], force=True)
    assert (outcome.state, outcome.runs) == ("built", 1)


def test_a_worker_that_is_lost_while_toolchains_are_compared_is_an_error(ops, remote, monkeypatch):
    _module, builders = ops

    def lost(_text):
        raise BrokenExecutor("a process ended")

    monkeypatch.setattr(worker, "identify", lost)
    with ThreadPoolExecutor(1) as executor, pytest.raises(FarmError, match=r"cannot be compared.*a process ended"):
        build_on(executor, builders[:1], same_toolchain=True)
    assert not remote.claims()


LEFTOVERS = """
import os, tempfile
from opforge.remote.farm import session
from opforge.remote.stores import open_store
store = open_store("file://" + os.environ["REMOTE"])
store.put_if_absent("v1/claims/none.json", b"{}")
with session.of(store, "v1/claims/none.json", 1):
    print(len(os.listdir(tempfile.gettempdir())))
class Broken:
    def get(self, name, limit):
        raise OSError("the store is away")
try:
    session.Session(Broken(), "v1/claims/none.json", 1)
except OSError:
    print(len(os.listdir(tempfile.gettempdir())))
if not os.fork():
    raise SystemExit
os.wait()
print(len(os.listdir(tempfile.gettempdir())))
"""


def test_a_worker_that_ends_leaves_nothing_in_the_temporary_folder(tmp_path):
    folders = {"TMPDIR": str(tmp_path / "tmp"), "REMOTE": str(tmp_path / "remote")}
    for folder in folders.values():
        os.mkdir(folder)
    assert child_processes.run_python(LEFTOVERS, env=folders).split() == ["1", "1", "1"]
    assert os.listdir(folders["TMPDIR"]) == []


def test_a_unit_of_another_opforge_is_refused(ops, remote):
    _module, builders = ops
    fields = json.loads(unit.unit_of(builders[0], remote.url).to_json())
    for changed in ({**fields, "format": 2}, {**fields, "later": 1}):
        answer = json.loads(worker.run(json.dumps(changed)))
        assert answer["state"] == "refused" and "reads units of format 1" in answer["reason"]
