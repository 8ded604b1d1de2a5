"""The root and the trusted tree of a file that was read, and where a new file would change the outcome."""

from __future__ import annotations

import os

import pytest
from support import text_files

from opforge.builders.facade import flags
from opforge.builders.run.reads import questions
from opforge.builders.run.reads.provenance import Provenance
from opforge.builders.run.reads.questions import Questions
from opforge.cache.filesystem import packages
from opforge.cache.filesystem.disk import Disk
from opforge.cache.records.inputs import RootedPath


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Paths below tmp_path, with a database of packages and a folder of wheels."""
    monkeypatch.setattr(packages, "DPKG", str(tmp_path / "dpkg"))
    (tmp_path / "dpkg" / "info").mkdir(parents=True)
    files = ["dpkg/status", "p/a.cpp", "p/vendored/a.h", "usr/listed.h", "usr/copied.h", "site/torch/include/t.h"]
    files += ["site/torch/include/copied.h", "site/other/t.h", "site/torch-2.13.0.dist-info/RECORD"]
    files += [
        "py/patchlevel.h",
        "py/Python.h",
        "py/cpython/object.h",
        "py/greenlet/greenlet.h",
        "cuda/nvcc",
        "cuda/c.h",
    ]
    for name in files:
        os.makedirs(tmp_path / os.path.dirname(name), exist_ok=True)
        text_files.write(tmp_path, name, "")
    text_files.write(tmp_path, "dpkg/info/usr.list", f"/.\n{tmp_path}/usr\n{tmp_path}/usr/listed.h\n")
    text_files.write(tmp_path, "site/torch-2.13.0.dist-info/RECORD", "torch/include/t.h,sha256=x,1\n")
    return tmp_path


def locate(machine, path):
    roots = {"own": "p", "inner": "p/vendored", "torch": "site/torch", "python": "py", "cuda": "cuda"}
    paths = {name: str(machine / folder) for name, folder in roots.items()} | {"system": "/"}
    return Provenance(paths, Disk(), {"cuda": "nvcc"}).locate(f"{machine}/{path}")


@pytest.mark.parametrize(
    ("path", "location", "tree"),
    [
        ("p/a.cpp", ("own", "a.cpp"), ""),
        ("p/vendored/../a.cpp", ("own", "a.cpp"), ""),
        ("site/torch/include/sub/../t.h", ("torch", "include/t.h"), "torch-2.13.0.dist-info"),
        ("p/vendored/a.h", ("inner", "a.h"), ""),
        ("site/torch/include/t.h", ("torch", "include/t.h"), "torch-2.13.0.dist-info"),
        ("site/torch/include/copied.h", ("torch", "include/copied.h"), ""),
        ("py/Python.h", ("python", "Python.h"), "python"),
        ("py/cpython/object.h", ("python", "cpython/object.h"), "python"),
        ("py/greenlet/greenlet.h", ("python", "greenlet/greenlet.h"), ""),
        ("cuda/c.h", ("cuda", "c.h"), "cuda"),
    ],
)
def test_a_file_belongs_to_the_nearest_root_and_its_trusted_tree(machine, path, location, tree):
    read = locate(machine, path)
    assert (tuple(read.location), read.tree) == (location, tree)


@pytest.mark.parametrize(("path", "tree"), [("usr/listed.h", "system"), ("usr/copied.h", ""), ("site/other/t.h", "")])
def test_a_file_outside_every_root_is_trusted_only_if_a_package_lists_it(machine, path, tree):
    read = locate(machine, path)
    assert (read.location, read.tree) == (("system", f"{machine}/{path}"[1:]), tree)


def test_the_headers_of_a_toolkit_in_wheels_are_those_that_wheels_list(machine):
    """Its compiler does not change with each of them."""
    (machine / "site" / "nvidia" / "cu13").mkdir(parents=True)
    (machine / "site" / "nvidia_cuda_cccl-13.0.dist-info").mkdir()
    text_files.write(machine, "site/nvidia_cuda_cccl-13.0.dist-info/RECORD", "nvidia/cu13/c.h,,\n")
    for name in ("nvcc", "c.h", "d.h"):
        text_files.write(machine, f"site/nvidia/cu13/{name}", "")
    root = machine / "site" / "nvidia" / "cu13"
    provenance = Provenance({"cuda": str(root), "system": "/"}, Disk(), {"cuda": "nvcc"})
    assert provenance.locate(f"{root}/c.h").tree == "nvidia_cuda_cccl-13.0.dist-info"
    assert provenance.locate(f"{root}/d.h").tree == ""


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
        queries = questions.of_all(questions.in_files(filter(os.path.exists, paths)).values())
        reads = [self.provenance.locate(path) for path in paths]
        return self.provenance.collect(reads, map(self.path, search), map(self.path, compiler_folders), queries)

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


def test_a_dangling_link_is_no_header_until_what_it_leads_to_appears(tree):
    tree.write("a.cpp", "late/x.h", "early/other.h", "links/other.h")
    os.symlink("../links/x.h", tree.path("early/x.h"))
    os.symlink(tree.path("target/new/x.h"), tree.path("links/x.h"))
    inputs = tree.collect(["a.cpp", "late/x.h"], ["early", "late"])
    assert tree.appeared(inputs) is None
    assert {RootedPath("own", "links"), RootedPath("own", "")} <= {*inputs.folders}, "what it leads to is watched"
    tree.write("target/new/x.h")
    assert tree.appeared(inputs) == "early/x.h"


def test_a_folder_with_the_name_of_a_header_is_no_header(tree):
    tree.write("a.cpp", "late/x", "early/x/y")
    inputs = tree.collect(["a.cpp", "late/x"], ["early", "late"])
    os.unlink(tree.path("early/x/y"))
    os.rmdir(tree.path("early/x"))
    assert tree.appeared(inputs) is None
    tree.write("early/x")
    assert tree.appeared(inputs) == "early/x"


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


def test_a_library_asks_nothing_whatever_its_bytes_are(tree):
    text = "#if __has_include(<x.h>)\n__DATE__\n#endif\n"
    for start in ("", "\x7fELF\x02", "!<arch>\n", "!<thin>\n"):
        tree.write("read", text=start + text)
        asked = questions.in_files([tree.path("read")])
        names, variables = frozenset({"x.h"}), frozenset({questions.DATE})
        assert asked == ({} if start else {tree.path("read"): Questions(names=names, variables=variables)})


def test_a_file_that_a_package_has_installed_since_is_located_anew_in_the_next_run(machine):
    provenance = Provenance({"own": str(machine / "p"), "system": "/"}, Disk())
    path = str(machine / "p" / "a.cpp")
    assert provenance.locate(path) is provenance.locate(path)
    before = provenance.locate(path)
    provenance.surroundings(str(machine), 0, [], [])
    assert provenance.locate(path) is not before


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("#define ASK(x) x##_include\nASK(__has)(<a.h>)", True),
        ("#define ASK(x) __##x\n", True),
        ('#define NAME(x) "__" #x "__"\n#define JOIN(x, y) x##y\n', False),
    ],
)
def test_a_text_in_quotes_is_no_piece_of_a_question(tree, text, asks):
    tree.write("read", text=text)
    path = tree.path("read")
    assert questions.of_all(questions.in_files([path], [path]).values()).asks_for_any == asks


def test_no_header_of_the_facade_makes_the_names_beside_a_source_count():
    """In a checkout they are files of the op's own."""
    headers = [str(path) for path in flags.INCLUDE.rglob("*.h")]
    assert headers and not questions.of_all(questions.in_files(headers, headers).values()).asks_for_any
