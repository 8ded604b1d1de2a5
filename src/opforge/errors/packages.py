"""Errors about other packages that are missing or have an unsupported version."""

from __future__ import annotations

from .base import OpforgeError


class ExtraNotInstalledError(OpforgeError, ImportError):
    """A part of opforge needs a package that comes with an optional extra."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the package {package!r}, which is not installed."
            f" Install it with: pip install 'opforge[{extra}]'."
        )
        self.what, self.package, self.extra = what, package, extra


class DeepSpeedError(OpforgeError, ImportError):
    """DeepSpeed is missing, or differs too much from the version that opforge supports."""

    def __init__(self, problem: str, tested: str) -> None:
        super().__init__(
            f"DeepSpeed cannot be run on opforge: {problem}. opforge was tested with DeepSpeed{tested}."
            f" Install that after torch, with: pip install --no-build-isolation 'deepspeed{tested}'"
        )
        self.problem, self.tested = problem, tested


class HubLoaderError(OpforgeError, ImportError):
    """The hub's loader is missing, or differs too much from the version that opforge supports."""

    def __init__(self, problem: str, tested: str) -> None:
        super().__init__(
            f"kernels cannot load packages by opforge: {problem}. opforge was tested with kernels{tested}."
            f" Install that with: pip install 'kernels{tested}'"
        )
        self.problem, self.tested = problem, tested


class ProgramError(OpforgeError, ValueError):
    """A file of an exported program cannot be written, is damaged, or does not fit this machine."""

    def __init__(self, path: str, problem: str, hint: str) -> None:
        super().__init__(f"{path}: {problem}. {hint}.")
        self.path, self.problem, self.hint = path, problem, hint
