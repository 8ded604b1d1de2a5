"""Schemas: what is refused says what and where, and they mean what JSON Schema means by the same words."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from opforge.cache import schema
from opforge.cache.schema import FLAG, NUMBER, SHA256, TEXT, TEXTS, FormatError

ITEM = schema.record({"name": schema.text("[a-z]+", "a name"), "size": schema.whole(1, 9)}, {"why": TEXT})
DECLARED = schema.record(
    {
        "format": schema.version(1),
        "items": schema.items(ITEM, most=2),
        "table": schema.table(SHA256, schema.text("[ -~]{0,5}", "at most 5 printable characters"), 2),
        "pair": schema.maybe(schema.row(TEXT, schema.whole())),
        "state": schema.choice("building", "failed"),
    },
    optional={"flag": FLAG, "number": NUMBER, "texts": TEXTS},
)
GOOD = {
    "format": 1,
    "items": [{"name": "a", "size": 3}],
    "table": {"x": "a" * 64},
    "pair": ["a", 1],
    "state": "building",
}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": 2, "more": 1}, "'format' is 2, and this opforge reads 1: update opforge"),
        ({"format": 0}, "'format' is 0, and this opforge reads 1"),
        ({"format": True}, "'format' is True, and this opforge reads 1"),
        ({"format": 1.0}, "'format' is 1.0, and this opforge reads 1"),
        ({"items": None}, "'items' is None: expected a list of 0 to 2 items"),
        ({"items": [{}] * 3}, "'items' is a list of 3 items: expected a list of 0 to 2 items"),
        ({"items": [{"name": "a"}]}, "'items[0].size' is missing"),
        ({"items": [{"name": "a\n", "size": 1}]}, r"'items[0].name' is 'a\n': expected a name"),
        ({"items": [{"name": "a", "size": 10}]}, "'items[0].size' is 10: expected a whole number from 1 to 9"),
        ({"items": [{"name": "a", "size": True}]}, "'items[0].size' is True: expected a whole number from 1 to 9"),
        ({"items": [{"name": "a", "size": 1.0}]}, "'items[0].size' is 1.0: expected a whole number from 1 to 9"),
        (
            {"items": [{"name": "a", "size": 1, "wy": ""}]},
            "'items[0].wy' is not a field that is read; did you mean 'why'?",
        ),
        ({"tabel": {}}, "'tabel' is not a field that is read; did you mean 'table'?"),
        ({"table": {"x": "a"}}, "'table.x' is 'a': expected 64 hex digits"),
        ({"table": {"x" * 6: ""}}, "'table (a name in it)' is 'xxxxxx': expected at most 5 printable characters"),
        (
            {"table": dict.fromkeys("abc", "")},
            "'table' is an object of 3 fields: expected an object of at most 2 fields",
        ),
        ({"pair": ["a"]}, "'pair' is a list of 1 item: expected a list of 2: a text, a whole number"),
        ({"state": []}, "'state' is a list of 0 items: expected one of 'building', 'failed'"),
        ({"flag": 1}, "'flag' is 1: expected true or false"),
        ({"number": "1"}, "'number' is '1': expected a number"),
        ({"texts": ["a", 1]}, "'texts[1]' is 1: expected a text"),
    ],
)
def test_what_is_not_declared_is_refused(changes, problem):
    assert schema.problem(GOOD, DECLARED) == ""
    assert schema.problem({**GOOD, **changes}, DECLARED) == problem


def test_a_whole_value_of_another_kind_is_refused():
    assert schema.problem([], DECLARED) == "it is a list of 0 items: expected an object"
    assert schema.problem({**GOOD, "pair": None}, DECLARED) == ""


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"x" * 101, "it has 101 bytes, and at most 100 are read"),
        (b"{", "it is not valid JSON"),
        (b"\xff", "it is not valid JSON"),
        (b"NaN", "NaN is not a JSON value"),
        (b'{"a":1,"a":1}', "'a' is in it twice"),
        (b"[" * 100, "it is not valid JSON"),
    ],
)
def test_bytes_that_are_no_json_are_refused(data, problem):
    with pytest.raises(FormatError) as error:
        schema.parse(data, DECLARED, 100)
    assert problem in str(error.value)


def test_a_text_that_is_nested_too_deeply_is_refused():
    with pytest.raises(FormatError, match="it is nested too deeply"):
        schema.parse(b"[" * 200_000, DECLARED)


def test_a_file_is_read_as_its_bytes_are(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps(GOOD))
    assert schema.read(str(tmp_path / "x.json"), DECLARED) == GOOD
    with pytest.raises(FileNotFoundError):
        schema.read(str(tmp_path / "none"), DECLARED)
    with pytest.raises(FormatError, match="is not a regular file"):
        schema.read(str(tmp_path), DECLARED)


def test_a_mistake_of_the_caller_is_no_damaged_file():
    with pytest.raises(KeyError):
        schema.checked(GOOD, {"type": "objekt"})


LEAVES = st.none() | st.booleans() | st.integers(-2, 12) | st.just(0.5) | st.sampled_from(["a", "", "failed", "a" * 64])
OBJECTS = st.dictionaries(st.sampled_from(["name", "size", "why", "x" * 6]), LEAVES)
VALUES = LEAVES | OBJECTS | st.lists(LEAVES | OBJECTS, max_size=3)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([*GOOD, "flag", "number", "texts", "more"]), VALUES)
def test_it_means_what_json_schema_means_by_the_same_words(name, value):
    """But for true and 1.0, which other languages cannot tell from 1: they are refused here."""
    changed = {**GOOD, name: value}
    oracle = jsonschema.Draft202012Validator(DECLARED)
    is_valid = schema.problem(changed, DECLARED) == ""
    assume(not (name == "format" and value is True))
    assert is_valid == oracle.is_valid(changed)
