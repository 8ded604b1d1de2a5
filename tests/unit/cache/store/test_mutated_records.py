"""Records with arbitrary contents: a miss, never an exception."""

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
from support.store.fake_op import DESCRIPTION, FakeOp

from opforge.builders.declaration.machine import this_machine
from opforge.builders.lookup.fit import host_problem
from opforge.cache.store import Fit
from opforge.fast_path import library as warm_library
from opforge.foundation import formats
from opforge.foundation.files import read_json

FILES = [warm_library.RECORD, warm_library.BUILD]


def judge(record):
    return Fit(host_problem(record, this_machine()) or "")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def steps_into(value):
    """Yields the steps to each value inside a JSON value, and to itself."""
    yield ()
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        for steps in steps_into(inner):
            yield (name, *steps)


def mutated(value, steps, new):
    """Returns a copy of `value` in which the value at `steps` is `new`, or is removed if `new` is Ellipsis."""
    if not steps:
        return None if new is ... else new
    value = copy.deepcopy(value)
    parent = value
    for step in steps[:-1]:
        parent = parent[step]
    if new is ...:
        del parent[steps[-1]]
    else:
        parent[steps[-1]] = new
    return value


def mutate_file(data, path):
    """Replaces a part of a JSON file, or cuts it off."""
    value = read_json(path)
    steps = data.draw(st.sampled_from(list(steps_into(value))))
    text = json.dumps(mutated(value, steps, data.draw(anything | st.just(...))))
    if data.draw(st.integers(0, 9)) == 0:
        text = text[: data.draw(st.integers(0, len(text)))]
    text_files.write(os.path.dirname(path), os.path.basename(path), text)


@pytest.fixture(scope="module")
def built_op(tmp_path_factory):
    """(op, paths of its record and of how it was built, copy of its store)."""
    op = FakeOp(tmp_path_factory.mktemp("mutated"))
    entry = op.build()
    paths = {name: os.path.join(entry.folder, name) for name in FILES}
    backup = str(op.folder / "backup")
    shutil.copytree(op.store.layout.path(), backup)
    return op, paths, backup


@pytest.mark.parametrize("which", FILES)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_mutated_record_is_a_hit_or_a_miss_never_an_exception(built_op, which, data):
    op, paths, backup = built_op
    logging.getLogger("opforge.cache").setLevel(logging.CRITICAL)
    shutil.rmtree(op.store.layout.path())
    shutil.copytree(backup, op.store.layout.path())
    mutate_file(data, paths[which])
    try:
        by_plan = op.get()
        by_description = op.store.own.find(DESCRIPTION, judge, op.root_paths, op.store.disk)[0]
        by_description = by_description and by_description.entry
    finally:
        logging.getLogger("opforge.cache").setLevel(logging.NOTSET)
    for entry in (by_plan, by_description):
        if entry is not None:
            with open(entry.library, "rb") as file:
                assert hashlib.sha256(file.read()).hexdigest() == entry.record["sha256"]


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
@pytest.mark.parametrize("which", FILES)
def test_a_file_of_another_form_is_a_miss(fake_op, text, which):
    built = fake_op.build()
    text_files.write(built.folder, which, text)
    assert fake_op.get() is None
    assert fake_op.build().key == built.key
    assert fake_op.get().key == built.key


def test_a_record_that_is_not_text_is_a_miss(fake_op):
    with open(os.path.join(fake_op.build().folder, warm_library.RECORD), "wb") as file:
        file.write(b"\xff\x00\xfe" * 9)
    assert fake_op.get() is None


def test_a_record_in_another_entrys_folder_is_not_used(fake_op):
    first = fake_op.build()
    fake_op.edit("int b;")
    second = fake_op.build()
    os.rename(first.folder, first.folder + "-away")
    os.rename(second.folder, first.folder)
    os.rename(first.folder + "-away", second.folder)
    assert fake_op.get() is None


def test_how_another_entry_was_built_is_not_compared(fake_op):
    """Its files may be unchanged where this entry's are not."""
    first = fake_op.build()
    fake_op.edit("int b;")
    second = fake_op.build()
    assert fake_op.get() is not None
    shutil.copy(os.path.join(first.folder, warm_library.BUILD), os.path.join(second.folder, warm_library.BUILD))
    assert fake_op.get() is None
    assert "the record of its inputs cannot be read" in fake_op.reasons()


@pytest.mark.parametrize("number", [0, formats.RECORD + 1, "1", None])
def test_a_record_of_another_format_is_not_read(fake_op, number):
    path = os.path.join(fake_op.build().folder, warm_library.RECORD)
    text_files.write(os.path.dirname(path), warm_library.RECORD, json.dumps({**read_json(path), "format": number}))
    assert fake_op.get() is None
    assert fake_op.reasons() == ["its record cannot be read"]
