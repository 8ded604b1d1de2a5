"""Private folders to build in, and how a finished one becomes an entry."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import time

from opforge.events import emit

from .layout import Layout, make_folder

log = logging.getLogger("opforge.cache")
ABANDONED_SECONDS = 24 * 3600.0


def begin(layout: Layout, plan_key: str) -> str:
    """A new private folder; its name says whose it is, so that it can be swept when its owner is gone."""
    name = f"{plan_key[:12]}.{socket.gethostname()}.{os.getpid()}.{os.urandom(4).hex()}"
    path = layout.path("staging", name)
    os.mkdir(path, 0o700)
    return path


def sweep(layout: Layout) -> int:
    """Remove what dead builders of this host left, and anybody's after a day. Returns how many were removed."""
    removed, host = 0, socket.gethostname()
    folder = layout.path("staging")
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        owner, _, pid = name.partition(".")[2].rpartition(".")[0].rpartition(".")  # a host's name may hold dots
        if owner == host and pid.isdecimal():
            if os.path.exists(f"/proc/{pid}"):
                continue
        else:
            try:
                if time.time() - os.stat(path).st_mtime < ABANDONED_SECONDS:
                    continue
            except OSError:
                continue
        shutil.rmtree(path, ignore_errors=True)
        removed += 1
    return removed


def publish(layout: Layout, finished: str, result: str) -> bool:
    """Make the folder `finished` the entry `result` by one rename. False: another builder was first; theirs stays."""
    for name in os.listdir(finished):
        with open(os.path.join(finished, name), "rb") as file:
            os.fsync(file.fileno())
    try:
        os.rename(finished, layout.entry(result))
    except OSError:
        if not os.path.lexists(layout.entry(result)):
            raise
        return False
    folder = os.open(layout.path("entries"), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def set_aside(layout: Layout, result: str, problem: str) -> None:
    """Move a damaged entry out of the way, for inspection, and say so."""
    source = layout.entry(result)
    emit("quarantine", path=source, reasons=[problem])
    target = layout.path("quarantine", f"{result}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        make_folder(os.path.dirname(target))
        os.rename(source, target)
    except OSError:
        log.warning("The cache entry %s is damaged: %s. It could not be set aside; it is not used.", source, problem)
        return
    log.warning("The cache entry %s is damaged: %s. It was set aside in %s.", source, problem, target)
