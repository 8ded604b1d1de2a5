"""What observed builds showed: each of these changes was not noticed before."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess

import pytest
from support import sample_ops, text_files

import opforge
from opforge.accelerator.target import Target
from opforge.builders import toolchains
from opforge.builders.toolchains.discovery import configuration
from opforge.cache.current_store import current_store
from opforge.cache.records.validity import names_before
from opforge.errors import BuildForbiddenError

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
    assert ctypes.CDLL(builder.build(exact=True).library).value() == 1
    with opforge.no_builds():
        assert builder.build(exact=True).origin == "cache"
        text_files.write(tmp_path / "headers", "cuda_runtime.h", "#define VALUE 2\n#include_next <cuda_runtime.h>\n")
        with pytest.raises(BuildForbiddenError):
            builder.build(exact=True)


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


def with_value_one(folder, name="plain", **attributes):
    """Returns a builder whose function returns VALUE, which is 1 unless something read defines it."""
    text = f"#ifndef VALUE\n#define VALUE 1\n#endif\n{VALUE}"
    text_files.write(folder, f"{name}.cpp", text)
    return sample_ops.builder_class(folder, name, abi="c", **attributes)


SPECS = "*cc1plus:\n+ -DVALUE=2\n\n"


def gcc_says(*options):
    return subprocess.run(["g++", *options], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("below", ["", "MACHINE/VERSION"])
@pytest.mark.parametrize("form", ["folder", "prefix"])
def test_specs_that_appear_below_a_folder_of_b_are_noticed(tmp_path, monkeypatch, below, form):
    monkeypatch.setenv("CXX", "g++")
    below = below.replace("MACHINE", gcc_says("-dumpmachine")).replace("VERSION", gcc_says("-dumpversion"))
    (tmp_path / "tools").mkdir()
    prefix = f"{tmp_path}/tools" if form == "folder" else f"{tmp_path}/tools/own-"
    builder = with_value_one(tmp_path, extra_compile_args=[f"-B{prefix}"])
    assert call(builder()) == (1, "built")
    assert call(builder()) == (1, "cache")
    path = (f"{prefix}/" if form == "folder" else prefix) + f"{below}/specs".lstrip("/")
    text_files.write(*map(str, os.path.split(path)), SPECS)
    assert call(builder()) == (2, "built")


def test_specs_that_appear_below_gcc_exec_prefix_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "g++")
    (tmp_path / "moved").mkdir()
    own = os.path.dirname(os.path.dirname(gcc_says("-print-prog-name=cc1plus")))
    (tmp_path / "moved" / gcc_says("-dumpmachine")).symlink_to(own)
    monkeypatch.setenv("GCC_EXEC_PREFIX", f"{tmp_path}/moved/")
    builder = with_value_one(tmp_path)
    assert call(builder()) == (1, "built")
    assert call(builder()) == (1, "cache")
    text_files.write(tmp_path / "moved", "specs", SPECS)
    assert call(builder()) == (2, "built")


def test_another_objcopy_is_noticed_where_gcc_starts_it(tmp_path, monkeypatch):
    folder = tmp_path / "first"
    folder.mkdir()
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    builder = with_value_one(tmp_path, extra_compile_args=["-gsplit-dwarf"])
    assert call(builder()) == (1, "built")
    assert call(builder()) == (1, "cache")
    text_files.write(folder, "objcopy", f'#!/bin/sh\nexec {shutil.which("objcopy")} "$@"\n')
    (folder / "objcopy").chmod(0o700)
    assert call(builder()) == (1, "built")


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize(
    "text",
    [
        '#pragma GCC dependency "parse.y" is newer\n',
        "#pragma GCC dependency <parse.y>\n",
        '_Pragma("GCC dependency \\"parse.y\\"")\n',
    ],
)
def test_a_file_that_a_source_says_it_depends_on_is_noticed(tmp_path, monkeypatch, compiler, text):
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    monkeypatch.setenv("CXX", compiler)
    text_files.write(tmp_path, "plain.cpp", text + VALUE.replace("VALUE", "1"))
    folder = tmp_path / "grammar" if "<" in text else tmp_path
    text_files.write(folder, "parse.y", "one\n")
    builder = sample_ops.builder_class(tmp_path, "plain", abi="c", extra_compile_args=[f"-I{folder}"] * ("<" in text))
    assert call(builder()) == (1, "built")
    assert call(builder()) == (1, "cache")
    text_files.write(folder, "parse.y", "another\n")
    assert call(builder()) == (1, "built")


@pytest.mark.parametrize("name", ["module.modulemap", "module.private.modulemap"])
@pytest.mark.skipif(not shutil.which("clang++"), reason="needs clang++ (apt install clang)")
def test_a_map_of_modules_that_appears_is_noticed(tmp_path, monkeypatch, name):
    monkeypatch.setenv("CXX", "clang++")
    text_files.write(tmp_path, "plain.cpp", f"#include <own.h>\n{VALUE}")
    text_files.write(tmp_path / "f", "own.h", "#define VALUE 1\n")
    flags = ["-fmodules", f"-fmodules-cache-path={tmp_path / 'modules'}"]
    builder = sample_ops.builder_class(tmp_path, "plain", abi="c", include_dirs=["f"], extra_compile_args=flags)
    assert call(builder()) == (1, "built")
    assert call(builder()) == (1, "cache")
    text_files.write(tmp_path / "f", name, 'module own { header "own.h" }\n')
    assert call(builder()) == (1, "built")


def test_the_variable_that_names_a_map_of_modules_and_the_map_are_inputs(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "g++")
    builder = with_value_one(tmp_path, extra_compile_args=["-std=c++20", "-fmodules-ts"])
    names = text_files.write(tmp_path, "names", "part part.gcm\n")
    assert call(builder()) == (1, "built")
    monkeypatch.setenv("CXX_MODULE_MAPPER", str(names))
    assert call(builder()) == (1, "built")
    assert call(builder()) == (1, "cache")
    text_files.write(tmp_path, "names", "part other.gcm\n")
    assert call(builder()) == (1, "built")


@pytest.mark.parametrize("form", ["-Wl,-T,own.ld", "-Town.ld", "-Wl,--script=own.ld", "-Wl,--dynamic-list=own.ld"])
@pytest.mark.skipif(not shutil.which("ld.bfd"), reason="needs ld.bfd (apt install binutils)")
def test_a_script_that_the_linker_finds_in_its_folders_is_noticed(tmp_path, form):
    text = "SECTIONS { .own : { *(.own*) } } INSERT BEFORE .data;\n" if "dynamic" not in form else "{ value; };\n"
    text_files.write(tmp_path / "second", "own.ld", text)
    (tmp_path / "first").mkdir()
    flags = [f"-L{tmp_path / 'first'}", f"-L{tmp_path / 'second'}", form, "-fuse-ld=bfd"]
    builder = with_value_one(tmp_path, extra_link_args=flags)
    assert call(builder()) == (1, "built")
    assert call(builder()) == (1, "cache")
    text_files.write(tmp_path / "second", "own.ld", f"{text}/* edited */\n")
    assert call(builder()) == (1, "built")
    text_files.write(tmp_path / "first", "own.ld", text)
    assert call(builder()) == (1, "built")


@pytest.mark.skipif(not shutil.which("ld.bfd"), reason="needs ld.bfd (apt install binutils)")
@pytest.mark.parametrize("is_included", [False, True])
def test_a_library_in_a_folder_that_a_script_names_is_noticed(tmp_path, is_included):
    folders = [tmp_path / name for name in ("first", "second")]
    for number, folder in enumerate(folders, 1):
        text_files.write(folder, "part.c", f"int part() {{ return {number}; }}\n")
        command = ["cc", "-c", "-fPIC", str(folder / "part.c"), "-o", str(folder / "part.o")]
        subprocess.run(command, check=True, capture_output=True)
    subprocess.run(["ar", "rcs", folders[1] / "libpart.a", folders[1] / "part.o"], check=True)
    script = f'SEARCH_DIR({folders[0]})\nSEARCH_DIR("{folders[1]}")\nINPUT(-lpart)\n'
    path = text_files.write(tmp_path, "parts.ld", script)
    if is_included:
        path = text_files.write(tmp_path, "all.ld", f"INCLUDE {path}\n")
    builder = sample_ops.builder_class(tmp_path, "plain", abi="c", extra_link_args=[str(path), "-fuse-ld=bfd"])
    text_files.write(
        tmp_path, "plain.cpp", f'extern "C" int part();\n{sample_ops.EXPORT} int value() {{ return part(); }}\n'
    )
    assert call(builder()) == (2, "built")
    assert call(builder()) == (2, "cache")
    subprocess.run(["ar", "rcs", folders[0] / "libpart.a", folders[0] / "part.o"], check=True)
    assert call(builder()) == (1, "built")


def test_the_header_that_gcc_includes_first_is_noticed_where_there_was_none(tmp_path, monkeypatch):
    """The C library has it, but not every C library, and none below another root."""
    monkeypatch.setenv("CXX", "g++")
    for name in ("system", "f"):
        (tmp_path / name).mkdir()
    flags = [f"--sysroot={tmp_path / 'system'}"]
    builder = with_value_one(
        tmp_path, include_dirs=["f"], extra_compile_args=flags, extra_link_args=[*flags, "-nostdlib"]
    )
    assert call(builder()) == (1, "built")
    assert call(builder()) == (1, "cache")
    text_files.write(tmp_path / "f", "stdc-predef.h", "#define VALUE 2\n")
    assert call(builder()) == (2, "built")


@pytest.mark.skipif(not shutil.which("clang++"), reason="needs clang++ (apt install clang)")
def test_headers_of_libcxx_that_appear_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "clang++")
    (tmp_path / "system").mkdir()
    flags = [f"--sysroot={tmp_path / 'system'}", "-stdlib=libc++"]
    text_files.write(
        tmp_path,
        "plain.cpp",
        f"#if __has_include(<cstdvalue>)\n#include <cstdvalue>\n#else\n#define VALUE 1\n#endif\n{VALUE}",
    )
    attributes = {"extra_compile_args": flags, "extra_link_args": [*flags, "-nostdlib"]}
    builder = sample_ops.builder_class(tmp_path, "plain", abi="c", **attributes)
    assert call(builder()) == (1, "built")
    assert call(builder()) == (1, "cache")
    text_files.write(tmp_path / "system" / "usr" / "include" / "c++" / "v1", "cstdvalue", "#define VALUE 2\n")
    assert call(builder()) == (2, "built")
