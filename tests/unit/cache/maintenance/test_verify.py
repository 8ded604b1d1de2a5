"""Verification: a damaged entry is set aside with its reason, an intact one is left alone."""

from __future__ import annotations

import json
import os

import pytest
from support.store.fake_store import ME

from opforge.cache.keys import key_of
from opforge.cache.maintenance import verify
from opforge.cache.records.entry import read_record


def test_intact_entries_pass_and_progress_is_reported(fake_store):
    fake_store.add("relu"), fake_store.add("adam")
    progress = []
    checked = verify.verify(fake_store.layout, ME, lambda done, total: progress.append((done, total)))
    assert sorted(entry.op for entry in checked) == ["adam", "relu"] and not any(entry.problem for entry in checked)
    assert progress == [(1, 2), (2, 2)]


def test_a_damaged_library_is_set_aside(fake_store, caplog):
    damaged, intact = fake_store.add("relu"), fake_store.add("adam")
    fake_store.damage(damaged)
    problems = {entry.op: entry.problem for entry in verify.verify(fake_store.layout, ME)}
    assert problems == {"relu": "the library's digest differs from its record's", "adam": ""}
    assert fake_store.entry_keys() == {intact}
    assert len(os.listdir(fake_store.layout.path("quarantine"))) == 1
    assert "It was set aside in" in caplog.text


def test_an_entry_under_a_wrong_key_is_set_aside(fake_store):
    key = fake_store.add()
    os.rename(fake_store.layout.entry(key), fake_store.layout.entry("f" * 32 + "-" + "0" * 8))
    (checked,) = verify.verify(fake_store.layout, ME)
    assert checked.problem.startswith("its record describes another entry: ") and fake_store.entry_keys() == set()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "its record.json cannot be used: it is not valid JSON (Expecting value: line 1 column 1 (char 0))"),
        ('{"op": "relu"}', "its record.json cannot be used: 'abi' is missing"),
    ],
)
def test_an_entry_without_a_complete_record_is_set_aside(fake_store, content, problem):
    key = fake_store.add()
    with open(os.path.join(fake_store.layout.entry(key), "record.json"), "w") as file:
        file.write(content)
    (checked,) = verify.verify(fake_store.layout, ME)
    assert checked.problem == problem and fake_store.entry_keys() == set()


def test_how_an_entry_was_built_is_checked_too(fake_store):
    key = fake_store.add()
    path = os.path.join(fake_store.layout.entry(key), "build.json")
    stated = read_record(fake_store.layout.entry(key))["inputs_key"]
    with open(path) as file:
        build = json.load(file)
    build["inputs"]["files"][0][2] = "0" * 64
    with open(path, "w") as file:
        json.dump(build, file)
    (checked,) = verify.verify(fake_store.layout, ME)
    assert checked.problem == (
        f"its build.json is not of its record.json: the key of 'inputs' is {key_of(build['inputs'])},"
        f" and 'inputs_key' there is {stated}"
    )


def test_an_entry_that_another_process_removes_meanwhile_is_not_reported(fake_store, monkeypatch):
    fake_store.add()

    def remove(folder, owners, name):
        os.rename(folder, fake_store.layout.path("staging", "taken"))
        raise FileNotFoundError(2, "No such file or directory", folder)

    monkeypatch.setattr(verify, "checked_record", remove)
    assert verify.verify(fake_store.layout, ME) == []


def test_an_entry_in_a_lower_layer_of_an_image_can_be_set_aside(fake_store, monkeypatch):
    damaged, intact = fake_store.add("relu"), fake_store.add("adam")
    fake_store.damage(damaged)
    fake_store.put_in_image_layer(monkeypatch)
    assert [entry.op for entry in verify.verify(fake_store.layout, ME) if entry.quarantined] == ["relu"]
    assert len(os.listdir(fake_store.layout.path("quarantine"))) == 1
    assert fake_store.entry_keys() == {intact}
