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
import sys
import time
from collections.abc import Mapping
from typing import Any

from opforge import errors, formats, trust

from . import environment
from .kinds import Kind

MAX_BYTES = 1 << 20
MAX_MEMORY_BYTES = 4 << 20
RACY_SECONDS = 2.0
"""A file that is younger may change again without a trace in its stamp, and is not remembered."""
OWNERS = environment.own("trusted_owners")
"""Whose files are read, only the variable says: a file cannot vouch for itself."""


def read(paths: Mapping[str, os.stat_result], keys: Mapping[str, Kind[Any] | None]) -> dict[str, tuple[str, str]]:
    """Returns what these files say by setting, as its variable would have it, each with its file.

    Args:
        paths: The files that exist, with their status. A later one comes before an earlier one.
        keys: The kind of every setting, by its name; None if a file may not hold it.

    Raises:
        ConfigFileError: A file cannot be read or trusted, or a key or a value in it is wrong.
        ExtraNotInstalledError: Python 3.10 has no parser for TOML, and tomli is not installed.
    """
    memory = f"{environment.cache_home()}/opforge/machine/settings-{os.uname().nodename}.json"
    stamps = [[path, *_stamp(path, status)] for path, status in paths.items()]
    values = _recall(memory, stamps)
    if values is None:
        values = {}
        for path in paths:
            values |= {name: (text, path) for name, text in _checked(path, keys).items()}
        if all(abs(time.time() - status.st_mtime) > RACY_SECONDS for status in paths.values()):
            _remember(memory, stamps, values)
    return values


def _checked(path: str, keys: Mapping[str, Kind[Any] | None]) -> dict[str, str]:
    """Returns the values of one file by setting, as their variables would have them."""
    table = _parsed(path, _content(path))
    values = {}
    for key, value in table.items():
        kind = keys.get(key)
        if kind is None:
            raise errors.ConfigFileError(path, *_unknown(key, keys))
        try:
            values[key] = kind.to_text(value)
        except (TypeError, ValueError):
            problem = f"{key} = {value!r}", f"Expected {kind.in_file}"
            raise errors.ConfigFileError(path, *problem) from None
    return values


def _unknown(key: str, keys: Mapping[str, Kind[Any] | None]) -> tuple[str, str]:
    if key in keys:
        return f"{key!r} is no setting of a file", f"Set the variable {environment.own(key)} where it is needed"
    import difflib

    names = sorted(name for name, kind in keys.items() if kind)
    near = difflib.get_close_matches(key.lower().removeprefix("opforge_"), names, n=1)
    advice = f"Did you mean {near[0]}?" if near else f"Expected one of {', '.join(names)}"
    return f"{key!r} is no setting", advice


def _content(path: str) -> bytes:
    """Returns a file's bytes. Raises ConfigFileError if others than root, the user and trusted owners can change it."""
    named = environment.variable(OWNERS).split(",")
    owners = trust.trusted_ids([name.strip() for name in named if name.strip()])
    for folder in dict.fromkeys(map(os.path.dirname, (os.path.abspath(path), os.path.realpath(path)))):
        if problem := trust.folder_problem(folder, owners):
            raise errors.ConfigFileError(path, *problem)
    try:
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise errors.ConfigFileError(path, "it is not a file", "Remove it")
            if status.st_uid not in owners:
                reason = f"it belongs to user {status.st_uid}, not to you (user {os.geteuid()})"
                raise errors.ConfigFileError(path, reason, "Change its owner, or remove it")
            if trust.others_bits(status):
                raise errors.ConfigFileError(path, "others can write it", f"Run: chmod go-w {path}")
            content = file.read(MAX_BYTES + 1)
    except IsADirectoryError as error:
        raise errors.ConfigFileError(path, "it is not a file", "Remove it") from error
    except OSError as error:
        raise errors.ConfigFileError(
            path, f"it cannot be read ({error.strerror})", "Give yourself access to it"
        ) from error
    if len(content) > MAX_BYTES:
        raise errors.ConfigFileError(path, f"it has more than {MAX_BYTES} bytes", "Make it smaller")
    return content


def _parsed(path: str, content: bytes) -> dict[str, Any]:
    import importlib

    module = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        toml = importlib.import_module(module)
    except ImportError as error:
        raise errors.ExtraNotInstalledError(f"reading {path}", module, "packages") from error
    try:
        table: dict[str, Any] = toml.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise errors.ConfigFileError(path, f"it is no TOML ({error})", "Fix that line, or remove it") from error
    return table


# What is remembered of the files.


def _stamp(path: str, status: os.stat_result) -> list[int]:
    inode = status.st_ino
    if not status.st_ctime_ns % 1_000_000_000:
        from opforge.file_systems import images  # not on the path of a hit, unless the file may be an image's

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
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no schema on the path of a hit
        return None


def _user() -> list[Any]:
    """Returns what the values depend on besides the files: the home folder of ~/, and whose files are trusted."""
    return [os.geteuid(), os.path.expanduser("~"), environment.variable(OWNERS)]


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
