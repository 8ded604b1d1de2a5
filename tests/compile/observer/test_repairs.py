"""What observed builds showed: each of these changes was not noticed before."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest
from support import sample_ops, text_files

from opforge.accelerator.target import Target
from opforge.builders import toolchains
from opforge.builders.toolchains.discovery import configuration
from opforge.cache.current import current_store
from opforge.cache.records.validity import names_before

VALUE = sample_ops.EXPORT + " int value() { return VALUE; }\n"
CUDA = """\
#include <cuda_runtime.h>
#ifndef VALUE
#define VALUE 1
#endif
__global__ void kernel(float* p) { p[threadIdx.x] = 1; }
extern "C" __attribute__((visibility("default"))) int value() { return VALUE; }
"""


def call(builder):
    """Builds an op; returns its value and the entry's origin."""
    entry = builder.build()
    return ctypes.CDLL(entry.library).value(), entry.origin


@pytest.mark.parametrize("name", ["G++_ROOT", "GCC_ROOT", "BINUTILS_ROOT", "LPATH", "GNUTARGET", "LDEMULATION"])
def test_a_variable_that_gcc_or_its_linker_reads_is_in_the_key(tmp_path, monkeypatch, name):
    """`GCC_ROOT=/opt/gcc` moves what gcc was installed with: its headers, assembler and libraries."""
    builder = sample_ops.plain_op(tmp_path)
    monkeypatch.setenv(name, str(tmp_path / "moved"))
    toolchain = toolchains.find_toolchain(builder().spec(), current_store())
    assert (name, str(tmp_path / "moved")) in toolchain.environment()


def test_an_assembler_source_finds_headers_by_c_include_path(tmp_path, monkeypatch):
    source = '.globl value\n.type value, @function\nvalue:\n#include <code.h>\n.section .note.GNU-stack,"",@progbits\n'
    text_files.write(tmp_path, "plain.S", source)
    for number in (1, 2):
        text_files.write(tmp_path / str(number), "code.h", f"mov ${number}, %eax\nret\n")
    builder = sample_ops.builder_class(tmp_path, "plain", abi="c", sources=["plain.S"])
    for folder in (1, 2):
        monkeypatch.setenv("C_INCLUDE_PATH", str(tmp_path / str(folder)))
        assert call(builder()) == (folder, "built")
        assert call(builder()) == (folder, "cache")


def test_a_shared_library_that_appears_beside_an_archive_is_looked_for():
    folders, files = [("system", "first"), ("system", "second")], [("system", "second/libx.a")]
    assert names_before(folders, files, {"system": "/"}) == [
        (("system", "first"), {"libx.a", "libx.so"}),
        (("system", "second"), {"libx.so"}),
    ]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_library_in_a_folder_that_a_wrapper_names_first_is_noticed(tmp_path, monkeypatch, is_there):
    folders = [tmp_path / name for name in ("first", "second")]
    for number, folder in enumerate(folders, 1):
        text_files.write(folder, "part.c", f"int part() {{ return {number}; }}\n")
        command = ["cc", "-c", "-fPIC", str(folder / "part.c"), "-o", str(folder / "part.o")]
        subprocess.run(command, check=True, capture_output=True)
    archives = [folder / "libpart.a" for folder in folders]
    subprocess.run(["ar", "rcs", archives[1], folders[1] / "part.o"], check=True)
    if not is_there:
        folders[0].rename(tmp_path / "later")
    names = " ".join(f"-L{folder}" for folder in folders)
    text_files.write(tmp_path, "wrap", f'#!/bin/sh\nexec g++ "$@" {names} -lpart\n')
    (tmp_path / "wrap").chmod(0o700)
    monkeypatch.setenv("CXX", str(tmp_path / "wrap"))
    builder = sample_ops.builder_class(tmp_path, "plain", abi="c")
    text_files.write(
        tmp_path, "plain.cpp", f'extern "C" int part();\n{sample_ops.EXPORT} int value() {{ return part(); }}\n'
    )
    assert call(builder()) == (2, "built")
    assert call(builder()) == (2, "cache")
    if not is_there:
        (tmp_path / "later").rename(folders[0])
    subprocess.run(["ar", "rcs", archives[0], folders[0] / "part.o"], check=True)
    assert call(builder()) == (1, "built")


