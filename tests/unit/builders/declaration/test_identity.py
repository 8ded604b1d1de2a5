"""The table of what identifies an op is true: each field of a spec is in the keys that the table names, in no other."""

from __future__ import annotations

import ast

import pytest
from support import sample_ops, text_files
from support.compilers.fake_toolchain import FakeToolchain

from opforge.accelerator.target import Target
from opforge.builders.declaration import attributes, by_device, machine
from opforge.builders.declaration.description import describe, description_key
from opforge.builders.declaration.groups import SourceGroup
from opforge.builders.declaration.kernel_roots import KernelRoot
from opforge.builders.declaration.op_spec import IDENTITY, OpSpec
from opforge.builders.planner import make_plan


@pytest.fixture
def spec(tmp_path):
    """The spec of an op with a kernel root and an include folder; both have a header."""
    for name in ("root/include", "other/include", "op/near", "op/far"):
        (tmp_path / name).mkdir(parents=True)
        text_files.write(tmp_path / name, "a.h", "")
    root = KernelRoot("root", str(tmp_path / "root"))
    text_files.write(tmp_path / "op", "second.cpp", "int second;")
    cls = sample_ops.plain_op(tmp_path / "op", kernel_roots=[root], include_dirs=["near"])
    return cls("cpu:x86-64-v3").spec()._replace(abi="torch-stable")


def other_values(spec, folder):
    """Returns other values for each field, each of which is another op."""
    own, root, *opforge = spec.roots
    other = KernelRoot("other", str(folder / "other"))
    values = {
        "name": ["gelu"],
        "builder": ["Other"],
        "package": ["other"],
        "version": ["2"],
        "abi": ["c"],
        "target": [Target("cuda", ("sm_90",)), Target("cpu", ("x86-64",))],
        "devices": [("cpu", "cuda")],
        "torch_target": ["2.11"],
        "sources": [("second.cpp",), (*spec.sources, "second.cpp")],
        "include_dirs": [(), ("far",), ("near", "far"), ("far", "near"), (str(folder / "other"),)],
        "defines": [(("A", "1"),), (("A", ""),)],
        "cxx_flags": [("-O1",)],
        "device_flags": [("-O1",)],
        "link_flags": [("-s",)],
        "libraries": [("m",)],
        "roots": [(own, *more, *opforge) for more in ([], [other], [other, root], [root, other])],
        "debug": [True],
        "sanitize": ["address"],
        "portable": [True],
        "sysroot": ["/sysroot"],
        "toolchain": ["module:Class"],
        "kernels": [(("scale", "{}"),)],
        "extension_libraries": [(), ("libc10.so",)],
        "groups": [
            (SourceGroup(("second.cpp",)),),
            (SourceGroup(("second.cpp",), arch=("x86-64",)),),
            (SourceGroup(("second.cpp",), include_dirs=("far",)),),
            (SourceGroup(("second.cpp",), include_dirs=(str(folder / "other"),)),),
            (SourceGroup(("second.cpp",), defines=(("A", "1"),)),),
            (SourceGroup(("second.cpp",), cxx_flags=("-O1",)),),
            (SourceGroup(("second.cpp",), device_flags=("-O1",)),),
            (SourceGroup(spec.sources), SourceGroup(("second.cpp",))),
            (SourceGroup(("second.cpp",)), SourceGroup(spec.sources)),
        ],
        "own_arch": [("x86-64",), ("x86-64", "x86-64-v2")],
        "tunable": [(("block", (1, 2)),), (("block", (1, 2)), ("threads", (1,)))],
    }
    scope = by_device.DeviceScope("Tested", "cpu", ("cpu",))
    for name, field, read in attributes.READ:  # of each one that is not above, the example of the documentation
        if field not in values:
            values[field] = [read(scope, name, ast.literal_eval(attributes.ATTRIBUTES[name].example))]
    return values


LEVELS_ARE_IN_THE_PLAN_ALONE = Target("cpu", ("x86-64",))


def test_every_field_has_a_row_and_every_no_a_reason():
    assert tuple(IDENTITY) == OpSpec._fields
    assert all(enters.why for enters in IDENTITY.values() if not (enters.description and enters.plan))


@pytest.mark.parametrize("field", OpSpec._fields)
def test_a_field_changes_the_keys_that_it_is_in_and_no_other(spec, field, tmp_path, monkeypatch):
    if "torch" in field:  # a plan for another torch than is installed is refused
        monkeypatch.setattr(machine, "torch_version", lambda _folder: "2.11.0")
    keys = {description_key(spec)}, {make_plan(spec, FakeToolchain()).key}
    values = other_values(spec, tmp_path)[field]
    for value in values:
        other = spec._replace(**{field: value})
        assert other != spec
        in_description = IDENTITY[field].description and value != LEVELS_ARE_IN_THE_PLAN_ALONE
        for earlier, key, enters in (
            (keys[0], description_key(other), in_description),
            (keys[1], make_plan(other, FakeToolchain()).key, IDENTITY[field].plan),
        ):
            assert (key not in earlier) is enters, (field, value)
            earlier.add(key)


def test_a_change_of_the_code_alone_leaves_the_keys_of_an_op_as_they_are(tmp_path):
    text = {"extra_compile_args": {"cxx": ["-O2"], "cuda": ["-lineinfo"]}, "define_macros": [("A", "1")]}
    text |= {"devices": ["cuda"], "libraries": ["m"]}
    for number, (target, declared, keys) in enumerate(
        (
            (
                "cpu:x86-64-v3",
                {},
                ("82a64b32242983a4371b7c7fddf89a37", "744925f3d9f24bb695e28e943019f9f0"),
            ),
            ("cuda:sm_90", text, ("f4b96d2d0f754d3895ff7ca869ccb957", "c25ea4d3dcde412f0835a730cd9957f2")),
        )
    ):
        op = sample_ops.plain_op(tmp_path / str(number), **declared)(target).spec()
        assert (description_key(op), make_plan(op, FakeToolchain()).key) == keys


def test_the_torch_target_of_an_op_that_is_not_stable_is_in_no_key(spec):
    plain = spec._replace(abi="c")
    other = plain._replace(torch_target="2.11")
    assert description_key(plain) == description_key(other)
    assert make_plan(plain, FakeToolchain()).key == make_plan(other, FakeToolchain()).key


def test_the_contents_of_folders_are_in_no_description_and_those_of_sources_are(spec, tmp_path):
    before = description_key(spec)
    text_files.write(tmp_path / "root" / "include", "a.h", "int other;")
    text_files.write(tmp_path / "op" / "near", "b.h", "")
    assert description_key(spec) == before
    text_files.write(tmp_path / "op", spec.sources[0], "int other;")
    assert description_key(spec) != before


def test_no_path_of_a_machine_is_in_a_description(spec, tmp_path):
    assert str(tmp_path) not in str(describe(spec._replace(include_dirs=(str(tmp_path / "other"),))))


@pytest.mark.parametrize("variable", ["CXXFLAGS", "CPPFLAGS", "LDFLAGS"])
def test_the_users_flags_are_in_no_description(spec, variable, monkeypatch):
    before = description_key(spec)
    monkeypatch.setenv(variable, "-DX=1")
    assert description_key(spec) == before
