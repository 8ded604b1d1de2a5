"""`opforge.load` and `load_inline` called again in one process, with and without a `build_directory`."""

from __future__ import annotations

import ctypes
import os
import shutil
import time

import pytest
from support import sample_ops, text_files
from support.owners import ME

import opforge
from opforge.builders import base, inline_sources, jit, jit_builders, loader
from opforge.builders.declaration.description import description_key
from opforge.cache import layer
from opforge.errors import BuilderError, OpIncompatibleError
from opforge.foundation.remembered_values import RACY_NS

TEXT = f"{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"
"""A plain function that returns the macro VALUE, which no file defines."""
STABLE_TEXT = """\
int64_t value(int64_t x) { return x + VALUE; }
STABLE_TORCH_LIBRARY(second_jit_load, m) { m.def("value(int x) -> int"); }
STABLE_TORCH_LIBRARY_IMPL(second_jit_load, CompositeExplicitAutograd, m) { m.impl("value", TORCH_BOX(&value)); }
"""
INLINE = {"abi": "c", "extra_cflags": ["-DVALUE=1"]}
DIRECTORIES = pytest.mark.parametrize("directory", [None, "mine"], ids=["shared", "build_directory"])


@pytest.fixture
def steps(monkeypatch):
    """What is done from here on: "read" for each time that sources are read, "look up" for each look-up."""
    names = []
    read, look_up = jit_builders.read_sources, base.lookup.load
    monkeypatch.setattr(jit_builders, "read_sources", lambda paths: names.append("read") or read(paths))
    monkeypatch.setattr(base.lookup, "load", lambda *rest: names.append("look up") or look_up(*rest))
    return names


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a plain op's source, op.cpp; the store of a build_directory is below it too."""
    folder = tmp_path / "here"
    folder.mkdir()
    text_files.write(folder, "op.cpp", TEXT)
    monkeypatch.chdir(folder)
    return folder


def settle():
    """Waits until the stamps of what was written before are not racy."""
    time.sleep(RACY_NS / 1e9 + 0.1)


@DIRECTORIES
def test_an_equal_call_reads_nothing_and_looks_nothing_up(here, steps, directory):
    def load():
        return opforge.load("op", ["op.cpp"], extra_cflags=["-DVALUE=1"], build_directory=directory)

    load()
    settle()
    op = load()
    steps.clear()
    assert load() is op and load() is op and op.value() == 1
    assert steps == []


@DIRECTORIES
def test_an_equal_call_of_load_inline_writes_nothing_and_looks_nothing_up(here, steps, directory, monkeypatch):
    opforge.load_inline("op", TEXT, build_directory=directory, **INLINE)
    settle()
    op = opforge.load_inline("op", TEXT, build_directory=directory, **INLINE)
    steps.clear()
    monkeypatch.setattr(inline_sources, "writable_store", None)
    assert opforge.load_inline("op", str(TEXT), build_directory=directory, **INLINE) is op
    assert steps == []


def test_calls_that_alternate_read_nothing_and_look_nothing_up(here, steps):
    def load(number):
        return opforge.load("op", ["op.cpp"], extra_cflags=[f"-DVALUE={number}"])

    assert [load(number).value() for number in (1, 2)] == [1, 2]
    settle()
    ops = [load(number) for number in (1, 2)]
    steps.clear()
    assert [load(number) for number in (1, 2, 1)] == [*ops, ops[0]]
    assert steps == []


def test_calls_with_arguments_that_are_new_each_time_are_not_kept_for_ever(here, monkeypatch):
    monkeypatch.setattr(jit, "MAX_CALLS", 2)
    for _ in range(4):
        signatures = {"value": (type("OwnInt", (ctypes.c_int,), {}), [])}
        assert opforge.load("bounded", ["op.cpp"], ["-DVALUE=1"], signatures=signatures).value().value == 1
    assert len(jit.calls["load", "bounded"]) == 2


@DIRECTORIES
def test_an_inline_source_that_is_removed_is_written_again(here, directory):
    op = opforge.load_inline("op", TEXT, build_directory=directory, **INLINE)
    settle()
    opforge.load_inline("op", TEXT, build_directory=directory, **INLINE)
    store = os.path.join(directory, "opforge") if directory else os.environ["OPFORGE_CACHE_DIR"]
    shutil.rmtree(os.path.join(store, "v2", "sources"))
    assert opforge.load_inline("op", TEXT, build_directory=directory, **INLINE) is op


@DIRECTORIES
def test_an_edited_source(here, directory):
    def load():
        return opforge.load("op", ["op.cpp"], extra_cflags=["-DVALUE=1"], build_directory=directory)

    first = load()
    settle()
    load()
    text_files.write(here, "op.cpp", TEXT.replace("VALUE", "22"))
    assert (first.value(), load().value()) == (1, 22)


