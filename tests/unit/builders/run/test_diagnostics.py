"""What people are told when a build fails, from what compilers really print."""

from __future__ import annotations

import errno

import pytest
from support import text_files

from opforge.builders import resources
from opforge.builders.run import diagnostics
from opforge.errors import BuildResourceError, CompileError

LOG = "/store/v1/logs/plan.log"
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
UNBOXED = [
    "error: invalid conversion from 'int (*)(int)' to 'opforge::Library::Boxed' {aka 'void (*)(long unsigned int*)'}",
    "error: cannot initialize a parameter of type 'opforge::Library::Boxed' (aka 'void (*)(unsigned long *)')",
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
KILLED = [
    "[1/2] compile relu.cpp\nFAILED: 0.relu.o\ng++ -c relu.cpp\n"
    "g++: fatal error: Killed signal terminated program cc1plus\n"
    "compilation terminated.\n",
    "FAILED: 0.relu.o\nclang++ -c\nclang++: error: unable to execute command: Killed\n"
    "clang++: error: clang frontend command failed due to signal (use -v to see invocation)\n",
    "FAILED: 0.relu.o\ng++ -c\nvirtual memory exhausted: Cannot allocate memory\n",
    "FAILED: 0.relu.o\ng++ -c\n\ncc1plus: out of memory allocating 65536 bytes after a total of 5 bytes\n",
    "FAILED: 0.relu.o\ng++ -c\ng++: internal compiler error: Killed (program cc1plus)\n",
]
FULL = [
    "[1/2] compile relu.cpp\nFAILED: 0.relu.o\ng++ -c\n{standard input}: Assembler messages:\n"
    "{standard input}: Fatal error:"
    " can't write 9 bytes to section .text of 0.relu.o: 'No space left on device'\n",
    "ninja: error: opening build log: No space left on device\n",
    "FAILED: relu.so\ng++ -shared\n"
    "/usr/bin/ld: final link failed: No space left on device\ncollect2: error: ld returned 1\n",
]


def build_error(output, status=1):
    return diagnostics.build_error("relu", status, output, LOG)


def test_a_syntax_error_shows_its_place_first_and_its_context(tmp_path):
    source = text_files.write(tmp_path, "relu.cpp", "".join(f"line {number}\n" for number in range(1, 21)))
    error = build_error(GXX_SYNTAX.format(source=source))
    assert isinstance(error, CompileError)
    lines = str(error).splitlines()
    assert lines[0] == f"relu: compile relu.cpp failed: {source}:7:10: error: expected ';' before '}}' token"
    assert lines[1:11] == [f"{'>' if number == 7 else ' '}{number:5} | line {number}" for number in range(2, 12)]
    assert lines[11] == f"command: /usr/bin/g++ -O3 -c {source} -o 0.relu.o"
    assert lines[12] == f"full log: {LOG}"
    assert len(lines) == 13


@pytest.mark.parametrize("line", [1, 20, 99])
def test_the_context_ends_where_the_file_does(tmp_path, line):
    source = text_files.write(tmp_path, "relu.cpp", "".join(f"line {number}\n" for number in range(1, 21)))
    text = str(build_error(f"[1/1] compile relu.cpp\nFAILED: o\ng++\n{source}:{line}:1: error: bad\n"))
    assert (f">{line:5} | line {line}" in text) is (line <= 20)


def test_a_source_that_is_gone_or_no_text_costs_only_the_context(tmp_path):
    path = tmp_path / "relu.cpp"
    assert "gone.cpp:3: error: bad\ncommand: g++" in str(build_error("FAILED: o\ng++\ngone.cpp:3: error: bad\n"))
    path.write_bytes(b"\xff\xfe\n")
    assert ">    1 | " in str(build_error(f"FAILED: o\ng++\n{path}:1: error: bad\n"))


def test_an_older_ninjas_status_line_is_read_too():
    text = str(build_error(OLD_NINJA))
    assert text.startswith("relu: compile relu.cpp failed: relu.cpp:3: error: stray '@' in program\n")
    assert "command: /usr/bin/g++ -c relu.cpp" in text


def test_clangs_first_error_not_its_warning_is_shown():
    assert "failed: relu.cpp:7:11: error: expected ';' after return statement" in str(build_error(CLANG_SYNTAX))


@pytest.mark.parametrize("output", [GXX_HEADER, CLANG_HEADER], ids=["g++", "clang"])
def test_a_missing_header_comes_with_advice(output):
    text = str(build_error(output))
    assert "relu.cpp:1:10: error: " in text.splitlines()[0]
    advice = "(add the folder that holds cuda/thing.h to include_dirs, or install the package that provides it)"
    assert advice in text


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (UNDEFINED, "relu.cpp:(.text+0x9): undefined reference to `missing()'"),
        (LLD, "ld.lld: error: undefined symbol: missing()"),
        (MOLD_SYMBOL, "mold: error: undefined symbol: missing()"),
    ],
    ids=["undefined", "lld", "mold"],
)
def test_a_linkers_own_words_are_shown(output, shown):
    error = build_error(output)
    assert isinstance(error, CompileError)
    assert str(error).startswith(f"relu: link relu failed: {shown}\ncommand: ")


@pytest.mark.parametrize("output", [NO_LIBRARY, MOLD_LIBRARY, LLD_LIBRARY], ids=["ld", "mold", "lld"])
def test_a_missing_library_comes_with_advice(output):
    first, advice, *_rest = str(build_error(output)).splitlines()
    assert first.startswith("relu: link relu failed: ") and "nope" in first
    assert advice == "(install what provides libnope.so, or name its folder in extra_link_args: -L/the/folder)"


