"""The keys of settings files and their types. Their values are turned into the text that the variable would have."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from opforge import errors, trust

from .units import AGE_EXPECTED, SIZE_EXPECTED, parse_age, parse_size

MAX_BYTES = 1 << 20
PATH_EXPECTED = "an absolute path, or one that begins with ~/"
OF_ENVIRONMENT = (
    "build_ops",
    "build_portable",
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
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
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


def read(path: str) -> dict[str, str]:
    """Returns the values of one file by key, as their variables would have them.

    Raises:
        ConfigFileError: The file cannot be read or trusted, or a key or a value in it is wrong.
        ExtraNotInstalledError: Python 3.10 has no parser for TOML, and tomli is not installed.
    """
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
    advice = f"Did you mean {near[0]}?" if near else f"Expected one of {', '.join(KEYS)}"
    return f"{key!r} is no setting", advice


def _content(path: str) -> bytes:
    """Returns a file's bytes. Raises ConfigFileError if others than root, the user and trusted owners can change it."""
    named = os.environ.get("OPFORGE_TRUSTED_OWNERS", "").split(",")
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
