"""The settings files: config.toml of the site and of the user. Their values have the form of the variables'.

    /etc/opforge/config.toml              the site's
    $XDG_CONFIG_HOME/opforge/config.toml  the user's, by default in ~/.config; it comes before the site's

What was read is remembered in CACHE/opforge/machine/settings-HOST.json, by the stamps of the files: a TOML parser takes
longer to import than a cache hit. There is no settings file of a project or a working folder: it would decide what is
run, and whom opforge trusts, wherever it is started.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from opforge import errors, trust

from .units import AGE_EXPECTED, SIZE_EXPECTED, parse_age, parse_size

MAX_BYTES = 1 << 20
FORMAT = 1
RACY_SECONDS = 2.0
"""A file that is younger may change again without a trace in its stamp, and is not remembered."""
PATH_EXPECTED = "an absolute path, or one that begins with ~/"
OF_ENVIRONMENT = (
    "build_ops",
    "build_targets",
    "cpp_extension",
    "deepspeed",
    "paranoid",
    "prebuilt",
    "signing_key",
)
"""What only a variable sets: it is for one command or one process tree, or it is secret."""


class Key(NamedTuple):
    """A key of a settings file."""

    expected: str
    text: Callable[[Any], str]
    """Returns the value as the variable has it. Raises ValueError, TypeError for another type."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise TypeError
    return value


def _flag(value: Any) -> str:
    if not isinstance(value, bool):
        raise TypeError
    return "1" if value else "0"


def _path(value: Any) -> str:
    path = os.path.expanduser(_text(value))
    if not os.path.isabs(path):
        raise ValueError
    return path


def _whole(value: Any) -> str:
    if type(value) is not int or value < 1:
        raise ValueError
    return str(value)


def _seconds(value: Any) -> str:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError
    return str(value)


def _measured(parse: Callable[[str], float]) -> Callable[[Any], str]:
    def text(value: Any) -> str:
        written = str(value) if type(value) is int else _text(value)
        parse(written)
        return written

    return text


def _joined(part: Callable[[Any], str], separator: str) -> Callable[[Any], str]:
    def text(value: Any) -> str:
        if not isinstance(value, list):
            raise TypeError
        parts = [part(item) for item in value]
        if any(separator in item for item in parts):
            raise ValueError
        return separator.join(parts)

    return text


def _node(value: Any) -> str:
    if type(value) is not int or value < 0:
        raise ValueError
    return str(value)


def _checkouts(value: Any) -> str:
    if not isinstance(value, dict) or any("=" in name or os.pathsep in name for name in value):
        raise TypeError
    return _joined(_text, os.pathsep)([f"{name}={_path(path)}" for name, path in value.items()])


KEYS: Mapping[str, Key] = {
    "accelerator": Key('a name, such as "cuda"', _text),
    "allow_deprecated_fp16": Key("true or false", _flag),
    "cache_dir": Key(PATH_EXPECTED, _path),
    "cache_layers": Key("a list of absolute paths", _joined(_path, os.pathsep)),
    "cache_max_age": Key(f"{AGE_EXPECTED}, as a text, or 0", _measured(parse_age)),
    "cache_max_size": Key(f"{SIZE_EXPECTED}, as a text, or 0", _measured(parse_size)),
    "compiler_env": Key("a list of names of variables", _joined(_text, ",")),
    "compiler_launcher": Key('a command, such as "ccache"', _text),
    "full_traceback": Key("true or false", _flag),
    "install": Key("true or false", _flag),
    "jobs": Key("a whole number, 1 or more", _whole),
    "kernel_path": Key("a list of absolute paths", _joined(_path, os.pathsep)),
    "kernels": Key('a table of absolute paths by package, such as {"acme/relu" = "/src/relu"}', _checkouts),
    "lock_timeout": Key("a number of seconds, 0 or more", _seconds),
    "log": Key(f'{PATH_EXPECTED}, or "-"', lambda value: value if value == "-" else _path(value)),
    "offline": Key("true or false", _flag),
    "remotes": Key("a list of URLs", _joined(_text, " ")),
    "signing_command": Key("a command", _text),
    "sysroot": Key(PATH_EXPECTED, _path),
    "triton_jit": Key("true or false", _flag),
    "trust_file": Key(PATH_EXPECTED, _path),
    "trusted_owners": Key("a list of users", _joined(_text, ",")),
    "visible_numa_nodes": Key("a list of numbers", _joined(_node, ",")),
}


