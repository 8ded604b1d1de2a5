"""Offers and the file that holds them: the same bytes for the same entry, and bounds on what is read."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.remote import nodes

import opforge
from opforge.cache.keys import canonical
from opforge.cache.records.entry import with_record_key
from opforge.remote import offers
from opforge.remote.signatures import signing
from opforge.versions import version_of

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
BLOB = offers.Blob("f" * 64, 400, 12000)
SIGNATURE = signing.Named("ci", b"s" * 64)
texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60).map(lambda text: text.encode())


def offer(**changes):
    """Returns the bytes of an offer with other fields; those of its record and its blob are named `record_NAME`."""
    value = json.loads(offers.offer_bytes(RECORD, DESCRIPTION, BLOB))
    for name, new in changes.items():
        part, _, field = name.partition("_")
        if field:
            value[part][field] = new
        else:
            value[name] = new
    if value["record"]:
        value["record"] = with_record_key(value["record"])
    return canonical(value)


def test_an_offer_reads_back():
    data = offers.offer_bytes(RECORD, DESCRIPTION, BLOB)
    assert offers.parse(data, DESCRIPTION) == offers.Offer(RECORD, BLOB)
    assert data == offers.offer_bytes(dict(reversed(RECORD.items())), DESCRIPTION, BLOB)
    assert offers.parse(data).entry == "a" * 32 + "-" + "e" * 8
    assert BLOB.name == "v1/blobs/sha256/ff/" + "f" * 64


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"opforge": "99.0"}, "it needs opforge 99.0 or newer, and this is opforge"),
        ({"format": 2}, "its format 2 is not read by this opforge"),
        ({"kind": "revocations"}, "it is a signed 'revocations', and no offer"),
        ({"description": "0" * 32}, f"it was made for another description: '{'0' * 32}', expected {DESCRIPTION}"),
        ({"record_op": "../relu"}, "its record is incomplete"),
        ({"record_file": "../relu.so"}, "its record is incomplete"),
        ({"record_format": 99}, "its record is incomplete"),
        ({"record_plan": "A" * 32}, "'plan' of its record is 'A{32}', expected 32 hex digits"),
        ({"record_sha256": "e" * 63}, "'sha256' of its record is 'e{63}', expected 64 hex digits"),
        ({"blob_sha256": "../../x"}, r"'sha256' of its blob is '\.\./\.\./x', expected 64 hex digits"),
        ({"blob_size": -1}, "'size' of its blob is -1, expected a number of bytes up to 2147483648"),
        ({"blob_size": True}, "'size' of its blob is True, expected a number"),
        ({"blob_size": 3 << 30}, "'size' of its blob is 3221225472, expected a number of bytes up to 2147483648"),
        ({"blob_unpacked": 5 << 30}, "'unpacked' of its blob is 5368709120, expected a number of bytes up to "),
        ({"blob_unpacked": 999}, "'size' of its record is 1000, expected a number of bytes up to 999"),
        ({"record_inputs": {}}, "it is damaged"),
        ({"blob": []}, "it is damaged"),
        ({"record": None}, "its record is incomplete"),
    ],
)
def test_an_offer_that_cannot_be_used_says_why(changes, problem):
    with pytest.raises(offers.UnreadableOffer, match=problem):
        offers.parse(offer(**changes), DESCRIPTION)


def test_a_newer_offer_with_fields_that_are_unknown_is_skipped_by_its_version():
    with pytest.raises(offers.UnreadableOffer, match=r"it needs opforge 7\.1 or newer"):
        offers.parse(canonical({"kind": "offer", "format": 9, "opforge": "7.1", "entirely": "other"}), DESCRIPTION)


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 5000, b"null", b'{"kind":"offer"}', b"\xff", offer() + b" "])
def test_what_is_no_offer_is_refused(data):
    with pytest.raises(offers.UnreadableOffer):
        offers.parse(data, DESCRIPTION)


def test_an_offer_that_would_not_be_read_is_not_written():
    with pytest.raises(ValueError, match="at most 131072 are read"):
        offers.offer_bytes(with_record_key({**RECORD, "exports": ["x" * 100] * 2000}), DESCRIPTION, BLOB)


@given(st.lists(st.tuples(texts, st.lists(st.binary(min_size=64, max_size=64), max_size=8)), max_size=12))
@settings(max_examples=100, deadline=None)
def test_a_frame_gives_back_the_bytes_that_were_signed(items):
    signed = [offers.Signed(data, tuple(signing.Named("k", raw) for raw in raws)) for data, raws in items]
    assert offers.read_frame(offers.frame(signed)) == signed


def test_a_frame_is_json_too():
    data = offers.frame([offers.Signed(offer(), (SIGNATURE,)), offers.Signed(offer())])
    items = json.loads(data)["items"]
    assert [item["signatures"] for item in items] == [[str(SIGNATURE)], []]
    assert items[0]["item"]["record"]["op"] == "relu"


def test_bytes_that_look_like_signatures_stay_in_the_offer():
    data = b'{"op":"x","signatures":["ci:' + b"A" * 86 + b'=="]}'
    (item,) = offers.read_frame(offers.frame([offers.Signed(data, (SIGNATURE,))]))
    assert item == offers.Signed(data, (SIGNATURE,))


FRAME = offers.frame([offers.Signed(offer(), (SIGNATURE,)), offers.Signed(offer(format=2), (SIGNATURE, SIGNATURE))])


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_frame_is_refused_or_gives_items(data):
    damaged = bytearray(FRAME)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        items = offers.read_frame(bytes(damaged))
    except ValueError:
        return
    assert all(len(item.signatures) <= offers.MAX_SIGNATURES for item in items)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it is no file of offers"),
        (b"<html>\n404\n</html>\n", "it is no file of offers"),
        (FRAME.replace(b'"format":1', b'"format":2', 1), "a format that this opforge does not read"),
        (FRAME[:-10], "it is cut short"),
        (FRAME[: FRAME.index(b"\n") + 1], "it is cut short"),
        (FRAME.replace(b'{"item":', b'{"thing":', 1), "a line in it is no offer"),
        (FRAME.replace(b'"ci:', b'"c i:'), "a line in it is no offer"),
        (b'{"format":1,"items":[\n' + b"\n" * 300 + b"]}\n", "more than 256 offers"),
        (b"x" * (5 << 20), "at most 4194304 are read"),
    ],
)
def test_what_is_no_frame_is_refused(data, problem):
    with pytest.raises(ValueError, match=problem):
        offers.read_frame(data)


def test_ten_thousand_offers_are_not_parsed():
    line = b'{"item":{},"signatures":[]},\n'
    with pytest.raises(ValueError, match="more than 256 offers"):
        offers.read_frame(b'{"format":1,"items":[\n' + line * 10_000 + b"]}\n")


def test_too_many_signatures_are_refused():
    line = b'{"item":{},"signatures":[' + b",".join([f'"{SIGNATURE}"'.encode()] * 9) + b"]}\n"
    with pytest.raises(ValueError, match="more than 8 signatures"):
        offers.read_frame(b'{"format":1,"items":[\n' + line + b"]}\n")


def test_offers_that_older_opforges_have_published_are_read():
    """A file of format 1, signed by the first key of RFC 8032. Files of later formats are added; none goes."""
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    with open(os.path.join(os.path.dirname(nodes.__file__), "offers_1.json"), "rb") as file:
        (item,) = offers.read_frame(file.read())
    assert signing.is_signed(item.data, item.signatures[0], signing.Named("ci", public))
    assert offers.parse(item.data, DESCRIPTION) == offers.Offer(RECORD, BLOB)


def test_the_oldest_opforge_that_reads_an_offer_is_not_newer_than_this_one():
    assert version_of(offers.OLDEST_OPFORGE) <= version_of(opforge.__version__)
