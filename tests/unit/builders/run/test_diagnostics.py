"""The errors of failed builds, from output that compilers really print."""

from __future__ import annotations

import os

import pytest
from support import text_files

from opforge.builders.run import diagnostics
from opforge.errors import BuildResourceError, CompileError

LOG = "/store/v2/logs/plan.log"
GXX_SYNTAX = """\
[1/4] name libtorch_cpu.so
[2/4] compile relu.cpp
FAILED: [code=1] 0.relu.o
/usr/bin/g++ -O3 -c {source} -o 0.relu.o
In file included from {source}:1:
{source}: In function 'int value()':
{source}:7:10: error: expected ';' before '}}' token
    7 |   return 1
      |          ^
{source}:9:1: error: expected declaration before '}}' token
[3/4] compile other.cpp
ninja: build stopped: subcommand failed.
"""
OLD_NINJA = """\
[1/2] compile relu.cpp
FAILED: 0.relu.o
/usr/bin/g++ -c relu.cpp
relu.cpp:3: error: stray '@' in program
ninja: build stopped: subcommand failed.
"""
CLANG_SYNTAX = """\
[0/2] compile relu.cpp
FAILED: 0.relu.o
/usr/bin/clang++ -c relu.cpp
relu.cpp:2:3: warning: unused variable 'x' [-Wunused-variable]
relu.cpp:7:11: error: expected ';' after return statement
1 error generated.
"""
GXX_HEADER = """\
[1/2] compile relu.cpp
FAILED: 0.relu.o
g++ -c relu.cpp
relu.cpp:1:10: fatal error: cuda/thing.h: No such file or directory
    1 | #include "cuda/thing.h"
      |          ^~~~~~~~~~~~~~
compilation terminated.
"""
CLANG_HEADER = """\
[1/2] compile relu.cpp
FAILED: 0.relu.o
clang++ -c relu.cpp
relu.cpp:1:10: fatal error: 'cuda/thing.h' file not found
"""
UNDEFINED = """\
[2/2] link relu
FAILED: relu.so
g++ -shared 0.relu.o -Wl,-z,defs -o relu.so
/usr/bin/ld: 0.relu.o: in function `value':
relu.cpp:(.text+0x9): undefined reference to `missing()'
collect2: error: ld returned 1 exit status
ninja: build stopped: subcommand failed.
"""
NO_LIBRARY = """\
[2/2] link relu
FAILED: relu.so
g++ -shared 0.relu.o -lnope -o relu.so
/usr/bin/ld: cannot find -lnope: No such file or directory
collect2: error: ld returned 1 exit status
"""
LLD_LIBRARY = """\
[2/2] link relu
FAILED: relu.so
clang++ -fuse-ld=lld 0.relu.o -lnope
ld.lld: error: unable to find library -lnope
clang++: error: linker command failed with exit code 1 (use -v to see invocation)
"""
BOXED = "torch::stable::detail::StableLibrary::Boxed"
UNBOXED = [
    f"error: invalid conversion from 'int (*)(int)' to '{BOXED}' {{aka 'void (*)(long unsigned int*)'}}",
    f"error: cannot initialize a parameter of type '{BOXED}' (aka 'void (*)(unsigned long *)')",
]
LLD = """\
[2/2] link relu
FAILED: relu.so
clang++ -fuse-ld=lld 0.relu.o
ld.lld: error: undefined symbol: missing()
>>> referenced by relu.cpp:3
clang++: error: linker command failed with exit code 1 (use -v to see invocation)
"""
MOLD_SYMBOL = """\
[2/2] link relu
FAILED: relu.so
g++ -fuse-ld=mold 0.relu.o
mold: error: undefined symbol: missing()
>>> referenced by relu.cpp
collect2: error: ld returned 1 exit status
"""
MOLD_LIBRARY = """\
[2/2] link relu
FAILED: relu.so
g++ -fuse-ld=mold 0.relu.o -lnope
mold: fatal: library not found: nope
collect2: error: ld returned 1 exit status
"""


def build_error(output, status=1):
    return diagnostics.build_error("relu", status, output, LOG)


