"""Tickets and manifests that hold anything but what was written: a miss, never an exception."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import text_files
from support.store.fake_store import World

from opforge.builders.lookup.host_requirements import host_problem
from opforge.cache.filesystem.files import read_json
from opforge.cache.records import entry as entries
from opforge.cache.records import stat_record


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def mutations(value):
    """Every path into a JSON value, as a list of steps."""
    yield ()
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        for path in mutations(inner):
            yield (name, *path)


def mutated(value, path, new):
    """A copy of `value` with what `path` leads to replaced, or removed where `new` is Ellipsis."""
    if not path:
        return None if new is ... else new
    value = copy.deepcopy(value)
    at = value
    for step in path[:-1]:
        at = at[step]
    if new is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = new
    return value


def spoil(data, path):
    """Replace part of a JSON file, or cut it off."""
    whole = read_json(path)
    where = data.draw(st.sampled_from(list(mutations(whole))))
    spoiled = json.dumps(mutated(whole, where, data.draw(anything | st.just(...))))
    if data.draw(st.integers(0, 9)) == 0:
        spoiled = spoiled[: data.draw(st.integers(0, len(spoiled)))]
    text_files.write(os.path.dirname(path), os.path.basename(path), spoiled)


@pytest.fixture(scope="module")
def built_world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("garbage"))
    world.entry = world.build()
    world.ticket = world.tickets()[0]
    world.backup = str(world.folder / "backup")
    shutil.copytree(world.store.layout.path(), world.backup)
    return world


@pytest.mark.parametrize("which", ["ticket", "manifest"])
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), paranoid=st.booleans())
def test_a_spoiled_ticket_or_manifest_is_a_hit_or_a_miss_never_an_exception(built_world, which, data, paranoid):
    world = built_world
    logging.getLogger("opforge.cache").setLevel(logging.CRITICAL)
    shutil.rmtree(world.store.layout.path())
    shutil.copytree(world.backup, world.store.layout.path())
    spoil(data, world.ticket if which == "ticket" else os.path.join(world.entry.folder, entries.MANIFEST))
    try:
        found = world.get(paranoid)
        match = world.store.match("description", host_problem, world.roots, (), [], own=True)
    finally:
        logging.getLogger("opforge.cache").setLevel(logging.NOTSET)
    for one in (found, match):
        if one is not None:
            with open(one.library, "rb") as file:
                assert hashlib.sha256(file.read()).hexdigest() == one.binary["sha256"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "7",
        '"x"',
        '{"format": 0}',
        '{"format": 1}',
        '{"format": 1, "binary": {}, "result": ""}',
        "[" * 5000,
    ],
)
@pytest.mark.parametrize("which", ["ticket", "manifest"])
def test_a_file_of_another_kind_is_a_miss(world, text, which):
    built = world.build()
    path = world.tickets()[0] if which == "ticket" else os.path.join(built.folder, entries.MANIFEST)
    text_files.write(os.path.dirname(path), os.path.basename(path), text)
    assert world.get(paranoid=which == "manifest") is None
    assert world.build().key == built.key


def test_a_ticket_of_binary_noise_is_a_miss(world):
    world.build()
    with open(world.tickets()[0], "wb") as file:
        file.write(b"\xff\x00\xfe" * 9)
    assert world.get() is None


def test_a_ticket_cannot_lead_out_of_the_store(world, tmp_path):
    built = world.build()
    outside = tmp_path / "outside"
    os.rename(built.folder, outside)
    path = world.tickets()[0]
    with open(path) as file:
        ticket = json.load(file)
    ticket["result"] = os.path.relpath(outside, world.store.layout.path("entries"))
    text_files.write(os.path.dirname(path), os.path.basename(path), json.dumps(ticket))
    assert world.get() is None


def test_a_ticket_of_an_older_format_is_not_read(world, monkeypatch):
    world.build()
    monkeypatch.setattr(stat_record, "FORMAT", stat_record.FORMAT + 1)
    assert world.get() is None
