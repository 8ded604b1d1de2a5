"""Errors about kernel packages: their files, finding and loading them, packing, publishing and locking."""

from __future__ import annotations

from collections.abc import Sequence

from .base import OpforgeError, bullet_list

MAX_PROBLEM = 1000
"""Characters of a problem that are shown: a file that others wrote may hold a value of any length."""


class KernelFormatError(OpforgeError, ValueError):
    """A name, a version or a file of a kernel package is invalid; `where` is the file, or the field of the value."""

    def __init__(self, where: str, problem: str, expected: str) -> None:
        problem = problem if len(problem) <= MAX_PROBLEM else f"{problem[:MAX_PROBLEM]}..."
        super().__init__(f"{where}: {problem}. Expected {expected}.")
        self.where, self.problem, self.expected = where, problem, expected


class KernelNotFoundError(OpforgeError, LookupError):
    """No package of that name and version was found; `searched` lists the searched places."""

    def __init__(self, name: str, searched: Sequence[str], advice: str) -> None:
        super().__init__(f"The kernel {name} was not found. Looked in:{bullet_list(searched)}\n{advice}")
        self.name, self.searched, self.advice = name, tuple(searched), advice


class KernelIncompatibleError(OpforgeError, RuntimeError):
    """No variant of the package fits this machine; `reasons` has one line for each."""

    def __init__(self, name: str, reasons: Sequence[str], advice: str = "") -> None:
        last = f"\n{advice}" if advice else ""
        super().__init__(f"No variant of the kernel {name} can be used here:{bullet_list(reasons)}{last}")
        self.name, self.reasons, self.advice = name, tuple(reasons), advice


class KernelLoadError(OpforgeError, ImportError):
    """A package that fits could not be loaded: a file of it was changed, or importing it failed."""

    def __init__(self, kernel: str, folder: str, problem: str, advice: str) -> None:
        super().__init__(f"The kernel {kernel} in {folder} could not be loaded: {problem}. {advice}")
        self.kernel, self.folder, self.problem, self.advice = kernel, folder, problem, advice


class KernelDependencyError(OpforgeError, RuntimeError):
    """No releases of the packages agree with each other; `reasons` lists who needs what."""

    def __init__(self, name: str, reasons: Sequence[str]) -> None:
        super().__init__(
            f"No releases were found that {name} can be used with:{bullet_list(reasons)}"
            "\nRequest other versions, or publish a release that needs other ones."
        )
        self.name, self.reasons = name, tuple(reasons)


class KernelLockError(OpforgeError, RuntimeError):
    """A lock file is missing, damaged or out of date; `problems` lists everything."""

    def __init__(self, path: str, problems: Sequence[str], advice: str) -> None:
        super().__init__(f"The lock file {path} cannot be used:{bullet_list(problems)}\n{advice}")
        self.path, self.problems, self.advice = path, tuple(problems), advice


class KernelInstallError(OpforgeError, RuntimeError):
    """A package, or a variant of it, was not installed; no file of it is left."""

    def __init__(self, what: str, problem: str, advice: str) -> None:
        super().__init__(f"{what} was not installed: {problem}. {advice}.")
        self.what, self.problem, self.advice = what, problem, advice


class PackError(OpforgeError, RuntimeError):
    """A package could not be made; `problems` lists everything that is wrong with it."""

    def __init__(self, name: str, problems: Sequence[str], advice: str) -> None:
        super().__init__(f"The package {name} cannot be made:{bullet_list(problems)}\n{advice}")
        self.name, self.problems, self.advice = name, tuple(problems), advice


class KernelMappingError(OpforgeError, ValueError):
    """An entry of a mapping from a model's layers to kernels cannot be used; `where` is the entry."""

    def __init__(self, where: str, problem: str, expected: str) -> None:
        super().__init__(f"{where}: {problem}. Expected {expected}." if problem else f"{where}: expected {expected}.")
        self.where, self.problem, self.expected = where, problem, expected


class KernelScopeError(OpforgeError, RuntimeError):
    """A model whose layers have kernels was used in a way that would lose the layers' own methods."""

    def __init__(self, model: str, problem: str, advice: str) -> None:
        super().__init__(f"The model {model}: {problem}. {advice}.")
        self.model, self.problem, self.advice = model, problem, advice
