"""Paths in flags: named by their root in a plan, and paths again in commands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opforge.builders.declaration import flag_paths
from opforge.builders.declaration.kernel_roots import KernelRoot

ROOTS = (KernelRoot("own", "/p"), KernelRoot("sycl:pkg/csrc", "/p/vendored"), KernelRoot("opforge", "/site/csrc"))
PATHS = {root.name: root.path for root in ROOTS}


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["-I/p/inc"], ["-I{own}/inc"]),
        (["-I/p"], ["-I{own}"]),
        (["-I/p/vendored/inc"], ["-I{sycl:pkg/csrc}/inc"]),
        (["-I/p/sub/../inc"], ["-I{own}/inc"]),
        (["-I", "/p/inc"], ["-I", "{own}/inc"]),
        (["-isystem", "/p/inc", "-isystem/p/inc"], ["-isystem", "{own}/inc", "-isystem{own}/inc"]),
        (["-include", "/p/config.h"], ["-include", "{own}/config.h"]),
        (["-L/p/lib", "-lfoo"], ["-L{own}/lib", "-lfoo"]),
        (["/p/build/x.o", "/p/libx.a"], ["{own}/build/x.o", "{own}/libx.a"]),
        (["-Wl,-T,/p/a.ld,-L,/p/lib"], ["-Wl,-T,{own}/a.ld,-L,{own}/lib"]),
        (["-Wl,--version-script=/p/a.map"], ["-Wl,--version-script={own}/a.map"]),
        (["-Xlinker", "--version-script=/p/a.map"], ["-Xlinker", "--version-script={own}/a.map"]),
        (["-Xcompiler=-I/p/inc"], ["-Xcompiler=-I{own}/inc"]),
        (["@/p/flags"], ["@{own}/flags"]),
        (["-I/p/a{b}"], ["-I{own}/a{{b}}"]),
        (["-DX={1}"], ["-DX={{1}}"]),
    ],
)
def test_a_path_below_a_root_is_named_by_the_root(flags, named):
    assert flag_paths.named(flags, ROOTS) == tuple(named)


@pytest.mark.parametrize(
    "flags",
    [
        ["-I/pq/inc"],
        ["-I/elsewhere"],
        ["-Iinc"],
        ["-DFOLDER=/p/inc", "-DFLAG=-I/p/inc"],
        ["-D", "FOLDER=/p/libx.a"],
        ["-Wl,-rpath,/p/lib", "-Wl,-rpath=/p/lib"],
        ["/p/lib/libx.so", "-Wl,-soname,/p/libx.so", "-Wl,-soname", "-Wl,/p/libx.a"],
        ["-Wl,-rpath", "-Wl,/p/lib", "-Xlinker", "-rpath", "-Xlinker", "/p/lib"],
        ["-fprofile-generate=/p/profiles"],
    ],
)
def test_other_paths_and_those_that_become_a_part_of_the_library_are_kept(flags):
    assert flag_paths.named(flags, ROOTS) == tuple(flags)


def test_a_path_through_a_link_is_named_by_the_root_that_it_leads_to(tmp_path):
    (tmp_path / "project" / "inc").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "project")
    roots = [KernelRoot("own", str(tmp_path / "project"))]
    assert flag_paths.named([f"-I{tmp_path}/link/inc"], roots) == ("-I{own}/inc",)


@pytest.fixture
def project(tmp_path):
    """A folder with one file or folder for each kind of flag."""
    for folder in ("lib", "inc"):
        (tmp_path / folder).mkdir()
    for name in ("lib/libfoo.a", "lib/libfoo.so", "x.o", "exports.map", "config.h", "flags", "a.ld", "fp.profdata"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    "flags",
    [
        ["-L@lib", "-I@inc", "-isystem", "@inc", "-L", "@not_there_yet"],
        ["@lib/libfoo.a", "@lib/libfoo.so", "@x.o"],
        ["-Wl,--version-script=@exports.map", "-Wl,--version-script,@exports.map", "-Wl,-version-script=@exports.map"],
        ["-Xlinker", "--version-script=@exports.map"],
        ["-Wl,--whole-archive,@lib/libfoo.a,--no-whole-archive", "-Wl,-L,@lib", "-Wl,-T,@a.ld", "-T@a.ld"],
        ["-include", "@config.h", "-imacros", "@config.h", "-fprofile-use=@fp.profdata"],
        ["-iquote@inc", "-idirafter", "@inc", "-I@not_there_yet", "-Xclang", "-include", "-Xclang", "@config.h"],
        ["-Wl,-Map=@out.map", "-Wl,-Map,@new/out.map", "-Wl,-Map", "-Wl,@out.map"],
        ["-Wl,--version-script", "-Wl,@exports.map", "-Wl,-T", "@a.ld", "-Wl,@lib/libfoo.a"],
        ["-Xlinker", "--version-script", "-Xlinker", "@exports.map", "-Xlinker", "-T", "-Xlinker", "@a.ld"],
        ["-Wl,-x", "@lib/libfoo.a", "-Xlinker", "@lib/libfoo.a", "-Xlinker=-L,@lib", "--linker-options=-L,@lib"],
        ["-Wl,--retain-symbols-file=@exports.map", "-Wl,--export-dynamic-symbol-list=@exports.map"],
        ["-Wl,--symbol-ordering-file=@exports.map", "-Wl,--symbol-ordering-file", "-Wl,@exports.map"],
        ["-Xcompiler", "-fPIC,-I@inc"],
        ["-Xcompiler=-I@inc"],
    ],
)
def test_a_relative_path_counts_from_the_folder(project, flags):
    relative = [flag.replace("@", "") for flag in flags]
    located = tuple(flag.replace("@", f"{project}/") for flag in flags)
    assert flag_paths.absolute(relative, str(project)) == located
    assert flag_paths.absolute(located, str(project)) == located
    named = flag_paths.named(located, [KernelRoot("own", str(project))])
    reads = [flag for flag in flags if not flag.endswith(".so") and "profile" not in flag]
    assert [flag for flag in named if "{own}" in flag] == [flag.replace("@", "{own}/") for flag in reads if "@" in flag]


def test_a_linked_file_above_the_folder_is_found(project):
    flags = ["-Xlinker", "lib/../x.o", "-Wl,lib/../x.o", "./x.o"]
    located = ("-Xlinker", f"{project}/x.o", f"-Wl,{project}/x.o", f"{project}/x.o")
    assert flag_paths.absolute(flags, str(project)) == located


def test_a_file_of_flags_counts_from_the_folder(project):
    assert flag_paths.absolute(["@flags", "@missing"], str(project)) == (f"@{project}/flags", "@missing")


@pytest.mark.parametrize(
    "flags",
    [
        ["-Wl,-rpath,lib", "-Wl,-rpath=lib", "-Wl,-soname,lib/libfoo.so", "-Wl,-soname=lib/libfoo.so"],
        ["-D", "x.o", "-DX=lib", "-DX=@flags", "-lfoo", "-std=c++17", "-u", "x.o", "-march=native"],
        ["-I/usr/include", "-I=inc", "-L$ORIGIN/lib", "missing.a", "-Wl,-T,missing.ld", "-include", "missing.h"],
        ["-O2", "config.h", "-DX=inc"],
        ["-Xlinker", "-soname", "-Xlinker", "lib/libfoo.so", "-Xlinker", "-rpath", "-Xlinker", "lib"],
        ["-Wl,-soname", "-Wl,lib/libfoo.so", "-Wl,-soname", "lib/libfoo.so", "-Wl,-soname", "-Wl,lib/libfoo.a"],
        ["-Wl,--exclude-libs,x.o", "-Wl,--exclude-libs", "-Wl,lib/libfoo.a", "-Wl,--exclude-libs=x.o"],
    ],
)
def test_other_words_are_kept_whatever_lies_beside_them(project, flags):
    assert flag_paths.absolute(flags, str(project)) == tuple(flags)


def test_the_root_of_the_file_system_names_no_path():
    assert flag_paths.named(["-I/usr/include"], [KernelRoot("own", "/")]) == ("-I/usr/include",)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "-I", "-L", "-D", "-Wl,", "-Wl,-T,", "@", "-Xcompiler=-I"]),
            st.sampled_from(["", "/p", "/p/vendored", "/site/csrc", "/other", "x"]),
            st.text("{}ab/,=.", max_size=6),
        ).map("".join)
    )
)
def test_located_flags_are_the_same_paths_as_before(flags):
    import os

    def plain(words):
        return [[os.path.normpath(part) if "/" in part else part for part in word.split(",")] for word in words]

    assert plain(flag_paths.located(flag_paths.named(flags, ROOTS), PATHS)) == plain(flags)


@given(st.lists(st.text("{}own/p-I", max_size=8)), st.lists(st.text("{}own/p-I", max_size=8)))
def test_different_flags_have_different_names(first, second):
    """Otherwise two plans would share a key."""
    if flag_paths.located(flag_paths.named(first, ROOTS), PATHS) != flag_paths.located(
        flag_paths.named(second, ROOTS), PATHS
    ):
        assert flag_paths.named(first, ROOTS) != flag_paths.named(second, ROOTS)
