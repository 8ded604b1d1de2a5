"""The root and the trusted tree of a file that was read, and where a new file would change the outcome."""

from __future__ import annotations

import os

import pytest
from support import text_files
from support.fake_disk import FakeDisk

from opforge.builders.run import questions
from opforge.builders.run.provenance import Provenance
from opforge.cache.filesystem.disk import Disk
from opforge.cache.records.inputs import RootedPath

ROOTS = {"own": "/p", "inner": "/p/vendored", "torch": "/site/torch", "system": "/"}


@pytest.fixture
def disk(monkeypatch):
    disk = FakeDisk()
    disk.write("/var/lib/dpkg/status", "")
    monkeypatch.setattr("glob.glob", lambda pattern: [pattern.replace("*", "2.13.0")])
    return disk


def locate(disk, path, roots=ROOTS):
    return Provenance(roots, disk).locate(path)


@pytest.mark.parametrize(
    ("path", "location", "tree"),
    [
        ("/p/a.cpp", ("own", "a.cpp"), ""),
        ("/p/sub/../a.cpp", ("own", "a.cpp"), ""),
        ("/p/vendored/a.h", ("inner", "a.h"), ""),
        ("/prefix/a.h", ("system", "prefix/a.h"), ""),
        ("/site/torch/include/t.h", ("torch", "include/t.h"), "torch"),
        ("/site/other/t.h", ("system", "site/other/t.h"), ""),
        ("/usr/include/c++/12/vector", ("system", "usr/include/c++/12/vector"), "system"),
        (
            "/usr/lib/gcc/x86_64-linux-gnu/12/include/stddef.h",
            ("system", "usr/lib/gcc/x86_64-linux-gnu/12/include/stddef.h"),
            "system",
        ),
        ("/usr/local/include/a.h", ("system", "usr/local/include/a.h"), ""),
        ("/opt/tool/include/a.h", ("system", "opt/tool/include/a.h"), ""),
        ("/home/ann/a.h", ("system", "home/ann/a.h"), ""),
        ("/tmp/a.h", ("system", "tmp/a.h"), ""),
    ],
)
def test_a_file_belongs_to_the_nearest_root_and_its_trusted_tree(disk, path, location, tree):
    read = locate(disk, path)
    assert (tuple(read.location), read.tree) == (location, tree)


@pytest.mark.parametrize(
    "path", ["/data/a.h", "/work/a.h", "/workspace/a.h", "/scratch/x/a.h", "/nix/store/x/a.h", "/export/a.h"]
)
def test_only_files_of_installed_packages_are_trusted_by_the_package_database(disk, path):
    """Such a header can change without the package database: its own stamp must be compared."""
    assert locate(disk, path).tree == ""


def test_without_a_package_database_no_file_of_the_system_is_trusted():
    assert locate(FakeDisk(), "/usr/include/stdio.h", {"system": "/"}).tree == ""


@pytest.mark.parametrize("records", [0, 2])
def test_a_torch_without_exactly_one_record_is_not_trusted(disk, monkeypatch, records):
    monkeypatch.setattr("glob.glob", lambda pattern: [pattern] * records)
    assert locate(disk, "/site/torch/include/t.h").tree == ""


class Tree:
    """Real files in a folder, and the inputs of a build that read them."""

    def __init__(self, folder):
        self.folder, self.roots = str(folder), {"own": str(folder), "system": "/"}

    def write(self, *names, text=""):
        for name in names:
            os.makedirs(os.path.dirname(os.path.join(self.folder, name)), exist_ok=True)
            text_files.write(self.folder, name, text)

    def path(self, name):
        return os.path.join(self.folder, name)

    def collect(self, reads, search, roots=None, compiler_folders=()):
        self.provenance = Provenance(roots or self.roots, Disk())
        paths = [self.path(name) for name in reads]
        asked = questions.in_files(path for path in paths if os.path.exists(path))
        reads = [self.provenance.locate(path) for path in paths]
        return self.provenance.collect(
            reads, map(self.path, search), map(self.path, compiler_folders), asked
        )

    def appeared(self, inputs, roots=None):
        path = inputs.appeared(roots or self.roots, Disk())
        return path and os.path.relpath(path, self.folder)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_a_new_header_is_noticed_only_if_it_shadows_one_that_was_read(tree):
    tree.write("a.cpp", "late/x.h", "early/unrelated.h")
    inputs = tree.collect(["a.cpp", "late/x.h"], ["early", "late"])
    assert tree.appeared(inputs) is None
    tree.write("early/other.h")
    assert tree.appeared(inputs) is None
    tree.write("early/x.h")
    assert tree.appeared(inputs) == "early/x.h"


def test_a_header_beside_the_source_shadows_one_on_the_path(tree):
    tree.write("src/a.cpp", "inc/x.h")
    inputs = tree.collect(["src/a.cpp", "inc/x.h"], ["inc"])
    tree.write("src/x.h")
    assert tree.appeared(inputs) == "src/x.h"


def test_a_header_in_a_folder_that_did_not_exist_before_is_noticed(tree):
    tree.write("a.cpp", "late/sub/x.h")
    inputs = tree.collect(["a.cpp", "late/sub/x.h"], ["early", "late"])
    assert RootedPath("own", "") in inputs.folders, "its nearest existing parent is watched"
    tree.write("early/sub/x.h")
    assert tree.appeared(inputs) == "early/sub/x.h"


@pytest.mark.parametrize("query", ["<opt/y.h>", '"opt/y.h"', '"../outside/y.h"'])
def test_a_header_that_has_include_named_is_noticed_when_it_appears(tree, query):
    name = query[1:-1]
    tree.write("src/a.cpp", text=f"#if __has_include({query})\n#endif\n")
    tree.write("src/opt/z.h", "outside/z.h")
    inputs = tree.collect(["src/a.cpp"], ["src"])
    assert tree.appeared(inputs) is None
    watched = {os.path.normpath(folder.resolve(tree.roots)) for folder in inputs.folders}
    path = os.path.normpath(tree.path(os.path.join("src", name)))
    assert os.path.dirname(path) in watched, "its folder's stamp must be compared"
    tree.write(os.path.relpath(path, tree.folder))
    assert tree.appeared(inputs) == os.path.relpath(path, tree.folder)


def test_a_root_inside_another_does_not_make_old_headers_look_new(tree):
    tree.write("a.cpp", "inc/x.h")
    roots = {**tree.roots, "include0": tree.path("inc")}
    inputs = tree.collect(["a.cpp", "inc/x.h"], ["inc"], roots)
    assert tree.appeared(inputs, roots) is None


def test_a_name_that_was_present_in_a_later_folder_has_not_appeared(tree):
    tree.write("a.cpp", "early/x.h", "late/x.h")
    inputs = tree.collect(["a.cpp", "early/x.h"], ["early", "late"])
    assert tree.appeared(inputs) is None


def test_a_file_that_is_gone_is_an_error(tree):
    with pytest.raises(FileNotFoundError):
        tree.collect(["gone.h"], [])


def test_only_files_that_exist_have_stamps(tree):
    tree.write("a.cpp")
    provenance = Provenance(tree.roots, Disk())
    stamps = provenance.stamps([provenance.locate(tree.path(name)) for name in ("a.cpp", "gone.h")])
    assert list(stamps) == [("own", "a.cpp")]
