"""A short run of `make model`, with the same steps each time."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback

import pytest
from model import mutants
from support import child_processes
from support.paths import TESTS

pytestmark = [
    pytest.mark.compile,
    pytest.mark.timeout(290),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="drops capabilities, switches compilers"),
]
STEPS = 8
"""Three seconds on two idle cores, and a minute on slow ones that do other work too."""


def run_model(*options):
    script = os.path.join(TESTS, "model")
    return subprocess.run(
        [sys.executable, script, *options],
        env=child_processes.environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_each_load_gives_what_a_build_without_a_cache_gives():
    done = run_model("--steps", str(STEPS), "--length", "50", "--seed", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'steps': " in done.stdout


def test_a_library_that_is_stale_is_found():
    done = run_model(
        "--steps", "1000", "--length", "20", "--seed", "3", "--mutant", "a_process_has_one_library_of_a_name"
    )
    assert done.returncode and "AssertionError" in done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(mutants.MUTANTS))
def test_a_mutant_replaces_what_exists(name):
    pid = os.fork()
    if not pid:
        try:
            mutants.MUTANTS[name]()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
