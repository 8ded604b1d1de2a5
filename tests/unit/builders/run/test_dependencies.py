"""The files that a build read, as depfiles list them."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import text_files

from opforge.builders.run.dependencies import parse_depfile


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.o: a.cpp a.h\n", ["a.cpp", "a.h"]),
        ("a.o: a.cpp \\\n  b/c.h \\\n  d.h\n", ["a.cpp", "b/c.h", "d.h"]),
        ("a.o: with\\ space.h x.h\n", ["with space.h", "x.h"]),
        ("a.o: \\#hash.h $$dollar.h\n", ["#hash.h", "$dollar.h"]),
        ("a.o:\n", []),
        ("", []),
        ("a.o: C\\:odd.h\n", ["C:odd.h"]),
        ("my\\ op.o: a.cpp\n", ["a.cpp"]),
        ("a.o: caf\udce9.h\n", ["caf\udce9.h"]),
    ],
)
def test_a_depfile_is_parsed_to_its_prerequisites(text, names):
    assert parse_depfile(text) == names


@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Z"], exclude_characters="\\:"), min_size=1)))
def test_names_that_make_escapes_are_restored(names):
    escaped = [name.replace("$", "$$").replace("#", "\\#") for name in names]
    assert parse_depfile("a.o: " + " \\\n ".join(escaped) + "\n") == names


AWKWARD = [
    "plain.h",
    "with space.h",
    "dollar$.h",
    "hash#.h",
    "tick'.h",
    "umläut.h",
    "percent%.h",
    "a;b&c.h",
    "colon:.h",
]


@pytest.mark.compile
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ (apt install g++)")
@pytest.mark.parametrize("name", AWKWARD)
def test_a_depfile_of_gxx_with_awkward_names_is_read(tmp_path, name):
    header = text_files.write(tmp_path, name, "")
    source = text_files.write(tmp_path, "a.cpp", f'#include "{name}"\n')
    subprocess.run(["g++", "-MD", "-MF", "a.d", "-c", source, "-o", "a.o"], cwd=tmp_path, check=True)
    assert header in parse_depfile((tmp_path / "a.d").read_text())