def test_the_message_of_a_syntax_error_begins_with_file_and_line_and_shows_the_source(tmp_path):
    source = text_files.write(tmp_path, "relu.cpp", "".join(f"line {number}\n" for number in range(1, 21)))
    error = build_error(GXX_SYNTAX.format(source=source))
    assert isinstance(error, CompileError)
    lines = str(error).splitlines()
    assert lines[0] == f"relu: compile relu.cpp failed: {source}:7:10: error: expected ';' before '}}' token"
    assert lines[1:11] == [f"{'>' if number == 7 else ' '}{number:5} | line {number}" for number in range(2, 12)]
    assert lines[11:] == [
        "and 1 further error in the full log",
        f"command: /usr/bin/g++ -O3 -c {source} -o 0.relu.o",
        f"full log: {LOG}",
    ]


@pytest.mark.parametrize("line", [1, 20, 99])
def test_the_context_ends_where_the_file_does(tmp_path, line):
    source = text_files.write(tmp_path, "relu.cpp", "".join(f"line {number}\n" for number in range(1, 21)))
    text = str(build_error(f"[1/1] compile relu.cpp\nFAILED: o\ng++\n{source}:{line}:1: error: bad\n"))
    assert (f">{line:5} | line {line}" in text) is (line <= 20)


def test_a_source_that_is_gone_or_not_text_has_no_context_or_a_replaced_one(tmp_path):
    path = tmp_path / "relu.cpp"
    assert "gone.cpp:3: error: bad\ncommand: g++" in str(build_error("FAILED: o\ng++\ngone.cpp:3: error: bad\n"))
    path.write_bytes(b"\xff\xfe\n")
    assert ">    1 | " in str(build_error(f"FAILED: o\ng++\n{path}:1: error: bad\n"))


def test_the_status_line_of_an_older_ninja_is_parsed():
    text = str(build_error(OLD_NINJA))
    assert text.startswith("relu: compile relu.cpp failed: relu.cpp:3: error: stray '@' in program\n")
    assert "command: /usr/bin/g++ -c relu.cpp" in text


def test_the_first_error_of_clang_is_shown_not_a_warning_before_it():
    assert "failed: relu.cpp:7:11: error: expected ';' after return statement" in str(build_error(CLANG_SYNTAX))


@pytest.mark.parametrize("output", [GXX_HEADER, CLANG_HEADER], ids=["g++", "clang"])
def test_a_missing_header_comes_with_advice(output):
    text = str(build_error(output))
    assert "relu.cpp:1:10: error: " in text.splitlines()[0]
    advice = "hint: add the folder that holds cuda/thing.h to include_dirs, or install the package that provides it"
    assert advice in text


def test_a_header_that_a_wheel_of_cudas_libraries_has_is_found_there(tmp_path, monkeypatch):
    folder = tmp_path / "nvidia" / "cu13" / "include" / "cuda"
    folder.mkdir(parents=True)
    (folder / "thing.h").touch()
    monkeypatch.syspath_prepend(tmp_path)
    hint = f"hint: cuda/thing.h is in {folder.parent}: add that folder to include_dirs, or set CPATH to it"
    assert hint in str(build_error(GXX_HEADER))


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (UNDEFINED, "relu.cpp:(.text+0x9): undefined reference to `missing()'"),
        (LLD, "ld.lld: error: undefined symbol: missing()"),
        (MOLD_SYMBOL, "mold: error: undefined symbol: missing()"),
    ],
    ids=["undefined", "lld", "mold"],
)
def test_the_message_of_the_linker_is_shown(output, shown):
    error = build_error(output)
    assert isinstance(error, CompileError)
    assert str(error).startswith(f"relu: link relu failed: {shown}\ncommand: ")


@pytest.mark.parametrize("output", [NO_LIBRARY, MOLD_LIBRARY, LLD_LIBRARY], ids=["ld", "mold", "lld"])
def test_a_missing_library_comes_with_advice(output):
    first, advice, *_rest = str(build_error(output)).splitlines()
    assert first.startswith("relu: link relu failed: ") and "nope" in first
    assert advice == "hint: install what provides libnope.so, or name its folder in extra_link_args: -L/the/folder"


def test_a_library_that_is_named_by_its_path_belongs_to_the_flags_of_the_link():
    text = str(build_error(NO_LIBRARY.replace("nope", "/a/libm.a")))
    assert "\nhint: write '/a/libm.a' in extra_link_args: a name in libraries has no folder\n" in text


