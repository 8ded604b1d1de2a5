"""Errors of a build: the sources are rejected or change, or another process does not finish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .base import BuildError, OpforgeError, bullet_list, log_line


class CompileError(BuildError):
    """The compiler or the linker rejected the sources.

    `step` is what failed, such as "compile relu.cpp", and `command` holds its arguments. `diagnostics` are the
    compilers' errors, warnings and notes in their order. Each is a dict with file, line, column (0 if unknown),
    severity and message.
    """

    kind = "compile"

    def __init__(
        self,
        message: str,
        op: str = "",
        log: str = "",
        step: str = "",
        command: Sequence[str] = (),
        diagnostics: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message, op, log)
        self.step, self.command, self.diagnostics = step, tuple(command), tuple(map(dict, diagnostics))

    @classmethod
    def of(
        cls,
        op: str,
        step: str,
        diagnostic: str,
        context: str,
        command: Sequence[str],
        log: str,
        diagnostics: Iterable[Mapping[str, Any]] = (),
    ) -> CompileError:
        """Returns the error with a message that holds the first diagnostic, its context, the command and the log."""
        import shlex

        around = f"\n{context}" if context else ""
        message = f"{op}: {step} failed: {diagnostic}{around}\ncommand: {shlex.join(command)}{log_line(log)}"
        return cls(message, op, log, step, command, diagnostics)


class UnstableInputError(BuildError):
    """A source kept changing while it was compiled; `paths` are the files that changed."""

    kind = "unstable"

    def __init__(self, message: str, op: str = "", log: str = "", paths: Sequence[str] = ()) -> None:
        super().__init__(message, op, log)
        self.paths = tuple(paths)

    @classmethod
    def of(cls, op: str, paths: Sequence[str]) -> UnstableInputError:
        """Returns the error with a message that lists the files."""
        message = f"{op}: these files kept changing while they were compiled; stop writing to them:{bullet_list(paths)}"
        return cls(message, op, paths=paths)


class LockTimeoutError(OpforgeError, TimeoutError):
    """Another process kept building the same op for longer than OPFORGE_LOCK_TIMEOUT."""

    def __init__(self, op: str, seconds: float, owner: str) -> None:
        super().__init__(
            f"{op}: waited {seconds:g} s for {owner}. Raise OPFORGE_LOCK_TIMEOUT to wait longer, or end that process."
        )
        self.op, self.seconds, self.owner = op, seconds, owner
