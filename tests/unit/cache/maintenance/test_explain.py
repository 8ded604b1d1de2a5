"""What differs between an op as it is now and the nearest stored entry: components and files."""

from __future__ import annotations

import json
import os

from support import text_files

from opforge.cache.filesystem.disk import Disk
from opforge.cache.maintenance.explain import (
    ChangedFile,
    Difference,
    component_differences,
    file_differences,
    nearest,
)
from opforge.cache.records.inputs import Dependency, Inputs, RootedPath

NOW = {"op": "relu", "target": "cpu:x86-64-v3", "compile_flags": ["-O3"], "toolchain": {"version": "g++ 12"}}


def nearest_to(fake_store, **changes):
    return nearest(fake_store.layout, "relu", NOW | changes, fake_store.root_paths, Disk())


def test_there_is_no_nearest_entry_if_none_of_the_op_is_stored(fake_store):
    fake_store.add("adam")
    assert nearest_to(fake_store) is None


def test_the_same_plan_and_files_do_not_differ(fake_store):
    fake_store.add()
    nearest_entry = nearest_to(fake_store)
    assert nearest_entry.components == () and nearest_entry.files == ()


def test_components_that_differ_are_named_with_both_values(fake_store):
    fake_store.add()
    nearest_entry = nearest_to(fake_store, compile_flags=("-O3", "-g"), toolchain={"version": "g++ 13"})
    assert nearest_entry.components == (
        Difference("compile_flags", ["-O3"], ["-O3", "-g"]),
        Difference("toolchain.version", "g++ 12", "g++ 13"),
    )


def test_a_component_that_is_missing_on_one_side_is_none():
    assert component_differences({"environment": {"CPATH": "/a"}}, {"environment": {}, "new": 1}) == [
        Difference("environment.CPATH", "/a", None),
        Difference("new", None, 1),
    ]


def test_a_changed_file_is_named_with_both_digests(fake_store):
    fake_store.add(text="int a;")
    path = text_files.write(fake_store.root_paths["own"], "relu.cpp", "int b;")
    assert nearest_to(fake_store).files == (
        ChangedFile(path, "has changed", text_files.sha256("int a;"), text_files.sha256("int b;")),
    )


def test_a_file_that_is_gone_is_named(fake_store):
    fake_store.add(text="int a;")
    os.unlink(os.path.join(fake_store.root_paths["own"], "relu.cpp"))
    (changed,) = nearest_to(fake_store).files
    assert changed.problem == "no longer exists" and changed.now == ""


def as_read(inputs):
    """Returns inputs in the form that a record's JSON has."""
    return json.loads(json.dumps(inputs.to_json()))


def test_a_root_that_is_not_here_is_named():
    inputs = as_read(Inputs((Dependency("theirs", "a.h", "0" * 64),)))
    (changed,) = file_differences(inputs, {}, Disk())
    assert (changed.path, changed.problem) == ("theirs/a.h", "there is no root 'theirs' here")


def test_a_name_that_appeared_is_named(tmp_path):
    inputs = as_read(Inputs((), names=("a.h",), searched=(RootedPath("own", ""),)))
    assert file_differences(inputs, {"own": str(tmp_path)}, Disk()) == []
    path = text_files.write(tmp_path, "a.h", "x")
    (changed,) = file_differences(inputs, {"own": str(tmp_path)}, Disk())
    assert changed == ChangedFile(path, "has appeared, and may shadow a header", "", text_files.sha256("x"))


def test_a_record_without_inputs_is_reported():
    assert file_differences(None, {}, Disk())[0].problem == "its record does not list its inputs"


def test_the_entry_with_the_fewest_differences_is_nearest(fake_store):
    fake_store.add(compile_flags=["-O0"], libraries=["m"])
    near = fake_store.add(compile_flags=["-O1"])
    assert nearest_to(fake_store).entry.key == near


def test_among_equal_plans_the_one_with_the_fewest_changed_files_is_nearest(fake_store):
    first = fake_store.add(text="int a;")
    fake_store.add(text="int b;")
    text_files.write(fake_store.root_paths["own"], "relu.cpp", "int a;")
    assert nearest_to(fake_store).entry.key == first
