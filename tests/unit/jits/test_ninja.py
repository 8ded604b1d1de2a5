"""JITs that call ninja: what was built is found, and is never used after anything that was read has changed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import types

import pytest

import opforge
from opforge.errors import CompileForbiddenError
from opforge.jits import adapter, ninja, page
from opforge.jits.entries import Entries

MODULE = "opforge_ninja_jit"
pytestmark = pytest.mark.compile


class Jit(ninja.NinjaAdapter):
    """A JIT that compiles one file of C in a folder."""

    name, module, package, versions = "ninja-jit", MODULE, "pytest", tuple("123456789")

    def packages(self):
        return []

    def install(self):
        return lambda: None


BUILD = """\
cxx = {cxx}
cflags = -fPIC -I{project}/first -I{project}/include {flags}
rule compile
  depfile = $out.d
  deps = gcc
  command = $cxx -MMD -MF $out.d $cflags -c $in -o $out
rule link
  command = $cxx -shared -nostdlib $in -o $out
build a.o: compile {project}/a.c
build {name}.so: link a.o
"""


class Project:
    """A file of C that includes a header."""

    def __init__(self, folder, jit):
        self.folder, self.jit, self.runs, self.cxx = folder, jit, 0, "gcc"
        self.write("a.c", "#include <v.h>\nint f(void) { return V; }\n")
        self.write("first/unused.h", "")
        self.write("include/v.h", "#define V 1\n")

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def rules(self, flags="", name="lib"):
        return BUILD.format(project=self.folder, flags=flags, name=name, cxx=self.cxx)

    def run(self, *, meanwhile=lambda: None, flags=""):
        """Returns whether it was built, and how many entries were used."""
        self.runs += 1
        folder = self.folder.parent / f"build-{self.runs}"
        folder.mkdir()
        (folder / "build.ninja").write_text(self.rules(flags, "lib"))
        built = []

        def build():
            built.append(1)
            subprocess.run(["ninja"], cwd=folder, check=True, capture_output=True)
            meanwhile()

        with opforge.warm("label", jits=["ninja-jit"]) as scope:
            self.jit.run(str(folder), build)
        assert (folder / "lib.so").exists()
        return bool(built), scope.hits["ninja-jit"]


BUILT, FOUND = (True, 0), (False, 1)


@pytest.fixture
def project(own_store, tmp_path, monkeypatch):
    one = Jit()
    monkeypatch.setitem(sys.modules, MODULE, types.ModuleType(MODULE))
    monkeypatch.setattr(adapter, "every", lambda: {"ninja-jit": "ninja-jit"})
    monkeypatch.setattr(adapter, "at", lambda path: one)
    return Project(tmp_path / "project", one)


def test_what_was_built_is_found_and_counted_once(project):
    assert project.run() == BUILT
    project.write("include/v.h", "#define V 2\n")
    assert project.run() == BUILT, "an entry whose headers differ is not counted"
    assert project.run() == FOUND
    project.write("include/v.h", "#define V 1\n")
    assert project.run() == FOUND


@pytest.mark.parametrize("name", ["include/v.h", "a.c"])
def test_what_is_edited_while_the_compiler_runs_is_not_kept(project, caplog, name):
    content = (project.folder / name).read_text()
    with caplog.at_level(logging.WARNING, "opforge"):
        assert project.run(meanwhile=lambda: project.write(name, f"{content}/* edited */\n")) == BUILT
    assert f"{project.folder / name} was changed while it was compiled" in caplog.text
    assert project.run() == BUILT and project.run() == FOUND


@pytest.mark.parametrize("name", ["first/v.h", "v.h"])
def test_a_header_that_could_be_taken_in_the_place_of_another_is_a_miss(project, name):
    """As a new file of its name in an earlier folder, or beside the source."""
    project.write("a.c", '#include "v.h"\nint f(void) { return V; }\n')
    assert project.run() == BUILT and project.run() == FOUND
    project.write(name, "#define V 3\n")
    assert project.run() == BUILT and project.run() == FOUND


def test_a_header_that_appears_while_the_compiler_runs_is_not_kept(project):
    project.run(meanwhile=lambda: project.write("first/v.h", "#define V 3\n"))
    assert project.run() == BUILT


def test_a_header_of_isystem_is_compared(project):
    """gcc does not list it with -MMD."""
    flags = f"-isystem {project.folder}/system"
    project.write("a.c", "#include <w.h>\nint f(void) { return W; }\n")
    project.write("system/w.h", "#define W 1\n")
    assert project.run(flags=flags) == BUILT and project.run(flags=flags) == FOUND
    project.write("system/w.h", "#define W 2\n")
    assert project.run(flags=flags) == BUILT


class TestCompilers:
    """As for ops: what was made here is of the compilers that are here, if there are any."""

    @pytest.fixture
    def compiler(self, project, tmp_path, monkeypatch):
        """A compiler of the user's on PATH, which the project names; returns its file."""
        path = tmp_path / "bin" / "user-cc"
        project.write(path, '#!/bin/sh\nexec gcc "$@"\n')
        path.chmod(0o700)
        project.cxx = path.name
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        return path

    def test_one_that_has_changed_in_place_is_a_miss(self, project, compiler):
        assert project.run() == BUILT and project.run() == FOUND
        compiler.write_text(f"{compiler.read_text()}# another release\n")
        assert project.run() == BUILT and project.run() == FOUND

    def test_one_that_changes_while_it_runs_is_not_kept(self, project, compiler, caplog):
        def change():
            compiler.write_text(f"{compiler.read_text()}# another release\n")

        with caplog.at_level(logging.WARNING, "opforge"):
            assert project.run(meanwhile=change) == BUILT
        assert "is not kept: the compiler was changed while it ran" in caplog.text
        assert project.run() == BUILT

    def test_without_a_compiler_all_that_fits_is_used(self, project, compiler):
        assert project.run() == BUILT
        compiler.unlink()
        assert project.run() == FOUND

    def test_what_was_fetched_may_be_of_another_one(self, project, compiler, monkeypatch):
        assert project.run() == BUILT
        compiler.write_text(f"{compiler.read_text()}# another release\n")
        monkeypatch.setattr(page, "is_fetched", lambda folder: True)
        monkeypatch.setattr(Entries, "_judge", lambda self, read: "")
        assert project.run() == FOUND

    def test_one_that_cannot_be_identified_is_a_warning(self, project, compiler, caplog):
        compiler.write_text('#!/bin/sh\ntest "$1" = --version || exec gcc "$@"\nexit 1\n')
        with caplog.at_level(logging.WARNING, "opforge"):
            assert project.run() == BUILT
        assert (
            f"is not kept: The compiler {compiler} cannot be used: `{compiler} --version` ended with 1" in caplog.text
        )


