"""Inputs: names that appear where a header was looked for, and the JSON form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_disk import FakeDisk

from opforge.cache.records.inputs import Answer, Dependency, Inputs, RootedPath
from opforge.cache.records.validity import NAMES


def inputs_with(**fields):
    return Inputs(
        **{"files": (), "names": ("a.h",), "searched": (RootedPath("own", "x"), RootedPath("own", "y")), **fields}
    )


def test_a_path_below_a_root_moves_with_the_root():
    path = RootedPath("own", "a/b.h")
    assert path.resolve({"own": "/p"}) == "/p/a/b.h"
    assert path.resolve({"own": "/q"}) == "/q/a/b.h"
    assert path.resolve({}) is None
    assert Dependency("own", "a", "00").resolve({"own": "/p"}) == "/p/a"
    assert RootedPath("own", "a").join("../b") == RootedPath("own", "b")


def test_nothing_appears_in_an_empty_tree():
    assert inputs_with().appeared({"own": "/p"}, FakeDisk()) is None


def test_a_name_that_was_there_does_not_appear():
    disk = FakeDisk()
    disk.write("/p/y/a.h", "")
    assert inputs_with(present=(RootedPath("own", "y/a.h"),)).appeared({"own": "/p"}, disk) is None
    assert inputs_with().appeared({"own": "/p"}, disk) == "/p/y/a.h"


def test_a_name_with_dots_is_the_same_file_as_without():
    disk = FakeDisk()
    disk.write("/p/a.h", "")
    inputs = inputs_with(names=("../a.h",), present=(RootedPath("own", "a.h"),))
    assert inputs.appeared({"own": "/p"}, disk) is None


@pytest.mark.parametrize("name", ["../b.h", "sub/../b.h", "/elsewhere/b.h"])
def test_a_name_that_leaves_the_searched_folder_appears_too(name):
    disk = FakeDisk()
    disk.touch_folder("/p/x/sub")
    inputs = inputs_with(names=(name,))
    assert inputs.appeared({"own": "/p"}, disk) is None
    for path in ("/p/b.h", "/p/x/b.h", "/elsewhere/b.h"):
        disk.write(path, "")
    assert inputs.appeared({"own": "/p"}, disk) is not None


def test_a_folder_of_a_missing_root_is_ignored():
    assert inputs_with(searched=(RootedPath("other", ""),)).appeared({"own": "/p"}, FakeDisk()) is None


rooted_paths = st.builds(RootedPath, st.text(), st.text())


@given(
    st.lists(st.builds(Dependency, st.text(), st.text(), st.text(), st.text())),
    st.lists(st.text()),
    st.lists(rooted_paths),
    st.lists(st.tuples(st.text(), rooted_paths)),
)
def test_any_inputs_survive_json_up_to_order(files, names, paths, trees):
    first = Inputs(tuple(files), tuple(names), tuple(paths), tuple(paths), tuple(paths), tuple(trees))
    back = Inputs.from_json(json.loads(json.dumps(first.to_json())))
    assert back.to_json() == first.to_json()
    assert sorted(back.files) == sorted(first.files)


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        None,
        {"files": 1, "names": [], "searched": [], "present": [], "folders": [], "trusted_trees": []},
        {"files": [["too", "short"]], "names": [], "searched": [], "present": [], "folders": [], "trusted_trees": []},
        {"files": [], "names": [], "searched": [["one"]], "present": [], "folders": [], "trusted_trees": []},
        {"files": [], "names": [], "searched": [], "present": [], "folders": [], "trusted_trees": [["s", "r"]]},
        {
            "files": [["own", 3, "digest", ""]],
            "names": [],
            "searched": [],
            "present": [],
            "folders": [],
            "trusted_trees": [],
        },
        {"files": [], "names": "text", "searched": [], "present": [], "folders": [], "trusted_trees": []},
    ],
)
def test_data_of_another_form_raises(data):
    with pytest.raises((KeyError, TypeError, ValueError)):
        Inputs.from_json(data)


def test_what_was_found_in_folders_outside_of_every_root_is_a_part_of_its_own():
    disk = FakeDisk()
    for path in ("/opt/a/s/x.h", "/opt/b/y.h"):
        disk.write(path, "")
    files = [
        ("system", "opt/a/s/x.h", "1", "a package"),
        ("system", "opt/ab/z.h", "2", ""),
        ("own", "opt/a/w.h", "3", ""),
        ("system", "opt/gcc/stddef.h", "4", ""),
        ("system", "usr/include/features.h", "5", "libc6-dev"),
    ]
    inputs = inputs_with(
        files=tuple(Dependency(*file) for file in files),
        names=("s/x.h", "t/y.h", "../ab/z.h"),
        searched=(RootedPath("own", "x"), *(RootedPath("system", f"opt/{name}") for name in ("a", "b", "ab", "gcc"))),
        present=(
            *(RootedPath("system", f"opt/{name}") for name in ("a/s/x.h", "b/y.h", "ab/z.h", "ab/s/x.h")),
            RootedPath("own", "b/y.h"),
        ),
    )
    folders = [RootedPath("system", "opt/a"), RootedPath("system", "opt/b")]
    assert inputs.has_file_below(folders) and not inputs.has_file_below(folders[1:])
    found = inputs.of_system(folders, [RootedPath("system", "opt/gcc")], {"system": "/"}, disk)
    files = (Dependency("system", "opt/a/s/x.h", "1"), Dependency("system", "opt/ab/z.h", "2"))
    assert found.files == files, "compared one by one; a header in these folders may include any other by its path"
    assert found.searched == (*folders, RootedPath("system", "opt/ab")), "not a compiler's own"
    assert found.present == (RootedPath("system", "opt/b/y.h"), RootedPath("system", "opt/ab/s/x.h"))
    assert found.names == ("../ab/z.h", "s/x.h", "t/"), "a folder that is in none of them stands for all below it"
    assert found.appeared({"system": "/"}, disk) is None


def test_what_is_shipped_holds_the_names_in_folders_of_precompiled_headers_and_in_no_other():
    kept, of_source = (Answer(NAMES, (("", "1"), ("own", path))) for path in ("x.h.gch", "inc"))
    assert inputs_with(answers=(kept, of_source)).shipped(["system"], {"own": "/op"}, FakeDisk()).answers == (kept,)
