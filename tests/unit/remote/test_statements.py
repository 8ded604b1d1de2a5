"""Statements: the same bytes for the same facts, one form for every kind, and bounds on what is read."""

from __future__ import annotations

import json
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.remote import nodes, op_offers

import opforge
from opforge.cache.keys import canonical
from opforge.cache.records.entry import with_record_key
from opforge.foundation.versions import version_of
from opforge.remote import op_statements, statements, topics
from opforge.remote.blobs import Blob, Tree
from opforge.remote.offers import Offer
from opforge.remote.op_statements import OP
from opforge.remote.signatures import signing
from opforge.remote.statements import Signed, Statement, UnreadableStatement

DESCRIPTION = "d" * 32
RECORD = with_record_key(
    {
        "format": 1,
        "key": "a" * 32,
        "plan": "b" * 32,
        "description": "c" * 32,
        "op": "relu",
        "abi": "c",
        "target": "cpu:x86-64-v3",
        "file": "relu-aaaa.so",
        "sha256": "e" * 64,
        "size": 1000,
        "python_module": False,
        "exports": ["value"],
        "needs": [],
        "user_flags": {},
        "inputs_key": "9" * 32,
        "torch_target": "",
        "built_with_torch": "",
        "requires": {},
        "interface": 1,
        "portable": False,
        "machine": "x86_64",
        "shims": [],
        "floors": {},
        "seconds": 1.5,
        "inputs": {
            name: []
            for name in [
                "files",
                "names",
                "searched",
                "present",
                "folders",
                "trusted_trees",
                "compiler_folders",
                "answers",
            ]
        },
    }
)
TREE = Tree(op_statements.tree_digest(RECORD), Blob("f" * 64, 400, 12000))
STATEMENT = op_offers.statement(RECORD, DESCRIPTION, TREE)
ENTRY = "a" * 32 + "-" + "e" * 8
OFFER = Offer("op", RECORD["op"], ENTRY, RECORD["target"], {"record": RECORD}, (TREE,), f"op:{ENTRY}")
SIGNATURE = signing.Named("ci", b"s" * 64)


def changed(**changes):
    """Returns the bytes of a statement with other fields; those of a part are named `record_NAME`."""
    value = json.loads(STATEMENT.data())
    parts = {
        "record": value["facts"]["record"],
        "tree": value["trees"][0],
        "blob": value["trees"][0]["blob"],
        "facts": value["facts"],
    }
    for name, new in changes.items():
        part, _, field = name.partition("_")
        if field:
            parts[part][field] = new
        else:
            value[name] = new
    if isinstance(value["facts"], dict) and isinstance(value["facts"].get("record"), dict):
        value["facts"]["record"] = with_record_key(value["facts"]["record"])
    return canonical(value)


