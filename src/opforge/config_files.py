"""The settings files, config.toml of the site and of the user, and what is remembered of them.

    /etc/opforge/config.toml              the site's
    $XDG_CONFIG_HOME/opforge/config.toml  the user's, by default in ~/.config; it comes before the site's

What was read is remembered in CACHE/opforge/machine/settings-HOST.json, by the stamps of the files: a TOML parser takes
longer to import than a cache hit. There is no settings file of a project or a working folder: it would decide what is
run, and whom opforge trusts, wherever it is started.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Mapping
from typing import Any

from opforge import formats

MAX_MEMORY_BYTES = 4 << 20
RACY_SECONDS = 2.0
"""A file that is younger may change again without a trace in its stamp, and is not remembered."""


def read(paths: Mapping[str, os.stat_result], cache: str) -> dict[str, tuple[str, str]]:
    """Returns the settings of these files by variable, each with its file. A later file comes before an earlier one.

    Args:
        paths: The files that exist, with their status.
        cache: The user's folder for caches, in which the outcome is remembered.

    Raises:
        ConfigFileError: A file cannot be read or trusted, or a key or a value in it is wrong.
        ExtraNotInstalledError: Python 3.10 has no parser for TOML, and tomli is not installed.
    """
    memory = os.path.join(cache, "opforge", "machine", f"settings-{os.uname().nodename}.json")
    stamps = [[path, *_stamp(path, status)] for path, status in paths.items()]
    values = _recall(memory, stamps)
    if values is None:
        from . import config_keys  # not on the path of a hit

        values = {}
        for path in paths:
            values |= {config_keys.variable_of(key): (text, path) for key, text in config_keys.read(path).items()}
        if all(abs(time.time() - status.st_mtime) > RACY_SECONDS for status in paths.values()):
            _remember(memory, stamps, values)
    return values


def _stamp(path: str, status: os.stat_result) -> list[int]:
    inode = status.st_ino
    if not status.st_ctime_ns % 1_000_000_000:
        from .file_systems import images  # not on the path of a hit, unless the file may be an image's

        inode = images.inode(path, status)
    fields = (status.st_dev, inode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return [*fields, status.st_uid, status.st_mode]


def _recall(memory: str, stamps: list[list[Any]]) -> dict[str, tuple[str, str]] | None:
    """Returns what was read from files with these stamps; None if that is not remembered."""
    try:
        handle = os.open(memory, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if status.st_uid != os.geteuid() or status.st_mode & 0o022 or not stat.S_ISREG(status.st_mode):
                return None
            data = json.loads(file.read(MAX_MEMORY_BYTES))
        if data["format"] != formats.SETTINGS_FILES or data["stamps"] != stamps or data["user"] != _user():
            return None
        return {str(name): (str(text), str(path)) for name, (text, path) in data["values"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _user() -> list[Any]:
    """Returns what the values depend on besides the files: the home folder of ~/, and whose files are trusted."""
    return [os.geteuid(), os.path.expanduser("~"), os.environ.get("OPFORGE_TRUSTED_OWNERS", "")]


def _remember(memory: str, stamps: list[list[Any]], values: Mapping[str, tuple[str, str]]) -> None:
    """Writes what was read. If that fails, the next process reads it again."""
    temporary = f"{memory}.{os.getpid()}.tmp"
    try:
        os.makedirs(os.path.dirname(memory), mode=0o700, exist_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump({"format": formats.SETTINGS_FILES, "stamps": stamps, "user": _user(), "values": values}, file)
        os.replace(temporary, memory)
    except OSError:
        return
