"""Short rounds of `make torture`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import child_processes
from support.paths import TESTS

pytestmark = [
    pytest.mark.compile,
    pytest.mark.timeout(150),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc"),
]


@pytest.mark.long("runs four builders; fault/test_killed_builds.py kills one at each of its steps")
def test_killed_builders_and_corrupted_stores_violate_nothing():
    script = os.path.join(TESTS, "fault", "torture", "kills.py")
    done = subprocess.run(
        [sys.executable, script, "--kills", "8", "--processes", "4", "--seed", "11"],
        env=child_processes.environment(),
        capture_output=True,
        text=True,
        timeout=140,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 11, 8 kills by 4 processes" in done.stdout and "0 violations" in done.stdout


@pytest.mark.long("fills a store, a layer and a mirror for one random round; the tests beside it try each fault")
def test_faults_in_every_file_of_a_store_hang_crash_and_change_nothing_outside():
    script = os.path.join(TESTS, "fault", "torture", "damages.py")
    done = subprocess.run(
        [sys.executable, script, "--rounds", "1", "--processes", "8", "--seed", "11"],
        env=child_processes.environment(),
        capture_output=True,
        text=True,
        timeout=140,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 11, 1 rounds with 8 processes" in done.stdout and "0 violations" in done.stdout
    assert "8 processes" in done.stdout


@pytest.mark.long("builds for 10 s, to try two random moments; compile/builds/test_inputs.py tries known ones")
def test_a_change_in_the_middle_of_a_load_is_seen_by_the_next_one():
    script = os.path.join(TESTS, "fault", "torture", "changes.py")
    done = subprocess.run(
        [sys.executable, script, "--cases", "2"],
        env=child_processes.environment(),
        capture_output=True,
        text=True,
        timeout=140,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 cases" in done.stdout and "0 violations" in done.stdout