def test_a_statement_reads_back():
    data = STATEMENT.data()
    assert statements.parse(data) == STATEMENT
    assert OP.parse(data, DESCRIPTION) == OFFER
    assert data == op_offers.statement(dict(reversed(RECORD.items())), DESCRIPTION, TREE).data()
    assert OP.parse(data).label == ENTRY
    assert TREE.blob.name == "v1/blobs/sha256/ff/" + "f" * 64


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"opforge": "99.0"}, "it needs opforge 99.0 or newer, and this is opforge"),
        ({"opforge": 7}, "'opforge' is 7: expected a version such as 0.1.0"),
        ({"opforge": ""}, "'opforge' is '': expected a version such as 0.1.0"),
        ({"opforge": "soon"}, "'opforge' is 'soon': expected a version"),
        ({"opforge": "1.\x1b[2J"}, r"'opforge' is '1.\x1b[2J': expected a version"),
        ({"opforge": "9" * 5000}, "expected a version"),
        ({"statement": 2}, "'statement' is 2, and this opforge reads 1: update opforge"),
        ({"statement": True}, "'statement' is True, and this opforge reads 1"),
        ({"kind": "package"}, "it is a statement of the kind 'package', and not 'op'"),
        ({"kind": "../op"}, "'kind' is '../op': expected lower-case letters, digits and '-'"),
        ({"topic": "0" * 32}, "it was made for another topic: '000"),
        ({"topic": 3}, "'topic' is 3: expected a text"),
        ({"trees": {}}, "'trees' is an object of 0 fields: expected a list"),
        ({"trees": []}, "'trees' is a list of 0 items: expected 1, the tree of the op's library"),
        ({"trees": [3]}, "'trees[0]' is 3: expected an object"),
        ({"trees": [{}] * 1001}, "'trees' is a list of 1001 items: expected a list of 0 to 1000 items"),
        ({"facts": None}, "'facts' is None: expected an object"),
        ({"more": 1}, "'more' is not a field that is read"),
        ({"facts_more": 1}, "in its facts 'more' is not a field that is read"),
        ({"tree_more": 1}, "'trees[0].more' is not a field that is read"),
        (
            {"tree_digest": "0" * 64},
            f"'trees[0].digest' is {'0' * 64}, and the library of its record has {TREE.digest}",
        ),
        ({"tree_digest": "x" * 64}, "'trees[0].digest' is 'xxx"),
        ({"blob_sha256": "../../etc/passwd"}, "'trees[0].blob.sha256' is '../../etc/passwd': expected 64 hex"),
        ({"blob_size": -1}, "'trees[0].blob.size' is -1: expected a whole number from 1 to 2147483648"),
        ({"blob_size": True}, "'trees[0].blob.size' is True: expected"),
        ({"blob_size": 3 << 30}, "'trees[0].blob.size' is 3221225472: expected"),
        ({"blob_unpacked": 5 << 30}, "'trees[0].blob.unpacked' is 5368709120"),
        ({"blob_unpacked": 999}, "'trees[0].blob.unpacked' is 999, and 'facts.record.size' is 1000: expected no less"),
        ({"record_op": "../relu"}, "in its facts 'record.op' is '../relu': expected a name"),
        ({"record_file": "../relu.so"}, "'record.file' is '../relu.so': expected the name of a library"),
        ({"record_format": 99}, "'record.format' is 99, and this opforge reads 1: update opforge"),
        ({"record_plan": "A" * 32}, "'record.plan' is 'AAAA"),
        ({"record_sha256": "e" * 63}, "'record.sha256' is 'eeee"),
        ({"record_inputs": {}}, "'record.inputs.answers' is missing"),
        ({"facts_record": None}, "'record' is None: expected an object"),
    ],
)
def test_a_statement_that_cannot_be_used_says_why(changes, problem):
    with pytest.raises(UnreadableStatement) as error:
        OP.parse(changed(**changes), DESCRIPTION)
    assert problem in str(error.value)


def test_a_record_with_a_changed_field_is_refused():
    value = json.loads(STATEMENT.data())
    value["facts"]["record"]["portable"] = not RECORD["portable"]
    expected = with_record_key(value["facts"]["record"])["record_key"]
    with pytest.raises(UnreadableStatement) as error:
        OP.parse(canonical(value), DESCRIPTION)
    assert str(error.value) == (
        f"in its facts the record is damaged: 'record_key' is {RECORD['record_key']}, and the key of the other fields"
        f" is {expected}: publish the entry again"
    )


def test_the_trees_of_a_newer_opforges_statement_are_known():
    data = changed(opforge="7.1", kind="entirely-other", facts={"new": [1]})
    assert statements.parse(data).trees == (TREE,)
    with pytest.raises(UnreadableStatement, match="it is a statement of the kind 'entirely-other'"):
        OP.parse(data, DESCRIPTION)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"NaN", "NaN is not a JSON value"),
        (b"-Infinity", "-Infinity is not a JSON value"),
        (b"1e999", "1e999 is too large a number"),
        (b"-" + b"1" * 400, "is too large a number"),
        (b'"\\ud800"', "surrogates not allowed"),
    ],
)
def test_facts_that_are_no_json_or_no_text_are_refused(value, problem):
    data = statements.Statement("note", "x", (), {"a": 1}).data().replace(b'"a":1', b'"a":' + value)
    with pytest.raises(UnreadableStatement, match=problem):
        statements.parse(data)


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 5000, b"null", b"[]", b'{"kind":"op"}', b"\xff", changed() + b" "])
def test_what_is_no_statement_is_refused(data):
    with pytest.raises(UnreadableStatement):
        OP.parse(data, DESCRIPTION)


def test_a_statement_that_would_not_be_read_is_not_written():
    large = with_record_key({**RECORD, "exports": ["x" * 100] * 2000})
    with pytest.raises(ValueError, match="at most 131072 are read"):
        op_offers.statement(large, DESCRIPTION, TREE).data(topics.MAX_ITEM_BYTES)


