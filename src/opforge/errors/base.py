"""The base class, and the errors that a load can raise before it builds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class OpforgeError(Exception):
    """Base class of all errors that opforge raises.

    Every argument of a constructor is also an attribute of the same name, so programs need not parse messages.
    Pickling keeps all attributes, so an error reaches another process unchanged.
    """

    __module__ = "opforge.errors"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("opforge.errors."):
            cls.__module__ = "opforge.errors"  # the public name: tracebacks print it, and pickles refer to it

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(kind: type[OpforgeError], args: tuple[Any, ...], state: dict[str, Any]) -> OpforgeError:
    error = kind.__new__(kind, *args)
    super(OpforgeError, error).__init__(*args)  # ImportError keeps its message outside `args`
    error.__dict__.update(state)
    return error


def bullet_list(lines: Iterable[str]) -> str:
    """Returns the lines as a list, each after a line break and a dash."""
    return "".join(f"\n  - {line}" for line in lines)


def printable(text: str) -> str:
    """Returns a text from others with a space in place of each character that could control a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def log_line(log: str) -> str:
    """Returns the line that names the full log; "" if there is no log."""
    return f"\nfull log: {log}" if log else ""


def _similar_names(name: str, names: Iterable[str], cutoff: float = 0.5) -> tuple[str, ...]:
    import difflib

    return tuple(difflib.get_close_matches(name, list(names), n=3, cutoff=cutoff))


def _did_you_mean(names: Iterable[str]) -> str:
    alternatives = " or ".join(map(repr, names))
    return f" Did you mean {alternatives}?" if alternatives else ""


def unknown_name(where: str, name: str, known: Iterable[str]) -> tuple[str, str]:
    """Returns the problem of a name that is not among the known ones, and the advice."""
    import difflib

    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    line = f"Did you mean {near[0]!r}? " if near else ""
    return f"{where} names {name!r}", f"{line}Expected one of {', '.join(known)}"


class SettingError(OpforgeError, ValueError):
    """An environment variable or an argument has a value that cannot be used."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name}={value!r} cannot be used: expected {expected}.")
        self.name, self.value, self.expected = name, value, expected


# Choosing and using an accelerator.


OTHER_NAMES = {
    **dict.fromkeys(("gpu", "nvidia", "amd", "rocm", "hip"), "cuda"),
    "ascend": "npu",
    "gaudi": "hpu",
    "intel": "xpu",
    "metal": "mps",
}
"""What people call a device, and the name of its accelerator."""
ARCHITECTURES = ("sm_", "compute_", "gfx")


class UnknownAcceleratorError(OpforgeError, ValueError):
    """The requested accelerator is unknown in this process; `near` holds the known names that are similar."""

    def __init__(self, name: str, registered: Sequence[str], requested_by: str) -> None:
        usual = OTHER_NAMES.get(name.lower(), "")
        self.near = (usual,) if usual in registered else _similar_names(name, registered)
        if name.startswith(ARCHITECTURES) and "cuda" in registered:
            self.near = (f"cuda:{name}",)
        super().__init__(
            f"{name!r}, requested by {requested_by}, is not a known accelerator.{_did_you_mean(self.near)}"
            f" Known: {', '.join(registered)}. Install the package that provides it, or choose one of these."
        )
        self.name, self.registered, self.requested_by = name, tuple(registered), requested_by


class AcceleratorUnavailableError(OpforgeError, RuntimeError):
    """The accelerator is known but cannot be used on this machine; `reason` says why."""

    def __init__(self, name: str, reason: str, requested_by: str) -> None:
        super().__init__(
            f"The accelerator {name!r}, requested by {requested_by}, cannot be used here: {reason}."
            " Fix that, or unset it to let opforge choose."
        )
        self.name, self.reason, self.requested_by = name, reason, requested_by


class AcceleratorInUseError(OpforgeError, RuntimeError):
    """Another thread is inside a `use_accelerator` scope."""

    def __init__(self, requested: str, active: str) -> None:
        super().__init__(
            f"use_accelerator({requested!r}) is not possible: another thread is inside use_accelerator({active!r}), and"
            " a process has one active accelerator. Enter the scope once, before starting threads."
        )
        self.requested, self.active = requested, active


class CommunicationError(OpforgeError, RuntimeError):
    """torch.distributed cannot be started with the accelerator's backend."""

    def __init__(self, accelerator: str, backend: str, reason: str) -> None:
        super().__init__(
            f"torch.distributed cannot start the backend {backend!r} for the accelerator {accelerator!r}: {reason}."
            " Install what provides it, or choose another, such as init_distributed(backend='gloo')."
        )
        self.accelerator, self.backend, self.reason = accelerator, backend, reason


