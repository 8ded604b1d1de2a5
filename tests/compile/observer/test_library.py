"""The library that observes: what programs ask for is noted, whatever they do, and no answer is changed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from support.compilers import traced
from support.observer import library, reader

LOADER = re.compile(
    r"/(proc|sys|dev)/|ld\.so\.|/glibc-hwcaps|/(tls|haswell|xeon_phi|avx512_1|x86_64|lib/lib)(/|$)|lib[^/]*\.so|/locale|gconv|/etc/|/cc\w{6}|\.o$|tmp$|\.mold-"
)
"""What the dynamic linker and the C library open by themselves, and temporary files."""
SOURCE = """\
#include <cstddef>
#if __has_include(<nowhere.h>)
#endif
#include "value.h"
extern "C" int value() { return VALUE + sizeof(std::size_t); }
"""


@pytest.fixture(scope="module")
def preload():
    return library.library()


@pytest.fixture
def observe(tmp_path, preload):
    """Runs a command in tmp_path; returns what was noted and the command's outcome."""

    def run(*command, **variables):
        notes = tmp_path / "notes"
        shutil.rmtree(notes, ignore_errors=True)
        notes.mkdir()
        environment = {**os.environ, **library.variables(preload, str(notes)), **variables}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return reader.read_notes(str(notes)), done

    return run


@pytest.fixture
def program(tmp_path):
    """Compiles a C program; returns its path."""

    def compiled(text, *flags):
        (tmp_path / "program.c").write_text(f"#define _GNU_SOURCE\n{text}")
        command = ["cc", "-w", "-o", "program", "program.c", *flags]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        return str(tmp_path / "program")

    return compiled


@pytest.mark.parametrize(
    "command",
    [
        "g++ -shared -fPIC plain.cpp -o plain.so",
        "g++ -shared -fPIC -flto plain.cpp -o plain.so",
        "g++ -shared -fPIC -fuse-ld=gold plain.cpp -o plain.so",
        "g++ -shared -fPIC -fuse-ld=mold plain.cpp -o plain.so",
        "clang++ -shared -fPIC -fuse-ld=lld plain.cpp -o plain.so",
    ],
)
def test_the_notes_hold_every_file_that_strace_sees(tmp_path, observe, command):
    words = command.split()
    needed = [words[0], *(f"ld.{word[9:]}" for word in words if word.startswith("-fuse-ld="))]
    if missing := [name for name in needed if not shutil.which(name)]:
        pytest.skip(f"needs {missing[0]}")
    (tmp_path / "plain.cpp").write_text(SOURCE)
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    if not traced.is_allowed(tmp_path):
        pytest.skip("needs strace, and the right to trace processes")
    log = tmp_path / "strace"
    subprocess.run(traced.argv(str(log), *words), cwd=tmp_path, check=True, capture_output=True)
    read, absent = ({path for path in paths if not LOADER.search(path)} for paths in traced.read(log, str(tmp_path)))
    (tmp_path / "plain.so").unlink()
    observation, done = observe(*words)
    assert done.returncode == 0, done.stderr
    noted = reader.plain([*observation.read, *observation.paths(reader.FOLDER, reader.LINK)])
    temporary = {path for path in read if os.path.dirname(path) == str(tmp_path) and ".so." in path}
    assert read - temporary - noted == set()
    # realpath looks at each part of a path by itself, below the C library's functions: the whole path is noted.
    noted = reader.plain(observation.paths(reader.ABSENT))
    missed = {path for path in absent - noted if not any(name.startswith(path + "/") for name in noted)}
    assert missed == set()
    assert observation.gaps() == []


def test_nothing_is_lost_by_vfork_closed_descriptors_or_a_kill(tmp_path, observe, program):
    path = program(
        """
        #include <fcntl.h>
        #include <signal.h>
        #include <unistd.h>
        int main() {
          closefrom(0);
          if (!vfork()) { open("in_the_child", O_RDONLY); _exit(0); }
          open("last", O_RDONLY);
          kill(getpid(), SIGKILL);
        }
        """
    )
    observation, done = observe(path)
    assert done.returncode == -9
    assert {f"{tmp_path}/in_the_child", f"{tmp_path}/last"} <= set(observation.paths(reader.ABSENT))
    assert observation.gaps() == []


