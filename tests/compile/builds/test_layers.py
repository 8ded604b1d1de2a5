"""Layers of prebuilt ops with a real compiler: when one answers, and when and why it does not."""

from __future__ import annotations

import os

import pytest
from support import sample_ops, text_files

from opforge.builders.lookup.finder import find
from opforge.builders.spec import targets
from opforge.builders.spec.description import describe
from opforge.cache.transfer import layer


@pytest.fixture
def prebuilt(folder, tmp_path, monkeypatch):
    """Builds an op for a target and adds it to the layer, which is in use from then on; the user's store is empty."""

    def add(cls, target="cpu:x86-64"):
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "builder"))
        monkeypatch.delenv("OPFORGE_CACHE_LAYERS", raising=False)
        builder = cls(target)
        added = layer.add(str(tmp_path / "layer"), builder.build(), describe(builder.spec()).key)
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "mine"))
        monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(tmp_path / "layer"))
        return added

    return add


pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="speaks of the levels of x86-64")


def test_a_lower_level_answers_where_the_exact_one_is_missing_and_never_when_it_was_asked_for(
    folder, tmp_path, prebuilt, monkeypatch
):
    monkeypatch.setattr(targets, "cpu_level", lambda: "x86-64-v3")
    cls = sample_ops.plain_op(folder, value=3)
    low = prebuilt(cls, "cpu:x86-64")
    assert find(cls("cpu:x86-64-v3").spec()).entry.library == low.library
    assert find(cls("cpu:x86-64-v3").spec(), exact=True).entry is None
    assert cls("cpu:x86-64-v3").load().value() == 3
    exact = cls("cpu:x86-64-v3").build(exact=True)
    assert exact.origin == "built" and exact.binary["target"] == "cpu:x86-64-v3"
    assert find(cls("cpu:x86-64-v3").spec(), exact=True).entry.origin == "cache"
    high = prebuilt(cls, "cpu:x86-64-v3")
    assert find(cls("cpu:x86-64-v3").spec()).entry.library == high.library, "the highest that runs here"
    assert find(cls("cpu:x86-64-v2").spec()).entry.library == low.library, "a higher one never answers"


def test_a_layer_whose_header_differs_from_the_tree_is_not_used_and_says_so(folder, tmp_path, prebuilt):
    cls = sample_ops.plain_op(folder, value=3)
    added = prebuilt(cls, None)
    assert cls().build().origin == str(tmp_path / "layer")
    sample_ops.set_value(folder, 4)
    builder = cls()
    assert builder.load().value() == 4
    (seen,) = [one for one in builder.trace if one.where == added.folder]
    assert seen.reason == f"{folder}/value.h has changed"
    sample_ops.set_value(folder, 3)
    assert cls().build().library == added.library


def test_an_edited_header_is_seen_by_a_builder_that_a_layer_has_served(folder, prebuilt):
    cls = sample_ops.plain_op(folder, value=3)
    prebuilt(cls, None)
    builder = cls()
    first = builder.load()
    assert first.value() == 3 and builder.load() is first
    sample_ops.set_value(folder, 4)
    assert builder.load().value() == 4
    sample_ops.set_value(folder, 3)
    assert builder.load() is first


def test_a_damaged_layer_is_passed_over_and_left_as_it_is(folder, prebuilt):
    cls = sample_ops.plain_op(folder, value=3)
    added = prebuilt(cls, None)
    os.chmod(added.library, 0o700)
    os.truncate(added.library, 4096)
    os.chmod(added.library, 0o555)
    builder = cls()
    assert builder.load().value() == 3
    assert any(one.where == added.folder and "4096 bytes instead of" in one.reason for one in builder.trace)
    assert os.path.exists(added.library)


def test_a_layer_serves_a_moved_tree_and_writes_nothing(folder, tmp_path, prebuilt):
    cls = sample_ops.plain_op(folder, value=3)
    prebuilt(cls, None)
    before = text_files.tree(tmp_path / "layer")
    os.rename(folder, tmp_path / "moved")
    moved = sample_ops.builder_class(tmp_path / "moved", "plain", abi="c")
    assert moved().build().origin == str(tmp_path / "layer")
    assert text_files.tree(tmp_path / "layer") == before and not (tmp_path / "mine").exists()