# Declaring an op, and finding what is built.


class OpNotFoundError(OpforgeError, LookupError):
    """The accelerator has no builder of that name; `near` holds the names that are similar."""

    def __init__(
        self,
        name: str,
        accelerator: str,
        offered: Mapping[str, str],
        refused: Mapping[str, str] | None = None,
        served_by: str = "",
    ) -> None:
        ops = bullet_list(f"{op}: {state}" for op, state in offered.items()) if offered else "\n  (it offers none)"
        left_out = bullet_list(f"{entry_point}: {reason}" for entry_point, reason in (refused or {}).items())
        self.near = _similar_names(name, offered)
        super().__init__(
            f"The accelerator {accelerator!r} offers no op builder {name!r}."
            + (f" {served_by}." if served_by else _did_you_mean(self.near))
            + f" It offers:{ops}"
            + (f"\nRejected:{left_out}" if left_out else "")
        )
        self.name, self.accelerator, self.offered, self.refused = name, accelerator, dict(offered), dict(refused or {})
        self.served_by = served_by


class OpIncompatibleError(OpforgeError, RuntimeError):
    """The op cannot be built or loaded for this target; `reasons` lists every reason."""

    def __init__(self, op: str, target: str, reasons: Sequence[str]) -> None:
        super().__init__(f"The op {op!r} cannot be used for {target}:{bullet_list(reasons)}")
        self.op, self.target, self.reasons = op, target, tuple(reasons)


class PrebuiltRequiredError(OpforgeError, RuntimeError):
    """OPFORGE_PREBUILT=require is set, and no built entry fits; `rejected` lists the entries with their reasons."""

    def __init__(self, op: str, target: str, rejected: Sequence[str]) -> None:
        entries = bullet_list(rejected) if rejected else "\n  (no entry was found)"
        super().__init__(
            f"No built entry of the op {op!r} for {target} can be used, and OPFORGE_PREBUILT=require forbids building"
            f" one:{entries}\nName the folder that holds it in OPFORGE_CACHE_LAYERS, or set OPFORGE_PREBUILT=prefer."
        )
        self.op, self.target, self.rejected = op, target, tuple(rejected)


class BuilderError(OpforgeError, TypeError):
    """An op's builder is declared incorrectly."""

    def __init__(self, builder: str, problem: str, advice: str) -> None:
        super().__init__(f"{builder}: {problem}. {advice}")
        self.builder, self.problem, self.advice = builder, problem, advice

    @classmethod
    def of_import(cls, builder: str, error: BaseException, traceback: str) -> BuilderError:
        """Returns the error about a builder's module that is there and cannot be imported.

        `traceback` is the command that prints the whole traceback.
        """
        if isinstance(error, ModuleNotFoundError) and error.name:
            is_own = error.name.partition(".")[0] == builder.partition(":")[0].partition(".")[0]
            advice = "Add it to the package, or correct the import" if is_own else "Install it"
            return cls(builder, f"its module needs {error.name!r}, which is not installed", advice)
        problem = f"importing its module failed: {type(error).__name__}: {str(error).rstrip('.')}"
        return cls(builder, problem, f"Fix the module. For the whole traceback: {traceback}")


def _file_above(folder: str) -> str:
    """Returns the file that a folder would lie below, such as a zip file on sys.path; empty if there is none."""
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        if os.path.isfile(folder):
            return folder
    return ""


