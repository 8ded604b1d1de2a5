"""A remembered look-up with any content is never an exception, and never leads to another library."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.store import remembered
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
def remembered_op(tmp_path_factory):
    """An op with an entry and what was remembered; `remembered_path` is its path, `remembered` its content."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("remembered")
        patch.setenv("OPFORGE_CACHE_DIR", str(folder / "store"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "caches"))
        op = LookedUpOp(folder, patch)
        op.entry_key = op.publish()
        op.find()
        (op.remembered_path,) = op.remembered_paths()
        op.remembered = remembered.read(op.remembered_path)
        yield op


@pytest.mark.parametrize("value", [2**70, "\0", [], -1])
def test_a_wrong_path_of_the_pointer_is_ignored(remembered_op, value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(remembered_op.folder / "store"))
        patch.setenv("XDG_CACHE_HOME", str(remembered_op.folder / "caches"))
        patch.setenv("PATH", f"{remembered_op.early}:{remembered_op.bin}:/usr/bin:/bin")
        remembered.write(remembered_op.remembered_path, replaced(remembered_op.remembered, ("value", "pointer"), value))
        assert remembered_op.find()[0] == remembered_op.entry_key


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_memory_is_never_an_exception_and_never_leads_to_another_library(remembered_op, data):
    path = data.draw(st.sampled_from(list(paths_in(remembered_op.remembered))))
    new = data.draw(JSON | st.sampled_from(["", ".", "..", "../entries", "/", 2**70, -1, [], {}, 1e400]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(remembered_op.folder / "store"))
        patch.setenv("XDG_CACHE_HOME", str(remembered_op.folder / "caches"))
        patch.setenv("PATH", f"{remembered_op.early}:{remembered_op.bin}:/usr/bin:/bin")
        changed = replaced(remembered_op.remembered, path, new)
        remembered.write(remembered_op.remembered_path, changed, is_sealed=data.draw(st.booleans()))
        assert remembered_op.find()[0] == remembered_op.entry_key
        assert os.path.isdir(remembered_op.folder / "store" / "v2" / "entries" / remembered_op.entry_key)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '"text"', "[" * 100_000, "\0\xff", "1e400"])
def test_a_memory_that_cannot_be_read_makes_the_look_up_plan_again(op, text):
    (remembered_path,) = op.remembered_paths()
    remembered_path.write_text(text)
    assert op.find() == (op.entry_key, True)
    assert op.find() == (op.entry_key, False)


def test_a_wrong_digest_in_the_memory_does_not_quarantine_the_entry(op):
    (remembered_path,) = op.remembered_paths()
    fields = remembered.read(remembered_path)
    remembered.write(remembered_path, replaced(fields, ("value", "record", "sha256"), "0" * 64))
    assert op.find() == (op.entry_key, True)
    assert op.find() == (op.entry_key, False), "it is remembered again"
    assert not (op.folder / "store" / "v2" / "quarantine").exists()


@given(result=st.sampled_from(["", ".", "..", "/", "../..", "x/../../y"]) | st.text(max_size=5))
@example(result="")
@example(result="..")
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_memory_cannot_lead_out_of_the_entries_folder(remembered_op, result):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(remembered_op.folder / "store"))
        patch.setenv("XDG_CACHE_HOME", str(remembered_op.folder / "caches"))
        patch.setenv("PATH", f"{remembered_op.early}:{remembered_op.bin}:/usr/bin:/bin")
        remembered.write(remembered_op.remembered_path, replaced(remembered_op.remembered, ("value", "key"), result))
        assert remembered_op.find()[0] == remembered_op.entry_key