def variable_of(key: str) -> str:
    """Returns the variable that comes before a key."""
    return f"OPFORGE_{key.upper()}"


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
    stamps = [[path, *_stamp(status)] for path, status in paths.items()]
    values = _recall(memory, stamps)
    if values is None:
        values = {}
        for path in paths:
            values |= {variable_of(key): (text, path) for key, text in read_file(path).items()}
        if all(abs(time.time() - status.st_mtime) > RACY_SECONDS for status in paths.values()):
            _remember(memory, stamps, values)
    return values


def read_file(path: str) -> dict[str, str]:
    """Returns the values of one file by key, as their variables would have them. Raises what `read` raises."""
    table = _parsed(path, _content(path))
    values = {}
    for key, value in table.items():
        if key not in KEYS:
            raise errors.ConfigFileError(path, *_unknown(key))
        try:
            values[key] = KEYS[key].text(value)
        except (TypeError, ValueError):
            raise errors.ConfigFileError(path, f"{key} = {value!r}", f"Expected {KEYS[key].expected}") from None
    return values


def _unknown(key: str) -> tuple[str, str]:
    if key in OF_ENVIRONMENT:
        return f"{key!r} is no setting of a file", f"Set the variable {variable_of(key)} where it is needed"
    import difflib

    near = difflib.get_close_matches(key.lower().removeprefix("opforge_"), KEYS, n=1)
    advice = f"Did you mean {near[0]}?" if near else "To see all: opforge config"
    return f"{key!r} is no setting", advice


def _content(path: str) -> bytes:
    """Returns a file's bytes. Raises ConfigFileError if others than root, the user and trusted owners can change it."""
    named = os.environ.get("OPFORGE_TRUSTED_OWNERS", "").split(",")
    owners = trust.trusted_ids([name.strip() for name in named if name.strip()])
    for folder in dict.fromkeys(map(os.path.dirname, (os.path.abspath(path), os.path.realpath(path)))):
        if problem := trust.folder_problem(folder, owners):
            raise errors.ConfigFileError(path, *problem)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise errors.ConfigFileError(path, "it is not a file", "Remove it")
            if status.st_uid not in owners:
                reason = f"it belongs to user {status.st_uid}, not to you (user {os.geteuid()})"
                raise errors.ConfigFileError(path, reason, "Change its owner, or remove it")
            if trust.others_bits(status):
                raise errors.ConfigFileError(path, "others can write it", f"Run: chmod go-w {path}")
            content = file.read(MAX_BYTES + 1)
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


def _stamp(status: os.stat_result) -> list[int]:
    fields = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return [*fields, status.st_uid, status.st_mode]


def _recall(memory: str, stamps: list[list[Any]]) -> dict[str, tuple[str, str]] | None:
    """Returns what was read from files with these stamps; None if that is not remembered."""
    try:
        handle = os.open(memory, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if status.st_uid != os.geteuid() or status.st_mode & 0o022 or not stat.S_ISREG(status.st_mode):
                return None
            data = json.loads(file.read(4 * MAX_BYTES))
        if data["format"] != FORMAT or data["stamps"] != stamps or data["user"] != _user():
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
            json.dump({"format": FORMAT, "stamps": stamps, "user": _user(), "values": values}, file)
        os.replace(temporary, memory)
    except OSError:
        return
