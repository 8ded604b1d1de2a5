"""Running steps by ninja: names and the environment reach the commands unchanged, and a failure is explained."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time

import pytest
from support import child_processes, other_user, text_files
from support.owners import as_root
from support.polling import wait_for

from opforge.builders.declaration.build_plan import Step
from opforge.builders.run import diagnostics, ninja, supervisor
from opforge.errors import ToolchainNotFoundError


def test_awkward_names_reach_the_commands_unchanged(tmp_path):
    names = ["with space", "dollar$HOME", "colon:", "quote'\"", "ünïcode", "semi;colon", "star*"]
    steps = [
        Step(f"{number}.out", (), ("sh", "-c", 'printf %s "$1" > "$0"', f"{number}.out", name), name)
        for number, name in enumerate(names)
    ]
    ninja.write_build_file(str(tmp_path), steps)
    progress = []
    outcome = ninja.run(str(tmp_path), 2, lambda done, total, title: progress.append((done, total, title)))
    assert outcome.status == 0, outcome.output
    assert [(tmp_path / f"{number}.out").read_text() for number in range(len(names))] == names
    assert [(done, total) for done, total, _title in progress] == [
        (number + 1, len(names)) for number in range(len(names))
    ]
    assert sorted(title for _done, _total, title in progress) == sorted(names)


def test_the_output_of_a_real_failed_build_is_explained(tmp_path):
    failing = text_files.write_script(tmp_path, "g++", "echo 'x.cpp:3:4: error: bad' >&2; exit 1")
    steps = [Step("x.o", (), (failing, "-c", "x.cpp"), "compile x.cpp")]
    ninja.write_build_file(str(tmp_path), steps)
    outcome = ninja.run(str(tmp_path), 1)
    error = diagnostics.build_error("x", outcome.status, outcome.output, "/log")
    assert str(error).startswith(f"x: compile x.cpp failed: x.cpp:3:4: error: bad\ncommand: {failing} -c x.cpp\n")


def test_the_environment_and_the_working_folder_do_not_change(tmp_path, monkeypatch):
    """The variables in the plan's key are as they were then, and another one that compilers read is not set."""
    monkeypatch.setenv("CPATH", "/later")
    monkeypatch.setenv("LIBRARY_PATH", "/later")
    monkeypatch.delenv("PATH")  # then gcc would find no linker
    before, folder = dict(os.environ), os.getcwd()
    command = "echo $LC_ALL $TMPDIR $CPATH ${LIBRARY_PATH-none} $PATH > x"
    ninja.write_build_file(str(tmp_path), [Step("x", (), ("sh", "-c", command), "x")])
    assert ninja.run(str(tmp_path), 1, known={"CPATH": "/planned"}).status == 0
    assert (tmp_path / "x").read_text() == f"C {tmp_path} /planned none {os.defpath}\n"
    assert dict(os.environ) == before and os.getcwd() == folder


def test_the_error_for_a_missing_ninja_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainNotFoundError, match=re.escape("  - ninja on PATH\nInstall it: pip install ninja.")):
        ninja.find_ninja()


def test_a_ninja_for_which_no_process_is_left_is_not_to_be_reinstalled(tmp_path, monkeypatch):
    line = f"{supervisor.NOT_STARTED}/x/ninja: Resource temporarily unavailable"
    script = text_files.write_script(tmp_path, "python", f"echo '{line}'; exit 126")
    monkeypatch.setattr(ninja, "_python", lambda: script)
    outcome = ninja.run(str(tmp_path), 1)
    error = diagnostics.build_error("x", outcome.status, outcome.output, "")
    assert str(error).startswith("x: the build stopped: no more processes can be started. End some")


@as_root
def test_a_ninja_that_capabilities_alone_reach_is_found(tmp_path):
    """As in root's home, if a process is another user that may read all files."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    shutil.copy(ninja.find_ninja(), folder / "ninja")
    code = "import os, sysconfig; os.environ['PATH'] = '/nowhere'\n"
    code += f"sysconfig.get_path = lambda name: {str(folder)!r}\n"
    code += "from opforge.builders.run import ninja; print(ninja.find_ninja())"
    command = [*other_user.with_all_files(), sys.executable, "-c", code]
    env = child_processes.environment()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (f"{folder}/ninja\n", "")


def test_a_supervisor_whose_builder_ignores_sigchld_returns_the_status(tmp_path):
    """An ignored signal is inherited, and then the system keeps no exit status: ninja before 1.13 gives up too."""
    command = [sys.executable, "-I", "-S", supervisor.__file__, str(tmp_path / "peak"), "sh", "-c", "exit 3"]
    builder = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", builder, *command], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:
        assert process.wait(60) == 3, process.stderr.read()


def test_a_pipe_in_place_of_the_measured_memory_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "peak")
    assert ninja.peak_memory(str(tmp_path)) == 0


def running(folder, command):
    """Starts a build of one step in a thread, and returns the thread once the step runs."""
    folder.mkdir()
    ninja.write_build_file(str(folder), [Step("x", (), ("sh", "-c", f"echo > began; {command}"), "x")])
    thread = threading.Thread(target=ninja.run, args=(str(folder), 1))
    thread.start()
    wait_for((folder / "began").exists, 60, "the step does not begin")
    return thread


def test_progress_is_a_step_that_ended_or_processor_time_of_a_compiler(tmp_path):
    before = ninja.progress()
    busy = running(tmp_path / "busy", "while test ! -e end; do :; done")
    wait_for(lambda: ninja.progress() > before, 60, "a compiler that runs makes no progress")
    (tmp_path / "busy" / "end").touch()
    busy.join(60)
    assert ninja.progress() == before + 1


def test_a_compiler_that_hangs_makes_no_progress_however_long_it_is_watched(tmp_path):
    hanging = running(tmp_path / "hanging", "while test ! -e end; do sleep 1; done")
    before = ninja.progress()
    time.sleep(2)
    assert ninja.progress() == before
    (tmp_path / "hanging" / "end").touch()
    hanging.join(60)
    assert ninja.progress() == before + 1 and not ninja._sessions


def test_a_compiler_that_waits_for_another_machine_makes_progress_for_a_while(tmp_path, monkeypatch):
    shutil.copy(shutil.which("sleep"), tmp_path / "distcc")
    os.symlink(tmp_path / "distcc", tmp_path / "g++")  # as distcc is often found
    waiting = running(tmp_path / "waiting", f"{tmp_path}/g++ 60 & while test ! -e end; do sleep 1; done; kill $!")
    before = ninja.progress()
    wait_for(lambda: ninja.progress() > before, 60, "a compiler of another machine makes no progress")
    monkeypatch.setattr(ninja, "MAX_REMOTE_SECONDS", 0)
    before = ninja.progress()
    time.sleep(2)
    assert ninja.progress() == before
    (tmp_path / "waiting" / "end").touch()
    waiting.join(60)
