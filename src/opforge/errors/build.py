"""Errors of a build: sources that are rejected, change or do not fit, and another process that does not finish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from .base import BuildError, LoadError, OpforgeError, bullet_list, log_line


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

    def __str__(self) -> str:
        """Returns the message, with colours if the interpreter prints it on a terminal as the end of the process."""
        text = super().__str__()
        return colored(text) if _is_printed_by_interpreter() else text

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


def colored(message: str) -> str:
    """Returns the message of a CompileError with colours: where the error is, its mark, what to do."""
    import re

    for pattern, style in COLORS.items():
        message = re.sub(pattern, lambda match, style=style: f"\x1b[{style}m{match[0]}\x1b[0m", message, count=1)  # type: ignore[misc]
    return message


COLORS = {
    r"\b(?:fatal )?error:": "1;31",
    r"(?m)^>.*$": "1",
    r"(?m)(?<=^       \| )[ ~^]+$": "1;32",
    r"(?m)^hint:": "1;36",
}
"""Pattern -> parameters of the terminal's escape sequence."""


def has_colors(stream: TextIO | None) -> bool:
    """Returns whether a stream is a terminal that shows colours, and NO_COLOR is not set (https://no-color.org)."""
    import os

    is_plain = os.environ.get("NO_COLOR", "") != "" or os.environ.get("TERM") == "dumb"
    return not is_plain and stream is not None and stream.isatty()  # None: the process was started without one


def _is_printed_by_interpreter() -> bool:
    """Returns whether no code has asked for the text, so that escape sequences can reach the terminal alone."""
    import sys

    if not has_colors(sys.stderr):
        return False
    frame = sys._getframe(1).f_back  # the caller of __str__; the interpreter itself has no frame
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame is None or frame.f_code.co_name == "_print_exception_bltin"  # since Python 3.13


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


class KernelSchemaError(LoadError):
    """Kernels take or return other C++ types than the schemas of their ops say. Nothing was registered.

    `kernels` describes each of them, with what to write.
    """

    def __init__(self, op: str, library: str, kernels: Sequence[str]) -> None:
        problem = "torch would pass wrong values to its kernels"
        super().__init__(op, library, problem, f"Change these functions, or their schemas:{bullet_list(kernels)}")
        self.kernels = tuple(kernels)


class BuildForbiddenError(OpforgeError, RuntimeError):
    """An op would have to be built inside `opforge.no_builds()`; `rejected` lists the stored entries with reasons."""

    def __init__(self, op: str, rejected: Sequence[str]) -> None:
        entries = bullet_list(rejected) if rejected else "\n  (no entry was found)"
        super().__init__(
            f"{op}: no built entry can be used, and opforge.no_builds() forbids building one:{entries}"
            "\nBuild it before, with opforge.prepare or build-ops."
        )
        self.op, self.rejected = op, tuple(rejected)


class LockTimeoutError(OpforgeError, TimeoutError):
    """Another process kept building the same op for longer than OPFORGE_LOCK_TIMEOUT."""

    def __init__(self, op: str, seconds: float, owner: str) -> None:
        super().__init__(
            f"{op}: waited {seconds:g} s for {owner}. Raise OPFORGE_LOCK_TIMEOUT to wait longer, or end that process."
        )
        self.op, self.seconds, self.owner = op, seconds, owner


class CompileForbiddenError(BuildForbiddenError):
    """torch.compile or a JIT would compile inside `opforge.no_builds()`: `op` names the code, `label` the scope."""

    def __init__(self, op: str, label: str = "") -> None:
        missing = f"nothing that was warmed as {label!r} fits" if label else "no compiled graph fits"
        scope = f"opforge.warm({label!r})" if label else "opforge.compiled(NAME)"
        OpforgeError.__init__(
            self,
            f"{op}: {missing}, and opforge.no_builds() forbids compiling."
            f"\nCompile it before, for these shapes, inside {scope}.",
        )
        self.op, self.label, self.rejected = op, label, ()


class CompiledScopeError(OpforgeError, RuntimeError):
    """`opforge.save_compiled` of a name that `opforge.load_compiled` has not begun; `begun` lists the begun names."""

    def __init__(self, name: str, begun: Sequence[str]) -> None:
        super().__init__(
            f"save_compiled({name!r}): load_compiled has not begun it. Begun: {', '.join(begun) or 'none'}."
            f" Call load_compiled({name!r}) before the code that compiles."
        )
        self.name, self.begun = name, tuple(begun)
