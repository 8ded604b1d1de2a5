"""Resources that the machine ran out of, recognised in real output of compilers and in errors of the system."""

from __future__ import annotations

import errno

import pytest

import opforge
from opforge.builders.resources import exhausted_resource, raise_for
from opforge.builders.run.diagnostics import build_error
from opforge.errors import BuildResourceError, CacheDirError, CompileError

LOG = "/store/v2/logs/plan.log"
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


def error_of(output, status=1):
    return build_error("relu", status, output, LOG)


@pytest.mark.parametrize("output", KILLED)
def test_a_killed_compiler_means_that_memory_ran_out(output):
    error = error_of(output)
    assert isinstance(error, BuildResourceError)
    assert str(error) == (
        "relu: the build stopped: a compiler was killed, or memory ran out."
        f" Lower the number of compilers with OPFORGE_JOBS=1.\nfull log: {LOG}"
    )


@pytest.mark.parametrize("output", [*KILLED, "ninja: fatal: posix_spawn: Resource temporarily unavailable\n"])
def test_one_compiler_at_a_time_is_not_advised_to_whoever_has_it(monkeypatch, output):
    monkeypatch.setenv("OPFORGE_JOBS", "1")
    assert "set OPFORGE_JOBS=1" not in str(error_of(output)) and "Lower the number" not in str(error_of(output))
    if output in KILLED:
        assert "One compiler ran alone (OPFORGE_JOBS=1): give it more memory, or divide the source" in str(
            error_of(output)
        )


@pytest.mark.parametrize("output", FULL)
def test_a_full_disk_is_recognised(output):
    error = error_of(output)
    assert isinstance(error, BuildResourceError)
    assert str(error) == (
        "relu: the build stopped: the disk is full. Free some space, or set OPFORGE_CACHE_DIR to another disk."
        f"\nfull log: {LOG}"
    )


@pytest.mark.parametrize(
    ("line", "message"),
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
def test_other_resources_are_recognised_but_not_in_a_quoted_line_of_source(line, message):
    error = error_of(f"[1/1] compile relu.cpp\nFAILED: o\ng++ -c relu.cpp\n{line}\n")
    assert isinstance(error, BuildResourceError) and message in str(error)
    assert str(error).startswith("relu: the build stopped: ") and error.log == LOG
    quoted = error_of(f"[1/1] compile relu.cpp\nFAILED: o\ng++\na.cpp:1:1: error: no\n    1 | // {line}\n")
    assert isinstance(quoted, CompileError)


def test_an_error_of_the_system_is_recognised_by_its_number():
    assert "the disk is full" in str(exhausted_resource("relu", OSError(errno.EDQUOT, "")))
    assert "`ulimit -n`" in str(exhausted_resource("relu", OSError(errno.EMFILE, "")))
    assert exhausted_resource("relu", PermissionError(errno.EACCES, "")) is None


def test_an_error_of_the_system_in_a_store_is_the_stores(tmp_path, monkeypatch):
    def stale(path, _data):
        raise OSError(errno.ESTALE, "Stale file handle", f"{path}.tmp")

    monkeypatch.setattr("opforge.builders.inline_sources.write_file", stale)
    with pytest.raises(CacheDirError, match=r"main\.cpp\.tmp: Stale file handle\. Give yourself access"):
        opforge.load_inline("stale", "int f();", build_directory=tmp_path)
    raise_for("relu", str(tmp_path), FileNotFoundError(errno.ENOENT, ""))  # another file, and the working folder
    raise_for("relu", str(tmp_path), PermissionError(errno.EACCES, "", "/elsewhere"))


@pytest.mark.parametrize("signal", [9, 15])
def test_a_killed_ninja_is_not_an_error_of_the_sources(signal):
    error = error_of("[1/2] compile relu.cpp\n", 128 + signal)
    assert isinstance(error, BuildResourceError)
    assert f"ninja was ended by signal {signal}. Run it again." in str(error)


def test_a_source_that_contains_the_message_of_a_full_disk_is_a_compile_error(tmp_path):
    output = (
        "[1/1] compile relu.cpp\nFAILED: o\ng++ -c relu.cpp\nrelu.cpp:3:1: error: 'report' was not declared\n"
        '    3 |   report("No space left on device");\n'
    )
    assert isinstance(error_of(output), CompileError)
