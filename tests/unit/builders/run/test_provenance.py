"""Whose a file is that the compiler read, and where a new one would change the outcome."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import text_files
from support.fake_disk import FakeDisk

from opforge.builders.run.dependencies import parse_depfile
from opforge.builders.run.provenance import Provenance
from opforge.cache.filesystem.disk import Disk
from opforge.cache.records.inputs import RootedPath


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.o: a.cpp a.h\n", ["a.cpp", "a.h"]),
        ("a.o: a.cpp \\\n  b/c.h \\\n  d.h\n", ["a.cpp", "b/c.h", "d.h"]),
        ("a.o: with\\ space.h x.h\n", ["with space.h", "x.h"]),
        ("a.o: \\#hash.h $$dollar.h\n", ["#hash.h", "$dollar.h"]),
        ("a.o:\n", []),
        ("", []),
        ("a.o: C\\:odd.h\n", ["C:odd.h"]),
        ("my\\ op.o: a.cpp\n", ["a.cpp"]),
        ("a.o: caf\udce9.h\n", ["caf\udce9.h"]),
    ],
)
def test_a_depfile_gives_its_prerequisites(text, names):
    assert parse_depfile(text) == names


@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Z"], exclude_characters="\\:"), min_size=1)))
def test_names_survive_makes_escapes(names):
    escaped = [name.replace("$", "$$").replace("#", "\\#") for name in names]
    assert parse_depfile("a.o: " + " \\\n ".join(escaped) + "\n") == names


AWKWARD = [
    "plain.h",
    "with space.h",
    "dollar$.h",
    "hash#.h",
    "tick'.h",
    "umläut.h",
    "percent%.h",
    "a;b&c.h",
    "colon:.h",
]


@pytest.mark.compile
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ (apt install g++)")
@pytest.mark.parametrize("name", AWKWARD)
def test_what_gxx_writes_for_awkward_names_is_read(tmp_path, name):
    header = text_files.write(tmp_path, name, "")
    source = text_files.write(tmp_path, "a.cpp", f'#include "{name}"\n')
    subprocess.run(["g++", "-MD", "-MF", "a.d", "-c", source, "-o", "a.o"], cwd=tmp_path, check=True)
    assert header in parse_depfile((tmp_path / "a.d").read_text())


ROOTS = {"own": "/p", "inner": "/p/vendored", "torch": "/site/torch", "system": "/"}


@pytest.fixture
def disk(monkeypatch):
    disk = FakeDisk()
    disk.write("/var/lib/dpkg/status", "")
    monkeypatch.setattr("glob.glob", lambda pattern: [pattern.replace("*", "2.13.0")])
    return disk


def place(disk, path, roots=ROOTS):
    return Provenance(roots, disk).place(path)


@pytest.mark.parametrize(
    ("path", "where", "seal"),
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
def test_a_file_belongs_to_the_nearest_root_and_its_seal(disk, path, where, seal):
    read = place(disk, path)
    assert (tuple(read.where), read.seal) == (where, seal)


@pytest.mark.parametrize(
    "path", ["/data/a.h", "/work/a.h", "/workspace/a.h", "/scratch/x/a.h", "/nix/store/x/a.h", "/export/a.h"]
)
def test_only_what_a_package_manager_installs_is_sealed_by_its_database(disk, path):
    """A header on a disk of one's own changes without the package database: its own stamp must count."""
    assert place(disk, path).seal == ""


def test_without_a_package_database_nothing_of_the_system_is_sealed():
    assert place(FakeDisk(), "/usr/include/stdio.h", {"system": "/"}).seal == ""


@pytest.mark.parametrize("records", [0, 2])
def test_a_torch_without_one_record_is_not_sealed(disk, monkeypatch, records):
    monkeypatch.setattr("glob.glob", lambda pattern: [pattern] * records)
    assert place(disk, "/site/torch/include/t.h").seal == ""


class Tree:
    """Real files in a folder, and what would be accounted for if a compiler read them."""

    def __init__(self, folder):
        self.folder, self.roots = str(folder), {"own": str(folder), "system": "/"}

    def write(self, *names, text=""):
        for name in names:
            os.makedirs(os.path.dirname(os.path.join(self.folder, name)), exist_ok=True)
            text_files.write(self.folder, name, text)

    def path(self, name):
        return os.path.join(self.folder, name)

    def collect(self, reads, search, roots=None):
        self.provenance = Provenance(roots or self.roots, Disk())
        return self.provenance.collect(
            [self.provenance.place(self.path(r)) for r in reads], [self.path(s) for s in search]
        )

    def appeared(self, inputs, roots=None):
        found = inputs.appeared(roots or self.roots, Disk())
        return found and os.path.relpath(found, self.folder)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_a_header_that_shadows_is_seen_and_others_are_not(tree):
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


def test_a_folder_that_did_not_exist_can_bring_a_header(tree):
    tree.write("a.cpp", "late/sub/x.h")
    inputs = tree.collect(["a.cpp", "late/sub/x.h"], ["early", "late"])
    assert RootedPath("own", "") in inputs.folders, "its nearest existing parent is watched"
    tree.write("early/sub/x.h")
    assert tree.appeared(inputs) == "early/sub/x.h"


@pytest.mark.parametrize("query", ["<opt/y.h>", '"opt/y.h"', '"../outside/y.h"'])
def test_what_has_include_asked_for_is_looked_for(tree, query):
    name = query[1:-1]
    tree.write("src/a.cpp", text=f"#if __has_include({query})\n#endif\n")
    tree.write("src/opt/z.h", "outside/z.h")
    inputs = tree.collect(["src/a.cpp"], ["src"])
    assert tree.appeared(inputs) is None
    watched = {os.path.normpath(where.resolve(tree.roots)) for where in inputs.folders}
    place = os.path.normpath(tree.path(os.path.join("src", name)))
    assert os.path.dirname(place) in watched, "its folder's stamp must be asked for"
    tree.write(os.path.relpath(place, tree.folder))
    assert tree.appeared(inputs) == os.path.relpath(place, tree.folder)


def test_a_root_inside_another_does_not_make_old_headers_look_new(tree):
    tree.write("a.cpp", "inc/x.h")
    roots = {**tree.roots, "include0": tree.path("inc")}
    inputs = tree.collect(["a.cpp", "inc/x.h"], ["inc"], roots)
    assert tree.appeared(inputs, roots) is None


def test_a_name_that_was_there_in_a_later_folder_is_no_newcomer(tree):
    tree.write("a.cpp", "early/x.h", "late/x.h")
    inputs = tree.collect(["a.cpp", "early/x.h"], ["early", "late"])
    assert tree.appeared(inputs) is None


def test_a_file_that_has_gone_meanwhile_is_an_error(tree):
    with pytest.raises(FileNotFoundError):
        tree.collect(["gone.h"], [])


def test_stamps_are_of_the_files_that_exist(tree):
    tree.write("a.cpp")
    provenance = Provenance(tree.roots, Disk())
    stamps = provenance.stamps([provenance.place(tree.path(name)) for name in ("a.cpp", "gone.h")])
    assert list(stamps) == [("own", "a.cpp")]
