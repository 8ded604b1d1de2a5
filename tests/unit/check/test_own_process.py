"""A function in a process of its own: what it reports is kept, however the process ends."""

from __future__ import annotations

import json
import os

import pytest
from support import child_processes

CODE = """
import json, os, signal, sys, threading, time
from opforge.check import own_process

def work(say):
    say(stage="load", first=1)
    print("about to", flush=True)
    {body}

ended = own_process.run(work, {timeout})
print(json.dumps(ended._asdict()))
"""


def ended(body, timeout=30.0):
    """Runs a function in a process of its own, from a process without threads."""
    return json.loads(child_processes.run_python(CODE.format(body=body, timeout=timeout)))


def test_what_a_function_reports_is_returned():
    result = ended("say(stage='end', second=2)")
    assert result["said"] == {"stage": "end", "first": 1, "second": 2, "done": True}
    assert (result["problem"], result["printed"]) == ("", "")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "it was ended by signal 11 (Segmentation fault)"),
        ("os.abort()", "it was ended by signal 6 (Aborted)"),
        ("os._exit(3)", "it ended the process with status 3"),
        ("os._exit(0)", "it ended the process with status 0"),
        ("raise AssertionError('wrong by 1')", "wrong by 1"),
        ("raise KeyError('x')", "KeyError: 'x'"),
        ("raise SystemExit(4)", "it ended the process with status 1"),
    ],
)
def test_a_process_that_ends_early_is_a_problem_with_what_it_said_before(body, problem):
    result = ended(body)
    assert result["problem"] == problem
    assert result["said"]["stage"] == "load" and result["printed"] == "about to"


def test_the_temporary_files_of_a_process_that_crashed_are_removed():
    said = ended("import tempfile; say(folder=tempfile.mkdtemp(), variable=os.environ['TMPDIR']); os.abort()")["said"]
    assert os.path.dirname(said["folder"]) == said["variable"]
    assert not os.path.exists(said["variable"])


def test_a_process_that_hangs_is_killed():
    result = ended("time.sleep(100)", timeout=0.5)
    assert result["problem"] == "it did not end within 0.5 s"
    assert 0.4 < result["seconds"] < 20
