"""Errors of `opforge launch`."""

from __future__ import annotations

from .base import OpforgeError


class HostfileError(OpforgeError, ValueError):
    """A line of a hostfile cannot be used."""

    def __init__(self, path: str, line: int, text: str, problem: str, expected: str) -> None:
        super().__init__(f"{path}, line {line}: {text!r}: {problem}. Expected {expected}.")
        self.path, self.line, self.text, self.problem, self.expected = path, line, text, problem, expected


class CoresError(OpforgeError, ValueError):
    """The requested cores cannot be assigned to ranks."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"Cores cannot be assigned to ranks: {problem}. {advice}.")
        self.problem, self.advice = problem, advice


class LauncherNotFoundError(OpforgeError, RuntimeError):
    """The program that a launcher needs is not installed, or the launcher is unknown."""

    def __init__(self, launcher: str, problem: str, advice: str) -> None:
        super().__init__(f"The launcher {launcher!r} cannot be used here: {problem}. {advice}.")
        self.launcher, self.problem, self.advice = launcher, problem, advice


class LaunchError(OpforgeError, RuntimeError):
    """A job could not be started, or one of its processes failed; none of its processes runs any more."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"The launch failed: {problem}. {advice}.")
        self.problem, self.advice = problem, advice
