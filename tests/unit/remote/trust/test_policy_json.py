"""JSON with the lines of its values: it is read as the usual parser reads it, or refused."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings, strategies

from opforge.remote.signatures import policy_json

VALUES = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text() | strategies.floats(-9, 9),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
)


def plain(node):
    if isinstance(node.value, dict):
        return {name: plain(field) for name, field in node.value.items()}
    return [plain(item) for item in node.value] if isinstance(node.value, list) else node.value


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES, strategies.sampled_from([None, 1]))
def test_a_text_has_the_values_that_it_has_for_the_usual_parser(value, indent):
    text = json.dumps(value, indent=indent)
    assert plain(policy_json.read(text.encode())) == json.loads(text)


@given(strategies.binary(max_size=60))
def test_any_bytes_are_read_or_refused_with_a_line(data):
    try:
        policy_json.read(data)
    except policy_json.LineError as error:
        assert str(error).startswith("line ")


def test_each_value_has_the_line_that_it_begins_in():
    root = policy_json.read(b'{\n "a": [\n1,\n "x"], "b":\n {"c": null}}')
    first, second = root.value["a"].value
    assert (root.line, root.value["a"].line, first.line, second.line) == (1, 2, 3, 4)
    assert (root.value["b"].line, root.value["b"].value["c"].line) == (4, 5)