FILE = Signed(STATEMENT.data(), (SIGNATURE,)).file()
DIGEST = Signed(STATEMENT.data()).digest


def test_a_statements_own_file_gives_back_what_was_signed():
    assert statements.read_file(FILE, DIGEST) == Signed(STATEMENT.data(), (SIGNATURE,))
    assert statements.name_of(DIGEST) == f"v1/statements/sha256/{DIGEST[:2]}/{DIGEST}"
    assert json.loads(FILE.split(b"\n")[0])["kind"] == "op"


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_changed_file_of_a_statement_is_refused_or_gives_the_signed_bytes(data):
    damaged = bytearray(FILE)
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        signed = statements.read_file(bytes(damaged), DIGEST)
    except UnreadableStatement:
        return
    assert signed.data == STATEMENT.data()


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        (b"", "Expecting value"),
        (b"{}", "it is an object of 0 fields: expected a list of 0 to 8 items"),
        (b"[3]", "is 3: expected a text"),
        (b'["ci:AAAA"]', "expected name:base64"),
        (json.dumps([str(SIGNATURE)] * 9).encode(), "a list of 9 items: expected a list of 0 to 8 items"),
    ],
)
def test_signatures_that_cannot_be_read(rest, problem):
    with pytest.raises(UnreadableStatement, match=problem):
        statements.read_file(STATEMENT.data() + b"\n" + rest, DIGEST)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(max_size=40), st.dictionaries(st.text(max_size=8), json_values, max_size=4), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_any_facts_read_back(topic, facts, count):
    trees = tuple(Tree(f"{number}" * 64, Blob("a" * 64, number + 1, 10)) for number in range(count))
    stated = Statement("note", topic, trees, facts)
    assert statements.parse(stated.data()) == stated


def test_statements_that_older_opforges_have_published_are_read():
    """A file of format 1, signed by the first key of RFC 8032. Files of later formats are added; none goes."""
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    with open(os.path.join(os.path.dirname(nodes.__file__), "statements_1.json"), "rb") as file:
        (item,) = topics.read_frame(file.read())
    assert signing.is_signed(item.data, item.signatures[0], signing.Named("ci", public))
    assert OP.parse(item.data, DESCRIPTION) == OFFER


def test_the_oldest_opforge_that_reads_a_statement_is_not_newer_than_this_one():
    assert version_of(statements.OLDEST_OPFORGE) <= version_of(opforge.__version__)


def test_the_blobs_of_a_statement_are_those_of_its_list_of_trees():
    data = STATEMENT.data()
    expected = [tree.blob.name for tree in STATEMENT.trees]
    assert expected and statements.blobs_in(data) == expected
    assert statements.blobs_in(STATEMENT._replace(trees=()).data()) == []
    nested = STATEMENT._replace(facts={"x": {"statement": 1, "topic": "t", "trees": []}})
    assert statements.blobs_in(nested.data()) == expected


def test_the_blobs_of_two_statements_that_a_flipped_byte_has_joined_are_not_those_of_the_last():
    with pytest.raises(UnreadableStatement, match="it is not valid JSON"):
        statements.blobs_in(STATEMENT.data() + b"," + STATEMENT.data())


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data.replace(b'"trees":', b'"treez":')])
def test_the_blobs_of_a_statement_that_cannot_be_read_are_not_none(damage):
    with pytest.raises(UnreadableStatement):
        statements.blobs_in(damage(STATEMENT.data()))


@pytest.mark.parametrize(
    ("here", "needed", "is_read"),
    [("0.1.0rc1", "0.1.0", True), ("0.2.0rc1", "0.2.0", True), ("0.1.0rc1", "0.1.1", False), ("0.1.9", "0.2.0", False)],
)
def test_a_candidate_for_release_reads_what_needs_its_release(monkeypatch, here, needed, is_read):
    monkeypatch.setattr("opforge.foundation.opforge_version.VERSION", here)
    data = STATEMENT._replace(opforge=needed).data()
    if is_read:
        assert statements.parse_as(data, STATEMENT.kind).opforge == needed
        return
    message = f"it needs opforge {needed} or newer, and this is opforge {here}"
    with pytest.raises(UnreadableStatement, match=f"^{re.escape(message)}$"):
        statements.parse_as(data, STATEMENT.kind)
