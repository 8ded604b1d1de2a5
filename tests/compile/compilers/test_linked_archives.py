"""Archives that are linked in are inputs with every linker: also if it lists no files, and if they are thin."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess

import pytest
from support import sample_ops, text_files
from support.compilers.installed_compilers import skip_if_zig_is_slow

from opforge.builders.toolchains import zig
from opforge.errors import ToolchainNotFoundError

LEVEL = {"x86_64": "cpu:x86-64-v2", "aarch64": "cpu:aarch64"}.get(os.uname().machine, "")
CALLER = 'extern "C" int number();\n' + sample_ops.EXPORT + " int value() { return number(); }\n"
OLD_LINKER = 'case "$*" in *--dependency-file*) echo unrecognized option >&2; exit 1;; esac\nexec {} "$@"'
LINKERS = ["bfd", "lld", "mold", "gold", "old"]
"""`old` is the system's linker without --dependency-file, which binutils has since 2.35."""
OFTEN = ("bfd", "old")
"""One that lists what it reads, and one that does not."""
RARELY = pytest.mark.long("links by another linker that lists what it reads; the first tests try each")
TWO = [pytest.param(name, marks=() if name in OFTEN else RARELY) for name in LINKERS]


@pytest.fixture(scope="session")
def old_linker(shared_store):
    """A folder with the linker `old`. It is none of a test's own, so that the compiler is asked about it once."""
    folder = shared_store.parent / f"old-linker-{os.getpid()}"
    text_files.write_script(folder, "ld.bfd", OLD_LINKER.format(shutil.which("ld.bfd")))
    return folder


@pytest.fixture
def link_with(old_linker, monkeypatch):
    """Makes g++ use a linker."""

    def use(name):
        if name == "old":
            monkeypatch.setenv("PATH", f"{old_linker}:{os.environ['PATH']}")
        elif shutil.which(f"ld.{name}") is None:
            pytest.skip(f"ld.{name} is not installed")
        monkeypatch.setenv("LDFLAGS", f"-fuse-ld={'bfd' if name == 'old' else name}")

    return use


@pytest.fixture
def build(folder):
    """Builds the op that calls `number()`; returns its value and the entry's origin."""
    folder.mkdir()
    text_files.write(folder, "plain.cpp", CALLER)

    def run(target=None, portable=False, **attributes):
        entry = sample_ops.builder_class(folder, "plain", abi="c", **attributes)(target, portable=portable).build()
        return ctypes.CDLL(entry.library).value(), entry.origin

    return run


def archive(folder, number, name="libnumber.a", options="rcs"):
    """Writes an archive whose function `number()` returns the number."""
    os.makedirs(folder, exist_ok=True)
    source = text_files.write(folder, "number.cpp", f'extern "C" int number() {{ return {number}; }}\n')
    subprocess.run(["g++", "-fPIC", "-c", source, "-o", f"{folder}/number.o"], check=True)
    if not os.path.exists(os.path.join(folder, name)) or "T" not in options:
        subprocess.run(["ar", options, name, "number.o"], cwd=folder, check=True)


def link_args(*folders):
    return {"libraries": ["number"], "extra_link_args": [f"-L{folder}" for folder in folders]}


@pytest.mark.parametrize("linker", LINKERS)
def test_a_changed_archive_is_linked_again(tmp_path, build, link_with, linker):
    link_with(linker)
    for number in (1, 2):
        archive(tmp_path / "lib", number)
        assert build(**link_args(tmp_path / "lib")) == (number, "built")
        assert build(**link_args(tmp_path / "lib")) == (number, "cache")


@pytest.mark.parametrize("linker", TWO)
def test_an_archive_that_appears_in_an_earlier_folder_is_linked(tmp_path, build, link_with, linker):
    link_with(linker)
    archive(tmp_path / "late", 1)
    (tmp_path / "early").mkdir()
    attributes = link_args(tmp_path / "early", tmp_path / "late")
    assert build(**attributes) == (1, "built")
    archive(tmp_path / "early", 2)
    assert build(**attributes) == (2, "built")


@pytest.mark.parametrize("linker", TWO)
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_an_archive_that_appears_before_a_library_of_the_system_is_linked(
    tmp_path, build, link_with, monkeypatch, linker, compiler
):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    monkeypatch.setenv("CXX", compiler)
    link_with(linker)
    (tmp_path / "early").mkdir()
    text_files.write(tmp_path / "op", "plain.cpp", sample_ops.EXPORT + " int value() { return 1; }\n")
    attributes = {"libraries": ["anl"], "extra_link_args": [f"-L{tmp_path}/early"]}  # libanl is a part of glibc
    assert [build(**attributes)[1] for _load in range(2)] == ["built", "cache"]
    archive(tmp_path / "early", 2, "libanl.a")
    assert [build(**attributes)[1] for _load in range(2)] == ["built", "cache"]


