"""A load never fails because of a tuning result, own or fetched: it warns, and the defaults are used."""

from __future__ import annotations

import ctypes
import json
import logging
import os

import pytest
from support import tuned_ops
from support.tuned_ops import FLOAT32, row

from opforge.builders.lookup import tuned
from opforge.builders.lookup import tuning_results as records
from opforge.builders.lookup.tuning_results import MAX_SIZE, NEAREST
from opforge.cache.current_store import current_store
from opforge.fast_path import library
from opforge.remote import publish, remotes, statements, topics
from opforge.remote.signatures import keys, signing
from opforge.remote.statements import Statement
from opforge.remote.tuned_statements import TUNED

pytestmark = pytest.mark.compile
HUGE = 10**400


@pytest.fixture(scope="module")
def layer_with_op(tmp_path_factory, nothing_of_the_machines):
    return tuned_ops.layer_with_op(tmp_path_factory.mktemp("op"))


@pytest.fixture
def op_class(layer_with_op, monkeypatch):
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", layer_with_op[0])
    return layer_with_op[1]


@pytest.fixture
def entry(nodes, op_class, monkeypatch):
    """The entry of an op on a machine that may fetch results."""
    tuned.reset()
    nodes.trust(nodes.public, scopes=("op:*", "tuned:*"))
    nodes.enter("a")
    with monkeypatch.context() as patch:
        patch.delenv("OPFORGE_REMOTES")
        return op_class().load().__entry__


def results(entry):
    """Returns results that are wrong in one thing each, as others could write or sign them."""
    good = tuned_ops.result(entry, row({"block": 512}))
    for size in (1 << 59, (1 << 59) + 1, 1 << 60, (1 << 62) - 1, 1 << 62, 1 << 63, HUGE, 0, -1, 1.5, True, None, "1"):
        yield {**good, "rows": [row({"block": 512}, size)]}
    for value in (1 << 62, 1 << 63, -(1 << 63), HUGE, 512.0, "512", None, True):
        yield {**good, "rows": [row({"block": value})]}
    for ratio in (0, -1, 1e308, "0.5", None, True):
        yield {**good, "rows": [row({"block": 512}, ratio=ratio, low=ratio, high=ratio)]}
    for name in ("", "x" * 65, "block\n", "none"):
        yield {**good, "rows": [row({name: 1})]}
    for field in good:
        yield {key: value for key, value in good.items() if key != field}
        for value in (None, HUGE, "\x1b[2J", [[]]):
            yield {**good, field: value}
    for field in good["rows"][0]:
        for value in (None, HUGE, "\x1b[2J"):
            yield {**good, "rows": [{**good["rows"][0], field: value}]}


def applied(op_class, entry):
    """Returns what the loaded op takes after another look at the results, as each load does."""
    tuned.reset()
    tuned.apply(op_class().spec(), entry)
    return op_class().load().block(FLOAT32, 1000)


def test_one_that_is_here(entry, op_class, monkeypatch, caplog):
    monkeypatch.delenv("OPFORGE_REMOTES")
    root, count = current_store().layout.root, 0
    for count, value in enumerate(results(entry), 1):  # noqa: B007 - how many there are is checked
        tuned_ops.write_raw(root, entry, json.dumps(value).encode())
        with caplog.at_level(logging.WARNING, "opforge"):
            caplog.clear()
            assert applied(op_class, entry) in (256, 512)
        assert all(text.isprintable() for text in caplog.messages)
    assert count > 80


def test_one_that_a_trusted_key_has_signed(entry, op_class, nodes, monkeypatch, caplog):
    secret = keys.read("ci")
    for number, value in enumerate(results(entry)):
        data = Statement("tuned", entry.record["description"], (), value).data()
        signed = statements.Signed(data, (signing.sign(data, secret),))
        name = TUNED.topic_file(entry.record["description"])
        nodes.store.delete(name)
        nodes.store.put_if_absent(name, topics.frame([signed]))
        path = tuned.wanted(entry.record["op"], entry).path(current_store().layout.root, ".fetched")
        if os.path.exists(path):
            os.unlink(path)
        monkeypatch.setenv("XDG_CACHE_HOME", str(nodes.folder / f"memory-{number}"))
        with caplog.at_level(logging.WARNING, "opforge"):
            caplog.clear()
            assert applied(op_class, entry) in (256, 512)
        assert all(text.isprintable() for text in caplog.messages)


def test_the_largest_size_that_is_read_can_be_set(entry, op_class):
    low, high = tuned.interval(MAX_SIZE, ())
    assert 0 < low < high == MAX_SIZE * NEAREST < 1 << 63
    tuned_ops.store(current_store().layout.root, tuned_ops.result(entry, row({"block": 512}, MAX_SIZE)))
    tuned.reset()
    assert op_class().load().block(FLOAT32, ctypes.c_long(MAX_SIZE)) == 512


def test_a_number_that_a_library_cannot_hold_changes_nothing(entry):
    problem = library.set_tuned(entry, [[FLOAT32, 1, 1 << 63, {"block": 512}]])
    assert problem == f"it sets {1 << 63}, which has more than 64 bits"


def test_what_is_signed_is_bounded_as_what_is_read(entry):
    value = tuned_ops.result(entry, row({"block": 512}, MAX_SIZE + 1))
    with pytest.raises(ValueError, match="size"):
        TUNED.of(value)
    with pytest.raises(ValueError, match="size"):
        records.write(current_store().layout.root, value)


def test_without_cryptography_what_was_fetched_is_not_used(entry, op_class, nodes, monkeypatch, caplog):
    from opforge.errors import ExtraNotInstalledError

    value = tuned_ops.result(entry, row({"block": 512}))
    publish.push(nodes.store, remotes.parse(nodes.url), TUNED, TUNED.of(value), keys.signer("ci"))
    assert applied(op_class, entry) == 512
    nodes.trust(nodes.public, scopes=("tuned:*",))

    def missing():
        raise ExtraNotInstalledError("The signature of a remote's offer", "cryptography", "sign")

    monkeypatch.setattr(signing, "_ed25519", missing)
    assert applied(op_class, entry) == 256
    assert "cryptography" in caplog.text
