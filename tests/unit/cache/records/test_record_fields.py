"""The field of a record that is wrong is named, with what it holds and what is expected."""

from __future__ import annotations

import pytest

from opforge.cache.records.entry import RECORD_KEY, is_intact, is_record, read_record
from opforge.cache.records.record_fields import record_problem
from opforge.warm.library import READ_FORMATS


@pytest.fixture
def record(fake_store):
    return read_record(fake_store.layout.entry(fake_store.add()))


@pytest.mark.parametrize("wrong", [None, [], {}, True, "", "../x", 7, ["a", 1]], ids=repr)
def test_what_is_no_record_has_a_problem_that_names_the_field(record, wrong):
    """It answers as `is_record` and `is_intact` do, which loads ask."""
    assert record_problem(record) == ""
    for field in record:
        changed = {**record, field: wrong}
        if changed == record:
            continue
        problem = record_problem(changed)
        assert bool(problem) == (not is_record(changed) or not is_intact(changed))
        if not is_record(changed):
            assert problem.startswith(f"{field!r} of its record is {wrong!a}, expected ")


def test_a_field_that_is_missing_is_named(record):
    for field in record:
        missing = {name: value for name, value in record.items() if name != field}
        expected = "its record has no " if not is_record(missing) else f"{RECORD_KEY!r} of its record is "
        assert record_problem(missing).startswith(expected)
        assert f"'{field}'" in record_problem(missing) or is_record(missing)


def test_a_changed_field_is_a_wrong_record_key(record):
    changed = {**record, "abi": "torch"}
    problem = record_problem(changed)
    assert problem.startswith(f"'record_key' of its record is {record['record_key']!r}, expected ")
    assert problem.endswith(": a field was changed after it was written")
    assert record_problem({**record, "format": max(READ_FORMATS) + 1}).startswith("'format' of its record is ")
    assert record_problem([]) == "its record is [], expected an object"