@pytest.mark.parametrize("said", UNBOXED, ids=["g++", "clang"])
def test_a_kernel_without_its_box_comes_with_advice(said):
    text = str(build_error(f"[1/2] compile relu.cpp\nFAILED: o\ng++ -c\nrelu.cpp:9:5: {said}\n"))
    assert '\n(wrap the function: m.impl("name", TORCH_BOX(&function)))\n' in text


def test_a_registration_without_its_header_comes_with_advice(tmp_path):
    source = text_files.write(tmp_path, "relu.cpp", "int f();\nSTABLE_TORCH_LIBRARY(relu, m) {\n}\n")
    advice = "\n(this macro is in torch/csrc/stable/library.h: is that included above?)\n"
    assert advice in str(build_error(f"FAILED: o\ng++\n{source}:2:21: error: expected constructor before '(' token\n"))
    assert advice not in str(build_error(f"FAILED: o\ng++\n{source}:1:1: error: bad\n"))


@pytest.mark.parametrize("output", KILLED)
def test_a_killed_compiler_is_a_matter_of_memory(output):
    error = build_error(output)
    assert isinstance(error, BuildResourceError)
    assert str(error) == (
        "relu: the build stopped: a compiler was killed, or memory ran out."
        f" Lower the number of compilers with OPFORGE_JOBS=1.\nfull log: {LOG}"
    )


@pytest.mark.parametrize("output", FULL)
def test_a_full_disk_is_called_so(output):
    error = build_error(output)
    assert isinstance(error, BuildResourceError)
    assert str(error) == (
        "relu: the build stopped: the disk is full. Free some space, or set OPFORGE_CACHE_DIR to another disk."
        f"\nfull log: {LOG}"
    )


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("g++: fatal error: cannot execute 'cc1plus': vfork: Resource temporarily unavailable", "processes can be"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable: '/bin/ninja'", "`ulimit -u`"),
        ("clang++: error: unable to open output file 'a.o': 'Too many open files'", "`ulimit -n`"),
        (
            "ninja: fatal: posix_spawn: Argument list too long",
            "Write the flags to a file, and pass its name after an @",
        ),
        ("mimalloc: warning: thread 0x7: unable to allocate OS memory (33554432 bytes)", "OPFORGE_JOBS=1"),
    ],
)
def test_what_the_machine_has_run_out_of_is_said(said, told):
    error = build_error(f"[1/1] compile relu.cpp\nFAILED: o\ng++ -c relu.cpp\n{said}\n")
    assert isinstance(error, BuildResourceError) and told in str(error)
    assert str(error).startswith("relu: the build stopped: ") and error.log == LOG
    quoted = build_error(f"[1/1] compile relu.cpp\nFAILED: o\ng++\na.cpp:1:1: error: no\n    1 | // {said}\n")
    assert isinstance(quoted, CompileError)


def test_an_error_of_the_system_is_told_by_its_number():
    assert "the disk is full" in str(resources.exhausted_resource("relu", OSError(errno.EDQUOT, "")))
    assert "`ulimit -n`" in str(resources.exhausted_resource("relu", OSError(errno.EMFILE, "")))
    assert resources.exhausted_resource("relu", PermissionError(errno.EACCES, "")) is None


@pytest.mark.parametrize("signal", [9, 15])
def test_a_killed_ninja_is_no_fault_of_the_sources(signal):
    error = build_error("[1/2] compile relu.cpp\n", 128 + signal)
    assert isinstance(error, BuildResourceError)
    assert f"ninja was ended by signal {signal}. Run it again." in str(error)


def test_a_source_that_speaks_of_a_full_disk_is_not_one(tmp_path):
    output = (
        "[1/1] compile relu.cpp\nFAILED: o\ng++ -c relu.cpp\nrelu.cpp:3:1: error: 'report' was not declared\n"
        '    3 |   report("No space left on device");\n'
    )
    assert isinstance(build_error(output), CompileError)


@pytest.mark.parametrize("output", ["", "\n\n", "something odd\n", "FAILED: x", "error: what"])
def test_any_output_gives_an_error_with_the_log(output):
    error = build_error(output)
    assert isinstance(error, CompileError)
    assert str(error).endswith(f"full log: {LOG}")
    assert "the build failed: " in str(error)


def test_an_empty_output_gives_the_status():
    assert "the build failed: exit status 7" in str(build_error("", 7))


def test_a_program_reads_what_the_compilers_said_in_their_order(tmp_path):
    error = build_error(CLANG_SYNTAX)
    assert (error.op, error.step, error.log) == ("relu", "compile relu.cpp", LOG)
    assert error.command == ("/usr/bin/clang++", "-c", "relu.cpp")
    shared = {"file": "relu.cpp"}
    assert error.diagnostics == (
        {**shared, "line": 2, "column": 3, "severity": "warning", "message": "unused variable 'x' [-Wunused-variable]"},
        {**shared, "line": 7, "column": 11, "severity": "error", "message": "expected ';' after return statement"},
    )
    (told,) = build_error('[1/1] compile a.cu\nFAILED: o\nnvcc "-DA=b c" a.cu\na.cu(3): error #20: no\n').diagnostics
    assert told == {"file": "a.cu", "line": 3, "column": 0, "severity": "error", "message": "no"}


@pytest.mark.parametrize("output", [UNDEFINED, NO_LIBRARY, LLD, MOLD_SYMBOL, MOLD_LIBRARY, "something odd\n", ""])
def test_an_error_without_a_place_in_a_source_is_a_diagnostic_too(output):
    error = build_error(output)
    first = error.diagnostics[0]
    assert (first["file"], first["line"], first["severity"]) == ("", 0, "error")
    assert str(error).startswith(f"relu: {error.step} failed: {first['message']}\n")
