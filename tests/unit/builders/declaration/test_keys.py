"""Keys: equal values have the same key on every machine, and a change to any field changes the key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import sample_ops
from support.compilers.fake_toolchain import FakeToolchain

from opforge.builders.declaration import abi
from opforge.builders.declaration.build_plan import BuildPlan, PlannedGroup
from opforge.builders.declaration.description import description_key
from opforge.builders.planner import make_plan
from opforge.cache import keys
from opforge.cache.records.inputs import Dependency, Inputs, RootedPath

PLAN = BuildPlan(
    op="relu",
    version="1",
    abi="c",
    target="cpu:x86-64-v3",
    toolchain=(("version", "g++ 12.2"), ("cc1plus sha256", "ab")),
    sources=(RootedPath("own", "relu.cpp"),),
    include=(RootedPath("own", "include"),),
    system_include=(RootedPath("torch", "include"),),
    defines=(("N", "1"),),
    compile_flags=("-O3",),
    link_flags=("-s",),
    libraries=("m",),
    stubs=("libtorch_cpu.so",),
    requires=(("torch", "2.13.0"),),
    environment=(("CPATH", "/x"),),
    device_flags=("-Xcompiler=-fPIC",),
    debug_roots=(("own", "/a"),),
    kernels=(("scale", "{}"),),
)
GROUP = PlannedGroup((RootedPath("own", "relu.cpp"),), (), (), (), ())
OTHER_PLANS = {
    "op": ["gelu"],
    "version": ["2"],
    "abi": ["torch"],
    "target": ["cpu:x86-64-v4", "cpu"],
    "toolchain": [
        (("version", "g++ 12.3"), ("cc1plus sha256", "ab")),
        (("version", "g++ 12.2"), ("cc1plus sha256", "ac")),
    ],
    "sources": [
        (RootedPath("own", "gelu.cpp"),),
        (RootedPath("opforge", "relu.cpp"),),
        (RootedPath("own", "relu.cpp"), RootedPath("own", "b.cpp")),
    ],
    "include": [(), (RootedPath("own", "headers"),), (RootedPath("own", "include"), RootedPath("own", "b"))],
    "system_include": [(), (RootedPath("python", "include"),)],
    "defines": [(("N", "2"),), (("M", "1"),), (("N", "1"), ("M", "1")), (("N", ""),)],
    "compile_flags": [("-O2",), ("-O3", "-g"), ()],
    "link_flags": [(), ("-g",)],
    "libraries": [(), ("dl",)],
    "stubs": [(), ("libc10.so",)],
    "requires": [(), (("torch", "2.12.0"),), (("python", "cpython-311"),)],
    "environment": [(), (("CPATH", "/y"),), (("LIBRARY_PATH", "/x"),)],
    "kernels": [(), (("scale", '{"warps":8}'),), (("half", "{}"),)],
    "device_flags": [(), ("-lineinfo",)],
    "debug_roots": [(), (("own", "/b"),)],
    "groups": [
        (GROUP,),
        (GROUP, GROUP),
        (GROUP._replace(sources=(RootedPath("own", "b.cpp"),)),),
        (GROUP._replace(include=(RootedPath("own", "near"),)),),
        (GROUP._replace(defines=(("A", ""),)),),
        (GROUP._replace(compile_flags=("-O1",)),),
        (GROUP._replace(device_flags=("-O1",)),),
    ],
}


def test_every_field_of_a_plan_has_other_values_here():
    assert set(OTHER_PLANS) == set(PLAN._fields), "add other values of a new field to this file"


@pytest.mark.parametrize(
    ("field", "other"), [(field, other) for field, values in OTHER_PLANS.items() for other in values]
)
def test_a_changed_field_changes_the_plan_key(field, other):
    assert PLAN._replace(**{field: other}).key != PLAN.key


def test_the_key_of_a_plan_without_groups_is_that_of_an_opforge_that_had_none():
    assert PLAN.key == "d8e0dc502941c4c3ff199ad14258c034"


def test_no_two_changed_plans_have_the_same_key():
    plans = [PLAN._replace(**{field: other}) for field, values in OTHER_PLANS.items() for other in values]
    assert len({plan.key for plan in plans}) == len(plans)


def test_moving_a_value_to_another_field_changes_the_key():
    assert PLAN._replace(compile_flags=("-O3", "-s"), link_flags=()).key != PLAN.key
    assert PLAN._replace(defines=(("N", "1"),)).key != PLAN._replace(defines=(("N1", ""),)).key


def test_a_compile_flag_and_the_same_link_flag_make_different_descriptions(tmp_path):
    compiled = sample_ops.plain_op(tmp_path, extra_compile_args=["-static-libgcc"])
    linked = sample_ops.plain_op(tmp_path, extra_link_args=["-static-libgcc"])
    assert description_key(compiled().spec()) != description_key(linked().spec())


def test_a_key_is_32_hex_digits_and_a_fixed_function_of_its_value():
    assert keys.key_of(["a", 1]) == keys.bytes_digest(b'["a",1]')[:32]
    assert len(PLAN.key) == keys.KEY_LENGTH == 32


def test_the_canonical_form_sorts_names_and_keeps_order_of_lists():
    assert keys.canonical({"b": 1, "a": [2, 1]}) == b'{"a":[2,1],"b":1}'
    assert keys.key_of({"a": 1, "b": 2}) == keys.key_of({"b": 2, "a": 1})
    assert keys.key_of([1, 2]) != keys.key_of([2, 1])


def test_a_name_that_is_not_utf8_has_a_key():
    assert keys.key_of("caf\udce9") != keys.key_of("café")


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), max_size=5), st.randoms())
def test_an_entry_key_does_not_depend_on_the_order_in_which_files_were_read(files, random):
    shuffled = list(files) + files[:1]
    random.shuffle(shuffled)
    assert keys.entry_key("p", files) == keys.entry_key("p", shuffled)


@given(st.text(), st.text(), st.text(), st.text())
def test_an_entry_key_depends_on_every_part_of_a_file(root, path, digest, other):
    first = keys.entry_key("p", [(root, path, digest)])
    if other not in (root, path, digest):
        assert first != keys.entry_key("p", [(other, path, digest)])
        assert first != keys.entry_key("p", [(root, other, digest)])
        assert first != keys.entry_key("p", [(root, path, other)])
        assert first != keys.entry_key("p" + other, [(root, path, digest)]) or not other


def test_inputs_are_equal_after_a_round_trip_through_json():
    inputs = Inputs(
        files=(Dependency("own", "a", "00"), Dependency("torch", "b", "11", "torch")),
        names=("a", "b"),
        searched=(RootedPath("own", ""),),
        present=(RootedPath("own", "a"),),
        folders=(RootedPath("own", ""),),
        trusted_trees=(("torch", RootedPath("torch", "../RECORD")),),
    )
    import json

    assert Inputs.from_json(json.loads(json.dumps(inputs.to_json()))) == inputs


def test_a_moved_tree_has_the_same_plan_key(tmp_path):
    plans = []
    for folder in (tmp_path / "here", tmp_path / "there" / "below"):
        (folder / "inc").mkdir(parents=True)
        (folder.parent / f"{folder.name}-elsewhere").mkdir()
        away = str(folder.parent / f"{folder.name}-elsewhere")
        plans.append(make_plan(sample_ops.plain_op(folder, include_dirs=["inc", away])().spec(), FakeToolchain()))
    assert plans[0] == plans[1]
    assert plans[0].key == plans[1].key
    assert str(tmp_path) not in str(plans[0])


def test_every_attribute_that_shapes_a_build_is_in_the_plan_key(tmp_path):
    plain = sample_ops.plain_op(tmp_path)
    changes = [
        {"version": "2"},
        {"define_macros": [("A", "1")]},
        {"extra_compile_args": ["-O1"]},
        {"extra_compile_args": {"cpu": ["-O2"]}},
        {"extra_link_args": ["-s"]},
        {"libraries": ["m"]},
        {"abi": "torch-stable"},
    ]
    plan_keys = {make_plan(plain().spec(), FakeToolchain()).key}
    for change in changes:
        changed = type("Changed", (plain,), {**change, "__module__": plain.__module__})
        plan_keys.add(make_plan(changed().spec(), FakeToolchain()).key)
    plan_keys.add(make_plan(plain(debug=True).spec(), FakeToolchain()).key)
    plan_keys.add(make_plan(plain(sanitize="address").spec(), FakeToolchain()).key)
    plan_keys.add(make_plan(plain("cpu:x86-64").spec(), FakeToolchain()).key)
    assert len(plan_keys) == len(changes) + 4


@pytest.mark.parametrize("version", ["2", "2.10.1", "2.x", "", "2.256", "v2.10"])
def test_the_error_for_a_malformed_torch_version_says_what_is_expected(version):
    with pytest.raises(abi.BuilderError, match=r'torch_target=.*Expected "MAJOR.MINOR", such as "2.10"'):
        abi.version_constant("relu", version)


def test_each_part_of_a_torch_version_is_a_byte():
    assert abi.version_constant("relu", "2.10") == "0x020a000000000000"
    assert abi.version_constant("relu", "2.16") == "0x0210000000000000"
