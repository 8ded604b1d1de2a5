"""Private folders to build in, and how a finished one becomes an entry."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time

from opforge.events import emit

from .filesystem.files import make_folder, size_of
from .layout import Layout
from .records import size_log

log = logging.getLogger("opforge.cache")
ABANDONED_SECONDS = 24 * 3600.0


def _here() -> str:
    """This host and its space of process ids: a container may share the host's name, and not its processes."""
    try:
        return f"{os.uname().nodename}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return os.uname().nodename


def begin(layout: Layout, plan_key: str) -> str:
    """A new private folder; its name says whose it is, so that it can be swept when its owner is gone."""
    name = f"{plan_key[:12]}.{_here()}.{os.getpid()}-{_started(os.getpid())}.{os.urandom(4).hex()}"
    path = layout.path("staging", name)
    make_folder(path)
    return path


def abandoned(layout: Layout) -> list[str]:
    """The staging folders that dead builders of this host left, and anybody's after a day."""
    folder, here, found = layout.path("staging"), _here(), []
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    for name in names:
        path = os.path.join(folder, name)
        owner, _, process = name.rpartition(".")[0].rpartition(".")
        pid, _, started = process.partition("-")
        if owner.endswith("." + here) and pid.isdecimal():
            dead = not started or _started(int(pid)) != started
        else:
            try:
                dead = time.time() - os.stat(path).st_mtime >= ABANDONED_SECONDS
            except OSError:
                continue
        if dead:
            found.append(path)
    return found


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks since boot; a number that another use of its id does not have.

    Empty where there is no such process. On a system without /proc: "running", as far as that can be told.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        if os.path.isdir("/proc/self"):
            return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return "running"  # it is somebody else's
    return "running"


def sweep(layout: Layout) -> int:
    """Remove what is abandoned. Returns how many folders that were."""
    found = abandoned(layout)
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
    return len(found)


def publish(layout: Layout, finished: str, result: str) -> bool:
    """Make the folder `finished` the entry `result` by one rename. False: another builder was first; theirs stays.

    The files reach the disk first, so that after a crash there is the whole entry or none.
    """
    for name in os.listdir(finished):
        with open(os.path.join(finished, name), "rb") as file:
            os.fsync(file.fileno())
    try:
        os.rename(finished, layout.entry(result))
    except OSError:
        if not os.path.lexists(layout.entry(result)):
            raise
        return False
    size_log.note(layout, size_of(layout.entry(result)))
    return True


def move(source: str, target: str) -> None:
    """Give a folder another place in the store. Raises OSError."""
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(source, target)  # overlayfs does not rename what lies in a lower layer of an image


def set_aside(layout: Layout, result: str, problem: str) -> bool:
    """Move a damaged entry out of the way, for inspection, and say so; returns whether it is out of the way."""
    source = layout.entry(result)
    emit("quarantine", path=source, reasons=[problem])
    target = layout.path("quarantine", f"{result}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        make_folder(os.path.dirname(target))
        move(source, target)
    except FileNotFoundError:
        return True  # another process was first
    except OSError:
        log.warning("The cache entry %s is damaged: %s. It could not be set aside; it is not used.", source, problem)
        return False
    log.warning("The cache entry %s is damaged: %s. It was set aside in %s.", source, problem, target)
    return True