@pytest.mark.parametrize("typed", ["libm.so", "-lm", "libm", "m.so.6", "libm.a"])
def test_a_library_that_is_named_as_a_file_or_a_flag_gets_the_name_to_write(typed):
    text = str(build_error(NO_LIBRARY.replace("nope", typed)))
    assert "\nhint: write 'm': a name in libraries, and after -l, has neither -l nor lib before it, nor .so\n" in text


@pytest.mark.parametrize(
    ("include", "message", "hint"),
    [
        ("/x/torch/include", '#error "Not if TORCH_STABLE_ONLY or TORCH_TARGET_VERSION is defined"', 'abi = "torch"'),
        ("/x/other", "torch/csrc/stable/library.h: No such file or directory", 'abi = "c" has no headers of torch'),
        ("/x/torch/include", "torch/csrc/stable/librray.h: No such file or directory", "add the folder that holds"),
        ("{tmp}/torch/include", "torch/all.h: No such file or directory", "this header is not of the stable ABI"),
        ("/x", "Python.h: No such file or directory", "install this Python's headers (Debian, Ubuntu: apt install"),
        ("{tmp}/torch/include", "torch/al.h: No such file or directory", "add the folder that holds"),
        ("/x/pybind11/ -DPy_LIMITED_API=0x030A0000", "expected ')' before '*'", "remove py_limited_api=True"),
        ("/x/pybind11/", "expected ')' before '*'", ""),
        ("/x/torch/include", "'empty_like' is not a member of 'torch::stable'", "are in torch/csrc/stable/ops.h"),
        ("/x/torch/include", "no member named 'f' in namespace 'torch::stable'", "are in torch/csrc/stable/ops.h"),
        ("/x/torch/include", "'f' is not a member of 'torch::stable::detail'", ""),
        ("/x/torch/include", "'__m512' does not name a type", "#include <immintrin.h>"),
        ("/x/torch/include", "use of undeclared identifier '_mm256_add_ps'", "#include <immintrin.h>"),
        ("/x/torch/include", "'_mm_prefetch' needs target feature mmx", ""),
        ("/x/torch/include", "redefinition of 'T STABLE_TORCH_LIBRARY_static_init_a'", "STABLE_TORCH_LIBRARY_FRAGMENT"),
    ],
)
def test_a_header_or_a_function_of_torchs_that_is_not_there_comes_with_advice(tmp_path, include, message, hint):
    api = tmp_path / "torch/include/torch/csrc/api/include/torch"
    api.mkdir(parents=True)
    (api / "all.h").touch()
    file = "/x/pybind11/pytypes.h" if "pybind11" in include else "a.cpp"
    command = f"g++ -isystem {include.replace('{tmp}', str(tmp_path))} -c a.cpp"
    text = str(build_error(f"FAILED: o\n{command}\n{file}:1:2: error: {message}\n"))
    assert f"error: {message}\n" in text
    assert text.count("hint:") == bool(hint) and hint in text.partition("hint:")[2]


def test_a_tensor_of_the_stable_abi_without_its_header_comes_with_advice():
    text = str(build_error(UNDEFINED.replace("missing()", "torch::stable::Tensor::scalar_type() const")))
    assert "\nhint: #include <torch/csrc/stable/tensor.h> in that source\n" in text


@pytest.mark.parametrize("message", UNBOXED, ids=["g++", "clang"])
def test_a_kernel_without_torch_box_comes_with_advice(message):
    text = str(build_error(f"[1/2] compile relu.cpp\nFAILED: o\ng++ -c\nrelu.cpp:9:5: {message}\n"))
    assert '\nhint: wrap the function: m.impl("name", TORCH_BOX(&function))\n' in text