def test_an_archive_that_appears_in_an_earlier_folder_of_the_compilers_own_is_linked(tmp_path, build):
    (tmp_path / "early").mkdir()
    attributes = {"libraries": ["number"], "extra_link_args": [f"-B{tmp_path}/early", f"-B{tmp_path}/late"]}
    for folder, number in (("late", 1), ("early", 2)):
        archive(tmp_path / folder, number)
        assert build(**attributes) == (number, "built")


@pytest.mark.parametrize("linker", TWO)
def test_the_members_of_a_thin_archive_are_inputs(tmp_path, build, link_with, linker):
    link_with(linker)
    for number in (1, 2):
        archive(tmp_path / "lib", number, options="rcsT")
        assert build(**link_args(tmp_path / "lib")) == (number, "built")
        assert build(**link_args(tmp_path / "lib")) == (number, "cache")


def test_a_thin_archive_in_another_one_and_a_long_name_are_followed(tmp_path, build):
    for number in (1, 2):
        archive(tmp_path / "inner", number, "libinner.a", "rcsT")
        os.makedirs(tmp_path / "lib", exist_ok=True)
        long = tmp_path / "inner" / f"{'long' * 20}.o"
        subprocess.run(["g++", "-fPIC", "-c", "-x", "c++", os.devnull, "-o", str(long)], check=True)
        if number == 1:
            names = ["../inner/libinner.a", str(long)]
            subprocess.run(["ar", "rcsT", "libnumber.a", *names], cwd=tmp_path / "lib", check=True)
        assert build(**link_args(tmp_path / "lib")) == (number, "built")
        assert build(**link_args(tmp_path / "lib")) == (number, "cache")


def test_an_archive_inside_a_thin_one_is_an_input(tmp_path, build, link_with):
    link_with("bfd")
    (tmp_path / "lib").mkdir()
    for number in (1, 2):
        archive(tmp_path / "inner", number, "libinner.a")
        subprocess.run(["ar", "rcsT", "libnumber.a", "../inner/libinner.a"], cwd=tmp_path / "lib", check=True)
        assert build(**link_args(tmp_path / "lib")) == (number, "built")


@pytest.mark.parametrize(
    ("linker", "script"),
    [
        ("bfd", "INPUT(libinner.a)"),
        ("old", "/* INPUT(x) */ GROUP ( AS_NEEDED ( -linner ) )"),
        *(pytest.param(name, "INPUT(libinner.a)", marks=RARELY) for name in LINKERS if name not in OFTEN),
    ],
)
def test_what_a_linker_script_names_is_an_input(tmp_path, build, link_with, linker, script):
    link_with(linker)
    for number in (1, 2):
        archive(tmp_path / "lib", number, "libinner.a")
        text_files.write(tmp_path / "lib", "libnumber.so", script + "\n")
        assert build(**link_args(tmp_path / "lib")) == (number, "built")
        assert build(**link_args(tmp_path / "lib")) == (number, "cache")


def test_every_spelling_of_a_library_is_resolved(tmp_path, build, link_with):
    link_with("old")
    (tmp_path / "first").mkdir()
    subprocess.run(["g++", "-shared", "-x", "c++", os.devnull, "-o", f"{tmp_path}/first/libnumber.so"], check=True)
    library = f"-L{tmp_path}/lib"
    spelled = [[library, word] for word in ("-Wl,-l,number", "-Wl,-lnumber", "-l:libnumber.a")]
    spelled.append([f"-L{tmp_path}/first", library, "-Wl,-Bstatic", "-lnumber", "-Wl,-Bdynamic"])
    for number in (1, 2):
        archive(tmp_path / "lib", number)
        for words in spelled:
            assert build(extra_link_args=words) == (number, "built"), words
            assert build(extra_link_args=words) == (number, "cache"), words


def test_library_path_is_searched_too(tmp_path, build, link_with, monkeypatch):
    link_with("old")
    monkeypatch.setenv("LIBRARY_PATH", str(tmp_path / "lib"))
    for number in (1, 2):
        archive(tmp_path / "lib", number)
        assert build(libraries=["number"]) == (number, "built")
        assert build(libraries=["number"]) == (number, "cache")


@pytest.mark.long("zig builds its libc++")
@pytest.mark.parametrize("options", ["rcs", "rcsT"])
def test_zig_links_a_changed_archive_again(tmp_path, build, options):
    try:
        zig.find()
    except ToolchainNotFoundError as error:
        pytest.skip(str(error))
    skip_if_zig_is_slow()
    for number in (1, 2):
        archive(tmp_path / "lib", number, options=options)
        assert build(LEVEL, portable=True, **link_args(tmp_path / "lib")) == (number, "built")
        assert build(LEVEL, portable=True, **link_args(tmp_path / "lib")) == (number, "cache")
