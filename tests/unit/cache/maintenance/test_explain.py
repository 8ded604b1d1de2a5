"""Why a look-up missed: the components and files that differ from the nearest stored entry."""

from __future__ import annotations

import os

import pytest
from support import text_files
from support.store.fake_store import MadeUpStore

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


@pytest.fixture
def made(tmp_path):
    return MadeUpStore(tmp_path / "store", tmp_path / "src")


def look(made, **changes):
    return nearest(made.layout, "relu", NOW | changes, made.roots, Disk())


def test_nothing_stored_has_no_nearest(made):
    made.add("adam")
    assert look(made) is None


def test_the_same_plan_and_files_do_not_differ(made):
    made.add()
    found = look(made)
    assert found.components == () and found.files == ()


def test_components_that_differ_are_named_with_both_values(made):
    made.add()
    found = look(made, compile_flags=("-O3", "-g"), toolchain={"version": "g++ 13"})
    assert found.components == (
        Difference("compile_flags", ["-O3"], ["-O3", "-g"]),
        Difference("toolchain.version", "g++ 12", "g++ 13"),
    )


def test_a_component_that_only_one_side_has_is_none_on_the_other():
    assert component_differences({"environment": {"CPATH": "/a"}}, {"environment": {}, "new": 1}) == [
        Difference("environment.CPATH", "/a", None),
        Difference("new", None, 1),
    ]


def test_a_changed_file_is_named_with_both_digests(made):
    made.add(text="int a;")
    path = text_files.write(made.roots["own"], "relu.cpp", "int b;")
    assert look(made).files == (
        ChangedFile(path, "has changed", text_files.sha256("int a;"), text_files.sha256("int b;")),
    )


def test_a_file_that_is_gone_is_named(made):
    made.add(text="int a;")
    os.unlink(os.path.join(made.roots["own"], "relu.cpp"))
    (changed,) = look(made).files
    assert changed.problem == "is gone" and changed.now == ""


def test_a_root_that_is_not_here_is_named():
    inputs = Inputs((Dependency("theirs", "a.h", "0" * 64),)).to_json()
    (changed,) = file_differences(inputs, {}, Disk())
    assert (changed.path, changed.problem) == ("theirs/a.h", "there is no root 'theirs' here")


def test_a_name_that_appeared_is_named(tmp_path):
    inputs = Inputs((), names=("a.h",), searched=(RootedPath("own", ""),)).to_json()
    assert file_differences(inputs, {"own": str(tmp_path)}, Disk()) == []
    path = text_files.write(tmp_path, "a.h", "x")
    (changed,) = file_differences(inputs, {"own": str(tmp_path)}, Disk())
    assert changed == ChangedFile(path, "has appeared, and may shadow a header", "", text_files.sha256("x"))


def test_a_manifest_without_inputs_says_so():
    assert file_differences(None, {}, Disk())[0].problem == "its manifest does not tell what it was built from"


def test_the_entry_with_the_fewest_differences_is_nearest(made):
    made.add(compile_flags=["-O0"], libraries=["m"])
    near = made.add(compile_flags=["-O1"])
    assert look(made).entry.key == near


def test_among_equal_plans_the_one_with_the_fewest_changed_files_is_nearest(made):
    first = made.add(text="int a;")
    made.add(text="int b;")
    text_files.write(made.roots["own"], "relu.cpp", "int a;")
    assert look(made).entry.key == first
