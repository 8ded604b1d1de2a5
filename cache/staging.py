"""Staging folders, each private to one build, and the renames by which a finished one becomes an entry."""

from __future__ import annotations

import errno
import logging
import os
import shutil

from opforge.foundation.events import emit
from opforge.foundation.file_owners import link_problem
from opforge.foundation.files import folder_names, fsync, make_folder, now_in, size_of

from .layout import Layout
from .ownership import has_tag, is_own_name
from .records import size_log

log = logging.getLogger("opforge.cache")
ABANDONED_SECONDS = 24 * 3600.0
"""How long a folder of another host, or of an unknown owner, is left alone."""
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def _here() -> str:
    """Returns a name for this host and its process ids.

    Cloned machines have one name, but each boot has an id of its own. A container shares both with its host, but not
    the processes.
    """
    name = os.uname().nodename
    try:
        with open(BOOT_ID, "rb") as file:
            name += "-" + file.read(64).strip().replace(b"-", b"").decode()
        return f"{name}-{os.stat('/proc/self/ns/pid').st_ino}"
    except (OSError, ValueError):
        return name


def new_folder(layout: Layout, plan_key: str) -> str:
    """Makes a staging folder and returns its path. Its name holds its owner, so that it can be swept after a kill."""
    name = f"{plan_key[:12]}.{_here()}.{os.getpid()}-{_started(os.getpid())}.{os.urandom(4).hex()}"
    path = layout.path("staging", name)
    make_folder(path)
    return path


def abandoned(layout: Layout) -> list[str]:
    """Returns the staging folders of this host's dead processes, and after a day those of any other owner.

    None if the folder is no store of opforge's: `staging` is the user's own then.
    """
    folder, here, paths, now = layout.path("staging"), _here(), list[str](), 0.0
    names = [name for name in folder_names(folder) if is_own_name("staging", name)]
    if names and not has_tag(layout.root):
        return []
    for name in names:
        path = os.path.join(folder, name)
        owner, _, process = name.rpartition(".")[0].rpartition(".")
        pid, _, started = process.partition("-")
        if owner.endswith("." + here) and pid.isdecimal():
            is_dead = not started or _started(int(pid)) != started
        else:
            try:
                modified = os.stat(path).st_mtime
            except OSError:
                continue
            now = now or now_in(layout.path())
            is_dead = now - modified >= ABANDONED_SECONDS
        if is_dead:
            paths.append(path)
    return paths


def _started(pid: int) -> str:
    """Returns when a process started, in clock ticks since boot: a later process with the same id has another value.

    Empty if there is no such process. Without /proc it is "running" for every process that exists.
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
        return "running"  # it belongs to another user
    return "running"


def sweep(layout: Layout) -> int:
    """Removes the abandoned folders; returns how many."""
    paths = abandoned(layout)
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    return len(paths)


def publish(layout: Layout, finished: str, key: str, synced: bool = True) -> bool:
    """Makes the folder `finished` the entry `key` by one rename; returns False if another builder was first.

    If `synced`, the files are written to the disk first: after a crash of the machine the entry is complete or missing.
    Raises OSError.
    """
    for name in os.listdir(finished) if synced else ():
        sync(os.path.join(finished, name))
    try:
        os.rename(finished, layout.entry(key))
    except OSError:
        if not os.path.lexists(layout.entry(key)):
            raise
        return False
    size_log.append(layout, size_of(layout.entry(key)))
    return True


def sync(path: str) -> None:
    """Writes a file to the disk, where the file system can. Raises OSError."""
    with open(path, "rb") as file:
        try:
            fsync(file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error


def move(source: str, target: str) -> None:
    """Moves a folder inside the store. Raises OSError."""
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(source, target)  # overlayfs cannot rename a folder of an image's lower layer


def set_aside(layout: Layout, path: str, problem: str) -> bool:
    """Moves a damaged file or folder of any area to the quarantine folder. Returns whether it has left its place."""
    emit("quarantine", path=path, reasons=[problem])
    target = layout.path("quarantine", f"{os.path.basename(path)}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        if not has_tag(layout.root) or link_problem(layout.path()):
            return False  # it is not opforge's, or would be moved out of the store
        make_folder(os.path.dirname(target))
        move(path, target)
    except FileNotFoundError:
        return True  # another process was first
    except OSError:
        return False
    return True


def quarantine(layout: Layout, key: str, problem: str, is_damaged: bool = True, in_layer: bool = False) -> bool:
    """Moves an entry to the quarantine folder; returns whether it is gone. Logs a warning if it is damaged.

    What has no tag of opforge's is no store, and nothing in it is moved; a layer has none.
    """
    source = layout.entry(key)
    if not is_own_name("entries", key) or not (in_layer or has_tag(layout.root)):
        return False
    emit("quarantine", path=source, reasons=[problem])
    target = layout.path("quarantine", f"{key}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        if link_problem(layout.path()):
            raise OSError("it would be moved out of the store")
        make_folder(os.path.dirname(target))
        move(source, target)
    except FileNotFoundError:
        return True  # another process was first
    except OSError:
        log.warning("The cache entry %s is damaged: %s. It could not be set aside; it is not used.", source, problem)
        return False
    if is_damaged:
        log.warning("The cache entry %s is damaged: %s. It was set aside in %s.", source, problem, target)
    return True
