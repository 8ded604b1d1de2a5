"""A compiler that a signal ends, or that finds no inode, is reported as that and not as a compile error."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from support import sample_ops, text_files

from opforge.builders.resources import no_inodes
from opforge.builders.run.diagnostics import build_error
from opforge.errors import BuildResourceError, CompileError

pytestmark = [pytest.mark.compile, pytest.mark.timeout(90)]
CRASHED = "It crashed: try another version of it with CXX, or report this to its developers."
ENDED = "Something outside opforge has ended it: run the build again."
MEMORY = "Memory may have run out. Lower the number of compilers with OPFORGE_JOBS=1."
PRINTED = {
    "g++: fatal error: Terminated signal terminated program cc1plus": ("cc1plus", 15, ENDED),
    "x86_64-conda-linux-gnu-c++: internal compiler error: Hangup signal terminated program as": ("as", 1, ENDED),
    "relu.cpp:7:1: internal compiler error: Segmentation fault": ("the compiler", 11, CRASHED),
    "clang++: error: unable to execute command: Segmentation fault (core dumped)": ("the compiler", 11, CRASHED),
    "collect2: fatal error: ld terminated with signal 11 [Segmentation fault], core dumped": ("ld", 11, CRASHED),
    "nvcc error   : 'cicc' died due to signal 6 (Abort)": ("cicc", 6, CRASHED),
    "nvcc error   : 'ptxas' died due to signal 9 (Kill signal)": ("ptxas", 9, MEMORY),
    "Illegal instruction (core dumped)": ("the compiler", 4, CRASHED),
    "CPU time limit exceeded": ("the compiler", 24, "Raise the limit on processor time (`ulimit -t`)."),
}


@pytest.fixture
def build_with_compiler(tmp_path, monkeypatch):
    """A function that builds an op with g++ behind a shell script; the script runs `action` when it compiles."""

    def build(action):
        body = f'case " $* " in *plain.cpp*) {action} ;; esac\nexec /usr/bin/g++ "$@"'
        (tmp_path / "bin").mkdir()
        path = text_files.write_script(tmp_path / "bin", body=body)
        monkeypatch.setenv("CXX", str(path))
        return sample_ops.plain_op(tmp_path / "op")().build()

    return build


@pytest.mark.parametrize("name", ["HUP", "ABRT", "BUS", "SEGV", "USR1", "TERM", "XCPU"])
def test_a_compiler_that_a_signal_ends_is_reported_as_that(build_with_compiler, name):
    with pytest.raises(BuildResourceError) as caught:
        build_with_compiler(f"kill -{name} $$; sleep 5")
    number = getattr(signal, f"SIG{name}")
    expected = f"was ended by signal {number:d} ({signal.strsignal(number)}) in the step 'compile plain.cpp'. "
    assert expected in str(caught.value) and os.path.exists(caught.value.log)


@pytest.mark.parametrize("name", ["KILL", "INT"])
def test_a_compiler_that_is_killed_or_interrupted_is_no_compile_error(build_with_compiler, name):
    with pytest.raises(BuildResourceError, match=r"memory ran out|Memory may have run out|was ended by signal 2\."):
        build_with_compiler(f"kill -{name} $$; sleep 5")


@pytest.mark.parametrize("line", PRINTED)
def test_what_compilers_print_of_a_signal_is_recognized(line):
    program, number, advice = PRINTED[line]
    output = f"[1/2] compile relu.cpp\nFAILED: [code=1] 0.relu.o\ng++ -c relu.cpp\n{line}\n"
    error = build_error("relu", 1, output, "")
    assert isinstance(error, BuildResourceError)
    ended = f"{program} was ended by signal {number} ({signal.strsignal(number)}) in the step 'compile relu.cpp'"
    assert str(error) == f"relu: the build stopped: {ended}. {advice}"


@pytest.mark.parametrize("status", [1, 4, 127, 128, 255])
def test_a_status_that_is_no_signal_is_a_compile_error(status):
    output = f"[1/2] compile relu.cpp\nFAILED: [code={status}] 0.relu.o\ng++ -c relu.cpp\nrelu.cpp:1:1: error: no\n"
    assert isinstance(build_error("relu", status, output, ""), CompileError)


def test_a_source_that_quotes_a_signal_is_a_compile_error():
    text = "relu.cpp:3:1: error: 'x' was not declared\n    3 |   x(\"Segmentation fault\");\n"
    output = f"[1/1] compile relu.cpp\nFAILED: [code=1] o\ng++ -c relu.cpp\n{text}"
    assert isinstance(build_error("relu", 1, output, ""), CompileError)


def test_a_used_up_quota_is_a_full_disk_and_names_the_variable_that_moves_the_cache(build_with_compiler):
    with pytest.raises(BuildResourceError) as caught:
        build_with_compiler("echo 'fatal error: error writing to -: Disk quota exceeded' >&2; exit 1")
    assert (
        "the disk is full: your quota on it is used up. Free some space, or set OPFORGE_CACHE_DIR to another disk."
        in str(caught.value)
    )


@pytest.fixture
def disk_with_few_inodes(tmp_path):
    """The path of a small file system, and a function that leaves only so many inodes free on it."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small tmpfs: run the tests as root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700,size=9m,nr_inodes=200", "none", path], check=False)
    if done.returncode:
        pytest.skip("cannot mount a tmpfs here")

    def leave(count):
        number = time.monotonic_ns()
        while os.statvfs(path).f_favail > count:
            number += 1
            (path / f"file{number}").touch()

    yield path, leave
    subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.parametrize("message", ["No space left on device", "cannot make a file"])
def test_a_disk_without_inodes_is_reported_as_that(disk_with_few_inodes, message):
    path, leave = disk_with_few_inodes
    output = f"[1/1] compile relu.cpp\nFAILED: [code=1] o\ng++ -c relu.cpp\n{message}\n"
    assert no_inodes("relu", str(path)) is None
    leave(0)
    error = build_error("relu", 1, output, "", str(path))
    assert str(error) == (
        "relu: the build stopped: the disk is full: it has no inodes left, so no file can be created."
        " Delete some files there, or set OPFORGE_CACHE_DIR to another disk."
    )
    located = build_error("relu", 1, f"{output}relu.cpp:1:1: error: no\n", "", str(path))
    assert isinstance(located, CompileError) is ("space" not in message)


@pytest.mark.parametrize("left", [14, 18, 22, 26])
def test_a_build_on_a_disk_that_runs_out_of_inodes_is_no_compile_error(
    tmp_path, disk_with_few_inodes, monkeypatch, left
):
    path, leave = disk_with_few_inodes
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(path / "store"))
    cls = sample_ops.plain_op(tmp_path / "op")
    leave(left)
    with pytest.raises(BuildResourceError, match="the disk is full"):
        cls().build()
