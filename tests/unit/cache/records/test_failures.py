"""Failures that waiters share: only of the same sources, and only what was written while they waited."""

from __future__ import annotations

from support import text_files

from opforge.cache.filesystem.files import read_json
from opforge.cache.records import failures


def test_a_failure_is_for_those_who_were_waiting_for_the_same_sources(fake_store):
    layout = fake_store.layout
    failures.note(layout, "plan", failures.Failure("compile", {"message": "text"}, "state"))
    now = read_json(layout.path("failures", "plan.json"))["at"]
    assert failures.since(layout, "plan", now, "state").attributes == {"message": "text"}
    assert failures.since(layout, "plan", now + 1, "state") is None
    assert failures.since(layout, "plan", now, "another state") is None
    for damaged in (
        '{"at": "x"}',
        '{"at": 1, "inputs": "state", "kind": "compile", "told": "text"}',
        '{"at": 1, "inputs": "state", "kind": {}, "told": {"message": "text"}}',
        "[" * 100_000,
    ):
        text_files.write(layout.path("failures"), "plan.json", damaged)
        assert failures.since(layout, "plan", 0, "state") is None
