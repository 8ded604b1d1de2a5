"""Folders and files below the op's own folder that flags name: a checkout at another path is a hit."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest
from support import sample_ops, text_files

import opforge

SOURCE = f"#include <value.h>\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"
SCRIPT = "{ global: value; local: *; };\n"


def build(folder, **attributes):
    """Builds the op of a folder; returns its value and the entry's origin."""
    entry = sample_ops.builder_class(folder, "plain", abi="c", **attributes)().build()
    return ctypes.CDLL(entry.library).value(), entry.origin


def two_checkouts(tmp_path, files):
    for name in ("one", "two"):
        (tmp_path / name / "inc").mkdir(parents=True)
        for path, text in files.items():
            text_files.write(tmp_path / name, path, text)
    return tmp_path / "one", tmp_path / "two"


@pytest.mark.parametrize("option", ["-I@", "-isystem @", "-iquote @ -I@", "-include @/value.h -I@", "-I@/../inc"])
def test_a_folder_of_headers_in_a_flag_is_named_by_its_root(tmp_path, option):
    first, second = two_checkouts(tmp_path, {"plain.cpp": SOURCE, "inc/value.h": "#define VALUE 1\n"})

    def flags(folder):
        return {"extra_compile_args": option.replace("@", str(folder / "inc")).split()}

    assert build(first, **flags(first)) == (1, "built")
    assert build(second, **flags(second)) == (1, "cache")
    text_files.write(second, "inc/value.h", "#define VALUE 2\n")
    assert build(second, **flags(second)) == (2, "built")
    assert build(first, **flags(first)) == (1, "cache")


def test_a_header_that_appears_in_such_a_folder_is_detected(tmp_path):
    first, second = two_checkouts(tmp_path, {"plain.cpp": SOURCE, "inc/value.h": "#define VALUE 1\n"})

    def flags(folder):
        return {"extra_compile_args": [f"-I{folder}/early", f"-I{folder}/inc"]}

    assert build(first, **flags(first)) == (1, "built")
    (second / "early").mkdir()
    text_files.write(second, "early/value.h", "#define VALUE 2\n")
    assert build(second, **flags(second)) == (2, "built")


@pytest.mark.parametrize("option", ["-Wl,--version-script=@", "-Wl,--version-script,@"])
def test_a_script_of_the_linker_is_named_by_its_root(tmp_path, option):
    files = {"plain.cpp": SOURCE.replace("<value.h>", '"inc/value.h"'), "inc/value.h": "#define VALUE 1\n"}
    first, second = two_checkouts(tmp_path, {**files, "exports.map": SCRIPT})

    def flags(folder):
        return {"extra_link_args": [option.replace("@", str(folder / "exports.map"))]}

    assert build(first, **flags(first)) == (1, "built")
    assert build(second, **flags(second)) == (1, "cache")


def test_an_archive_is_named_by_its_root_and_compared_by_content(tmp_path):
    source = f'extern "C" int dep(void);\n{sample_ops.EXPORT} int value() {{ return dep(); }}\n'
    first, second = two_checkouts(tmp_path, {"plain.cpp": source, "dep.c": "int dep(void) { return 1; }\n"})

    def make(folder):
        subprocess.run(["gcc", "-fPIC", "-c", "dep.c"], cwd=folder, check=True)
        subprocess.run(["ar", "rcsD", "libdep.a", "dep.o"], cwd=folder, check=True)

    make(first)
    shutil.copy(first / "libdep.a", second)
    for link in (lambda folder: [f"{folder}/libdep.a"], lambda folder: [f"-L{folder}", "-ldep"]):
        assert build(first, extra_link_args=link(first)) == (1, "built")
        assert build(second, extra_link_args=link(second)) == (1, "cache")
    text_files.write(second, "dep.c", "int dep(void) { return 2; }\n")
    make(second)
    assert build(second, extra_link_args=[f"{second}/libdep.a"]) == (2, "built")


RELATIVE = [
    ["-Ldep", "-ldep"],
    ["dep/libdep.a"],
    ["-Wl,--whole-archive,dep/libdep.a,--no-whole-archive"],
    ["@words"],
    ["dep/libdep.a", "-Wl,--version-script=exports.map", "-Wl,-Map=out.map"],
]


@pytest.mark.parametrize("link", RELATIVE)
def test_a_relative_path_in_a_flag_of_the_linker_counts_from_the_folder(tmp_path, link):
    source = f'extern "C" int dep(void);\n{sample_ops.EXPORT} int value() {{ return dep(); }}\n'
    files = {"plain.cpp": source, "exports.map": SCRIPT, "dep.c": "int dep(void) { return 1; }\n"}
    first, second = two_checkouts(tmp_path, {**files, "words": "-Wl,--as-needed"})
    for folder in (first, second):
        (folder / "dep").mkdir()
    subprocess.run("gcc -fPIC -c dep.c -o dep.o && ar rcsD dep/libdep.a dep.o", shell=True, cwd=first, check=True)
    shutil.copy(first / "dep" / "libdep.a", second / "dep")
    link = ["dep/libdep.a", *link] if "@" in link[0] else link
    assert build(first, extra_link_args=link) == (1, "built")
    assert build(second, extra_link_args=link) == (1, "cache")
    assert (first / "out.map").exists() == ("-Wl,-Map=out.map" in link)


def test_relative_paths_in_arguments_of_load_count_from_the_working_folder(tmp_path, monkeypatch):
    (folder,) = {tmp_path / "one" for _ in two_checkouts(tmp_path, {"plain.cpp": SOURCE})}
    for place, number in (("include", 1), ("more", 2)):
        (tmp_path / place).mkdir()
        text_files.write(tmp_path, f"{place}/value.h", f"#define VALUE {number}\n")
    monkeypatch.chdir(tmp_path)
    source = str(folder / "plain.cpp")
    assert opforge.load("plain", [source], extra_cflags=["-Iinclude"], abi="c").value() == 1
    assert opforge.load("plain", [source], extra_compile_args=["-isystem", "more"], abi="c").value() == 2


def test_a_path_that_becomes_a_part_of_the_library_stays_in_the_key(tmp_path):
    source = f"#include <string.h>\n{sample_ops.EXPORT} int value() {{ return strlen(HERE); }}\n"
    first, second = two_checkouts(tmp_path, {"plain.cpp": source})
    second = second.rename(tmp_path / "elsewhere")
    for folder in (first, second):
        assert build(folder, extra_compile_args=[f'-DHERE="{folder}"']) == (len(str(folder)), "built")


def test_a_folder_in_a_flag_is_not_in_the_library(tmp_path):
    text = "#define VALUE (__FILE__[0])\n"
    (first, _second) = two_checkouts(tmp_path, {"plain.cpp": SOURCE, "inc/value.h": text})
    entry = sample_ops.builder_class(first, "plain", abi="c", extra_compile_args=[f"-I{first}/inc"])().build()
    with open(entry.library, "rb") as file:
        assert str(tmp_path).encode() not in file.read()
