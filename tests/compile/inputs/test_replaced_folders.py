"""A folder in the middle of a spelled path, `a/b/../c.h`: another file is read if a link takes its place."""

from __future__ import annotations

import os
import time

import pytest
from support import sample_ops, text_files

from opforge.foundation.remembered_values import RACY_NS


@pytest.fixture
def spelled(tmp_path):
    """An op that includes `first/inner/../value.h`, with a second folder that has another one."""
    folder = tmp_path / "op"
    text_files.write(folder, "first/inner/empty.h", "")
    text_files.write(folder, "first/value.h", "#define VALUE 1\n")
    text_files.write(folder, "second/value.h", "#define VALUE 2\n")
    source = sample_ops.PLAIN_SOURCE.replace("value.h", "first/inner/../value.h")
    text_files.write(folder, "spelled.cpp", source)
    time.sleep(RACY_NS / 1e9 + 0.1)  # what was made just before is not remembered
    return folder


def value(folder):
    return sample_ops.builder_class(folder, "spelled", abi="c")().load().value()


def test_a_link_in_the_place_of_a_folder_leads_to_another_header(spelled):
    assert [value(spelled), value(spelled)] == [1, 1]
    times = os.stat(spelled / "first" / "value.h")
    os.utime(spelled / "second" / "value.h", ns=(times.st_atime_ns, times.st_mtime_ns))
    os.rename(spelled / "first" / "inner", spelled / "second" / "inner")
    os.symlink(spelled / "second" / "inner", spelled / "first" / "inner")
    assert value(spelled) == 2
