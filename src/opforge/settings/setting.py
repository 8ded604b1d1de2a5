"""What a setting is: a name, the kind of its value, its default, and where it may be set."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from opforge import errors

from . import environment
from .kinds import Kind

T = TypeVar("T")
SITE_FILE = "/etc/opforge/config.toml"
TABLE: dict[str, Setting[Any]] = {}
"""Every setting by its name, in the order of the documentation."""
_of_files: dict[str, tuple[str, str]] | None = None


class Setting(Generic[T]):
    """A setting. A call returns its value, which is read anew: never at import."""

    __slots__ = ("_names", "aliases", "default", "in_files", "is_secret", "kind", "meaning", "name", "variable")

    def __init__(
        self,
        name: str,
        kind: Kind[T],
        meaning: str,
        *,
        default: str | Callable[[], str] = "",
        aliases: Iterable[str] = (),
        in_files: bool = True,
        is_secret: bool = False,
    ) -> None:
        """Enters the setting into TABLE.

        Args:
            name: Its key in settings files; the variable is OPFORGE_ and the name in upper case.
            kind: What its values are.
            meaning: Markdown for the documentation.
            default: What the variable would say if nothing else is in force.
            aliases: Variables of other projects that count if opforge's own is not set, or blank.
            in_files: Whether settings files may hold it. What is for one command or one process tree is the variable's.
            is_secret: Whether its value must not be shown.
        """
        self.name, self.kind, self.meaning, self.default = name, kind, meaning, default or kind.empty
        self.aliases, self.in_files, self.is_secret = (*aliases,), in_files, is_secret
        self.variable = environment.own(name)
        self._names = tuple((text.encode(), text) for text in (self.variable, *self.aliases))
        TABLE[name] = self

    def __call__(self) -> T:
        """Returns the value in force. Raises SettingError, and ConfigFileError for a settings file."""
        text, source = self.found()
        try:
            return self.kind.parse(text or self.default_text())
        except ValueError as error:
            raise errors.SettingError(source, text.strip(), self.kind.expected) from error

    def found(self) -> tuple[str, str]:
        """Returns the text in force and the variable or file it is from; two empty strings if the default is in force.

        A blank variable stands for the default. Raises ConfigFileError.
        """
        here = environment.variables()
        for encoded, name in self._names:
            value = here.get(encoded)
            if value and not value.isspace():
                return os.fsdecode(value), name
        if not self.in_files or self._names[0][0] in here:
            return "", ""
        return of_files().get(self.name, ("", ""))

    def is_set(self) -> bool:
        """Returns whether anything but the default is in force. Raises ConfigFileError."""
        return bool(self.found()[0])

    def default_text(self) -> str:
        """Returns what the variable would say if the default is in force."""
        return self.default if isinstance(self.default, str) else self.default()


def user_file() -> str:
    """Returns the user's settings file."""
    return f"{environment.config_dir()}/config.toml"


def reset() -> None:
    """Forgets what the settings files say: they are read again at the next call."""
    global _of_files
    _of_files = None


def of_files() -> dict[str, tuple[str, str]]:
    """Returns what the settings files say, by setting: the text, and the file. They are read once in a process.

    Raises ConfigFileError.
    """
    global _of_files
    if _of_files is None:
        present = {}
        for path in (SITE_FILE, user_file()):
            try:
                present[path] = os.stat(path)
            except OSError:  # there is none, or none for this user
                continue
        values: dict[str, tuple[str, str]] = {}
        if present:
            from . import files  # not on the path of a hit, unless there is a file

            values = files.read(present, {name: each.kind if each.in_files else None for name, each in TABLE.items()})
        _of_files = values
    return _of_files
