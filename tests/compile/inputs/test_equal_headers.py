"""Headers with equal content and times, of which gcc reads one, takes it for all, and lists no other."""

from __future__ import annotations

import os
import shutil
import time

import pytest
from support import sample_ops, text_files

pytestmark = pytest.mark.compile
ONCE = "#pragma once\n#ifndef VALUE\n#define VALUE 1\n#endif\n"
GUARDED = "#ifndef VALUE\n#define VALUE 1\n#endif\n"
CHANGED = "#undef VALUE\n#define VALUE 2\n"


@pytest.mark.parametrize(
    ("compiler", "paranoid", "header", "second"),
    [
        ("g++", "", ONCE, '#include "second/part.h"'),
        ("g++", "1", ONCE, '#include "second/part.h"'),
        ("g++", "", GUARDED, '#import "second/part.h"'),
        ("g++", "", ONCE, "#include <part.h>"),
        ("g++", "", ONCE, '#define SECOND "second/part.h"\n#include SECOND'),
        ("g++", "", ONCE, "#define OF(x) <x.h>\n#include OF(part)"),
        ("g++", "", ONCE, "#define TEXT(x) #x\n#define OF(x) TEXT(x/part.h)\n#include OF(second)"),
        ("clang++", "", ONCE, '#include "second/part.h"'),
    ],
)
def test_a_change_of_the_second_of_two_equal_headers_is_built(
    tmp_path, monkeypatch, compiler, paranoid, header, second
):
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("OPFORGE_PARANOID", paranoid)
    source = f'#include "first/part.h"\n{second}\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n'
    text_files.write(tmp_path, "plain.cpp", source)
    changed_at = time.time_ns() // 10**9 - 100
    for folder in ("first", "second"):
        path = text_files.write(tmp_path, f"{folder}/part.h", header)
        os.utime(path, (changed_at, changed_at))
    flags = ["-Wno-deprecated", "-Wno-import"]
    cls = sample_ops.builder_class(tmp_path, "plain", abi="c", include_dirs=["second"], extra_compile_args=flags)
    assert cls().build().origin == "built" and cls().load().value() == 1
    assert cls().build().origin == "cache"
    text_files.write(tmp_path, "second/part.h", header + CHANGED)
    assert cls().load().value() == 2


def test_a_new_time_alone_of_one_of_two_equal_headers_builds_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "g++")
    text_files.write(
        tmp_path, "plain.cpp", f'#include "a.h"\n#include "b.h"\n{sample_ops.EXPORT} int value() {{ return N; }}\n'
    )
    for name in ("a.h", "b.h"):
        path = text_files.write(tmp_path, name, "#pragma once\nenum { N = __COUNTER__ };\n")
        os.utime(path, (10**9, 10**9))
    cls = sample_ops.builder_class(tmp_path, "plain", abi="c")
    assert cls().build().origin == "built"
    os.utime(path, (10**9 + 1, 10**9 + 1))
    assert cls().build().origin == "cache", "docs/cache.md says so: gcc would read both now"
