"""The lines of the values in a text of JSON, which errors about files of people name."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from opforge.cache import schema
from opforge.cache.schema import FormatError

VALUES = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text() | strategies.floats(-9, 9),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text("xyz", min_size=1), inner),
)


def places(value, where=""):
    """Yields the place of each value, as messages name it."""
    yield where
    if isinstance(value, dict):
        for name, part in value.items():
            yield from places(part, f"{where}.{name}" if where else name)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from places(part, f"{where}[{number}]")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES, strategies.sampled_from([None, 1]))
def test_each_value_has_a_line_of_the_text(value, indent):
    text = json.dumps(value, indent=indent)
    lines = schema.lines_of(text)
    assert {*places(value)} == {*lines} - {schema.REFUSED}
    assert {*lines.values()} <= {*range(1, text.count("\n") + 2)}


@given(strategies.binary(max_size=60))
def test_any_bytes_are_read_or_refused_with_a_line(data):
    try:
        with schema.lines_named(data):
            schema.parse(data, schema.OBJECT)
    except FormatError as error:
        assert str(error).startswith("line ")


def test_each_value_has_the_line_that_it_begins_in():
    lines = schema.lines_of('{\n "a": [\n1,\n "x"], "b":\n {"c": null}}')
    assert lines == {"": 1, "a": 2, "a[0]": 3, "a[1]": 4, "b": 4, "b.c": 5}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1,\n"b": [2,\n"x"]}', "line 3: 'b[1]' is 'x': expected a whole number"),
        ('{"a": 1,\n"b": [],\n"a": 2}', "line 3: it is not valid JSON ('a' is in it twice)"),
        ('{"a": 1,\n"b": [\nNaN]}', "line 3: it is not valid JSON (NaN is not a JSON value)"),
        ('{"a": 1,\n"b": [],2: 3}', "line 2: it is not valid JSON (Expecting property name enclosed in double quotes"),
        ('{"b": [],\n"c": 1}', "line 1: 'a' is missing"),
        ('{"a": 1, "b": [],\n"bb": 1}', "line 2: 'bb' is not a field that is read; did you mean 'b'?"),
    ],
)
def test_an_error_names_its_line(text, problem):
    with pytest.raises(FormatError) as error, schema.lines_named(text.encode()):
        schema.parse(text.encode(), schema.record({"a": schema.WHOLE, "b": schema.items(schema.WHOLE)}))
    assert str(error.value).startswith(problem)