def test_what_asks_whether_there_is_a_header_is_not_kept(project, caplog):
    project.write("a.c", '#if __has_include("w.h")\n#include "w.h"\n#endif\nint f(void) { return 1; }\n')
    with caplog.at_level(logging.WARNING, "opforge"):
        assert project.run() == BUILT and project.run() == BUILT
    assert "a.c has __has_include: it asks for files that no compiler lists" in caplog.text


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("-L{}/include", "{}/include may change, and its content is not known"),
        ("-L/opt/app/lib", "/opt/app/lib may change, and its content is not known"),
        ("-Wl,--version-script=/usr/src/app/x.map", "/usr/src/app/x.map may change, and its content is not known"),
        ("-B/opt/app/bin", "/opt/app/bin may change, and its content is not known"),
        ("@flags", "@flags does not show which files are read"),
        ("-I{}/a$ b", "does not show which files are read"),
    ],
)
def test_files_whose_content_is_not_known(project, caplog, flags, problem):
    folder = project.folder.parent / "other"
    folder.mkdir()
    (folder / "build.ninja").write_text(project.rules(flags.format(project.folder), "x"))
    with caplog.at_level(logging.WARNING, "opforge"), opforge.warm("label", jits=["ninja-jit"]):
        project.jit.run(str(folder), lambda: None)
        with opforge.no_builds(), pytest.raises(CompileForbiddenError):
            project.jit.run(str(folder), lambda: pytest.fail("it was built"))
    assert problem.format(project.folder) in caplog.text


