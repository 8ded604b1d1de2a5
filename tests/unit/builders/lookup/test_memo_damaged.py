"""A memo with any content is never an exception, and never leads to another library."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.store.fake_lookups import LookedUpOp, replaced

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def paths_in(value, path=()):
    """Yields the path of every part of a JSON value: the keys and indices that lead to it."""
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        yield from paths_in(part, (*path, key))


@pytest.fixture(scope="module")
def memoized_op(tmp_path_factory):
    """An op with an entry and a memo; `memo_path` is the memo's path, `memo` its content."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("memoized")
        patch.setenv("OPFORGE_CACHE_DIR", str(folder / "store"))
        op = LookedUpOp(folder, patch)
        op.entry_key = op.publish()
        op.find()
        (op.memo_path,) = op.memo_paths()
        op.memo = json.loads(op.memo_path.read_text())
        yield op


@pytest.mark.parametrize("value", [2**70, "\0", [], -1])
def test_a_wrong_path_of_the_stat_record_is_ignored(memoized_op, value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(memoized_op.folder / "store"))
        patch.setenv("PATH", f"{memoized_op.early}:{memoized_op.bin}:/usr/bin:/bin")
        memoized_op.memo_path.write_text(json.dumps({**memoized_op.memo, "filed": value}))
        assert memoized_op.find()[0] == memoized_op.entry_key


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_memo_is_never_an_exception_and_never_leads_to_another_library(memoized_op, data):
    path = data.draw(st.sampled_from(list(paths_in(memoized_op.memo))))
    new = data.draw(JSON | st.sampled_from(["", ".", "..", "../entries", "/", 2**70, -1, [], {}, 1e400]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(memoized_op.folder / "store"))
        patch.setenv("PATH", f"{memoized_op.early}:{memoized_op.bin}:/usr/bin:/bin")
        memoized_op.memo_path.write_text(json.dumps(replaced(memoized_op.memo, path, new)))
        assert memoized_op.find()[0] == memoized_op.entry_key
        assert os.path.isdir(memoized_op.folder / "store" / "v1" / "entries" / memoized_op.entry_key)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '"text"', "[" * 100_000, "\0\xff", "1e400"])
def test_a_memo_that_cannot_be_read_makes_the_look_up_plan_again(op, text):
    (memo_path,) = op.memo_paths()
    memo_path.write_text(text)
    assert op.find() == (op.entry_key, True)
    assert op.find() == (op.entry_key, False)


def test_a_wrong_digest_in_a_memo_does_not_quarantine_the_entry(op):
    (memo_path,) = op.memo_paths()
    memo = json.loads(memo_path.read_text())
    memo_path.write_text(json.dumps(replaced(memo, ("ticket", "binary", "sha256"), "0" * 64)))
    assert op.find() == (op.entry_key, True)
    assert op.find() == (op.entry_key, False), "the memo is saved again"
    assert not (op.folder / "store" / "v1" / "quarantine").exists()


def test_a_wrong_size_in_a_stat_record_does_not_quarantine_the_entry(op):
    (memo_path,) = op.memo_paths()
    record_path = json.loads(memo_path.read_text())["filed"]
    memo_path.unlink()
    with open(record_path) as file:
        record = json.load(file)
    with open(record_path, "w") as file:
        json.dump(replaced(record, ("binary", "size"), 3), file)
    assert op.find()[0] == op.entry_key
    assert not (op.folder / "store" / "v1" / "quarantine").exists()
    with open(record_path) as file:
        assert json.load(file)["binary"] == record["binary"], "the stat record is correct again"


@given(result=st.sampled_from(["", ".", "..", "/", "../..", "x/../../y"]) | st.text(max_size=5))
@example(result="")
@example(result="..")
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_memo_cannot_lead_out_of_the_entries_folder(memoized_op, result):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(memoized_op.folder / "store"))
        patch.setenv("PATH", f"{memoized_op.early}:{memoized_op.bin}:/usr/bin:/bin")
        memoized_op.memo_path.write_text(json.dumps(replaced(memoized_op.memo, ("ticket", "result"), result)))
        assert memoized_op.find()[0] == memoized_op.entry_key
