"""Writes what one user's processes on one machine remember: see `remembered_values.py`. A hit does not import this.

CACHE/opforge/machine/ID/lookups/NAME.json    what is remembered; also the releases of kernel packages: see
                                              packages/registry/kept_releases.py
CACHE/opforge/machine/ID/counts*              how often something was stored: see cache/maintenance/counts.py
"""

from __future__ import annotations

import json
import os
import re
import time

from . import remembered_values
from .files import can_write, make_folder, now_in, open_to_append, write_file
from .remembered_values import LOOKUPS, FlatStamps, folders, is_private, kept_folders

MAX_LOOKUPS = 4096
"""How many look-ups are remembered. Above that the older half is removed."""
MAX_UNUSED_SECONDS = 90 * 24 * 3600.0
"""How long the values of a machine that adds none are kept: each container may be a machine of its own."""
_TEMP = r"(?:\.[0-9]+\.[0-9a-f]{8}\.tmp)?"
_OWN_NAME = rf"(?:[0-9a-f]{{32}}|(?:remote-[a-z]+|release)-[0-9a-f]{{24,64}})\.json{_TEMP}"
"""Of a look-up, of what a remote answered, and of a release."""
_OWN_COUNTS = rf"counts[\w.-]*{_TEMP}"
COUNTS = "counts"
"""The file to which each process appends what it has counted, when it ends."""
MAX_COUNTS_BYTES = 256 << 10
"""The length of that file above which its lines are added up: see maintenance/counts.py. At 16 times that nothing more
is counted."""


def can_remember() -> bool:
    """Returns whether anything can be remembered here: a container may have no folder that can be written."""
    return any(can_write(f"{folder}/{LOOKUPS}") for folder in folders())


def is_in_use(store: str) -> bool:
    """Returns whether anything is remembered already, or there is a store. Otherwise only a build makes a folder."""
    return bool(kept_folders()) or os.path.isdir(store)


def remember(name: str, watched: FlatStamps, value: object, at_ns: int = 0, links: int = 0, folder: str = "") -> bool:
    """Remembers a value under a name as long as the stamps are the same. Returns whether it could be.

    Args:
        name: What decides the value and has no stamp, or a digest of that: see `remembered_values.name_of`.
        watched: The files that it follows from. The stamps were taken before the value was found.
        value: The value, as JSON has it.
        at_ns: When the stamps were taken. Nothing is remembered of a file that had just been changed.
        links: Of so many of the first paths a link is not followed.
        folder: A folder of a store that can be written; by default this machine's. It is not made.
    """
    if watched.paths and watched.is_racy(at_ns):
        return False
    data = remembered_values.written(name, watched, value, links)
    if not folder:
        return _keep(name, data)
    try:
        write_file(f"{folder}/{name}.json", data)
    except OSError:
        return False
    return True


def _keep(name: str, data: bytes) -> bool:
    """Writes the data of a name. Returns whether it could be written anywhere."""
    for folder in folders():
        lookups = f"{folder}/{LOOKUPS}"
        try:
            if os.path.islink(os.path.dirname(folder)) or os.path.islink(folder):
                continue  # what is written there would lie elsewhere
            make_folder(lookups)
            if not is_private(lookups):
                continue
            write_file(f"{lookups}/{name}.json", data)
        except OSError:
            continue
        _bound(lookups)
        return True
    return False


def _bound(folder: str) -> None:
    """Removes the older half of the remembered values if there are too many."""
    try:
        # Only files whose names opforge makes are removed.
        names = [name for name in os.listdir(folder) if re.fullmatch(_OWN_NAME, name)]
        if len(names) <= MAX_LOOKUPS:
            return
        paths = sorted((os.path.join(folder, name) for name in names), key=lambda path: os.lstat(path).st_mtime_ns)
        for path in paths[: len(paths) // 2]:
            os.unlink(path)
    except OSError:
        return  # another process does the same


def remove_unused() -> None:
    """Removes the folders of machines that have remembered nothing for a long time, this one's excepted."""
    for folder in folders():
        machines = os.path.dirname(folder)
        try:
            names = os.listdir(machines) if is_private(machines) else []
        except OSError:
            continue  # there is none yet
        now = now_in(machines) if names else 0.0
        for name in names:
            lookups = os.path.join(machines, name, LOOKUPS)
            try:
                is_unused = now - os.lstat(lookups).st_mtime > MAX_UNUSED_SECONDS
            except OSError:
                continue  # not a machine's
            if is_unused and name != os.path.basename(folder) and not os.path.islink(os.path.dirname(lookups)):
                _remove_machine(os.path.dirname(lookups))


def _remove_machine(folder: str) -> None:
    """Removes the files of remembered values from the folder of a machine, and the folder if it is then empty."""
    try:
        for part, form in ((LOOKUPS, _OWN_NAME), ("", _OWN_COUNTS)):
            place = os.path.join(folder, part)
            for name in os.listdir(place):
                if re.fullmatch(form, name):
                    os.unlink(os.path.join(place, name))
            os.rmdir(place)
    except OSError:
        return  # it holds something else


def write_counts() -> None:
    """Appends the counts of this process in one write: lines of several processes do not mix.

    Where nothing can be written, it is lost.
    """
    counts, now = dict(remembered_values.counts), int(time.time())
    remembered_values.counts.clear()
    lines = "".join(f"{json.dumps([now, store, amounts])}\n" for store, amounts in counts.items())
    for folder in folders() if lines else ():
        try:
            if os.path.islink(os.path.dirname(folder)):
                continue
            make_folder(folder)
            if not is_private(folder):
                continue
            handle = open_to_append(f"{folder}/{COUNTS}", os.O_CREAT)
        except OSError:
            continue
        try:
            if os.fstat(handle).st_size < 16 * MAX_COUNTS_BYTES:
                os.write(handle, lines.encode())
        except OSError:
            continue
        finally:
            os.close(handle)
        return
