"""The precompiled header of an ABI in an edit loop: made once, kept in the store, compared before it is used."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support import sample_ops

import opforge
from opforge.builders.run import object_reuse, precompiled_header
from opforge.errors import CompileError

QUESTIONS = """\
#if __has_include("5.h")
#endif
const char* changed() { return __TIMESTAMP__; }
"""
"""What a unit asks beside the header: with each edit, or in another op's folder, the answers are others."""
STABLE = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
int64_t scaled(int64_t x) { return x * FACTOR; }
STABLE_TORCH_LIBRARY(NAME, m) { m.def("scaled(int x) -> int"); }
STABLE_TORCH_LIBRARY_IMPL(NAME, CompositeExplicitAutograd, m) { m.impl("scaled", TORCH_BOX(&scaled)); }
"""
FACADE = """\
#include <torch/extension.h>
int64_t scaled(int64_t x) { return x * FACTOR; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scaled", &scaled); }
"""


def _load(abi: str, name: str, folder: Path, text: str) -> int:
    """Builds a source. Returns what its function gives for one."""
    source = folder / "op.cpp"
    source.write_text(text.replace("NAME", name) if abi == "torch-stable" else text)
    return opforge.load(name, [source], abi=abi, extra_cflags=["-O0"]).scaled(1)


def _kept(store: Path) -> list[Path]:
    return [path for path in (store / "v2" / "objects").glob("*/*.o") if path.stat().st_size > 20 << 20]


@pytest.fixture
def headers(monkeypatch):
    """For each build with a header of its own in view, whether it took a kept one, and whether it kept one."""
    taken, made = [], []
    take, keep, using = object_reuse.take_header, object_reuse.keep_header, precompiled_header._using

    def strictly_using(*arguments):  # gcc would compile without a header that it cannot use, and say nothing
        step = using(*arguments)
        return step._replace(argv=(step.argv[0], "-Winvalid-pch", "-Werror=invalid-pch", *step.argv[1:]))

    def recording_take(*arguments):
        taken.append(take(*arguments) is not None)
        made.append(False)
        return take(*arguments) if taken[-1] else None

    def recording_keep(*arguments):
        made[-1] = True
        keep(*arguments)

    monkeypatch.setattr(object_reuse, "EDITING", 3600)
    monkeypatch.setattr(precompiled_header, "_using", strictly_using)
    monkeypatch.setattr(object_reuse, "take_header", recording_take)
    monkeypatch.setattr(object_reuse, "keep_header", recording_keep)
    return taken, made


def _edits(
    abi: str, text: str, folder: Path, store: Path, headers: tuple[list[bool], list[bool]]
) -> Callable[[str, str], int]:
    """Builds, edits later and at once, and builds another op. Returns what edits the first one and calls it."""
    taken, made = headers

    def load(name: str, factor: str, more: str = "") -> int:
        own = folder / name  # it holds no store and no caches
        own.mkdir(exist_ok=True)
        (own / f"{factor}.h").touch()  # a new file in the folder is none of the header's
        return _load(abi, name, own, text.replace("FACTOR", factor) + QUESTIONS + more)

    one, other = sample_ops.unique_name("kept"), sample_ops.unique_name("kept")
    assert load(one, "2") == 2 and (taken, made) == ([False], [False])
    for path in (store / "v2" / "objects").iterdir():
        os.utime(path, (time.time() - 3601,) * 2)  # a new version of a program, later, is not an edit
    assert load(one, "3") == 3 and (taken, made) == ([False] * 2, [False] * 2)
    assert load(one, "4") == 4 and (taken, made) == ([False] * 3, [False, False, True])
    assert load(other, "5") == 5 and (taken[3:], made[3:]) == ([True], [False])
    return partial(load, one)


def test_an_edit_makes_a_header_that_the_next_edits_and_other_ops_use(tmp_path, own_store, headers):
    _edits("torch-stable", STABLE, tmp_path, own_store, headers)
    assert len(_kept(own_store)) == 1


@pytest.mark.long("makes the facade's precompiled header twice, and compiles six times")
def test_so_does_the_facade_and_a_damaged_header_is_made_anew(tmp_path, own_store, headers):
    taken, made = headers
    edit = _edits("torch-facade", FACADE, tmp_path, own_store, headers)
    with pytest.raises(CompileError, match='poisoned "TORCH_VERSION"'):
        edit("6", "#ifdef TORCH_VERSION\n#endif\n")
    (header,) = _kept(own_store)
    os.chmod(header, 0o600)
    with header.open("r+b") as file:  # of a damaged one nothing is used
        file.write(b"damaged")
    assert edit("7") == 7 and (taken[5:], made[5:]) == ([False], [True])
    assert len(_kept(own_store)) == 1
