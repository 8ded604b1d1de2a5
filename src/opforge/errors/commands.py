"""Errors of files that users write or name: settings, libraries to inspect, code to port."""

from __future__ import annotations

from .base import OpforgeError


class ConfigFileError(OpforgeError, ValueError):
    """A settings file cannot be read or trusted, or has a value that cannot be used."""

    def __init__(self, path: str, problem: str, advice: str) -> None:
        end = "" if advice.endswith(("?", ".")) else "."
        super().__init__(f"The settings file {path} cannot be used: {problem}. {advice}{end}")
        self.path, self.problem, self.advice = path, problem, advice


class InspectionError(OpforgeError, ValueError):
    """A file, an entry or an op cannot be inspected."""

    def __init__(self, what: str, problem: str, advice: str) -> None:
        super().__init__(f"{what} cannot be inspected: {problem}. {advice}.")
        self.what, self.problem, self.advice = what, problem, advice


class PortError(OpforgeError, ValueError):
    """A file cannot be ported."""

    def __init__(self, path: str, problem: str, advice: str) -> None:
        super().__init__(f"{path} cannot be ported: {problem}. {advice}.")
        self.path, self.problem, self.advice = path, problem, advice


class ProjectError(OpforgeError, ValueError):
    """A project cannot be created."""

    def __init__(self, name: str, problem: str, advice: str) -> None:
        super().__init__(f"The project {name!r} cannot be created: {problem}. {advice}.")
        self.name, self.problem, self.advice = name, problem, advice


class TuningError(OpforgeError, ValueError):
    """An op cannot be tuned, or a file for it cannot be used."""

    def __init__(self, what: str, problem: str, advice: str) -> None:
        super().__init__(f"{what} cannot be used for tuning: {problem}. {advice}.")
        self.what, self.problem, self.advice = what, problem, advice


class BenchFileError(OpforgeError, ValueError):
    """A file of `opforge bench` cannot be read, compared or written."""

    def __init__(self, path: str, problem: str, advice: str) -> None:
        super().__init__(f"{path} cannot be used: {problem}. {advice}.")
        self.path, self.problem, self.advice = path, problem, advice
