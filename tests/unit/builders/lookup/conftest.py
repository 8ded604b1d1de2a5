"""An op that has been looked up once, the long way."""

from __future__ import annotations

import pytest
from support.store.fake_lookups import LookedUpOp


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = LookedUpOp(tmp_path, monkeypatch)
    made.result = made.publish()
    assert made.find() == (made.result, True), "the first look-up goes the long way"
    return made
