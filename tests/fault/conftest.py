"""Disks for a test alone."""

from __future__ import annotations

import os
import subprocess

import pytest


@pytest.fixture
def mount_tmpfs(tmp_path):
    """A function that mounts a tmpfs with options and returns its path."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small tmpfs: run the tests as root")
    mounted = []

    def mount(options):
        path = tmp_path / f"mount{len(mounted)}"
        path.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "none", path], capture_output=True)
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", path], check=True)