@pytest.mark.parametrize("form", ["-Wl,-L", "-Wl,--library-path=", "-Xlinker", "-Wl,@FILE", "@FILE"])
def test_a_library_in_a_folder_before_one_that_the_linker_alone_is_told_of_is_noticed(tmp_path, monkeypatch, form):
    """gcc puts the folders of LIBRARY_PATH, and its own, before what -Wl passes on."""
    folders = [tmp_path / name for name in ("first", "second")]
    for number, folder in enumerate(folders, 1):
        text_files.write(folder, "part.c", f"int part() {{ return {number}; }}\n")
        command = ["cc", "-c", "-fPIC", str(folder / "part.c"), "-o", str(folder / "part.o")]
        subprocess.run(command, check=True, capture_output=True)
    subprocess.run(["ar", "rcs", folders[1] / "libpart.a", folders[1] / "part.o"], check=True)
    options = tmp_path / "options"
    options.write_text(f"-L{folders[1]}\n" if form == "-Wl,@FILE" else f"-Wl,-L{folders[1]}\n")
    words = [f"{form}{folders[1]}"] if form.endswith(("L", "=")) else [form.replace("FILE", str(options))]
    words += [f"-L{folders[1]}"] if form == "-Xlinker" else []
    monkeypatch.setenv("LIBRARY_PATH", str(folders[0]))
    builder = sample_ops.builder_class(tmp_path, "plain", abi="c", extra_link_args=[*words, "-lpart"])
    text_files.write(
        tmp_path, "plain.cpp", f'extern "C" int part();\n{sample_ops.EXPORT} int value() {{ return part(); }}\n'
    )
    assert call(builder()) == (2, "built")
    assert call(builder()) == (2, "cache")
    subprocess.run(["ar", "rcs", folders[0] / "libpart.a", folders[0] / "part.o"], check=True)
    assert call(builder()) == (1, "built")


@pytest.mark.skipif(not shutil.which("ld.bfd"), reason="needs ld.bfd (apt install binutils)")
def test_specs_that_gcc_reads_when_it_compiles_in_the_link_are_noticed(tmp_path):
    body = 'int value; asm(".ifdef MARK\\nmov $2, %0\\n.else\\nmov $1, %0\\n.endif" : "=r"(value)); return value;'
    text_files.write(tmp_path, "plain.cpp", f"{sample_ops.EXPORT} int value() {{ {body} }}\n")
    folder = tmp_path / "system" / "usr" / "lib"
    folder.mkdir(parents=True)
    flags = ["-flto", f"--sysroot={tmp_path / 'system'}", "-nostdlib", "-fuse-ld=bfd"]
    attributes = {"extra_compile_args": flags[:2], "extra_link_args": flags}
    builder = sample_ops.builder_class(tmp_path, "plain", abi="c", **attributes)
    assert call(builder()) == (1, "built")
    assert call(builder()) == (1, "cache")
    text_files.write(folder, "specs", "*asm:\n+ --defsym MARK=1\n\n")
    assert call(builder()) == (2, "built")


@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc (the CUDA toolkit)")
def test_a_header_that_shadows_one_of_cuda_is_noticed(tmp_path):
    text_files.write(tmp_path, "k.cu", CUDA)
    (tmp_path / "headers").mkdir()
    attributes = {"abi": "c", "sources": ["k.cu"], "devices": ("cuda",), "include_dirs": ["headers"]}
    builder = sample_ops.builder_class(tmp_path, "k", **attributes)(Target("cuda", ("sm_80",)))
    first = builder.build(exact=True)
    text_files.write(tmp_path / "headers", "cuda_runtime.h", "#define VALUE 2\n#include_next <cuda_runtime.h>\n")
    second = builder.build(exact=True)
    assert ctypes.CDLL(first.library).value() == 1
    assert ctypes.CDLL(second.library).value() == 2


@pytest.mark.parametrize("name", ["INCLUDES", "PTXAS_FLAGS", "EDG_BASE"])
@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc (the CUDA toolkit)")
def test_a_variable_that_nvcc_adds_to_its_commands_is_in_the_key(tmp_path, monkeypatch, name):
    text_files.write(tmp_path, "k.cu", CUDA)
    builder = sample_ops.builder_class(tmp_path, "k", abi="c", sources=["k.cu"], devices=("cuda",))
    monkeypatch.setenv(name, "-DX")
    spec = builder(Target("cuda", ("sm_80",))).spec()
    assert (name, "-DX") in toolchains.find_toolchain(spec, current_store()).environment()


def test_clang_is_identified_by_its_distribution_and_by_the_versions_of_gcc(tmp_path, monkeypatch):
    release = tmp_path / "os-release"
    release.write_text("ID=debian\n")
    monkeypatch.setattr(configuration, "DISTRIBUTION", (str(release), str(tmp_path / "lsb-release")))
    report = f"Debian clang version 14.0.6\nFound candidate GCC installation: {tmp_path}/gcc/12\n"
    assert configuration.surroundings(report) == ([str(release)], [f"{tmp_path}/gcc"], [str(tmp_path / "lsb-release")])
    assert configuration.surroundings("gcc version 12.2.0") == ([], [], [])


@pytest.mark.skipif(not shutil.which("clang++"), reason="needs clang++ (apt install clang)")
def test_another_version_of_gcc_makes_clang_be_identified_again(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "clang++")
    spec = sample_ops.plain_op(tmp_path)().spec()
    programs = toolchains.find_toolchain(spec, current_store()).programs()
    assert any(path.endswith(("os-release", "_version")) for path in programs)
    assert any("/lib/gcc/" in path for path in programs)
