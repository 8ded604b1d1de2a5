"""Headers that are written through a memory mapping, whose later writes Linux may give no new time."""

from __future__ import annotations

import mmap
import os
import time

import pytest
from support import sample_ops, text_files

pytestmark = pytest.mark.compile


def test_a_second_write_is_noticed_by_its_time_or_on_request(tmp_path, monkeypatch):
    text_files.write(tmp_path, "plain.cpp", f'#include "part.h"\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n')
    path = text_files.write(tmp_path, "part.h", "#define VALUE 1\n")
    cls = sample_ops.builder_class(tmp_path, "plain", abi="c")
    assert cls().load().value() == 1
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[14:15] = b"2"
        memory.flush()
        os.utime(path)  # some file systems give the first write no new time either
        assert cls().load().value() == 2
        time.sleep(2.1)  # a file that was written in the last two seconds is hashed anyway
        assert cls().build().origin == "cache"
        before = os.stat(path).st_mtime_ns
        memory[14:15] = b"3"
        assert cls().load().value() == (2 if os.stat(path).st_mtime_ns == before else 3)
        monkeypatch.setenv("OPFORGE_PARANOID", "1")
        assert cls().load().value() == 3