def test_a_registration_without_its_header_comes_with_advice(tmp_path):
    source = text_files.write(tmp_path, "relu.cpp", "int f();\nSTABLE_TORCH_LIBRARY(relu, m) {\n}\n")
    advice = "\nhint: this macro is in torch/csrc/stable/library.h: is that included above?\n"
    assert advice in str(build_error(f"FAILED: o\ng++\n{source}:2:21: error: expected constructor before '(' token\n"))
    assert advice not in str(build_error(f"FAILED: o\ng++\n{source}:1:1: error: bad\n"))
    pasting = 'pasting "STABLE_TORCH_LIBRARY_init_" and ""relu"" does not give a valid preprocessing token'
    assert "hint:" not in str(build_error(f"FAILED: o\ng++\n{source}:2:1: error: {pasting}\n"))
    plain = text_files.write(tmp_path, "plain.cpp", "TORCH_LIBRARY(relu, m) {\n}\n")
    text = str(build_error(f"FAILED: o\ng++\n{plain}:1:14: error: expected constructor before '(' token\n"))
    assert "\nhint: beside torch/csrc/stable/library.h write STABLE_TORCH_LIBRARY; this one is in torch/lib" in text


def test_a_misspelt_function_keeps_the_compilers_suggestion_and_gets_no_hint(tmp_path):
    block = 'STABLE_TORCH_LIBRARY_IMPL(a, CPU, m) { m.impl("relu", TORCH_BOX(&relux)); }'
    source = text_files.write(tmp_path, "relu.cpp", block + "\n")
    message = "'relux' was not declared in this scope; did you mean 'relu'?"
    text = str(build_error(f"FAILED: o\ng++\n{source}:1:66: error: {message}\n"))
    assert f"error: {message}\n" in text and "hint:" not in text
    other = str(build_error(f"FAILED: o\ng++\n{source}:1:66: error: 'xyz' was not declared in this scope\n"))
    assert "hint:" not in other


@pytest.mark.parametrize("gutter", ["    2 | ", ""], ids=["g++", "clang"])
def test_the_place_is_marked_as_the_compiler_marked_it(tmp_path, gutter):
    source = text_files.write(tmp_path, "relu.cpp", "int ok;\n\treturn y;\n")
    below = " " * 6 + "| " if gutter else ""
    printed = f"{source}:2:16: error: no y\n{gutter}        return y;\n{below}               ^~\n"
    lines = str(build_error(f"FAILED: o\ng++\n{printed}")).splitlines()
    assert lines[2:4] == [">    2 |         return y;", "       |                ^~"]
    macro = f"{source}:2:16: error: no y\n{gutter}  expanded text\n{below}  ^~\n"
    assert "^" not in str(build_error(f"FAILED: o\ng++\n{macro}")), "another text cannot be marked in this line"


def test_further_errors_are_counted_once_each():
    first, second, third = (f"a.cpp:{line}:1: error: no\n" for line in (1, 2, 3))
    assert "further" not in str(build_error(f"FAILED: o\ng++\n{first}a.cpp:2:1: warning: w\n{first}"))
    assert "\nand 1 further error in the full log\n" in str(build_error(f"FAILED: o\ng++\n{first}{second}"))
    error = diagnostics.build_error("relu", 1, f"FAILED: o\ng++\n{first}{second}{second}{third}", "")
    assert "\nand 2 further errors in CompileError.diagnostics\n" in str(error)


@pytest.mark.parametrize("standard", ["-std=c++11", "-std=gnu++14"])
def test_an_old_standard_comes_with_a_hint_if_a_header_of_torch_fails(standard):
    header = "/site-packages/torch/include/c10/util/bit_cast.h:28:22: error: no template named 'enable_if_t'\n"
    text = str(build_error(f"FAILED: o\ng++ -std=c++17 {standard} a.cpp\n{header}"))
    assert f"hint: torch's headers need C++17: remove {standard} from extra_compile_args and CXXFLAGS, or write" in text
    assert "hint:" not in str(build_error(f"FAILED: o\ng++ {standard} -std=c++20 a.cpp\n{header}"))
    assert "hint:" not in str(build_error(f"FAILED: o\ng++ {standard} a.cpp\nown.cpp:1:1: error: no\n"))