def _near(missing: str, folders: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of files in these folders that are nearly the one that is missing."""
    from contextlib import suppress

    names: set[str] = set()
    for folder in folders:
        with suppress(OSError):
            names |= set(os.listdir(os.path.join(folder, "" if os.path.isabs(missing) else os.path.dirname(missing))))
    return _similar_names(os.path.basename(missing), sorted(names), cutoff=0.75)


class SourceNotFoundError(OpforgeError, FileNotFoundError):
    """A source or an include folder that a builder names does not exist."""

    def __init__(self, op: str, missing: str, searched: Sequence[str]) -> None:
        exists = os.path.isabs(missing) and os.path.exists(missing)
        state = "does not exist" if not exists else "is a folder" if os.path.isdir(missing) else "is not a regular file"
        near = "" if exists else _did_you_mean(_near(missing, searched))  # what is there is nearest to itself
        advice = f"{near} Correct the name, or add the folder that holds it.".lstrip()
        archive = next(filter(None, map(_file_above, searched)), "")
        if archive:  # Python has imported the builder from it
            advice = f"{archive} is a file, and compilers read none within it: install its package unpacked."
        super().__init__(f"The op {op!r} names {missing!r}, which {state}. Looked in:{bullet_list(searched)}\n{advice}")
        self.op, self.missing, self.searched = op, missing, tuple(searched)


# Finding a compiler, and starting a build.


class ToolchainNotFoundError(OpforgeError, RuntimeError):
    """No compiler that can build the op was found. `short` is one sentence for a table."""

    def __init__(self, what: str, searched: Sequence[str], advice: str, short: str = "") -> None:
        super().__init__(f"No {what} was found. Looked for:{bullet_list(searched)}\n{advice}")
        self.what, self.searched, self.advice = what, tuple(searched), advice
        self.short = short or f"No {what} was found."

    def after(self, rejected: Sequence[str]) -> ToolchainNotFoundError:
        """Returns this error, with the reason why each built entry could not be used instead added to its message."""
        if rejected:
            self.args = (f"{self.args[0]}\nNo built entry could be used either:{bullet_list(rejected)}",)
        return self


class ToolchainError(OpforgeError, RuntimeError):
    """A compiler was found but does not work."""

    def __init__(self, path: str, problem: str, advice: str) -> None:
        super().__init__(f"The compiler {path} cannot be used: {problem}. {advice}")
        self.path, self.problem, self.advice = path, problem, advice


class BuildError(OpforgeError, RuntimeError):
    """Building an op failed. `log` is the path of the full output, or empty.

    A process that waited for the build raises the same error. It is made from the same arguments, which are therefore
    JSON-able; `kind` names the class.
    """

    kind = "build"

    def __init__(self, message: str, op: str = "", log: str = "") -> None:
        super().__init__(message)
        self.message, self.op, self.log = message, op, log


class BuildResourceError(BuildError):
    """The machine ran out of disk, memory, processes or open files, or a signal ended the build or a compiler."""

    kind = "resource"

    @classmethod
    def of(cls, op: str, problem: str, advice: str, log: str = "") -> BuildResourceError:
        """Returns the error with a message made from the problem, the advice and the log's path."""
        return cls(f"{op}: the build stopped: {problem}. {advice}{log_line(log)}", op, log)


# The cache folder.


class CacheDirError(OpforgeError, OSError):
    """The cache folder cannot be used or cannot be trusted."""

    def __init__(self, path: str, problem: str, advice: str) -> None:
        super().__init__(f"The cache folder {path} cannot be used: {problem}. {advice}")
        self.path, self.problem, self.advice = path, problem, advice


class LayerError(CacheDirError):
    """A folder that OPFORGE_CACHE_LAYERS names cannot be trusted."""

    def __init__(self, path: str, problem: str, advice: str) -> None:
        OpforgeError.__init__(
            self,
            f"The layer {path} cannot be used: {problem}. A layer must be owned by root, by you or by a user in"
            f" OPFORGE_TRUSTED_OWNERS, and nobody else may write it. {advice}, or remove it from OPFORGE_CACHE_LAYERS.",
        )
        self.path, self.problem, self.advice = path, problem, advice


# Loading a library, and calling it.


class LoadError(OpforgeError, ImportError):
    """A built library could not be loaded."""

    def __init__(self, op: str, library: str, problem: str, advice: str) -> None:
        super().__init__(f"{op}: {library} could not be loaded: {problem}. {advice}")
        self.op, self.library, self.problem, self.advice = op, library, problem, advice


class NamespaceClashError(OpforgeError, RuntimeError):
    """The op's public name is registered already, by another op or by a library that opforge did not load."""

    def __init__(self, op: str, qualified: str, owner: str = "another library") -> None:
        super().__init__(
            f"{op}: torch.ops.{qualified.replace('::', '.')} is registered already, by {owner}."
            " Rename the namespace in the source's STABLE_TORCH_LIBRARY, or do not load both."
        )
        self.op, self.qualified, self.owner = op, qualified, owner


class KernelLaunchError(OpforgeError, RuntimeError):
    """A kernel was not launched; its output is unchanged."""

    def __init__(self, op: str, kernel: str, problem: str) -> None:
        super().__init__(f"{op}: the kernel {kernel!r} was not launched: {problem}.")
        self.op, self.kernel, self.problem = op, kernel, problem