def test_a_program_is_found_along_path_and_its_own_variables_are_kept(tmp_path, observe, program):
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "tool"
    script.write_text("#!/bin/sh\necho $KEPT\n")
    script.chmod(0o700)
    path = program(
        """
        #include <unistd.h>
        int main() { char* words[] = {"tool", 0}, *variables[] = {"KEPT=kept", 0}; execvpe("tool", words, variables); }
        """
    )
    observation, done = observe(path, PATH=f"{tmp_path}/nowhere:{tmp_path}/bin:{os.environ['PATH']}")
    assert done.stdout == "kept\n"
    assert f"{tmp_path}/nowhere/tool" in observation.paths(reader.ABSENT)
    assert str(script) in observation.read
    assert "PATH" in observation.paths(reader.VARIABLE)
    assert observation.gaps() == []


@pytest.mark.parametrize(
    ("text", "flags", "gap"),
    [
        ("int main() { return 0; }", ["-static"], "program, started by .*, left no notes"),
        (
            "#include <sys/syscall.h>\n#include <unistd.h>\n#include <fcntl.h>\n"
            'int main() { syscall(SYS_openat, AT_FDCWD, "value.h", O_RDONLY); return 0; }',
            [],
            "program made the system call .* of value.h by itself",
        ),
        (
            "#include <sys/socket.h>\n#include <sys/un.h>\n"
            'int main() { struct sockaddr_un to = {AF_UNIX, "server"}; int s = socket(AF_UNIX, SOCK_STREAM, 0);\n'
            "  bind(s, (void*)&to, sizeof to); listen(s, 1);\n"
            "  return connect(socket(AF_UNIX, SOCK_STREAM, 0), (void*)&to, sizeof to); }",
            [],
            "program was connected to server, where another process may read",
        ),
    ],
)
def test_what_cannot_be_seen_makes_the_notes_incomplete(observe, program, text, flags, gap):
    observation, done = observe("/bin/sh", "-c", f"{program(text, *flags)}; true")
    assert done.returncode == 0, done.stderr
    (problem,) = observation.gaps()
    assert re.search(gap, problem)


def test_a_program_that_no_one_observed_is_named(observe):
    observation, _done = observe("/bin/true", LD_PRELOAD="")
    assert observation.gaps() == ["no program left notes"]


def test_a_limit_of_file_sizes_does_not_stop_a_program(tmp_path, observe):
    observation, done = observe("/bin/sh", "-c", "ulimit -f 100; cat value.h || echo absent")
    assert done.stdout == "absent\n"
    assert f"{tmp_path}/value.h" in observation.paths(reader.ABSENT)


def test_notes_that_find_no_space_are_reported(observe, program):
    path = program(
        '#include <fcntl.h>\nint main() { for (int i = 0; i < 5000; ++i) open("/nowhere/at/all", O_RDONLY); return 0; }'
    )
    observation, done = observe("/bin/sh", "-c", f"ulimit -f 32; {path}; true")
    assert done.returncode == 0
    assert any(re.fullmatch(r".*program made \d+ notes that are lost", gap) for gap in observation.gaps())


def test_a_call_with_no_path_is_passed_on(observe, program):
    """Rust asks by it whether the system has the call."""
    path = program(
        "#include <errno.h>\n#include <stddef.h>\nint statx();\n"
        "int main() { return statx(0, NULL, 0, 0xfff, NULL) == -1 && errno == EFAULT ? 0 : 1; }"
    )
    _observation, done = observe(path)
    assert done.returncode == 0


def test_the_library_is_built_once(preload):
    before = os.stat(preload)
    assert library.library() == preload
    assert os.stat(preload) == before
