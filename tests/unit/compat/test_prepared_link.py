"""What a setup script's prepared compiler links is what opforge links: every list, in setuptools' order."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch", reason="pip install torch")

from setuptools import Distribution, Extension

from opforge.compat.cpp_extension import prepared_link
from opforge.errors import BuilderError

EVERYTHING = {
    "extra_objects": ["ext.o"],
    "library_dirs": ["libs"],
    "runtime_library_dirs": ["/run/ext"],
    "libraries": ["ext"],
    "extra_link_args": ["-Wl,-z,now"],
}


def links_of(tmp_path, monkeypatch, options=None, change=None, clib=False, build=None, ldflags="", **ext):
    """Returns what the running command would link a small extension with, as `prepared_link.of` reads it."""
    from torch.utils.cpp_extension import BuildExtension

    links = []

    class Command(BuildExtension):
        def build_extensions(self):
            if change:
                change(self.compiler)
            super().build_extensions()

        def build_extension(self, ext):
            if build:
                build(self.compiler)
            links.append(prepared_link.of(ext, self, str(tmp_path / "torch" / "lib")))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LDFLAGS", ldflags)
    for folder in ("libs", "torch/lib"):
        os.makedirs(tmp_path / folder)
    (tmp_path / "torch" / "lib" / "libtorch.so").touch()
    ext = Extension("a._C", ["a.cpp"], **{**ext, "libraries": [*ext.get("libraries", ()), "torch"]}, language="c++")
    libraries = [("viaclib", {"sources": ["viaclib.c"]})] if clib else None
    distribution = Distribution({"name": "a", "ext_modules": [ext], "libraries": libraries})
    distribution.command_options["build_ext"] = {name: ("setup.cfg", text) for name, text in (options or {}).items()}
    if clib:
        distribution.get_command_obj("build_clib").build_clib = "libs"
    distribution.cmdclass["build_ext"] = Command
    command = distribution.get_command_obj("build_ext")
    command.ensure_finalized()
    command.run()
    return links[0]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"options": {"libraries": "one"}}, ["-lone"]),
        ({"options": {"library_dirs": "libs"}}, ["-Llibs"]),
        ({"options": {"rpath": "/run/x"}}, ["-Wl,-rpath,/run/x"]),
        ({"options": {"link_objects": "one.o"}}, ["one.o"]),
        ({"clib": True}, ["-Llibs", "-lviaclib"]),
        ({"change": lambda compiler: compiler.add_library("one")}, ["-lone"]),
        ({"change": lambda compiler: compiler.add_library_dir("libs")}, ["-Llibs"]),
        ({"change": lambda compiler: compiler.add_runtime_library_dir("/run/x")}, ["-Wl,-rpath,/run/x"]),
        ({"change": lambda compiler: compiler.add_link_object("one.o")}, ["one.o"]),
        ({"change": lambda compiler: [each.append("-s") for each in linkers(compiler)]}, ["-s"]),
        ({"build": lambda compiler: compiler.add_library("one")}, ["-lone"]),
    ],
)
def test_what_the_command_adds_is_linked(tmp_path, monkeypatch, asked, words):
    assert [word for word in links_of(tmp_path, monkeypatch, **asked).words if word in words] == words


def linkers(compiler):
    """Returns the compiler's lists of words for linking: one in older releases of setuptools, two in newer ones."""
    return {id(words): words for words in (compiler.linker_so, getattr(compiler, "linker_so_cxx", []))}.values()


def test_objects_come_before_the_libraries_that_they_need(tmp_path, monkeypatch):
    def change(compiler):
        compiler.add_link_object("command.o")
        compiler.add_library("command")

    words = links_of(tmp_path, monkeypatch, change=change, **EVERYTHING).words
    ordered = ["ext.o", "command.o", "-Llibs", "-Wl,-rpath,/run/ext", "-lext", "-lcommand", "-Wl,-z,now"]
    assert [word for word in words if word in ordered] == ordered


def test_libraries_of_torch_are_named_apart_and_folders_that_do_not_exist_left_out(tmp_path, monkeypatch):
    link = links_of(tmp_path, monkeypatch, library_dirs=["torch/lib", "nowhere"])
    assert link.torch_libraries == ("libtorch.so",)
    assert not {"-ltorch", "-Ltorch/lib", "-Lnowhere", "-shared", "-o"} & {*link.words}


@pytest.mark.parametrize("words", [["-L", "libs", "-lfoo"], ["-L=/lib", "-lfoo"]])
def test_a_folder_of_libraries_that_only_the_linker_knows_is_kept(tmp_path, monkeypatch, words):
    link = links_of(tmp_path, monkeypatch, extra_link_args=words)
    assert [word for word in link.words if word in words] == words


def test_ldflags_are_left_to_the_plan(tmp_path, monkeypatch):
    assert "-Wl,-O7" not in links_of(tmp_path, monkeypatch, ldflags="-Wl,-O7 -Wl,--as-needed").words


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda compiler: compiler.set_executables(compiler_so="/opt/icpx -fPIC"), "chooses the compiler"),
        (
            lambda compiler: setattr(compiler, "link_shared_object", print),
            "replaces the compiler's link_",
        ),
        (lambda compiler: setattr(compiler, "spawn", print), "replaces the compiler's spawn()"),
    ],
)
def test_what_cannot_be_expressed_is_left_to_torch(tmp_path, monkeypatch, change, reason):
    with pytest.raises(BuilderError) as caught:
        links_of(tmp_path, monkeypatch, build=change)
    assert reason in str(caught.value)
