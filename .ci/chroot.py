"""Debian's testing release in a folder, with its Pythons, compilers and C library: for the rows of matrix.py.

debootstrap makes it from the archive that apt uses here. Commands run in it by `chroot`, each in mounts of its own
(`unshare --mount`), so that nothing stays mounted when one is killed. All this needs root.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

SUITE, SCRIPT = "testing", "/usr/share/debootstrap/scripts/sid"
PROGRAMS = ("debootstrap", "chroot", "unshare", "mount")
PACKAGES = ("python3.14", "python3.14-venv", "python3.14-dev", "g++", "make", "ca-certificates")
LATER = (("python3.15", "python3.15-venv", "python3.15-dev"), ("g++-15",))
"""A release may not have these. There is no free-threaded Python among its packages."""
LOOSE = ("-o", "Acquire::Check-Valid-Until=false")
"""An archive that is a copy may be older than it says it may be."""
COPIED = (
    "/etc/resolv.conf",
    "/etc/pip.conf",
    "/etc/ssl/certs/ca-certificates.crt",
    "~/.config/pip/pip.conf",
    "/etc/hosts",
)
"""What downloads need, and the machine's own name, which ranks of torch look up before they connect."""
ALONE = ("unshare", "--mount")
"""Runs a command in mounts of its own."""
MOUNTS = (
    'root=$1; shift; while [ "$1" != -- ]; do mkdir -p "$root$1"; mount --rbind "$1" "$root$1"; shift; done; shift;'
)
ENTER = f'set -e; {MOUNTS} exec chroot "$root" env -C "$@"'


class ChrootError(Exception):
    """No chroot can be made here; the text says why."""


class Chroot(NamedTuple):
    """A Debian in a folder."""

    root: str
    folders: Sequence[str] = ()
    """Folders of this machine that are seen there under the same paths."""

    def command(self, words: Sequence[str], cwd: str = "/") -> list[str]:
        """Returns the command that runs another one inside."""
        mounts = ["/proc", "/dev", *(folder for folder in self.folders)]
        return [*ALONE, "sh", "-c", ENTER, "sh", self.root, *mounts, "--", cwd, *words]

    def compilers(self) -> list[str]:
        """Returns the names of the compilers inside, the default one first."""
        found = glob.glob(f"{self.root}/usr/bin/g++-[0-9]*")
        return sorted(map(os.path.basename, found), key=lambda name: -int(name.rpartition("-")[2]))

    def interpreter(self, python: str) -> str:
        """Returns the path of an interpreter inside; empty if there is none."""
        for path in (f"/usr/bin/python{python}", f"/opt/python{python}/bin/python{python}"):
            if os.path.exists(self.root + path):
                return path
        return ""


def problem() -> str:
    """Returns why none can be made here; empty if one can."""
    if os.geteuid() != 0:
        return "debootstrap needs root"
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        return f"{' and '.join(missing)} not found on PATH"
    if not os.path.exists(SCRIPT):
        return f"{SCRIPT} is missing: install debootstrap"
    return "" if archive() else "no file of apt's names an archive of Debian"


def archive() -> str:
    """Returns the URL of the archive that apt uses here; empty if it is no Debian's."""
    for folder, _folders, names in os.walk("/etc/apt"):
        for name in sorted(name for name in names if name.endswith((".sources", ".list"))):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                found = re.search(r"^(?:URIs:|deb\b.*?)\s*(https?://\S+/debian)/?\s", file.read(), re.MULTILINE)
            if found:
                return found[1]
    return ""


def made(root: str) -> Chroot:
    """Makes one in a new folder. Raises ChrootError."""
    if reason := problem():
        raise ChrootError(reason)
    include = f"--include={','.join(PACKAGES)}"
    # debootstrap mounts /proc inside, and removing the folder of one that was killed would go through it.
    _run([*ALONE, "debootstrap", "--variant=minbase", include, SUITE, root, archive(), SCRIPT])
    for path in map(os.path.expanduser, COPIED):
        if os.path.exists(path):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            shutil.copyfile(path, root + path)
    debian = Chroot(root)
    _run(debian.command(["apt-get", *LOOSE, "update"]))
    for packages in LATER:
        install = ["apt-get", *LOOSE, "install", "--yes", "--no-install-recommends", *packages]
        subprocess.run(debian.command(install), capture_output=True, check=False)
    return debian


def _run(command: Sequence[str]) -> None:
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        last = " ".join((process.stdout + process.stderr).split())[-300:]
        raise ChrootError(f"{command[0]} failed: {last}")