@pytest.mark.parametrize(
    ("line", "message", "may_be"),
    [
        ("torch::Tensor f(torch::Tensor x) { return x + 1 }", "expected ';' before '}' token", False),
        ("std::vectr<int> sizes;", "'vectr' is not a member of 'std'; did you mean 'vector'?", False),
        ("return point.x;", "'struct Point' has no member named 'x'", False),
        ("PYBIND11_MODULE(NAME, m) {", "cannot declare static function inside another function", False),
        ("C10_ALL(x)", "expected constructor, destructor, or type conversion before ';' token", True),
        ("return torch::nosuch(x);", "'nosuch' is not a member of 'torch'", True),
        ("return add_all(x);", "'add_all' was not declared in this scope", True),
        ("return add_all(x);", 'identifier "add_all" is undefined', True),
        ("#include <ATen/Nosuch.h>", "ATen/Nosuch.h: No such file or directory", True),
        ("return f(x);", "static assertion failed: f is not here", True),
    ],
)
def test_only_an_error_that_the_facade_may_cause_names_the_command_for_it(tmp_path, line, message, may_be):
    source = text_files.write(tmp_path, "op.cpp", f"{line}\n")
    output = f"FAILED: [code=1] op.o\ng++ -c {source} -o op.o\n{source}:1:1: error: {message}\n"
    text = str(diagnostics.build_error("op", 1, output, LOG, is_on_facade=True))
    assert ("`opforge why-not " in text) == may_be, text


@pytest.mark.parametrize(
    "chain",
    [
        "In file included from {facade}ATen/cuda/CUDAContext.h:1,\n                 from {own}:2,\n"
        "                 from a.cpp:3:\n{facade}opforge/facade/cuda.h:5:10: fatal error: ",
        "In file included from a.cpp:3:\nIn file included from {own}:2:\n"
        "In file included from {facade}ATen/cuda/CUDAContext.h:1:\n{facade}opforge/facade/cuda.h:5:10: fatal error: ",
    ],
    ids=["g++", "clang"],
)
def test_a_header_that_the_facade_needs_is_missing_where_the_source_includes_the_facades(tmp_path, chain):
    own = text_files.write(tmp_path, "own.h", "#pragma once\n#include <ATen/cuda/CUDAContext.h>\n")
    output = f"FAILED: [code=1] o\ng++ -c a.cpp\n{chain.format(facade=diagnostics.FACADE_HEADERS, own=own)}"
    output += "cuda_runtime_api.h: No such file or directory\n"
    lines = str(diagnostics.build_error("relu", 1, output, LOG, is_on_facade=True)).splitlines()
    assert lines[0].endswith(f"{own}:2: error: cuda_runtime_api.h: No such file or directory")
    assert lines[2] == ">    2 | #include <ATen/cuda/CUDAContext.h>"
    assert lines[3].startswith("hint: add the folder that holds cuda_runtime_api.h to include_dirs")


def test_an_error_in_a_macro_of_ours_is_shown_where_the_source_uses_it(tmp_path):
    source = text_files.write(tmp_path, "own.cpp", 'm.impl("dup", TORCH_BOX(&dup));\n')
    header = f"{diagnostics.ABI_HEADERS}opforge/stable_blocks.h:210:91"
    output = f"FAILED: o\ng++ -c {source}\n{header}: error: 'decltype' cannot resolve address of overloaded function\n"
    text = str(build_error(f"{output}{source}:1:15: note: in expansion of macro 'TORCH_BOX'\n"))
    assert f"{source}:1:15: error: 'decltype' cannot resolve" in text and ">    1 | m.impl(" in text
    assert "\nhint: rename it: TORCH_BOX takes" in text


def test_an_old_standard_is_the_reason_on_the_facade_too():
    header = "torch-headers/torch/headeronly/util/bit_cast.h:29:40: error: 'is_trivially_copyable_v' is not a member\n"
    output = f"FAILED: o\ng++ -std=c++17 -std=c++14 -c a.cpp\n{header}"
    text = str(diagnostics.build_error("relu", 1, output, LOG, is_on_facade=True))
    assert "hint: torch's headers need C++17: remove -std=c++14 " in text and "why-not" not in text


def test_a_header_that_a_source_distribution_lacks_is_a_hint_to_its_manifest(tmp_path):
    source = text_files.write(tmp_path, "csrc/a.cpp", '#include "own.h"\n#include <glm.hpp>\n')
    missing = f"FAILED: o\ng++ -c {source}\n{source}:{{}}:10: fatal error: {{}}: No such file or directory\n"
    assert "MANIFEST.in" not in str(build_error(missing.format(1, "own.h")))
    text_files.write(tmp_path, "PKG-INFO", "Name: a\n")
    advice = "hint: the source distribution may lack own.h: add `recursive-include FOLDER *.h` to MANIFEST.in, or"
    assert advice in str(build_error(missing.format(1, "own.h")))
    assert "MANIFEST.in" not in str(build_error(missing.format(2, "glm.hpp")))


