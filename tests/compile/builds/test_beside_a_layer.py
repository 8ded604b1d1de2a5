"""A layer of prebuilt ops on any machine: used without a compiler, and never for a source other than its own."""

from __future__ import annotations

import os
import re

from support import sample_ops, text_files

from opforge.cache.records.entry import with_record_key


def prebuilt_in_a_layer(cls, tmp_path, monkeypatch):
    """Builds the op into a layer, which is before an empty store from then on; returns the layer's entry."""
    layer = str(tmp_path / "layer")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", layer)
    entry = cls().build()
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", layer)
    return entry


def test_a_layer_is_used_without_a_compiler(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder, value=3)
    prebuilt_in_a_layer(cls, tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    entry, layer = cls().build(), str(tmp_path / "layer")
    assert entry.origin == layer and entry.library.startswith(layer)
    assert cls().load().value() == 3
    assert not (tmp_path / "mine").exists(), "nothing was written"


def test_a_layers_entry_that_does_not_fit_says_why_and_the_op_is_built(folder, tmp_path, monkeypatch):
    import json

    cls = sample_ops.plain_op(folder)
    prebuilt = prebuilt_in_a_layer(cls, tmp_path, monkeypatch)
    with open(os.path.join(prebuilt.folder, "record.json")) as file:
        record = json.load(file)
    record["floors"]["GLIBC"] = "9.9"
    text_files.write(prebuilt.folder, "record.json", json.dumps(with_record_key(record)))
    builder = cls()
    assert builder.build().origin == "built"
    first = builder.trace[0]
    assert first.where == prebuilt.folder
    assert re.fullmatch(r"it needs glibc 9.9, and this system has 2\.\d+", first.reason)


def test_an_edited_source_is_not_answered_by_a_layer(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder, value=3)
    prebuilt_in_a_layer(cls, tmp_path, monkeypatch)
    text_files.write(folder, "plain.cpp", f"{sample_ops.EXPORT} int value() {{ return 4; }}\n")
    builder = cls()
    assert builder.load().value() == 4
    assert builder.trace[0].reason == "holds no entry for this description"


def test_an_edited_source_is_seen_by_a_builder_that_a_layer_has_served(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder, value=3)
    prebuilt_in_a_layer(cls, tmp_path, monkeypatch)
    builder = cls()
    assert builder.load().value() == 3
    text_files.write(folder, "plain.cpp", f"{sample_ops.EXPORT} int value() {{ return 4; }}\n")
    assert builder.load().value() == 4
