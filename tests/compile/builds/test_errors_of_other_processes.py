"""A failure of another process is this one's too only if both have seen the same files."""

from __future__ import annotations

import os
import time

import pytest
from support import sample_ops, text_files

from opforge.builders.run import planned_build
from opforge.builders.run.reads import surroundings
from opforge.cache.records import failures
from opforge.errors import CompileError


@pytest.fixture
def state_of(monkeypatch):
    """Returns the state by which a process that begins to build now tells a failure of the same files."""

    class Stopped(Exception):
        """The build is not run."""

    def state(cls):
        states = []

        def stop(_store, _plan_key, _label, _look_again, state, _timeout):
            states.append(state)
            raise Stopped

        monkeypatch.setattr(planned_build, "alone", stop)
        with pytest.raises(Stopped):
            cls().build()
        return states[0]

    return state


def test_a_header_that_was_corrected_makes_another_state(tmp_path, state_of):
    cls = sample_ops.plain_op(tmp_path / "op", include_dirs=["../include"])
    text_files.write(tmp_path, "include/deep/other.h", "int a")
    text_files.write(tmp_path, "include/table.def", "1")
    text_files.write(tmp_path, "op/notes.txt", "")
    states = [state_of(cls), state_of(cls)]
    for name in ("op/value.h", "include/deep/other.h", "include/table.def", "op/plain.cpp"):
        text_files.write(tmp_path, name, "#define VALUE 22222\n")
        states.append(state_of(cls))
    text_files.write(tmp_path, "op/notes.txt", "no source")
    states.append(state_of(cls))
    assert states[0] == states[1] and len({*states}) == 5 and states[-1] == states[-2]


def test_of_many_files_the_nearest_are_compared_by_each_process(tmp_path, state_of, monkeypatch):
    """Ranks would repeat a build that fails, one after another, and a whole home folder would be walked."""
    cls = sample_ops.plain_op(tmp_path / "op")
    for number in range(8):
        text_files.write(tmp_path, f"op/data/{number}/notes.txt", "")
    text_files.write(tmp_path, "op/data/7/deep/far.h", "int a")
    listed, scandir = [], os.scandir
    monkeypatch.setattr(surroundings, "MAX_FILES", 11)
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or scandir(path))
    first = state_of(cls)
    assert not any(path.startswith(f"{tmp_path}/op/data/1") for path in listed)
    text_files.write(tmp_path, "op/data/7/deep/far.h", "int abc")
    assert state_of(cls) == first
    text_files.write(tmp_path, "op/value.h", "#define VALUE 22222\n")
    assert state_of(cls) != first


@pytest.mark.parametrize("change", ["", "common/value.h", "flags/other.h"])
def test_a_failure_is_not_anothers_once_a_header_far_from_the_sources_was_corrected(tmp_path, monkeypatch, change):
    """Neither folder is below that of the sources, nor in `include_dirs`."""
    for name in ("common/value.h", "flags/other.h"):
        text_files.write(tmp_path, name, "\n")
        os.utime(tmp_path / name, (1, 1))
    time.sleep(0.02)  # they were written before the build
    text = '#include "../common/value.h"\n#include <other.h>\nint broken = not_there;\n'
    cls = sample_ops.plain_op(tmp_path / "op", source=text, extra_compile_args=[f"-I{tmp_path}/flags"])
    kept, note = [], failures.note
    monkeypatch.setattr(failures, "note", lambda *noted: kept.append(noted) or note(*noted))
    with pytest.raises(CompileError):
        cls().build()
    ((layout, key, failure, read),) = kept
    if change:
        text_files.write(tmp_path, change, "static int not_there;\n")
    assert (failures.after(layout, key, "", failure.state) is None) == bool(change)
    assert not any("/staging/" in path for path in read.paths)
