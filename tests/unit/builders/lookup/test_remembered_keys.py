"""The name of a remembered look-up: everything that decides its outcome and has no stamp is part of it."""

from __future__ import annotations

import shutil

import pytest
from support.compilers import fake_compiler
from support.compilers.fake_compiler import COMPILER_VARIABLES

from opforge.accelerator.target import Target
from opforge.builders.declaration import kernel_roots
from opforge.builders.declaration.groups import SourceGroup
from opforge.builders.declaration.op_spec import OpSpec, root_paths
from opforge.builders.lookup.remembered_lookups import Lookup
from opforge.fast_path import lookup


@pytest.mark.parametrize("name", ["CPPFLAGS", "CXXFLAGS", "LDFLAGS", "LANG", *COMPILER_VARIABLES])
def test_a_variable_that_affects_compilers_changes_the_name(op, name):
    before = name_of(op.cls().spec(), op)
    op.patch.setenv(name, "/some/where")
    assert name_of(op.cls().spec(), op) != before
    assert op.find()[0] == op.find_by_content()


def test_another_opforge_beside_the_same_torch_has_a_memory_of_its_own(op):
    op.find()
    assert op.find() == (op.entry_key, False)
    op.patch.setattr(lookup, "__file__", "/another/checkout/src/opforge/fast_path/lookup.py")
    assert op.find() == (op.entry_key, True)


def test_a_moved_tree_has_another_memory_and_is_found_by_content(op, tmp_path):
    shutil.copytree(op.source_folder, tmp_path / "elsewhere")
    op.source_folder = tmp_path / "elsewhere"
    op.cls = op.declare()
    assert op.find() == (op.entry_key, True)
    assert op.find() == (op.entry_key, False)
    assert len(op.remembered_paths()) == 2


@pytest.mark.parametrize("spelling", ["", ".", "tools"])
def test_a_relative_folder_on_path_is_searched_from_the_working_folder(op, tmp_path, spelling):
    op.patch.setenv("PATH", f"{spelling}:{op.bin}:/usr/bin:/bin")
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        (folder / "tools").mkdir(parents=True)
    op.patch.chdir(here)
    op.find()
    assert op.find() == (op.entry_key, False)
    fake_compiler.create(there / spelling, version="14")
    op.patch.chdir(there)
    assert op.find() == (None, True), "the same PATH leads to another compiler in this folder"
    op.patch.chdir(here)
    assert op.find()[0] == op.entry_key
    fake_compiler.create(here / spelling, version="15")
    assert op.find() == (None, True)


def test_a_relative_cxx_is_another_compiler_in_another_working_folder(op, tmp_path):
    op.patch.setenv("CXX", "./my-g++")
    for number, folder in enumerate((tmp_path / "here", tmp_path / "there")):
        fake_compiler.create(folder, "my-g++", f"{number}")
    op.patch.chdir(tmp_path / "here")
    entry_key = op.publish()
    op.find()
    assert op.find() == (entry_key, False)
    op.patch.chdir(tmp_path / "there")
    assert op.find() == (None, True)


def name_of(spec, op, paths=None, programs=(), **options):
    """Returns the name under which a look-up of this spec is remembered."""
    return Lookup(spec, op.store(), [], paths or root_paths(spec), **options).name(dict.fromkeys(programs))


OTHER_VALUES = {
    "target": Target("cpu", ("x86-64",)),
    "devices": ("cpu", "cuda"),
    "roots": (kernel_roots.KernelRoot("own", "/tmp", ""), kernel_roots.OPFORGE),
    "defines": (("X", "1"),),
    "kernels": (("scale", "{}"),),
    "groups": (SourceGroup(("plain.cpp",)),),
    "toolchain": "opforge.builders.toolchains.nvcc:Nvcc",
    "abi": "torch-stable",
}
"""Another value for the fields of a spec that are neither strings, lists of strings, nor bools."""


def other_value(name, value):
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    if isinstance(value, bool):
        return not value
    return value + "x" if isinstance(value, str) else (*(value or ()), "x")


@pytest.mark.parametrize("name", OpSpec._fields)
def test_every_field_of_a_spec_changes_the_name(op, name):
    spec = op.cls().spec()
    other = spec._replace(**{name: other_value(name, getattr(spec, name))})
    paths = root_paths(spec)
    assert other != spec
    assert name_of(spec, op, paths) != name_of(other, op, paths)


@pytest.mark.parametrize("options", [{"debug": True}, {"sanitize": "address"}, {"target": "cpu:x86-64"}], ids=str)
def test_every_argument_of_a_builder_changes_the_name(op, options):
    assert name_of(op.cls(**options).spec(), op) != name_of(op.cls().spec(), op)


def test_an_attribute_of_a_builder_instance_is_in_its_spec(op):
    builder = op.cls()
    before = builder.spec()
    builder.define_macros = {"X": "1"}
    assert builder.spec() == before._replace(defines=(("X", "1"),))


def test_root_paths_and_the_toolchains_programs_change_the_name(op):
    spec, paths = op.cls().spec(), root_paths(op.cls().spec())
    plain = name_of(spec, op, paths)
    assert name_of(spec, op, {**paths, "cuda": "/opt/cuda"}) != plain
    assert name_of(spec, op, paths, ["/usr/bin/nvcc"]) != plain
    assert name_of(spec, op, paths, exact=True) != plain