def test_a_header_of_an_empty_submodule_is_a_hint_to_fetch_it(tmp_path):
    (tmp_path / "csrc" / "glm").mkdir(parents=True)
    text_files.write(tmp_path, ".gitmodules", '[submodule "glm"]\n\tpath = csrc/glm\n\turl = https://example.com/glm\n')
    source = text_files.write(tmp_path, "csrc/a.cpp", "#include <glm/glm.hpp>\n")
    missing = f"FAILED: o\ng++ -c {source}\n{source}:1:10: fatal error: glm/glm.hpp: No such file or directory\n"
    hint = f"hint: the git submodule csrc/glm in {tmp_path} is empty: run `git submodule update --init --recursive`"
    assert hint in str(build_error(missing))
    (tmp_path / "csrc" / "glm").rmdir()
    assert hint in str(build_error(missing))
    (tmp_path / "csrc" / "glm" / "glm").mkdir(parents=True)
    assert "hint: add the folder that holds glm/glm.hpp to include_dirs" in str(build_error(missing))
    (tmp_path / ".gitmodules").unlink()
    os.mkfifo(tmp_path / ".gitmodules")
    assert "hint: add the folder" in str(build_error(missing)), "no list, and nothing to wait for"


def test_c_that_is_no_cxx_is_named():
    line = "error: invalid conversion from 'void*' to 'int*' [-fpermissive]"
    assert "hint: a .c file is compiled as C++" in str(build_error(f"FAILED: o\ng++ -c /p/a.c\n/p/a.c:1:1: {line}\n"))
    assert "hint" not in str(build_error(f"FAILED: o\ng++ -c /p/a.cc\n/p/a.cc:1:1: {line}\n"))


@pytest.mark.parametrize("standard", ["-std=c++14", "-std=c++17", "-std=gnu++1z"])
@pytest.mark.parametrize("is_stated", [True, False], ids=["by the error", "by another header"])
def test_the_standard_that_torchs_headers_need_is_theirs(tmp_path, standard, is_stated):
    """torch 2.14's need C++20, and an error in one of them need not be the one that says so."""
    include = tmp_path / "torch" / "include"
    required = "#error C++20 or later compatible compiler is required to use PyTorch."
    check = f"#if !defined(_MSC_VER) && __cplusplus < 202002L\n{required}\n#endif\n"
    for name in ("ATen/ATen.h", "torch/csrc/api/include/torch/all.h", "c10/util/span.h"):
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        text_files.write(include, name, check)
    line = f"{include}/torch/csrc/api/include/torch/all.h:2:2: error: {required}"
    line = line if is_stated else f"{include}/c10/util/span.h:9:1: error: 'requires' does not name a type"
    text = str(build_error(f"FAILED: o\ng++ {standard} a.cpp\n{line}\n"))
    needed = f"hint: torch's headers need C++20: remove {standard} from extra_compile_args and CXXFLAGS, or write -std="
    assert f"{needed}c++20" in text
    assert "hint:" not in str(build_error(f"FAILED: o\ng++ {standard} -std=c++2a a.cpp\n{line}\n"))


@pytest.mark.parametrize(
    ("command", "line", "hint"),
    [
        (
            "g++ -m32 a.cpp",
            "/usr/include/c++/12/string:38:10: error: bits/c++config.h: No such file or directory",
            "-m32",
        ),
        (
            "g++ libtorch_cpu.so -Wl,-z,defs a.o",
            "a.o: undefined reference to `aoti_torch_library_def'",
            "are linked by name alone: remove",
        ),
        (
            "g++ -Wl,--no-undefined libc10.so",
            "ld.lld: error: undefined symbol: aoti_x",
            "are linked by name alone: remove",
        ),
        (
            "clang++ -fuse-ld=nope a.o",
            "clang: error: invalid linker name in argument '-fuse-ld=nope'",
            "-fuse-ld=nope names",
        ),
        (
            "g++ -shared 0.a.o -static",
            "/usr/bin/ld: crtbeginT.o: relocation R_X86_64_32 against hidden symbol `__TMC_END__' can not be used",
            "cannot be linked with -static",
        ),
        (
            "g++ '-O3 -Wall' -c a.cpp",
            "cc1plus: error: argument to '-O' should be a non-negative integer, 'g', 's', 'z' or 'fast'",
            "'-O3 -Wall' is one argument to the compiler",
        ),
        ("g++ -fuse-ld=mold a.o", "collect2: fatal error: cannot find 'ld'", "install the linker that -fuse-ld=mold"),
    ],
)
def test_a_flag_that_asks_for_what_cannot_be_is_named(command, line, hint):
    text = str(build_error(f"[1/1] link a\nFAILED: a.so\n{command}\n{line}\n"))
    assert "hint: " in text and hint in text.partition("hint: ")[2].partition("\ncommand")[0]
    assert "include_dirs" not in text


