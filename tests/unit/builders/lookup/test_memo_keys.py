"""What an answer is filed under: whatever shapes a plan asks another question."""

from __future__ import annotations

import shutil

import pytest
from support import sample_ops, text_files
from support.compilers import fake_compiler
from support.compilers.fake_compiler import PASSED_ENV

from opforge.builders.base import OpBuilder
from opforge.builders.lookup import memo
from opforge.builders.spec import kernel_roots


@pytest.mark.parametrize("name", ["CPPFLAGS", "CXXFLAGS", "LDFLAGS", "LANG", *PASSED_ENV])
def test_a_variable_that_compilers_obey_asks_another_question(world, name):
    asked = memo._file(world.cls(), world.store(), world.cls().places())
    world.patch.setenv(name, "/some/where")
    assert memo._file(world.cls(), world.store(), world.cls().places()) != asked
    assert world.find()[0] == world.long_way()


def test_a_moved_tree_asks_another_question_and_hits_by_content(world, tmp_path):
    shutil.copytree(world.op, tmp_path / "elsewhere")
    world.op = tmp_path / "elsewhere"
    world.cls = world.declare()
    assert world.find() == (world.result, True)
    assert world.find() == (world.result, False)
    assert len(world.answers()) == 2


@pytest.mark.parametrize("spelling", ["", ".", "tools"])
def test_a_path_that_starts_from_the_working_folder_finds_the_compiler_there(world, tmp_path, spelling):
    world.patch.setenv("PATH", f"{spelling}:{world.bin}:/usr/bin:/bin")
    here, there = tmp_path / "here", tmp_path / "there"
    for place in (here, there):
        (place / "tools").mkdir(parents=True)
    world.patch.chdir(here)
    world.find()
    assert world.find() == (world.result, False)
    fake_compiler.create(there / spelling, version="14")
    world.patch.chdir(there)
    assert world.find() == (None, True), "the same PATH leads to another compiler from here"
    world.patch.chdir(here)
    assert world.find()[0] == world.result
    fake_compiler.create(here / spelling, version="15")
    assert world.find() == (None, True)


def test_a_cxx_that_starts_from_the_working_folder_is_another_compiler_elsewhere(world, tmp_path):
    world.patch.setenv("CXX", "./my-g++")
    for number, place in enumerate((tmp_path / "here", tmp_path / "there")):
        fake_compiler.create(place, "my-g++", f"{number}")
    world.patch.chdir(tmp_path / "here")
    result = world.publish()
    world.find()
    assert world.find() == (result, False)
    world.patch.chdir(tmp_path / "there")
    assert world.find() == (None, True)


PERTURBED = {
    "name": "other",
    "sources": ["more.cpp"],
    "abi": "torch-stable",
    "version": "2",
    "include_dirs": ["near"],
    "kernel_roots": [kernel_roots.KernelRoot("more", "/tmp", "")],
    "defines": {"X": "1"},
    "cxx_flags": ["-DY"],
    "device_flags": {"cpu": ["-Z"]},
    "link_flags": ["-Wl,-z,now"],
    "libraries": ["m"],
    "torch_target": "2.11",
    "folder": "@FOLDER@",
}
NOT_IN_A_PLAN = {"devices", "fakes", "signatures"}


def test_every_attribute_of_a_builder_is_known_here():
    assert set(PERTURBED) | NOT_IN_A_PLAN == {name for name in OpBuilder.__annotations__ if not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(PERTURBED))
def test_an_attribute_that_shapes_a_plan_asks_another_question(world, tmp_path, name):
    value = PERTURBED[name]
    (world.op / "near").mkdir()
    text_files.write(world.op, "more.cpp", "int more;\n")
    if value == "@FOLDER@":
        value = str(shutil.copytree(world.op, tmp_path / "elsewhere"))
    abi = {"abi": "torch-stable"} if name == "torch_target" else {}
    attributes = {"abi": "c", "kernel_roots": [], **abi}
    plain = sample_ops.builder_class(world.op, "plain", **attributes)
    changed = {"name": "plain", **attributes, name: value}
    other = type("OtherBuilder", (plain,), {**changed, "__module__": plain.__module__})
    store = world.store()
    assert memo._file(plain(), store, plain().places()) != memo._file(other(), store, other().places())


@pytest.mark.parametrize("options", [{"debug": True}, {"sanitize": "address"}, {"target": "cpu:x86-64"}], ids=str)
def test_an_argument_that_shapes_a_plan_asks_another_question(world, options):
    store, places = world.store(), world.cls().places()
    assert memo._file(world.cls(**options), store, places) != memo._file(world.cls(), store, places)


def test_an_attribute_of_the_instance_asks_another_question(world):
    builder = world.cls()
    asked = builder.question()
    builder.defines = {"X": "1"}
    assert builder.question() != asked
