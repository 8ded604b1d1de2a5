"""An op with an entry that was looked up."""

from __future__ import annotations

import pytest
from support.store.fake_lookups import LookedUpOp


@pytest.fixture
def op(tmp_path, monkeypatch):
    """An op that has been published and looked up once, so that it is remembered."""
    op = LookedUpOp(tmp_path, monkeypatch)
    op.entry_key = op.publish()
    assert op.find() == (op.entry_key, True), "the first look-up makes a plan"
    return op
