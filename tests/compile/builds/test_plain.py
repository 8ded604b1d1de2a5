"""Builds of plain C functions: what a build leaves, when the next look-up is a hit, and what a loaded op offers."""

from __future__ import annotations

import os
import re
import shutil

import pytest
from support import sample_ops

import opforge
from opforge.errors import BuilderError


def test_a_cold_build_then_a_hit(folder, own_store):
    cls = sample_ops.plain_op(folder, value=7)
    built, found = cls().build(), cls().build()
    assert (built.origin, found.origin) == ("built", "cache")
    assert built.library == found.library
    assert cls().load().value() == 7
    assert os.listdir(own_store / "v1" / "staging") == []


def test_the_library_has_its_key_in_its_name_and_cannot_be_written(folder):
    entry = sample_ops.plain_op(folder)().build()
    assert os.path.basename(entry.library) == f"plain-{entry.key[:16]}.so"
    assert os.stat(entry.library).st_mode & 0o777 == 0o500
    assert os.stat(entry.folder).st_mode & 0o077 == 0


def test_both_versions_can_be_called_in_one_process(folder):
    cls = sample_ops.plain_op(folder, value=1)
    builder = cls()
    first = builder.load()
    assert builder.load() is first
    sample_ops.set_value(folder, 2)
    second = builder.load()
    assert (first.value(), second.value()) == (1, 2)
    sample_ops.set_value(folder, 1)
    assert builder.load() is first


def test_a_moved_tree_is_a_hit_and_its_bytes_are_the_same(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder)
    first = cls().build()
    shutil.copytree(folder, tmp_path / "elsewhere" / "deeper")
    moved = sample_ops.plain_op(tmp_path / "elsewhere" / "deeper")
    second = moved().build()
    assert (second.origin, second.key) == ("cache", first.key)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "another store"))
    third = moved().build()
    assert (third.origin, third.key) == ("built", first.key)
    with open(first.library, "rb") as one, open(third.library, "rb") as other:
        assert one.read() == other.read()


def test_a_file_name_of_any_spelling_is_built(folder):
    name = "with space $dollar #hash.cpp"
    cls = sample_ops.plain_op(folder, sources=[name])
    os.rename(folder / "plain.cpp", folder / name)
    assert cls().load().value() == 1


def test_paranoia_finds_the_entry_by_its_contents(folder, monkeypatch):
    monkeypatch.setenv("OPFORGE_PARANOID", "1")
    cls = sample_ops.plain_op(folder)
    assert cls().build().origin == "built"
    assert cls().build().origin == "cache"


def test_force_builds_whatever_is_stored(folder):
    cls = sample_ops.plain_op(folder)
    first = cls().build()
    seen = []
    again = cls().build(on_progress=lambda *step: seen.append(step), force=True)
    assert seen, "the compiler ran"
    assert again.key == first.key


def test_progress_counts_the_steps(folder):
    seen = []
    sample_ops.plain_op(folder)().build(on_progress=lambda *step: seen.append(step))
    assert seen == [(1, 2, "compile plain.cpp"), (2, 2, "link plain")]


def test_plain_functions_need_no_attribute_and_two_versions_keep_their_state_apart(folder):
    state = """#include "value.h"
struct Inline { static inline int count = 0; };
template <typename T> struct Template { static int count; };
template <typename T> int Template<T>::count = 0;
extern "C" int step() { return VALUE; }
extern "C" int by_inline() { return Inline::count += step(); }
extern "C" int by_template() { return Template<int>::count += step(); }
"""
    builder = sample_ops.plain_op(folder, source=state, value=1)()
    first = builder.load()
    sample_ops.set_value(folder, 10)
    second = builder.load()
    for name in ("by_inline", "by_template"):
        old, new = getattr(first, name), getattr(second, name)
        assert [old(), new(), old(), new()] == [1, 10, 2, 20], name


def test_a_signature_gives_the_function_its_types(folder):
    import ctypes

    source = f"{sample_ops.EXPORT} double half(double x) {{ return x / 2; }}\n"
    cls = sample_ops.plain_op(folder, source=source, signatures={"half": (ctypes.c_double, [ctypes.c_double])})
    op = cls().load()
    assert op.half(3.0) == 1.5
    assert "half" in dir(op)
    with pytest.raises(AttributeError, match="the op 'plain' has no function 'whole'; it has: half"):
        op.whole


def test_other_signatures_give_another_object_and_leave_the_first(folder):
    import ctypes

    sample_ops.plain_op(folder, source=f"{sample_ops.EXPORT} double half(double x) {{ return x / 2; }}\n")
    path = folder / "plain.cpp"
    first = opforge.load("half", path, signatures={"half": (ctypes.c_double, [ctypes.c_double])})
    second = opforge.load("half", path, signatures={"half": (None, [ctypes.c_double])})
    assert (first.half(3.0), second.half(3.0), first.half(5.0)) == (1.5, None, 2.5)
    assert opforge.load("half", path, signatures={"half": (ctypes.c_double, [ctypes.c_double])}).half(3.0) == 1.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"abi": "c", "fakes": {"value": len}},
            "fakes with abi='c'. They are for ops of torch's, which plain functions are not",
        ),
        (
            {"abi": "torch", "signatures": {"value": (None, [])}},
            "signatures with abi='torch'. They are for abi='c' alone",
        ),
    ],
)
def test_what_an_abi_has_no_use_for_is_refused(folder, given, message):
    cls = sample_ops.plain_op(folder, **{name: value for name, value in given.items() if name != "abi"})
    cls.abi = given["abi"]
    with pytest.raises(BuilderError, match=re.escape(f"TestedBuilder: {message}")):
        cls().load()
