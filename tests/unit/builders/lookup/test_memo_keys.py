"""What an answer is filed under: whatever shapes a plan asks another question."""

from __future__ import annotations

import shutil

import pytest
from support.compilers import fake_compiler
from support.compilers.fake_compiler import PASSED_ENV

from opforge.accelerator.target import Target
from opforge.builders.lookup import memo
from opforge.builders.spec import kernel_roots
from opforge.builders.spec.op_spec import OpSpec, root_paths


@pytest.mark.parametrize("name", ["CPPFLAGS", "CXXFLAGS", "LDFLAGS", "LANG", *PASSED_ENV])
def test_a_variable_that_compilers_obey_asks_another_question(world, name):
    before = key(world.cls().spec(), world)
    world.patch.setenv(name, "/some/where")
    assert key(world.cls().spec(), world) != before
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


def key(spec, world):
    return memo.memo_path(spec, world.store(), root_paths(spec), {})


CHANGED = {
    "target": Target("cpu", ("x86-64",)),
    "devices": ("cpu", "cuda"),
    "roots": (kernel_roots.KernelRoot("own", "/tmp", ""), kernel_roots.OPFORGE),
    "defines": (("X", "1"),),
    "kernels": (("scale", "{}"),),
    "toolchain": "opforge.builders.toolchains.nvcc:Nvcc",
    "abi": "torch-stable",
}
"""Another value for the fields of a spec that are neither strings, lists of strings, nor switches."""


def changed(name, value):
    if name in CHANGED:
        return CHANGED[name]
    if isinstance(value, bool):
        return not value
    return value + "x" if isinstance(value, str) else (*(value or ()), "x")


@pytest.mark.parametrize("name", OpSpec._fields)
def test_every_field_of_a_spec_makes_another_memo(world, name):
    spec = world.cls().spec()
    other = spec._replace(**{name: changed(name, getattr(spec, name))})
    paths = root_paths(spec)
    assert other != spec
    assert memo.memo_path(spec, world.store(), paths, {}) != memo.memo_path(other, world.store(), paths, {})


@pytest.mark.parametrize("options", [{"debug": True}, {"sanitize": "address"}, {"target": "cpu:x86-64"}], ids=str)
def test_every_argument_of_a_builder_is_in_its_spec(world, options):
    assert key(world.cls(**options).spec(), world) != key(world.cls().spec(), world)


def test_an_attribute_of_the_instance_is_in_its_spec(world):
    builder = world.cls()
    before = builder.spec()
    builder.define_macros = {"X": "1"}
    assert builder.spec() == before._replace(defines=(("X", "1"),))


def test_where_roots_lie_and_which_programs_were_found_make_another_memo(world):
    spec, paths = world.cls().spec(), root_paths(world.cls().spec())
    plain = memo.memo_path(spec, world.store(), paths, {})
    assert memo.memo_path(spec, world.store(), {**paths, "cuda": "/opt/cuda"}, {}) != plain
    assert memo.memo_path(spec, world.store(), paths, {"/usr/bin/nvcc": []}) != plain
