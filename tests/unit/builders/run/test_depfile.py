"""The files that a build read, as dependency files list them: no two programs quote names alike."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import text_files

from opforge.builders.run.reads.depfile import parse_depfile, read_depfile

COMPILERS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"needs {name}"))
    for name in ("g++", "clang++")
]
LINKERS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(f"ld.{name}") is None, reason=f"needs ld.{name}"))
    for name in ("bfd", "gold", "lld", "mold")
]
WHITE_SPACE = ["\u00a0", "\u3000", "\u2028", "\u0085", "\x0c", "\x0b", "\t", " "]
NAMES = [
    *(f"white{space}space.h" for space in WHITE_SPACE),
    "doubled\\\\backslash.h",
    "backslash\\:colon.h",
    "colon:.h",
    "backslash\\ space.h",
    "backslashes\\\\ space.h",
    "backslash\\\ttab.h",
    "two  spaces.h",
    "hash#.h",
    "backslash\\#hash.h",
    "dollars$$.h",
    "tick'.h",
    "umläut.h",
    "percent%.h",
    "a;b&c.h",
    "a: b.h",
    "*.h",
]
ANY_NAME = st.text(
    st.sampled_from([*WHITE_SPACE, "\\", ":", "#", "$", "a", "b", "'", "%"]), min_size=1, max_size=12
).filter(lambda name: "//" not in name)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.o: a.cpp a.h\n", ["a.cpp", "a.h"]),
        ("a.o: a.cpp \\\n  b/c.h \\\n  d.h\n", ["a.cpp", "b/c.h", "d.h"]),
        ("a.o : a.cpp \\\n    d.h\n", ["a.cpp", "d.h"]),
        ("a.o: with\\ space.h x.h\n", ["with space.h", "x.h"]),
        ("a.o: \\#hash.h $$dollar.h\n", ["#hash.h", "$dollar.h"]),
        ("a.o:\n", []),
        ("", []),
        ("my\\ op.o: a.cpp\n", ["a.cpp"]),
        ("c:d.o: a.cpp\n", ["a.cpp"]),
        ("c\\:d.o: a.cpp\n", ["a.cpp"]),
        ("a.o: caf\udce9.h\n", ["caf\udce9.h"]),
        ("a.o: a.cpp b.h\n\nb.h:\n", ["b.h", "a.cpp"]),
        ("a.o: a.cpp line\nbreak.h\n", ["a.cpp", "line", "break.h"]),
    ],
)
def test_names_without_files_are_those_of_gccs_quoting(text, names):
    assert parse_depfile(os.fsencode(text), b"/no/such/folder") == [os.fsencode(name) for name in names]


def test_every_spelling_that_is_a_file_counts(tmp_path):
    """gcc 12 does not escape a colon, and others do: `a\\:b` stands for either of two files."""
    for name in ("a:b", "a\\:b"):
        text_files.write(tmp_path, name, "")
    assert set(parse_depfile(b"x.o: a\\:b\n", os.fsencode(tmp_path))) == {b"a:b", b"a\\:b"}


def test_a_slash_may_stand_for_a_backslash(tmp_path):
    """clang and lld write it so. The tests of their own lists are skipped on a machine without them."""
    (tmp_path / "in").mkdir()
    text_files.write(tmp_path / "in", "back\\slash.h", "")
    assert parse_depfile(b"x.o: in/back/slash.h\n", os.fsencode(tmp_path)) == [b"in/back\\slash.h"]


def test_the_last_name_of_a_list_may_have_a_space_and_end_in_a_backslash(tmp_path):
    text_files.write(tmp_path, "a b\\", "")
    path = text_files.write(tmp_path, "a.d", "a.o: x.h a\\ b\\\n")
    assert read_depfile(str(path), str(tmp_path)) == ["x.h", "a b\\"]


def files_listed(folder, depfile):
    """Returns the files in `folder` that a dependency file lists. Each name in it must be that of a file."""
    paths = [os.path.join(folder, name) for name in read_depfile(os.path.join(folder, depfile), str(folder))]
    assert [path for path in paths if not os.path.isfile(path)] == []
    return {os.path.basename(path) for path in paths if os.path.normpath(path).startswith(f"{folder}{os.sep}")}


def compile_with(compiler, folder, names):
    """Compiles a source that includes the files; returns its dependency file's own files."""
    for name in names:
        text_files.write(folder, name, "")
    text_files.write(folder, "a.cpp", "".join(f'#include "{name}"\n' for name in names))
    subprocess.run([compiler, "-w", "-MD", "-MF", "a.d", "-c", "a.cpp", "-o", "a.o"], cwd=folder, check=True)
    return files_listed(folder, "a.d") - {"a.cpp"}


@pytest.mark.compile
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_a_compiler_lists_is_read(tmp_path, compiler, name):
    assert compile_with(compiler, tmp_path, [name]) == {name}


@pytest.mark.compile
@pytest.mark.parametrize("compiler", COMPILERS)
def test_all_names_at_once_are_read(tmp_path, compiler):
    assert compile_with(compiler, tmp_path, NAMES) == set(NAMES)


@pytest.mark.compile
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ (apt install g++)")
def test_a_name_that_ends_in_a_backslash_does_not_swallow_the_next_one(tmp_path):
    names = ["ends\\", "ends too\\", "with space.h", "next.h"]
    assert compile_with("g++", tmp_path, names) == set(names)


@pytest.mark.compile
@pytest.mark.parametrize("compiler", COMPILERS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(ANY_NAME, min_size=1, max_size=6, unique=True))
def test_any_names_are_read_back(tmp_path_factory, compiler, names):
    folder = tmp_path_factory.mktemp("names")
    names = [f"h{number}{name}h" for number, name in enumerate(names)]
    assert compile_with(compiler, folder, names) == set(names)


@pytest.mark.compile
@pytest.mark.parametrize("linker", LINKERS)
@pytest.mark.parametrize("name", ["with space.o", "tab\t.o", "back\\ slash.o", "hash#.o", "dollar$.o", "nbsp\u00a0.o"])
def test_a_name_that_a_linker_lists_is_read(tmp_path, linker, name):
    text_files.write(tmp_path, "a.c", "int a;\n")
    subprocess.run(["gcc", "-fPIC", "-c", "a.c", "-o", name], cwd=tmp_path, check=True)
    flags = ["-shared", f"-fuse-ld={linker}", "-Wl,--dependency-file=l.d", "-o", "l.so"]
    subprocess.run(["gcc", name, *flags], cwd=tmp_path, check=True)
    assert name in files_listed(tmp_path, "l.d")


@pytest.mark.parametrize("content", ["", "a.o: a.cpp b", "a.o: a.cpp \\\n", "a.o: a.cpp \\\n b.h \\\n", "a.o"])
def test_a_list_that_is_cut_short_is_refused(tmp_path, content):
    """GNU as only warns if the disk is full: with the rest of the list, a change of b.h would not be seen."""
    path = text_files.write(tmp_path, "a.d", content)
    with pytest.raises(OSError, match="the list of the files that a compiler read is cut short"):
        read_depfile(str(path), str(tmp_path))
