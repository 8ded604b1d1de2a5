"""TOML files of packages, read in one place: bounded, with the file and line in every error."""

from __future__ import annotations

import tomllib
from typing import Any

from opforge.errors import KernelFormatError
from opforge.foundation.files import read_file

MAX_BYTES = 4 << 20
CONFLICT_MARKS = ("<<<<<<< ", ">>>>>>> ")


def read(path: str, expected: str, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Returns the table in a TOML file. Raises KernelFormatError, OSError if it cannot be opened."""
    try:
        data = read_file(path, max_bytes)
    except ValueError as error:
        raise KernelFormatError(path, str(error).replace(f"{path} ", "it "), expected) from error
    return parse(data, path, expected)


def parse(data: bytes, where: str, expected: str) -> dict[str, Any]:
    """Returns the table in a text of TOML. Raises KernelFormatError."""
    try:
        text = data.decode("utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith(CONFLICT_MARKS):
                problem = f"line {number} is a mark of a merge conflict"
                raise KernelFormatError(where, problem, f"{expected}: resolve the conflict, or write the file anew")
        table: dict[str, Any] = tomllib.loads(text)
        return table
    except UnicodeDecodeError as error:
        raise KernelFormatError(
            where, f"it is not valid UTF-8 ({error.reason} at byte {error.start})", expected
        ) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, KernelFormatError):
            raise
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else f"it is not valid TOML ({error})"
        raise KernelFormatError(where, problem, expected) from error
