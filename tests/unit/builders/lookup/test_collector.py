"""The pause of Python's garbage collector while a layer is searched."""

from __future__ import annotations

import gc

import pytest
from support import sample_ops

from opforge import trust
from opforge.builders.lookup import memory
from opforge.builders.spec.description import description_key
from opforge.cache.transfer import layer


def test_it_is_left_as_it_was():
    gc.disable()
    try:
        with memory.collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(KeyError), memory.collector_paused():
        raise KeyError
    assert gc.isenabled()


def test_nothing_is_collected_while_a_layer_is_searched(tmp_path, monkeypatch):
    cls = sample_ops.plain_op(tmp_path / "src")
    builder = cls()
    layer.add(str(tmp_path / "layer"), builder.build(), description_key(builder.spec()), trust.trusted_ids())
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(tmp_path / "layer"))
    states = list[bool]()
    real = memory.remember
    monkeypatch.setattr(memory, "remember", lambda *arguments: (states.append(gc.isenabled()), real(*arguments)))
    assert cls().build().origin == str(tmp_path / "layer")
    assert states == [False] and gc.isenabled()
