"""Failures that waiters share: only of the same sources, and only what was written while they waited."""

from __future__ import annotations

import os
import shutil

import pytest
from support import text_files

from opforge.cache.records import failures
from opforge.foundation.remembered_values import FlatStamps, stamps_of

FAILURE = failures.Failure("compile", {"message": "text"}, "state")


def test_a_failure_is_for_those_who_were_waiting_for_the_same_sources(fake_store):
    layout = fake_store.layout
    assert failures.latest_id(layout, "plan") == ""
    failures.note(layout, "plan", FAILURE, FlatStamps())
    assert failures.after(layout, "plan", "", "state") == FAILURE
    assert failures.after(layout, "plan", "", "another state") is None
    latest = failures.latest_id(layout, "plan")
    assert failures.after(layout, "plan", latest, "state") is None
    failures.note(layout, "plan", FAILURE, FlatStamps())
    assert failures.after(layout, "plan", latest, "state") == FAILURE


@pytest.mark.parametrize("change", ["", "another inode", "changed", "gone"])
def test_a_failure_is_for_those_who_would_read_the_same_files(fake_store, tmp_path, change):
    paths = [text_files.write(tmp_path, "a.h", "1"), str(tmp_path / "none.h")]
    failures.note(fake_store.layout, "plan", FAILURE, FlatStamps(paths, stamps_of(paths)))
    if change == "another inode":  # as the system's headers have on another node
        shutil.copy2(tmp_path / "a.h", tmp_path / "copy.h")
        os.replace(tmp_path / "copy.h", tmp_path / "a.h")
    elif change == "changed":
        text_files.write(tmp_path, "a.h", "22")
    elif change == "gone":
        (tmp_path / "a.h").unlink()
    assert failures.after(fake_store.layout, "plan", "", "state") == (
        None if change in ("changed", "gone") else FAILURE
    )


@pytest.mark.parametrize(
    "damaged",
    [
        '{"id": "x"}',
        '{"state": "state", "kind": "compile", "attributes": {"message": "text"}}',
        '{"id": "x", "state": "state", "kind": "compile", "attributes": {"message": ""}, "read": "/", "stamps": []}',
        '{"id": 1, "state": "state", "kind": "compile", "attributes": "text"}',
        '{"id": 1, "state": "state", "kind": {}, "attributes": {"message": "text"}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_failure_is_none(fake_store, damaged):
    text_files.write(fake_store.layout.path("failures"), "plan.json", damaged)
    assert failures.after(fake_store.layout, "plan", "", "state") is None
