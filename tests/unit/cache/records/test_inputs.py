"""Inputs: names that appear where a header was looked for, and the form in which all of it is kept."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_disk import FakeDisk

from opforge.cache.records.inputs import Dependency, Inputs, RootedPath


def inputs(**parts):
    return Inputs(
        **{"files": (), "names": ("a.h",), "searched": (RootedPath("own", "x"), RootedPath("own", "y")), **parts}
    )


def test_a_place_below_a_root_goes_where_the_root_goes():
    where = RootedPath("own", "a/b.h")
    assert where.resolve({"own": "/p"}) == "/p/a/b.h"
    assert where.resolve({"own": "/q"}) == "/q/a/b.h"
    assert where.resolve({}) is None
    assert Dependency("own", "a", "00").resolve({"own": "/p"}) == "/p/a"
    assert RootedPath("own", "a").join("../b") == RootedPath("own", "b")


def test_nothing_appears_in_an_empty_tree():
    assert inputs().appeared({"own": "/p"}, FakeDisk()) is None


def test_a_name_that_was_there_does_not_appear():
    disk = FakeDisk()
    disk.write("/p/y/a.h", "")
    assert inputs(present=(RootedPath("own", "y/a.h"),)).appeared({"own": "/p"}, disk) is None
    assert inputs().appeared({"own": "/p"}, disk) == "/p/y/a.h"


def test_a_name_with_folders_and_dots_is_the_same_file():
    disk = FakeDisk()
    disk.write("/p/a.h", "")
    found = inputs(names=("../a.h",), present=(RootedPath("own", "a.h"),))
    assert found.appeared({"own": "/p"}, disk) is None


@pytest.mark.parametrize("name", ["../b.h", "sub/../b.h", "/elsewhere/b.h"])
def test_a_name_that_is_queried_by_another_way_appears_too(name):
    disk = FakeDisk()
    disk.touch_folder("/p/x/sub")
    found = inputs(names=(name,))
    assert found.appeared({"own": "/p"}, disk) is None
    for path in ("/p/b.h", "/p/x/b.h", "/elsewhere/b.h"):
        disk.write(path, "")
    assert found.appeared({"own": "/p"}, disk) is not None


def test_a_folder_of_a_root_that_is_not_here_is_passed_over():
    assert inputs(searched=(RootedPath("other", ""),)).appeared({"own": "/p"}, FakeDisk()) is None


located = st.builds(RootedPath, st.text(), st.text())


@given(
    st.lists(st.builds(Dependency, st.text(), st.text(), st.text(), st.text())),
    st.lists(st.text()),
    st.lists(located),
    st.lists(st.tuples(st.text(), located)),
)
def test_any_inputs_survive_json_up_to_order(files, names, places, seals):
    first = Inputs(tuple(files), tuple(names), tuple(places), tuple(places), tuple(places), tuple(seals))
    back = Inputs.from_json(json.loads(json.dumps(first.to_json())))
    assert back.to_json() == first.to_json()
    assert sorted(back.files) == sorted(first.files)


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        None,
        {"files": 1, "names": [], "searched": [], "present": [], "folders": [], "seals": []},
        {"files": [["too", "short"]], "names": [], "searched": [], "present": [], "folders": [], "seals": []},
        {"files": [], "names": [], "searched": [["one"]], "present": [], "folders": [], "seals": []},
        {"files": [], "names": [], "searched": [], "present": [], "folders": [], "seals": [["s", "r"]]},
    ],
)
def test_what_is_no_inputs_says_so(data):
    with pytest.raises((KeyError, TypeError, ValueError)):
        Inputs.from_json(data)
