"""The commit of a package's sources, and whether they differ from it."""

from __future__ import annotations

import os
import subprocess

from opforge.foundation import exit_status
from opforge.packages.form.metadata import Provenance

TIMEOUT = 60.0


def provenance(folder: str) -> Provenance | None:
    """Returns the commit of the work tree that a folder is in; None if it is in none, or has no commit yet.

    It is dirty if a file in the folder differs from the commit, or is new and not ignored. What opforge has packed
    there, in build/, does not count.
    """
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=normal", "--", ".", ":(exclude)build")
    return Provenance(commit.strip(), bool(changes is None or changes.strip()))


def tracked(folder: str) -> list[str] | None:
    """Returns the paths below a folder that git tracks, or would track; None if the folder is in no work tree."""
    names = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".")
    if names is None:
        return None
    paths = sorted(set(names.split("\0")) - {""})
    return [path for path in paths if os.path.lexists(os.path.join(folder, path))]


def _git(folder: str, *arguments: str) -> str | None:
    # No optional locks: asking for the status must not write into somebody's repository.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    command = ["git", "-C", folder, *arguments]
    try:
        done = exit_status.run(command, TIMEOUT, env=environment, capture_output=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else None
