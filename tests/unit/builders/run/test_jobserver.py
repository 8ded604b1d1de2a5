"""A jobserver that several builds share, with a real ninja whose steps are shell commands."""

from __future__ import annotations

import os
import threading
import time

import pytest
from support import child_processes, polling, text_files

from opforge.builders import batch
from opforge.builders.declaration.build_plan import Step
from opforge.builders.run import jobserver, ninja
from opforge.errors import BuildResourceError

COUNTING = 'mkdir "$1/$$"; ls "$1" | wc -l >> "$2"; sleep 0.05; rmdir "$1/$$"; touch "$3"'
"""A step that records how many steps run at the same time."""


@pytest.fixture
def builds(tmp_path):
    """Four builds of three counting steps each: (functions that run them, file with the counts, their outcomes)."""
    running, counts = tmp_path / "running", tmp_path / "counts"
    running.mkdir()
    work = {}
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        script = text_files.write_script(tmp_path, "step", COUNTING)
        objects = [f"{step}.o" for step in range(3)]
        steps = [Step(name, (), (script, str(running), str(counts), name), "step") for name in objects]
        ninja.write_build_file(str(folder), steps)
        work[number] = lambda folder=folder: outcomes.append(ninja.run(str(folder), 99))
    outcomes: list[ninja.Outcome] = []
    return work, counts, outcomes


@pytest.mark.parametrize("version", ["", "1.11.1"], ids=["jobserver", "older ninja"])
def test_builds_together_run_no_more_compilers_than_there_are_slots(builds, tmp_path, version):
    work, counts, outcomes = builds
    older = text_files.write_script(tmp_path, "ninja", f"echo {version}")
    with jobserver.Jobserver(2, older if version else ninja.find_ninja()) as server:
        ended = list(batch.in_parallel(work, [3, 2, 1, 0], server, None))
    assert sorted(ended) == [0, 1, 2, 3]
    assert [outcome.status for outcome in outcomes] == [0, 0, 0, 0] and "Jobserver" not in outcomes[0].output
    running = [int(line) for line in counts.read_text().split()]
    assert len(running) == 12 and max(running) == 2


def test_a_run_that_an_exception_leaves_ends_every_compiler(tmp_path):
    work = {}
    for number in range(3):
        folder = tmp_path / f"hang{number}"
        folder.mkdir()
        ninja.write_build_file(str(folder), [Step("x.o", (), ("sleep", "1000"), "hang")])
        work[number] = lambda folder=folder: ninja.run(str(folder), 1)
    work[9] = lambda: polling.wait_for(lambda: len(hanging()) == 2, reason="two builds should hang")

    def hanging():
        return {pid for pid, line in child_processes.matching(tmp_path).items() if "ninja" in line and "-I" not in line}

    with jobserver.Jobserver(2, ninja.find_ninja()) as server, pytest.raises(ZeroDivisionError):
        for _ended in batch.in_parallel(work, [0, 1, 9, 2], server, None):
            raise ZeroDivisionError
    polling.wait_for(lambda: not child_processes.matching(tmp_path), reason="a compiler lives on")
    assert server.stopped


def test_a_build_that_was_stopped_ends_with_keyboard_interrupt_and_no_build_error(tmp_path):
    ninja.write_build_file(str(tmp_path), [Step("x.o", (), ("sleep", "1000"), "hang")])
    errors = []

    def work():
        jobserver.use(server)
        try:
            ninja.run(str(tmp_path), 1)
        except BaseException as error:
            errors.append(type(error))

    with jobserver.Jobserver(1, ninja.find_ninja()) as server:
        threads = [threading.Thread(target=work) for _ in range(2)]  # the second one waits for a token
        for thread in threads:
            thread.start()
        polling.wait_for(lambda: child_processes.matching("sleep 1000"), reason="nothing hangs")
        server.stop()
        for thread in threads:
            thread.join(20)
    assert errors == [KeyboardInterrupt, KeyboardInterrupt]


def test_an_error_in_one_build_ends_the_run():
    def fail():
        raise MemoryError

    with jobserver.Jobserver(1, ninja.find_ninja()) as server, pytest.raises(MemoryError):
        list(batch.in_parallel({0: fail, 1: time.time}, [0, 1], server, None))


def test_a_jobserver_leaves_no_folder_and_no_open_file():
    before = len(os.listdir("/proc/self/fd"))
    with jobserver.Jobserver(3, ninja.find_ninja()) as server:
        folder = server.folder
        assert os.path.isdir(folder)
    assert not os.path.exists(folder) and len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("possible", [0, 1])
def test_if_no_more_threads_can_be_started_one_runs_all_builds_or_the_error_says_so(monkeypatch, possible):
    real, started = threading.Thread.start, []

    def start(thread):
        if len(started) == possible:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    work = dict.fromkeys(range(3), time.time)
    with jobserver.Jobserver(2, ninja.find_ninja()) as server:
        monkeypatch.setattr(threading.Thread, "start", start)
        if possible:
            assert sorted(batch.in_parallel(work, [0, 1, 2], server, None)) == [0, 1, 2]
        else:
            with pytest.raises(
                BuildResourceError, match="build-ops: the build stopped: no more processes can be start"
            ):
                list(batch.in_parallel(work, [0, 1, 2], server, None))


def test_a_build_that_holds_several_tokens_leaves_the_others_those_that_are_left(builds, tmp_path):
    work, counts, outcomes = builds
    hungry = tmp_path / "0"
    work[0] = lambda: outcomes.append(ninja.run(str(hungry), 1, share=2))
    with jobserver.Jobserver(3, ninja.find_ninja()) as server:
        assert sorted(batch.in_parallel(work, [0, 1, 2, 3], server, None)) == [0, 1, 2, 3]
    assert [outcome.status for outcome in outcomes] == [0, 0, 0, 0]
    running = [int(line) for line in counts.read_text().split()]
    assert len(running) == 12 and max(running) <= 3


def test_all_tokens_come_back(tmp_path):
    with jobserver.Jobserver(3, ninja.find_ninja()) as server:
        for count in (99, 3, 1, 3):
            with server.token(count):
                pass


def test_two_builds_that_each_hold_all_tokens_take_turns(builds):
    work, counts, outcomes = builds
    folders = [f"{counts.parent}/{number}" for number in range(4)]
    for number, folder in enumerate(folders):
        work[number] = lambda folder=folder: outcomes.append(ninja.run(folder, 1, share=2))
    with jobserver.Jobserver(2, ninja.find_ninja()) as server:
        assert sorted(batch.in_parallel(work, [0, 1, 2, 3], server, None)) == [0, 1, 2, 3]
    assert {int(line) for line in counts.read_text().split()} == {1}


def test_a_run_makes_the_targets_that_it_is_given(builds):
    _work, counts, _outcomes = builds
    folder = counts.parent / "0"
    assert ninja.run(str(folder), 2, targets=["1.o"]).status == 0
    assert [path.name for path in folder.glob("*.o")] == ["1.o"]
