"""Commands that run as another user in namespaces of their own, as containers and sandboxes run them.

No account is created: the user has no passwd entry, as in a hardened pod. Only root can take another user's id: mark
the tests with `owners.as_root`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
from support import child_processes
from support.paths import SOURCE_TREE

USER = 23456
"""The user id, which nothing else here has."""
GROUP = 23457
"""The group of a volume that he may write, as fsGroup names it."""
OPEN_PYTHON = """
mkdir -p {new}/{below} && mount --bind {closed}/{below} {new}/{below} && mount --rbind {new} {closed}
"""


def run(
    command: Sequence[str],
    folder: str,
    sandbox: Sequence[str] = (),
    setup: str = ":",
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command as the user; skips the test where no namespace can be made.

    Args:
        command: The command.
        folder: A folder that every user can enter: for what is mounted over a folder that they cannot.
        sandbox: The command that is put before it, as the user, such as `unshare -Ur`.
        setup: What root runs before in a mount namespace that nobody else sees.
        env: All variables but PATH and PYTHONPATH.
    """
    for tool in ("unshare", "setpriv", *sandbox[:1]):
        if not shutil.which(tool):
            pytest.skip(f"needs {tool} (apt install util-linux bubblewrap)")
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", f"--groups={GROUP}"]
    attempt = subprocess.run([*user, *sandbox, "true"], capture_output=True, text=True, timeout=60, check=False)
    if attempt.returncode:
        pytest.skip(f"no such namespace can be made here: {attempt.stderr.strip()}")
    names = child_processes.environment()
    variables = {
        "PATH": names["PATH"],
        "PYTHONPATH": names["PYTHONPATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        **(env or {}),
    }
    script = f'set -e\n{_open_python(folder)}\n{setup}\nexec "$@"'
    words = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", *user, *sandbox, *command]
    return subprocess.run(words, env=variables, cwd="/", capture_output=True, text=True, timeout=170, check=False)


def run_python(code: str, folder: str, **options: object) -> str:
    """Runs code in Python as the user, and returns what it printed."""
    done = run([sys.executable, "-c", code], folder, **options)  # type: ignore[arg-type]
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def _open_python(folder: str) -> str:
    """Returns the commands after which every user can enter the folder of Python's files, in this mount namespace."""
    lines = []
    for path in (os.path.realpath(sys.executable), SOURCE_TREE):
        parts = path.split(os.sep)
        for length in range(2, len(parts)):
            closed = os.sep.join(parts[:length])
            if not os.stat(closed).st_mode & 0o001:
                new = os.path.join(folder, "open", parts[length])
                lines.append(OPEN_PYTHON.format(new=new, closed=closed, below=parts[length]))
                break
    return "\n".join(dict.fromkeys(lines))