@pytest.mark.parametrize(
    "line", ["g++: error: unrecognized command-line option '-mno-such'", "clang: error: unknown argument: '-mno-such'"]
)
def test_a_flag_of_the_users_variables_is_named_with_its_variable(monkeypatch, line):
    output = f"[1/1] compile a.cpp\nFAILED: a.o\ng++ -mno-such -c a.cpp\n{line}\n"
    assert "hint" not in str(build_error(output))
    monkeypatch.setenv("CXXFLAGS", "-O2 -mno-such")
    hint = "hint: -mno-such is in CXXFLAGS, whose flags are for every op: correct that variable\n"
    assert hint in str(build_error(output))


@pytest.mark.parametrize("output", ["", "\n\n", "something odd\n", "FAILED: x", "error: what"])
def test_any_output_becomes_an_error_that_names_the_log(output):
    error = build_error(output)
    assert isinstance(error, CompileError)
    assert str(error).endswith(f"full log: {LOG}")
    assert "the build failed: " in str(error)


def test_the_error_for_an_empty_output_shows_the_status():
    assert "the build failed: exit status 7" in str(build_error("", 7))


def test_the_diagnostics_are_in_the_order_of_the_output(tmp_path):
    error = build_error(CLANG_SYNTAX)
    assert (error.op, error.step, error.log) == ("relu", "compile relu.cpp", LOG)
    assert error.command == ("/usr/bin/clang++", "-c", "relu.cpp")
    shared = {"file": "relu.cpp"}
    assert error.diagnostics == (
        {**shared, "line": 2, "column": 3, "severity": "warning", "message": "unused variable 'x' [-Wunused-variable]"},
        {**shared, "line": 7, "column": 11, "severity": "error", "message": "expected ';' after return statement"},
    )
    (diagnostic,) = build_error(
        '[1/1] compile a.cu\nFAILED: o\nnvcc "-DA=b c" a.cu\na.cu(3): error #20: no\n'
    ).diagnostics
    assert diagnostic == {"file": "a.cu", "line": 3, "column": 0, "severity": "error", "message": "no"}


@pytest.mark.parametrize("output", [UNDEFINED, NO_LIBRARY, LLD, MOLD_SYMBOL, MOLD_LIBRARY, "something odd\n", ""])
def test_an_error_that_belongs_to_no_source_is_a_diagnostic_too(output):
    error = build_error(output)
    first = error.diagnostics[0]
    assert (first["file"], first["line"], first["severity"]) == ("", 0, "error")
    assert str(error).startswith(f"relu: {error.step} failed: {first['message']}\n")


SILENT_LINKER = """\
[2/2] link relu
FAILED: relu.so
g++ -fuse-ld=mold 0.relu.o
collect2: error: ld returned 1 exit status
ninja: build stopped: subcommand failed.
"""


def test_a_linker_that_prints_no_reason_does_not_blame_the_sources():
    error = diagnostics.build_error("relu", 1, SILENT_LINKER, "")
    assert isinstance(error, BuildResourceError)
    assert "the linker failed and printed no reason: memory may have run out" in str(error)


def test_a_linkers_reason_is_printed_and_not_its_drivers_summary():
    reason = "/usr/bin/ld: relu.so: file format not recognized; treating as linker script"
    output = SILENT_LINKER.replace("collect2", f"{reason}\ncollect2")
    message = str(diagnostics.build_error("relu", 1, output, ""))
    assert reason in message and "collect2" not in message
