"""The agent on a host: whatever happens to the launcher, the engine or the agent, no process of the job is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from support import child_processes, polling, text_files

import opforge
from opforge.accelerator.select import get_accelerator
from opforge.errors import LauncherNotFoundError, LaunchError
from opforge.launch.agent import end_descendants
from opforge.launch.bind_options import BindOptions
from opforge.launch.channel import wait_for_responses
from opforge.launch.planner import Options, make_plan
from opforge.launch.protocol import AGENT_MARK
from opforge.launch.run import EngineStart, connected, run

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the launcher runs on Linux")

STUBBORN = """
trap '' TERM
setsid sh -c 'trap "" TERM; sleep 1000 & echo > @FOLDER@/deep; wait' @FOLDER@ &
echo > @FOLDER@/up
while :; do sleep 0.05; done
"""
OBEDIENT = "trap 'echo bye > {0}/bye; exit 5' TERM; echo > {0}/up; while :; do sleep 0.02; done"


class RunningAgent:
    """An agent that has its request, and its response."""

    def __init__(self, engine, folder, share=None, bind_options=None, **changes):
        reader, writer = os.pipe()
        argv = [sys.executable, "-m", "opforge.launch.agent", str(writer)]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[writer], env=child_processes.environment()
        )
        os.close(writer)
        request = {
            "version": opforge.__version__,
            "folder": str(folder),
            "environ": {},
            "bind_options": (bind_options or BindOptions())._asdict(),
            "share": share,
            "engine": engine,
            "grace": 0.3,
            **changes,
        }
        self.send(json.dumps(request))
        with os.fdopen(reader, "rb") as stream:
            stream.readline()
            self.response = json.loads(stream.readline().removeprefix(AGENT_MARK))

    def send(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def close_control_pipe(self):
        self.process.stdin.close()
        self.process.stdin = None

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start_agent(tmp_path):
    """Returns a function that starts an agent and sends it a request."""
    agents = []

    def start(engine, **changes):
        agents.append(RunningAgent(engine, **{"folder": tmp_path, **changes}))
        return agents[-1]

    yield start
    for agent in agents:
        agent.kill()
    for pid in child_processes.matching(tmp_path):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def stubborn_agent(start_agent, tmp_path):
    """An agent whose engine, and a process of another session below it, ignore SIGTERM."""
    agent = start_agent(["sh", "-c", STUBBORN.replace("@FOLDER@", str(tmp_path)), str(tmp_path)])
    agent.send("go")
    polling.wait_for(lambda: (tmp_path / "up").exists() and (tmp_path / "deep").exists())
    assert len(child_processes.matching(tmp_path)) >= 2
    return agent


def test_when_the_control_pipe_ends_every_process_is_ended(stubborn_agent, tmp_path):
    stubborn_agent.close_control_pipe()
    assert stubborn_agent.process.wait(20) == 128 + signal.SIGKILL
    assert child_processes.matching(tmp_path) == {}


@pytest.mark.parametrize("word", ["end", "kill"])
def test_on_end_or_kill_every_process_is_ended(stubborn_agent, tmp_path, word):
    stubborn_agent.send(word)
    assert stubborn_agent.process.wait(20) == 128 + signal.SIGKILL
    assert child_processes.matching(tmp_path) == {}


def test_when_the_agent_is_terminated_every_process_is_ended(stubborn_agent, tmp_path):
    stubborn_agent.process.terminate()
    stubborn_agent.process.wait(20)
    assert child_processes.matching(tmp_path) == {}


def test_an_engine_that_respects_sigterm_ends_by_itself(start_agent, tmp_path):
    agent = start_agent(["sh", "-c", OBEDIENT.format(tmp_path)], grace=20)
    agent.send("go")
    polling.wait_for((tmp_path / "up").exists)
    agent.close_control_pipe()
    assert agent.process.wait(15) == 5 and (tmp_path / "bye").read_text() == "bye\n"


def test_when_the_agent_is_killed_the_engine_gets_sigterm(start_agent, tmp_path):
    agent = start_agent(["sh", "-c", OBEDIENT.format(tmp_path)])
    agent.send("go")
    polling.wait_for((tmp_path / "up").exists)
    agent.process.kill()
    agent.process.wait()
    polling.wait_for(lambda: not child_processes.matching(tmp_path))


def test_processes_that_an_engine_leaves_are_ended(start_agent, tmp_path):
    agent = start_agent(["sh", "-c", f"setsid sleep 1000 & echo $! > {tmp_path}/left; exit 3"])
    agent.send("go")
    assert agent.process.wait(20) == 3
    assert not os.path.exists(f"/proc/{(tmp_path / 'left').read_text().strip()}")


def test_nothing_is_started_before_go(start_agent, tmp_path):
    agent = start_agent(["sh", "-c", f"echo > {tmp_path}/up"])
    assert agent.response == {"ranks": []}
    agent.close_control_pipe()
    assert agent.process.wait(20) == 0 and not (tmp_path / "up").exists()


def test_an_engine_that_is_killed_returns_128_plus_the_signal(start_agent, tmp_path):
    agent = start_agent(["sh", "-c", "kill -9 $$"])
    agent.send("go")
    assert agent.process.wait(20) == 128 + signal.SIGKILL


def test_a_process_that_cannot_be_ended_is_reported_and_the_others_are_ended(monkeypatch, capsys):
    """Such as a process of another user (a setuid program), or one that hangs in the kernel."""
    sleepers = [subprocess.Popen(["sleep", "1000"]) for _ in range(3)]
    kill, unkillable = os.kill, sleepers[0].pid

    def refuse(pid, number):
        if pid == unkillable:
            raise PermissionError
        kill(pid, number)

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(
        "opforge.launch.agent.descendants", lambda pid: [sleeper.pid for sleeper in sleepers if sleeper.poll() is None]
    )
    try:
        end_descendants(seconds=0.2)
        assert [sleeper.poll() for sleeper in sleepers] == [None, -signal.SIGKILL, -signal.SIGKILL]
    finally:
        kill(unkillable, signal.SIGKILL)
        for sleeper in sleepers:
            sleeper.wait()
    warning = f"opforge launch: warning: processes that could not be ended: {unkillable}\n"
    assert capsys.readouterr().err == warning


def test_a_missing_engine_is_named(start_agent, tmp_path):
    agent = start_agent(["/nonexistent/engine"])
    agent.send("go")
    _, error = agent.process.communicate(timeout=20)
    assert agent.process.returncode == 127
    assert error == b"opforge launch: error: /nonexistent/engine could not be started: No such file or directory\n"


def test_the_response_holds_where_the_ranks_would_run(start_agent, tmp_path):
    agent = start_agent([], share={"slots": 1, "chosen": [0]}, bind_options=BindOptions(bind=True))
    (rank,) = agent.response["ranks"]
    assert rank["threads"] >= 1 and rank["cores"] and agent.process.wait(20) == 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"version": "0.0"},
            f"opforge {opforge.__version__} is installed there, and the launcher has 0.0. Install the same",
        ),
        (
            {"folder": "/proc/nonexistent"},
            "there is no folder /proc/nonexistent on that host. Launch from a folder that all hosts",
        ),
        (
            {"share": {"slots": 9999, "chosen": [0]}, "bind_options": BindOptions(bind=True)},
            "9999 ranks need a core each",
        ),
        (
            {
                "share": {"slots": 1, "chosen": [0]},
                "bind_options": BindOptions(bind=True),
                "environ": {"KMP_AFFINITY": "compact"},
            },
            "KMP_AFFINITY='compact' cannot be used",
        ),
    ],
)
def test_an_impossible_request_is_refused(start_agent, tmp_path, changes, text):
    agent = start_agent(["sh", "-c", f"echo > {tmp_path}/up"], **changes)
    assert text in agent.response["error"]
    agent.close_control_pipe()
    assert agent.process.wait(20) == 1 and not (tmp_path / "up").exists()


def test_a_host_that_never_responds_is_named_and_its_connection_ended(tmp_path):
    silent = text_files.write_script(tmp_path, "rsh", "while :; do sleep 0.05; done")
    (tmp_path / "hosts").write_text("far slots=1\n")
    plan = make_plan(Options(program=("a.py",), hostfile=str(tmp_path / "hosts"), ssh=silent), {}, get_accelerator)
    starts = [EngineStart(plan.hosts[0], [], None)]
    with pytest.raises(LaunchError) as refused, connected(plan, starts, 0.1) as channels:
        polling.wait_for(lambda: child_processes.matching(silent))
        wait_for_responses(channels, seconds=0.3)
    assert str(refused.value) == (
        "The launch failed: no response from far within 0.3 s."
        " Check that the --ssh command reaches each host without asking for a password."
    )
    assert not child_processes.matching(silent)


def test_an_ssh_that_is_not_installed_names_its_package(tmp_path):
    (tmp_path / "hosts").write_text("far slots=1\n")
    plan = make_plan(
        Options(program=("a.py",), hostfile=str(tmp_path / "hosts"), ssh="/nonexistent/ssh -q"), {}, get_accelerator
    )
    with pytest.raises(LauncherNotFoundError) as refused:
        run(plan)
    assert str(refused.value) == (
        "The launcher 'torchrun' cannot be used here: there is no /nonexistent/ssh on PATH."
        " Install it (apt install openssh-client), or name another with --ssh."
    )
