"""Builds of plain C functions: what a build writes, when the next look-up is a hit, and what a loaded op offers."""

from __future__ import annotations

import os
import platform
import re
import shutil

import pytest
from support import sample_ops

import opforge
from opforge.errors import BuilderError


def test_a_second_build_is_a_hit(folder, own_store):
    cls = sample_ops.plain_op(folder, value=7)
    first, second = cls().build(), cls().build()
    assert (first.origin, second.origin) == ("built", "cache")
    assert first.library == second.library
    assert cls().load().value() == 7
    assert os.listdir(own_store / "v2" / "staging") == []


def test_a_library_has_its_key_in_its_name_and_is_read_only(folder):
    entry = sample_ops.plain_op(folder)().build()
    assert os.path.basename(entry.library) == f"plain-{entry.key[:16]}.so"
    assert os.stat(entry.library).st_mode & 0o777 == 0o500
    assert os.stat(entry.folder).st_mode & 0o077 == 0


def test_two_versions_can_be_called_in_one_process(folder):
    cls = sample_ops.plain_op(folder, value=1)
    builder = cls()
    first = builder.load()
    assert builder.load() is first
    sample_ops.set_value(folder, 2)
    second = builder.load()
    assert (first.value(), second.value()) == (1, 2)
    sample_ops.set_value(folder, 1)
    assert builder.load() is first


def test_a_moved_tree_is_a_hit_and_builds_the_same_bytes(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder)
    first = cls().build()
    shutil.copytree(folder, tmp_path / "elsewhere" / "deeper")
    moved = sample_ops.plain_op(tmp_path / "elsewhere" / "deeper")
    second = moved().build()
    assert (second.origin, second.key) == ("cache", first.key)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "another store"))
    third = moved().build()
    assert (third.origin, third.key) == ("built", first.key)
    with open(first.library, "rb") as first_file, open(third.library, "rb") as third_file:
        assert first_file.read() == third_file.read()


def test_a_source_with_special_characters_in_its_name_is_built(folder):
    name = "with space $dollar #hash.cpp"
    cls = sample_ops.plain_op(folder, sources=[name])
    os.rename(folder / "plain.cpp", folder / name)
    assert cls().load().value() == 1


def test_a_paranoid_look_up_finds_the_entry_by_the_contents_of_its_inputs(folder, monkeypatch):
    monkeypatch.setenv("OPFORGE_PARANOID", "1")
    cls = sample_ops.plain_op(folder)
    assert cls().build().origin == "built"
    assert cls().build().origin == "cache"


def test_force_builds_an_op_that_is_stored(folder):
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


def test_functions_need_no_visibility_attribute_and_two_versions_have_separate_state(folder):
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


def test_a_signature_sets_the_types_of_its_function(folder):
    import ctypes

    source = f"{sample_ops.EXPORT} double half(double x) {{ return x / 2; }}\n"
    cls = sample_ops.plain_op(folder, source=source, signatures={"half": (ctypes.c_double, [ctypes.c_double])})
    op = cls().load()
    assert op.half(3.0) == 1.5
    assert "half" in dir(op)
    with pytest.raises(AttributeError, match="the op 'plain' has no function 'whole'; it has: half"):
        op.whole
    # Functions of libc and libm, which the library needs: dlsym finds them by its handle.
    assert not [name for name in ("remove", "qsort", "strtol") if hasattr(op, name)]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names levels of x86-64")
def test_a_function_with_a_clone_for_each_processor_is_a_function_of_the_op(folder):
    clones = '__attribute__((target_clones("avx2", "default")))'
    op = sample_ops.plain_op(folder, source=f"{sample_ops.EXPORT} {clones} int twice(int x) {{ return 2 * x; }}\n")()
    loaded = op.load()
    assert loaded.twice(21) == 42 and loaded.__names__ == ("twice",)
    assert loaded.__entry__.record["exports"] == ["twice"]


def test_a_load_with_other_signatures_returns_another_object_and_keeps_the_first(folder):
    import ctypes

    sample_ops.plain_op(folder, source=f"{sample_ops.EXPORT} double half(double x) {{ return x / 2; }}\n")
    path = folder / "plain.cpp"
    first = opforge.load("half", path, signatures={"half": (ctypes.c_double, [ctypes.c_double])})
    second = opforge.load("half", path, signatures={"half": (None, [ctypes.c_double])})
    assert (first.half(3.0), second.half(3.0), first.half(5.0)) == (1.5, None, 2.5)
    assert opforge.load("half", path, signatures={"half": (ctypes.c_double, [ctypes.c_double])}).half(3.0) == 1.5


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"abi": "c", "fakes": {"value": len}},
            "fakes with abi='c'. Only ops that are registered with torch can have fakes",
        ),
        (
            {"abi": "torch", "signatures": {"value": (None, [])}},
            "signatures with abi='torch'. They are supported only with abi='c'",
        ),
    ],
)
def test_an_attribute_that_the_abi_does_not_support_is_an_error(folder, attributes, message):
    cls = sample_ops.plain_op(folder, **{name: value for name, value in attributes.items() if name != "abi"})
    cls.abi = attributes["abi"]
    with pytest.raises(BuilderError, match=re.escape(f"TestedBuilder: {message}")):
        cls().load()
