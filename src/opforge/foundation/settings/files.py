"""The settings files, config.toml of the site and of the user, and their remembered content.

    /etc/opforge/config.toml              the site's
    $XDG_CONFIG_HOME/opforge/config.toml  the user's, by default in ~/.config; it comes before the site's

What was read is remembered by the stamps of the files (`remembered_values.py`): a TOML parser takes longer to import
than a cache hit. There is no settings file of a project or a working folder: it would decide what is run, and whom
opforge trusts, wherever it is started.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Mapping
from typing import Any

from opforge import errors
from opforge.foundation import environment, file_owners, formats, remembered_values, remembered_values_writer

from .kinds import Kind

MAX_BYTES = 1 << 20
OWNERS = environment.own("trusted_owners")
"""Whose files are read, only the variable says: a file cannot vouch for itself."""


def read(paths: Collection[str], keys: Mapping[str, Kind[Any] | None]) -> dict[str, tuple[str, str]]:
    """Returns the values in these files by setting, each as the text of its variable, with its file.

    Args:
        paths: The files that exist. A later one comes before an earlier one.
        keys: The kind of every setting, by its name; None if a file may not hold it.

    Raises:
        ConfigFileError: A file cannot be read or trusted, or a key or a value in it is wrong.
    """
    name = remembered_values.name_of(("settings", formats.SETTINGS_FILES, [*paths], _user()))
    if found := remembered_values.recall(name):
        return {setting: (text, path) for setting, (text, path) in found[0].items()}
    at = time.time_ns()
    watched = remembered_values.FlatStamps([*paths], remembered_values.stamps_of(paths))
    values: dict[str, tuple[str, str]] = {}
    for path in paths:
        values |= {setting: (text, path) for setting, text in _checked(path, keys).items()}
    remembered_values_writer.remember(name, watched, values, at)
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
        return f"{key!r} is not a setting of a file", f"Set the variable {environment.own(key)} where it is needed"
    import difflib

    names = sorted(name for name, kind in keys.items() if kind)
    near = difflib.get_close_matches(key.lower().removeprefix("opforge_"), names, n=1)
    advice = f"Did you mean {near[0]}?" if near else f"Expected one of {', '.join(names)}"
    return f"{key!r} is not a setting", advice


def _content(path: str) -> bytes:
    """Returns a file's bytes. Raises ConfigFileError if others than root, the user and trusted owners can change it."""
    named = environment.variable(OWNERS).split(",")
    owners = file_owners.trusted_ids([name.strip() for name in named if name.strip()])
    for folder in dict.fromkeys(map(os.path.dirname, (os.path.abspath(path), os.path.realpath(path)))):
        if problem := file_owners.folder_problem(folder, owners, for_file_inside=True):
            raise errors.ConfigFileError(path, *problem)
    try:
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise errors.ConfigFileError(path, "it is not a file", "Remove it")
            if status.st_uid not in owners:
                raise errors.ConfigFileError(path, *file_owners.owner_problem("it", status.st_uid, owners))
            if file_owners.others_bits(status, file.fileno()):
                raise errors.ConfigFileError(path, "others can write it", f"Run: chmod go-w {file_owners.quoted(path)}")
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
    import tomllib  # not on the path of a hit

    try:
        table: dict[str, Any] = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise errors.ConfigFileError(path, f"it is not valid TOML ({error})", "Fix that line, or remove it") from error
    return table


def _user() -> list[Any]:
    """Returns the user's part of the values: the home folder of ~/, and the owners whose files are trusted."""
    return [os.geteuid(), os.path.expanduser("~"), environment.variable(OWNERS)]