@pytest.mark.parametrize("directory", [None, pytest.param("mine", marks=pytest.mark.long("compiles torch's headers"))])
def test_an_edited_source_of_another_abi(here, precompiled, directory):
    def load():
        return opforge.load("op", ["op.cpp"], extra_cflags=["-DVALUE=1"], build_directory=directory)

    pytest.importorskip("torch", reason="pip install torch")
    assert load().value() == 1
    settle()
    load()
    text_files.write(here, "op.cpp", sample_ops.STABLE_HEADERS + STABLE_TEXT)
    assert load().value(2) == 3


def test_changed_arguments(here):
    flags = ["-DVALUE=1"]
    first = opforge.load("op", ["op.cpp"], flags)
    assert opforge.load("op", ["op.cpp"], flags) is first
    flags[0] = "-DVALUE=2"
    assert opforge.load("op", ["op.cpp"], flags).value() == 2, "a list that was changed in place"
    assert opforge.load("op", ["op.cpp"], ["-DVALUE=1"]) is first
    assert opforge.load("op", "op.cpp", define_macros={"VALUE": "3"}).value() == 3


def test_a_relative_source_in_another_working_folder(here, tmp_path, monkeypatch):
    first = opforge.load("op", ["op.cpp"], ["-DVALUE=1"])
    (tmp_path / "there").mkdir()
    text_files.write(tmp_path / "there", "op.cpp", TEXT.replace("VALUE", "33"))
    monkeypatch.chdir(tmp_path / "there")
    assert opforge.load("op", ["op.cpp"], ["-DVALUE=1"]).value() == 33
    monkeypatch.chdir(here)
    assert opforge.load("op", ["op.cpp"], ["-DVALUE=1"]) is first


def test_a_relative_build_directory_is_of_the_working_folder_of_the_call(here, tmp_path, monkeypatch):
    path = str(here / "op.cpp")
    opforge.load("op", path, ["-DVALUE=1"], build_directory="mine")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    opforge.load("op", path, ["-DVALUE=1"], build_directory="mine")
    assert (here / "mine" / "opforge" / "v2").is_dir() and (tmp_path / "there" / "mine" / "opforge" / "v2").is_dir()


def test_arguments_of_a_wrong_type_are_refused_each_time(here):
    for _ in range(2):
        with pytest.raises(BuilderError):
            opforge.load("op", ["op.cpp"], 5)
        with pytest.raises(BuilderError):
            opforge.load(7, ["op.cpp"])


@DIRECTORIES
def test_the_gates_are_those_of_every_builder(here, directory):
    torch = pytest.importorskip("torch", reason="pip install torch")
    if torch.version.cuda:
        pytest.skip("this torch is built for CUDA")
    text_files.write(here, "op.cu", "#include <torch/extension.h>\nint value() { return 1; }\n")
    with pytest.raises(OpIncompatibleError, match="libtorch_cuda"):
        opforge.load("op", ["op.cu"], build_directory=directory)


@DIRECTORIES
def test_an_entry_that_is_evicted_before_it_is_opened_is_looked_for_again(here, directory, monkeypatch):
    real, evicted = loader.load_entry, []

    def load_entry(op, entry, *rest):
        if not evicted:
            evicted.append(entry.folder)
            shutil.rmtree(entry.folder)
        return real(op, entry, *rest)

    monkeypatch.setattr(loader, "load_entry", load_entry)
    name = sample_ops.unique_name("op")
    assert opforge.load(name, ["op.cpp"], ["-DVALUE=4"], build_directory=directory).value() == 4
    assert len(evicted) == 1


@DIRECTORIES
def test_layers_come_first(here, tmp_path, monkeypatch, directory):
    text_files.write(here, "op.cpp", TEXT.replace("VALUE", "5"))
    folder = str(tmp_path / "layer")
    name = sample_ops.unique_name("op")  # the process returns what it has loaded of an equal op
    cls = sample_ops.builder_class(here, name, abi="c", sources=["op.cpp"])
    layer.add(folder, cls().build(), description_key(cls().spec()), ME)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", folder)
    monkeypatch.setenv("OPFORGE_PREBUILT", "require")
    op = opforge.load(name, ["op.cpp"], build_directory=directory)
    assert (op.value(), op.origin) == (5, folder)


PYBIND = """\
#include <pybind11/pybind11.h>
int value() { return VALUE; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("value", &value); }
"""


@pytest.mark.long("compiles torch/extension.h twice")
def test_an_edited_pybind_source_is_a_new_module_beside_the_old_one(here):
    """In a folder of the caller's; tests/compile/load/test_torch_versions.py has the shared one."""
    pytest.importorskip("torch", reason="pip install torch")
    directory = "own"
    name = sample_ops.unique_name("op")
    text_files.write(here, "module.cpp", PYBIND.replace("VALUE", "1"))
    first = opforge.load(name, ["module.cpp"], build_directory=directory)
    text_files.write(here, "module.cpp", PYBIND.replace("VALUE", "2"))
    second = opforge.load(name, ["module.cpp"], build_directory=directory)
    assert (first.value(), second.value()) == (1, 2)
    assert first is not second and first.__file__ != second.__file__
    text_files.write(here, "module.cpp", PYBIND.replace("VALUE", "1"))
    assert opforge.load(name, ["module.cpp"], build_directory=directory) is first
