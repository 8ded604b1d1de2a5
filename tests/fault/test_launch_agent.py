"""The agent on a host: whatever happens to the launcher, the engine or the agent itself, nothing of the job stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from support import child_processes, polling, text_files

import opforge
from opforge.errors import LauncherNotFoundError, LaunchError
from opforge.launch.agent import TOLD, end_descendants
from opforge.launch.binding.rank_binding import Wishes
from opforge.launch.channel import answers
from opforge.launch.plan import Options, make_plan
from opforge.launch.run import connected, run

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the launcher runs on Linux")

STUBBORN = """
trap '' TERM
setsid sh -c 'trap "" TERM; sleep 1000 & echo > @FOLDER@/deep; wait' @FOLDER@ &
echo > @FOLDER@/up
while :; do sleep 0.05; done
"""
HEEDING = "trap 'echo bye > {0}/bye; exit 5' TERM; echo > {0}/up; while :; do sleep 0.02; done"


class Agent:
    """An agent with its order, and what it answered."""

    def __init__(self, engine, folder, share=None, wishes=None, **changes):
        report, writer = os.pipe()
        argv = [sys.executable, "-m", "opforge.launch.agent", str(writer)]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[writer], env=child_processes.environment()
        )
        os.close(writer)
        order = {
            "version": opforge.__version__,
            "folder": str(folder),
            "environ": {},
            "wishes": (wishes or Wishes())._asdict(),
            "share": share,
            "engine": engine,
            "grace": 0.3,
            **changes,
        }
        self.say(json.dumps(order))
        with os.fdopen(report, "rb") as stream:
            stream.readline()
            self.answer = json.loads(stream.readline().removeprefix(TOLD))

    def say(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def end_lifeline(self):
        self.process.stdin.close()
        self.process.stdin = None

    def close(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def started(tmp_path):
    """Gives a function that starts an agent with an order."""
    agents = []

    def start(engine, **changes):
        agents.append(Agent(engine, **{"folder": tmp_path, **changes}))
        return agents[-1]

    yield start
    for agent in agents:
        agent.close()
    for pid in child_processes.matching(tmp_path):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def stubborn(started, tmp_path):
    """An agent whose engine, and a process of another session below it, do not heed SIGTERM."""
    agent = started(["sh", "-c", STUBBORN.replace("@FOLDER@", str(tmp_path)), str(tmp_path)])
    agent.say("go")
    polling.wait_for(lambda: (tmp_path / "up").exists() and (tmp_path / "deep").exists())
    assert len(child_processes.matching(tmp_path)) >= 2
    return agent


def test_when_the_lifeline_ends_all_is_ended(stubborn, tmp_path):
    stubborn.end_lifeline()
    assert stubborn.process.wait(20) == 128 + signal.SIGKILL
    assert child_processes.matching(tmp_path) == {}


@pytest.mark.parametrize("word", ["end", "kill"])
def test_when_it_is_told_to_all_is_ended(stubborn, tmp_path, word):
    stubborn.say(word)
    assert stubborn.process.wait(20) == 128 + signal.SIGKILL
    assert child_processes.matching(tmp_path) == {}


def test_when_the_agent_is_terminated_all_is_ended(stubborn, tmp_path):
    stubborn.process.terminate()
    stubborn.process.wait(20)
    assert child_processes.matching(tmp_path) == {}


def test_an_engine_that_heeds_sigterm_ends_by_itself(started, tmp_path):
    agent = started(["sh", "-c", HEEDING.format(tmp_path)], grace=20)
    agent.say("go")
    polling.wait_for((tmp_path / "up").exists)
    agent.end_lifeline()
    assert agent.process.wait(15) == 5 and (tmp_path / "bye").read_text() == "bye\n"


def test_when_the_agent_is_killed_the_engine_is_asked_to_end(started, tmp_path):
    agent = started(["sh", "-c", HEEDING.format(tmp_path)])
    agent.say("go")
    polling.wait_for((tmp_path / "up").exists)
    agent.process.kill()
    agent.process.wait()
    polling.wait_for(lambda: not child_processes.matching(tmp_path))


def test_what_an_engine_leaves_behind_ends_with_it(started, tmp_path):
    agent = started(["sh", "-c", f"setsid sleep 1000 & echo $! > {tmp_path}/left; exit 3"])
    agent.say("go")
    assert agent.process.wait(20) == 3
    assert not os.path.exists(f"/proc/{(tmp_path / 'left').read_text().strip()}")


def test_nothing_is_started_before_go(started, tmp_path):
    agent = started(["sh", "-c", f"echo > {tmp_path}/up"])
    assert agent.answer == {"ranks": []}
    agent.end_lifeline()
    assert agent.process.wait(20) == 0 and not (tmp_path / "up").exists()


def test_a_killed_rank_of_the_engine_is_a_status(started, tmp_path):
    agent = started(["sh", "-c", "kill -9 $$"])
    agent.say("go")
    assert agent.process.wait(20) == 128 + signal.SIGKILL


def test_a_process_that_cannot_be_ended_does_not_save_the_others_and_is_told(monkeypatch, capsys):
    """As one of another user (a setuid program), or one that hangs in the kernel."""
    sleepers = [subprocess.Popen(["sleep", "1000"]) for _ in range(3)]
    kill, held = os.kill, sleepers[0].pid

    def refuse(pid, number):
        if pid == held:
            raise PermissionError
        kill(pid, number)

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(
        "opforge.launch.agent.descendants", lambda pid: [one.pid for one in sleepers if one.poll() is None]
    )
    try:
        end_descendants(seconds=0.2)
        assert [sleeper.poll() for sleeper in sleepers] == [None, -signal.SIGKILL, -signal.SIGKILL]
    finally:
        kill(held, signal.SIGKILL)
        for sleeper in sleepers:
            sleeper.wait()
    said = f"opforge launch: warning: processes that could not be ended are left: {held}\n"
    assert capsys.readouterr().err == said


def test_an_engine_that_is_not_there_is_said(started, tmp_path):
    agent = started(["/nonexistent/engine"])
    agent.say("go")
    _, said = agent.process.communicate(timeout=20)
    assert agent.process.returncode == 127
    assert said == b"opforge launch: error: /nonexistent/engine could not be started: No such file or directory\n"


def test_an_order_is_answered_with_where_the_ranks_would_run(started, tmp_path):
    agent = started([], share={"slots": 1, "chosen": [0]}, wishes=Wishes(bind=True))
    (rank,) = agent.answer["ranks"]
    assert rank["threads"] >= 1 and rank["cores"] and agent.process.wait(20) == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "0.0"}, f"opforge is {opforge.__version__} there and 0.0 where the job was launched."),
        (
            {"folder": "/nonexistent"},
            "there is no folder /nonexistent there. Launch from a folder that all hosts",
        ),
        ({"share": {"slots": 9999, "chosen": [0]}, "wishes": Wishes(bind=True)}, "9999 ranks want cores"),
        (
            {"share": {"slots": 1, "chosen": [0]}, "wishes": Wishes(bind=True), "environ": {"KMP_AFFINITY": "compact"}},
            "KMP_AFFINITY='compact' cannot be used",
        ),
    ],
)
def test_an_order_that_cannot_be_met_is_refused(started, tmp_path, changes, said):
    agent = started(["sh", "-c", f"echo > {tmp_path}/up"], **changes)
    assert said in agent.answer["error"]
    agent.end_lifeline()
    assert agent.process.wait(20) == 1 and not (tmp_path / "up").exists()


def test_a_host_that_never_answers_is_named_and_its_connection_ended(tmp_path):
    silent = text_files.write_script(tmp_path, "rsh", "while :; do sleep 0.05; done")
    (tmp_path / "hosts").write_text("far slots=1\n")
    plan = make_plan(Options(program=("a.py",), hostfile=str(tmp_path / "hosts"), ssh=silent), {})
    with pytest.raises(LaunchError) as refused, connected(plan, [(plan.hosts[0], [], None)], 0.1) as channels:
        polling.wait_for(lambda: child_processes.matching(silent))
        answers(channels, seconds=0.3)
    assert str(refused.value) == (
        "The launch failed: no answer within 0.3 s from far."
        " See that each can be reached without a password by the command that --ssh names."
    )
    assert not child_processes.matching(silent)


def test_an_ssh_that_is_not_installed_names_its_package(tmp_path):
    (tmp_path / "hosts").write_text("far slots=1\n")
    plan = make_plan(Options(program=("a.py",), hostfile=str(tmp_path / "hosts"), ssh="/nonexistent/ssh -q"), {})
    with pytest.raises(LauncherNotFoundError) as refused:
        run(plan)
    assert str(refused.value) == (
        "The launcher 'torchrun' cannot be used here: there is no /nonexistent/ssh on PATH."
        " Install it (apt install openssh-client), or name another with --ssh."
    )
