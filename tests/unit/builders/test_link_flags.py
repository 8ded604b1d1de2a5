"""Flags of an op that say what the linker strips: opforge adds no later one, which would undo them."""

from __future__ import annotations

import pytest

from opforge.builders.planner import _strips


@pytest.mark.parametrize("flag", ["-s", "-Wl,-s", "-Wl,--strip-all", "-Wl,-S", "-Wl,--retain-symbols-file=/x"])
def test_an_op_that_strips_is_left_alone(flag):
    assert _strips(["-lm", flag])


@pytest.mark.parametrize("flag", ["-lm", "-shared", "-Wl,-soname,s", "-Wl,--no-as-needed", "-static-libgcc"])
def test_other_flags_strip_nothing(flag):
    assert not _strips([flag])