def test_the_systems_folders_do_not_include_what_is_below_local_and_opt(project, monkeypatch):
    monkeypatch.setenv("CPATH", str(project.folder))
    own = ninja._own_folders([["gcc"], ["no-such-compiler"]])
    assert "/usr/include" in own and str(project.folder) not in own
    assert not [path for path in own if path.startswith(("/usr/local/", "/opt/", "/usr/src"))]


def test_a_ninja_that_cannot_say_what_was_read_costs_a_warning(project, monkeypatch, caplog):
    real = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda command, **named: real(["false"] if "deps" in command else command, **named)
    )
    with caplog.at_level(logging.WARNING, "opforge"):
        assert project.run() == BUILT
    assert "is not kept: `ninja -t deps` ended with 1" in caplog.text


class TestKey:
    def ordered(self, project, text):
        folder = project.folder.parent / "ordered"
        os.makedirs(folder, exist_ok=True)
        (folder / "build.ninja").write_text(text)
        return project.jit._ordered(str(folder))

    def test_the_release_of_cuda_is_part_of_it(self, project):
        keys = set()
        for release in ("12090", "13000", ""):
            home = project.folder.parent / f"cuda{release}"
            (home / "include").mkdir(parents=True)
            (home / "include" / "cuda.h").write_text(f"#define CUDA_VERSION {release}\n")
            text = (
                f"nvcc = {home}/bin/nvcc\nldflags = -L{home}/lib64 -lcudart\nbuild a.o: compile {project.folder}/a.c\n"
            )
            ordered = self.ordered(project, text)
            assert ordered.problem == (
                ""
                if release
                else f"the release of CUDA is not known: {home}/include has no cuda.h. Set CUDA_HOME to CUDA's folder"
            )
            keys.add(ordered.key)
        assert len(keys) == 3

    def test_nvcc_by_its_name_is_the_one_on_path_and_its_host_compiler_may_be_a_folder(
        self, project, tmp_path, monkeypatch
    ):
        for name in ("cuda/include/cuda.h", "cuda/bin/nvcc", "of the host/g++"):
            project.write(tmp_path / name, "#define CUDA_VERSION 13000\n")
        (tmp_path / "cuda/bin/nvcc").chmod(0o700)
        monkeypatch.setenv("PATH", f"{tmp_path}/cuda/bin:{os.environ['PATH']}")
        rules = f"cuda_home = {tmp_path}/cuda\nnvcc = nvcc\n"
        for host in ("of the host", "of the host/g++"):
            monkeypatch.setenv("NVCC_CCBIN", str(tmp_path / host))
            ordered = self.ordered(project, rules)
            assert ordered.nvcc == f"{tmp_path}/cuda/bin/nvcc" and ordered.compilers == [
                (f"{tmp_path}/of the host/g++",)
            ]

    @pytest.mark.parametrize(
        ("rules", "problem"),
        [
            (
                "nvcc = ccache nvcc\n",
                "`ccache nvcc` does not show which compiler runs: expected the path of a program",
            ),
            ("cxx = g++ -DX='\n", "No closing quotation"),
        ],
    )
    def test_a_compiler_that_cannot_be_identified_is_a_problem_and_no_error(self, project, rules, problem):
        assert self.ordered(project, rules).problem == problem

    def test_sources_whose_paths_begin_or_end_alike_all_count(self, project):
        names = ("x.c", "x.cc", "deep/x.c")
        text = "".join(f"build {number}.o: compile {project.folder}/{name}\n" for number, name in enumerate(names))
        keys = set()
        for edited in (None, *names):
            for name in names:
                project.write(name, f"// {name} {name == edited}\n")
            keys.add(self.ordered(project, text).key)
        assert len(keys) == 4

    def test_options_in_the_name_of_the_compiler_count_and_its_path_does_not(self, project):
        keys = [self.ordered(project, f"cxx = {cxx}\n").key for cxx in ("g++", "/usr/bin/clang++", "g++ -DX")]
        assert keys[0] == keys[1] != keys[2]

    def test_variables_that_compilers_obey_are_in_the_fingerprint(self, project, monkeypatch):
        before = project.jit.fingerprint()
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DX")
        assert project.jit.fingerprint() == {**before, "NVCC_APPEND_FLAGS": "-DX"}
