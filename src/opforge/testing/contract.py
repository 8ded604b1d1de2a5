"""Shared by all contracts: running their tests without pytest, and checking an expected error."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any, NoReturn

__unittest = True  # unittest leaves the frames of this module out of its tracebacks


class Contract:
    """Tests that everything of one kind must pass, as methods whose names begin with `test_`."""

    def setup_method(self) -> None:
        """Prepares a test. pytest and `check` call it before each."""
        if not __debug__:
            raise RuntimeError("Python runs with -O, which removes assertions: run the contract without it.")

    def teardown_method(self) -> None:
        """Cleans up after a test. pytest and `check` call it after each."""

    @classmethod
    def check(cls) -> dict[str, str]:
        """Runs every test. Returns the names of those that were skipped, with their reasons.

        Raises AssertionError with the name and the reason of each test that failed.
        """
        skipped: dict[str, str] = {}
        failed: list[str] = []
        for name in cls.names():
            contract = cls()
            try:
                contract.setup_method()
                try:
                    getattr(contract, name)()
                finally:
                    contract.teardown_method()
            except unittest.SkipTest as reason:
                skipped[name] = str(reason)
            except Exception as error:
                text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
                failed.append(f"{cls.__name__}.{name}: {text}")
        if failed:
            raise AssertionError("\n".join(failed))
        return skipped

    @classmethod
    def names(cls) -> list[str]:
        """Returns the names of the tests, in alphabetical order."""
        return [name for name in dir(cls) if name.startswith("test_")]


def skip(reason: str) -> NoReturn:
    """Ends a test that cannot be run here. pytest and unittest show the reason."""
    raise unittest.SkipTest(reason)


def error_of(kind: type[Exception] | tuple[type[Exception], ...], call: Callable[[], Any], reason: str) -> Exception:
    """Returns the error of this class that the call raises. Fails with `reason` if there is none."""
    try:
        value = call()
    except kind as error:
        return error
    raise AssertionError(f"{reason}: expected an error, and it returned {shortened(value)}")


def shortened(value: object) -> str:
    """Returns the representation of a value in one line, at most 80 characters long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
