"""A claim: who takes it, how long it is waited for, and when it is taken over."""

from __future__ import annotations

import itertools
import json
import threading
import time

import pytest
from support.polling import wait_for

from opforge.builders.run import ninja
from opforge.cache.keys import canonical
from opforge.remote import background, claims


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

    def test_its_owner_controls_no_terminal(self, nodes, quick, caplog):
        name = claims.name_of("description", "cpu")
        who = "process 7 on \x1b[2Jhost\n\u202e" + "x" * 1000
        assert nodes.store.put_if_absent(name, canonical({"who": who, "count": 3, "state": "building", "progress": 0}))
        assert claims.Claim(nodes.store, name).wait("relu", 0.3) is None
        (record,) = caplog.records
        assert "it is built here too: process 7 on  [2Jhost  xxx" in record.getMessage()
        assert record.getMessage().isprintable() and len(record.getMessage()) < 300

    def test_it_is_taken_renewed_and_removed(self, nodes, quick):
        name = claims.name_of("description", "cpu")
        claim = claims.Claim(nodes.store, name).wait("relu", float("inf"))
        first = nodes.store.get(name, 4096).data
        wait_for(lambda: nodes.store.get(name, 4096).data != first, 5, "it is not renewed")
        claim.end(is_published=True)
        assert nodes.store.get(name, 4096) is None

    def test_of_two_that_find_none_one_takes_it(self, nodes):
        """As it is if both have looked before either writes."""
        claimed = [claims.Claim(nodes.store, claims.name_of("description", "cpu")) for _machine in range(2)]
        assert [claim.take(None) for claim in claimed] == [True, False]
        claimed[0].end(is_published=True)

    def test_one_that_is_not_renewed_is_taken_over(self, nodes, quick):
        name = claims.name_of("description", "cpu")
        nodes.store.put_if_absent(name, canonical({"who": "another", "count": 3, "state": "building", "progress": 0}))
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
        taken_over = canonical({"who": "another", "count": 3, "state": "building", "progress": 0})
        assert nodes.store.put_if_unchanged(name, taken_over, nodes.store.get(name, 4096).version)
        owner.end(is_published=False)
        assert nodes.store.get(name, 4096).data == taken_over

    def test_a_wait_ends_at_its_limit_although_its_owner_makes_progress(self, nodes, quick, caplog, steps):
        name = claims.name_of("description", "cpu")
        owner = claims.Claim(nodes.store, name).wait("relu", float("inf"))
        assert claims.Claim(nodes.store, name).wait("relu", 2.0) is None
        assert "relu: it is built here too: process" in caplog.text
        assert "has not published it within 2 s" in caplog.text
        owner.end(is_published=True)

    @pytest.mark.parametrize(("setting", "limit"), [(None, 1800.0), ("7", 7.0), ("0", 0.0)])
    def test_the_limit_is_that_of_locks_or_half_an_hour(self, nodes, builder, monkeypatch, setting, limit):
        limits = []
        monkeypatch.setattr(claims.Claim, "wait", lambda self, op, seconds: limits.append(seconds))
        monkeypatch.setenv("OPFORGE_REMOTES", f"{nodes.url}?push=1")
        if setting is not None:
            monkeypatch.setenv("OPFORGE_LOCK_TIMEOUT", setting)
        nodes.enter("a")
        builder.build()
        builder.build(force=True)  # an earlier build here does not shorten the wait for one that makes progress
        assert limits == [limit]
        background.wait()

    @pytest.fixture
    def steps(self, monkeypatch):
        """Makes each look at the progress of the build another one."""
        counted = itertools.count()
        monkeypatch.setattr(ninja, "progress", lambda: next(counted))

    def test_one_that_is_renewed_without_progress_is_taken_over(self, nodes, quick, monkeypatch):
        monkeypatch.setattr(claims, "STALLED_SECONDS", 1.0)
        monkeypatch.setattr(claims, "VOID_SECONDS", 60.0)
        name = claims.name_of("description", "cpu")
        owner = claims.Claim(nodes.store, name)
        monkeypatch.setattr(owner, "_who", "process 1 on elsewhere")
        assert owner.wait("relu", float("inf")) is owner
        began = time.monotonic()
        successor = claims.Claim(nodes.store, name).wait("relu", 60.0)
        assert successor and time.monotonic() - began >= 1.0
        wait_for(lambda: owner._put("building") is None, 5, "its owner still renews it")
        successor.end(is_published=True)

    def test_one_with_progress_is_not_taken_over(self, nodes, quick, monkeypatch, steps):
        monkeypatch.setattr(claims, "STALLED_SECONDS", 1.0)
        monkeypatch.setattr(claims, "VOID_SECONDS", 60.0)
        name = claims.name_of("description", "cpu")
        owner = claims.Claim(nodes.store, name).wait("relu", float("inf"))
        assert claims.Claim(nodes.store, name).wait("relu", 3.0) is None
        owner.end(is_published=True)

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
