"""A failure of another process is this one's too only if both have seen the same files."""

from __future__ import annotations

import os

import pytest
from support import sample_ops, text_files

from opforge.builders.run import pipeline


@pytest.fixture
def state_of(monkeypatch):
    """Returns the state by which a process that begins to build now tells a failure of the same files."""

    class Stopped(Exception):
        """The build is not run."""

    def state(cls):
        states = []

        def stop(*_arguments, state, **_others):
            states.append(state)
            raise Stopped

        monkeypatch.setattr(pipeline, "build_once", stop)
        with pytest.raises(Stopped):
            cls().build()
        return states[0]

    return state


def test_a_header_that_was_corrected_makes_another_state(tmp_path, state_of):
    cls = sample_ops.plain_op(tmp_path / "op", include_dirs=["../include"])
    text_files.write(tmp_path, "include/deep/other.h", "int a")
    text_files.write(tmp_path, "op/notes.txt", "")
    states = [state_of(cls), state_of(cls)]
    for name in ("op/value.h", "include/deep/other.h", "op/plain.cpp"):
        text_files.write(tmp_path, name, "#define VALUE 22222\n")
        states.append(state_of(cls))
    text_files.write(tmp_path, "op/notes.txt", "no source")
    states.append(state_of(cls))
    assert states[0] == states[1] and len({*states}) == 4 and states[-1] == states[-2]


def test_with_too_many_files_each_process_builds_for_itself(tmp_path, state_of, monkeypatch):
    cls = sample_ops.plain_op(tmp_path / "op")
    assert os.path.exists(tmp_path / "op" / "value.h")
    monkeypatch.setattr(pipeline, "MAX_FILES", 1)
    assert state_of(cls) != state_of(cls)
