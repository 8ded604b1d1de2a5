"""Another user of this machine, for tests of what he can do: a child process with another user id, which attacks.

No account is created. Only root can take another user's id: mark the tests with `owners.as_root`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

NOBODY = 65534
"""The user id of the other user, and his group's."""
BEGUN = b"+"


@contextmanager
def shared_folder(mode: int = 0o1777) -> Iterator[str]:
    """Makes a folder that every user can enter, and by default write to like /tmp. pytest's own are private."""
    path = tempfile.mkdtemp(prefix="opforge-shared-")
    try:
        os.chmod(path, mode)
        yield path
    finally:
        shutil.rmtree(path)


def run_shell(script: str, folder: str, group: int = NOBODY) -> str:
    """Runs the script in the folder with /bin/sh as the other user, stops at its first error; returns its output."""
    done = subprocess.run(
        ["/bin/sh", "-euc", script],
        cwd=folder,
        env={"PATH": os.defpath},
        user=NOBODY,
        group=group,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"the attack failed with {done.returncode}: {done.stderr}"
    return done.stdout


def with_all_files() -> list[str]:
    """Returns what comes before a command that another user runs, who may use all files; skips the test without it."""
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv (apt install util-linux)")
    capabilities = "+dac_override,+dac_read_search"
    prefix = ["setpriv", f"--reuid={100_000 + os.getpid()}", "--clear-groups"]
    prefix += [f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}"]
    attempt = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if attempt.returncode:
        pytest.skip(f"cannot become another user here: {attempt.stderr.strip()}")
    return prefix


@contextmanager
def attacking(attack: Callable[[], None], group: int = NOBODY) -> Iterator[None]:
    """Runs `attack` again and again as the other user, in a forked child, until the block ends.

    The block begins after the first attempt. The child can use only what is imported already, as it may be unable to
    read Python's files. An OSError means that the attack was refused, and it is tried again; another exception fails
    the test.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child of a process with threads runs only `attack`
        child = os.fork()
    if not child:
        _attack(attack, group, writer)
    os.close(writer)
    problem = b""
    try:
        first = os.read(reader, 1)
        if first == BEGUN:
            yield
        else:
            problem = first
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reader, "rb") as file:
            problem += file.read()
    assert not problem, problem.decode()


def _attack(attack: Callable[[], None], group: int, writer: int) -> None:
    try:
        os.setgroups([])
        os.setgid(group)
        os.setuid(NOBODY)
        started = False
        while True:
            with suppress(OSError):
                attack()
            if not started:
                started = bool(os.write(writer, BEGUN))
    except BaseException:
        os.write(writer, traceback.format_exc().encode())
    finally:
        os._exit(1)
