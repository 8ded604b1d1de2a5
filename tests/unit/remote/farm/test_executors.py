"""Units on any executor: threads, processes that die, futures of another kind, machines that refuse."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
import types
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from opforge.builders.declaration.description import description_key
from opforge.errors import BuilderError, FarmError, SettingError
from opforge.remote.claims import Claim, name_of
from opforge.remote.farm import api, build_on, engines, unit, worker
from opforge.remote.stores import open_store

pytestmark = pytest.mark.compile
CLAIMED_SECONDS = 10.0


def in_worker(folder):
    os.environ.update(IN_WORKER="1", OPFORGE_CACHE_DIR=f"{folder}/worker", XDG_CACHE_HOME=f"{folder}/worker-caches")


def test_threads_build_and_the_second_run_finds_all(ops, remote):
    _module, builders = ops
    with ThreadPoolExecutor(2) as executor:
        first, second = build_on(executor, builders), build_on(executor, builders)
    assert [outcome.state for outcome in first] == ["built"] * 3
    assert [outcome.state for outcome in second] == ["prebuilt"] * 3
    assert all(outcome.reason.startswith(f"{remote.url}: ") for outcome in second)
    assert [outcome.state for outcome in build_on(lambda: ThreadPoolExecutor(1), builders, force=True)] == ["built"] * 3
    assert not remote.claims()


def test_a_worker_does_not_wait_for_the_claim_of_one_that_was_lost(ops, remote):
    _module, builders = ops
    spec = builders[0].spec()
    claim = Claim(open_store(remote.url), name_of(description_key(spec), spec.target, spec.portable))
    assert claim.take(None)
    end = threading.Timer(CLAIMED_SECONDS + 5, claim.end, (True,))
    end.start()
    began = time.monotonic()
    with ThreadPoolExecutor(1) as executor:
        assert build_on(executor, builders[:1])[0].state == "built"
    end.cancel()
    assert time.monotonic() - began < CLAIMED_SECONDS
    claim.end(is_published=True)


def test_the_result_is_fetched_by_who_asked(ops, tmp_path, monkeypatch):
    _module, builders = ops
    with ThreadPoolExecutor(1) as executor:
        build_on(executor, builders[:1])
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "asking"))
    from opforge.cache import current_store

    current_store.reset()
    entry = api.bring(builders[0], api.results_remote())
    assert entry.library.startswith(str(tmp_path / "asking"))
    with pytest.raises(FarmError, match="the result cannot be fetched"):
        api.bring(builders[1], api.results_remote())


def test_a_unit_that_kills_its_workers_fails_and_stops_no_other(ops, tmp_path):
    module, builders = ops
    context = multiprocessing.get_context("spawn")
    begun = []

    def pool():
        begun.append(1)
        return ProcessPoolExecutor(2, context, in_worker, (str(tmp_path),))

    outcomes = build_on(pool, [module.DeadlyBuilder(), *builders])
    states = [outcome.state for outcome in outcomes]
    # One that was lost may be stored already.
    assert states[0] == "failed" and {*states[1:]} <= {
        "built",
        "cached",
        "prebuilt",
    }  # a lost one may be stored already
    assert outcomes[0].runs == 4 and outcomes[0].kind == "FarmError"
    assert "its worker was lost 4 times; the last words: BrokenProcessPool: " in outcomes[0].reason
    assert 4 <= len(begun) <= 6


def test_a_pool_that_breaks_and_cannot_be_made_again_leaves_no_unit_without_an_outcome(ops, tmp_path):
    module, builders = ops
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=in_worker, initargs=(str(tmp_path),)) as executor:
        outcomes = build_on(executor, [module.DeadlyBuilder(), *builders])
    assert [outcome.state for outcome in outcomes] == ["failed"] * 4
    assert all("BrokenProcessPool" in outcome.reason for outcome in outcomes)


def test_an_executor_that_takes_nothing_is_given_up(ops):
    _module, builders = ops
    pools = []

    def closed():
        pools.append(ThreadPoolExecutor(1))
        pools[-1].shutdown()
        return pools[-1]

    outcomes = build_on(closed, builders)
    assert [outcome.state for outcome in outcomes] == ["failed"] * 3
    assert "it was not begun: RuntimeError: cannot schedule new futures after shutdown" in outcomes[0].reason
    assert len(pools) == 4


class JobLike:
    """A future that is none of concurrent.futures, as those of submitit."""

    def __init__(self, function, text):
        self._answer = function(text)

    def done(self):
        return True

    def result(self):
        return self._answer

    def cancel(self):
        return None


def test_an_executor_with_futures_of_its_own(ops):
    _module, builders = ops
    executor = types.SimpleNamespace(submit=JobLike)
    assert [outcome.state for outcome in build_on(executor, builders[:2])] == ["built", "built"]


def test_a_machine_that_cannot_build_is_asked_a_few_times_only(ops, monkeypatch):
    _module, builders = ops
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with ThreadPoolExecutor(1) as executor:
        (outcome,) = build_on(executor, builders[:1])
    assert (outcome.state, outcome.kind) == ("failed", "ToolchainNotFoundError")
    assert outcome.reason.startswith(f"no machine can build it:\n  {os.uname().nodename}: ")
    assert "/no/such/compiler" in outcome.reason


def test_a_machine_that_refuses_is_followed_by_one_that_builds(ops, monkeypatch):
    _module, builders = ops
    texts = []

    def submit(function, text):
        texts.append(text)
        with pytest.MonkeyPatch.context() as patch:
            if len(texts) < 3:
                patch.setenv("CXX", "/no/such/compiler")
            return JobLike(function, text)

    (outcome,) = build_on(types.SimpleNamespace(submit=submit), builders[:1])
    assert (outcome.state, len(texts)) == ("built", 3)


def test_what_workers_cannot_import_is_an_error_here(remote):
    from support import sample_ops

    local = type("Local", (sample_ops.builder_class("/", "x"),), {"__module__": "__main__"})
    with pytest.raises(BuilderError, match="cannot be imported on another machine"):
        unit.unit_of(local(), remote.url)


@pytest.mark.parametrize(
    "text", ["ftp://host", "http://host:1", "nothing", "no_such_module:pool", "os:no_such_name", "os:sep"]
)
def test_what_is_no_engine(text):
    with pytest.raises(SettingError, match="the URL of a Dask scheduler"):
        engines.open_engine(text)


def test_machines_that_differ_are_refused_with_both_named(ops, remote):
    _module, builders = ops
    with ThreadPoolExecutor(1) as executor:
        assert build_on(executor, builders[:1], same_toolchain=True)[0].state == "built"
    other = {"compiler": "clang 21", "torch": "no torch", "sysroot": "musl", "worker": "elsewhere"}
    text = unit.unit_of(builders[1], f"{remote.url}?push=1", toolchain=other).to_json()
    answer = json.loads(worker.run(text))
    assert answer["state"] == "refused"
    assert "--same-toolchain: elsewhere has clang 21, and " in answer["reason"]
