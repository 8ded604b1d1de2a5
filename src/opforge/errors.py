"""Every error that opforge raises: one class a kind. Each message says what failed, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class OpforgeError(Exception):
    """The base of all of opforge's errors. What a constructor takes is an attribute of that name, so that a program
    need not read the message; they cross to other processes whole.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, dict(self.__dict__))


def _revive(kind: type[OpforgeError], args: tuple[Any, ...], state: dict[str, Any]) -> OpforgeError:
    error = kind.__new__(kind, *args)
    super(OpforgeError, error).__init__(*args)  # Python's own part: ImportError keeps its message apart
    error.__dict__.update(state)
    return error


def _bullets(lines: Iterable[str]) -> str:
    return "".join(f"\n  - {line}" for line in lines)


def _full(log: str) -> str:
    return f"\nfull log: {log}" if log else ""


def _near(name: str, known: Iterable[str]) -> tuple[str, ...]:
    import difflib

    return tuple(difflib.get_close_matches(name, list(known), n=3, cutoff=0.5))


def _did_you_mean(near: Iterable[str]) -> str:
    names = " or ".join(map(repr, near))
    return f" Did you mean {names}?" if names else ""


class SettingError(OpforgeError, ValueError):
    """An environment variable or an argument holds a value that cannot be used."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name}={value!r} cannot be used: expected {expected}.")
        self.name, self.value, self.expected = name, value, expected


class UnknownAcceleratorError(OpforgeError, ValueError):
    """The accelerator asked for is not one that this process knows; `near` are those of a similar name."""

    def __init__(self, name: str, known: Sequence[str], asked_by: str) -> None:
        self.near = _near(name, known)
        super().__init__(
            f"{name!r}, asked for by {asked_by}, is no accelerator known here.{_did_you_mean(self.near)}"
            f" Known: {', '.join(known)}. Install the package that provides it, or choose one of these."
        )
        self.name, self.known, self.asked_by = name, tuple(known), asked_by


class AcceleratorUnavailableError(OpforgeError, RuntimeError):
    """The accelerator is known, but cannot be used on this machine; `reason` says why."""

    def __init__(self, name: str, reason: str, asked_by: str) -> None:
        super().__init__(
            f"The accelerator {name!r}, asked for by {asked_by}, cannot be used here: {reason}."
            " Mend that, or unset the choice to let opforge pick one."
        )
        self.name, self.reason, self.asked_by = name, reason, asked_by


class AcceleratorInUseError(OpforgeError, RuntimeError):
    """Another thread holds a `use_accelerator` scope."""

    def __init__(self, wanted: str, active: str) -> None:
        super().__init__(
            f"use_accelerator({wanted!r}) was refused: another thread is inside use_accelerator({active!r}), and the"
            " active accelerator is one for the whole process. Enter the scope once, before starting threads."
        )
        self.wanted, self.active = wanted, active


class CommunicationError(OpforgeError, RuntimeError):
    """torch.distributed cannot be started with the accelerator's backend."""

    def __init__(self, accelerator: str, backend: str, reason: str) -> None:
        super().__init__(
            f"torch.distributed cannot start the backend {backend!r} for the accelerator {accelerator!r}: {reason}."
            " Install what brings it, or name another, as in init_distributed(backend='gloo')."
        )
        self.accelerator, self.backend, self.reason = accelerator, backend, reason


class OpNotFoundError(OpforgeError, LookupError):
    """No builder of that name is offered by the accelerator; `near` are those of a similar name."""

    def __init__(
        self, name: str, accelerator: str, known: Mapping[str, str], refused: Mapping[str, str] | None = None
    ) -> None:
        listed = _bullets(f"{op}: {why}" for op, why in known.items()) if known else "\n  (it offers none)"
        left_out = _bullets(f"{entry}: {why}" for entry, why in (refused or {}).items())
        self.near = _near(name, known)
        super().__init__(
            f"The accelerator {accelerator!r} offers no op builder {name!r}.{_did_you_mean(self.near)}"
            f" It offers:{listed}" + (f"\nLeft out:{left_out}" if left_out else "")
        )
        self.name, self.accelerator, self.known, self.refused = name, accelerator, dict(known), dict(refused or {})


class OpIncompatibleError(OpforgeError, RuntimeError):
    """The op cannot be built or loaded for this target; every reason is listed."""

    def __init__(self, op: str, target: str, reasons: Sequence[str]) -> None:
        super().__init__(f"The op {op!r} cannot be used for {target}:{_bullets(reasons)}")
        self.op, self.target, self.reasons = op, target, tuple(reasons)


class PrebuiltRequiredError(OpforgeError, RuntimeError):
    """OPFORGE_PREBUILT=require, and what is built already does not fit: each entry with its reason."""

    def __init__(self, op: str, target: str, rejected: Sequence[str]) -> None:
        seen = _bullets(rejected) if rejected else "\n  (nothing was there to look at)"
        super().__init__(
            f"No built entry of the op {op!r} for {target} can be used, and OPFORGE_PREBUILT=require forbids to build"
            f" one:{seen}\nName the folder that holds it in OPFORGE_CACHE_LAYERS, or set OPFORGE_PREBUILT=prefer."
        )
        self.op, self.target, self.rejected = op, target, tuple(rejected)


class BuilderError(OpforgeError, TypeError):
    """An op's builder is declared wrongly."""

    def __init__(self, builder: str, problem: str, advice: str) -> None:
        super().__init__(f"{builder}: {problem}. {advice}")
        self.builder, self.problem, self.advice = builder, problem, advice


class SourceNotFoundError(OpforgeError, FileNotFoundError):
    """A source or an include folder that a builder names does not exist."""

    def __init__(self, op: str, missing: str, searched: Sequence[str]) -> None:
        super().__init__(
            f"The op {op!r} names {missing!r}, which does not exist. Looked in:{_bullets(searched)}"
            "\nCorrect the name, or add the folder that holds it."
        )
        self.op, self.missing, self.searched = op, missing, tuple(searched)


class ToolchainNotFoundError(OpforgeError, RuntimeError):
    """No compiler that can build the op was found. `short` is what a table says of it."""

    def __init__(self, what: str, searched: Sequence[str], advice: str, short: str = "") -> None:
        super().__init__(f"No {what} was found. Looked for:{_bullets(searched)}\n{advice}")
        self.what, self.searched, self.advice = what, tuple(searched), advice
        self.short = short or f"No {what} was found."

    def after(self, rejected: Sequence[str]) -> ToolchainNotFoundError:
        """This error, with why each built entry that was looked at before could not be used instead."""
        if rejected:
            self.args = (f"{self.args[0]}\nWhat is built already was not used either:{_bullets(rejected)}",)
        return self


class ToolchainError(OpforgeError, RuntimeError):
    """A compiler was found but does not work."""

    def __init__(self, path: str, problem: str, advice: str) -> None:
        super().__init__(f"The compiler {path} cannot be used: {problem}. {advice}")
        self.path, self.problem, self.advice = path, problem, advice


class BuildError(OpforgeError, RuntimeError):
    """Building an op failed. `log` is the path of all that was printed, or empty.

    A process that waited for the build raises the same, made from the same parts, which are JSON-able.
    """

    kind = "build"

    def __init__(self, message: str, op: str = "", log: str = "") -> None:
        super().__init__(message)
        self.message, self.op, self.log = message, op, log


class CompileError(BuildError):
    """The compiler or the linker refused the sources.

    `step` is what failed, such as "compile relu.cpp", and `command` its words. `diagnostics` are the compilers' errors,
    warnings and notes in their order, each a dict: file, line, column (0 where not told), severity, message.
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
        """Build the message from its parts: the first diagnostic, its context, the command and the full log's path."""
        import shlex

        around = f"\n{context}" if context else ""
        message = f"{op}: {step} failed: {diagnostic}{around}\ncommand: {shlex.join(command)}{_full(log)}"
        return cls(message, op, log, step, command, diagnostics)


class BuildResourceError(BuildError):
    """The machine ran out of disk, memory, processes or open files, or the build was ended from outside."""

    kind = "resource"

    @classmethod
    def of(cls, op: str, problem: str, advice: str, log: str = "") -> BuildResourceError:
        return cls(f"{op}: the build stopped: {problem}. {advice}{_full(log)}", op, log)


class UnstableInputError(BuildError):
    """A source kept changing while it was being compiled; `paths` are those that did."""

    kind = "unstable"

    def __init__(self, message: str, op: str = "", log: str = "", paths: Sequence[str] = ()) -> None:
        super().__init__(message, op, log)
        self.paths = tuple(paths)

    @classmethod
    def of(cls, op: str, paths: Sequence[str]) -> UnstableInputError:
        told = f"{op}: these files kept changing while they were compiled; stop writing to them:{_bullets(paths)}"
        return cls(told, op, paths=paths)


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
            f"The layer {path} cannot be used: {problem}. A layer must belong to root, to you or to one of"
            f" OPFORGE_TRUSTED_OWNERS, and nobody else may write it. {advice}, or take it out of OPFORGE_CACHE_LAYERS.",
        )
        self.path, self.problem, self.advice = path, problem, advice


class LockTimeoutError(OpforgeError, TimeoutError):
    """Another process kept building the same op for longer than OPFORGE_LOCK_TIMEOUT."""

    def __init__(self, op: str, seconds: float, owner: str) -> None:
        super().__init__(
            f"{op}: waited {seconds:g} s for {owner}. Raise OPFORGE_LOCK_TIMEOUT to wait longer, or end that process."
        )
        self.op, self.seconds, self.owner = op, seconds, owner


class LoadError(OpforgeError, ImportError):
    """A built library could not be loaded."""

    def __init__(self, op: str, library: str, problem: str, advice: str) -> None:
        super().__init__(f"{op}: {library} could not be loaded: {problem}. {advice}")
        self.op, self.library, self.problem, self.advice = op, library, problem, advice


class KernelLaunchError(OpforgeError, RuntimeError):
    """A kernel was not launched; its output is untouched."""

    def __init__(self, op: str, kernel: str, problem: str) -> None:
        super().__init__(f"{op}: the kernel {kernel!r} was not launched: {problem}.")
        self.op, self.kernel, self.problem = op, kernel, problem


class NamespaceClashError(OpforgeError, RuntimeError):
    """An op of this public name is registered already, by another op or by a library that opforge did not load."""

    def __init__(self, op: str, qualified: str, owner: str = "another library") -> None:
        super().__init__(
            f"{op}: torch.ops.{qualified.replace('::', '.')} is registered already, by {owner}."
            " Rename the namespace in the source's STABLE_TORCH_LIBRARY, or do not load both."
        )
        self.op, self.qualified, self.owner = op, qualified, owner


class ArchiveError(OpforgeError, ValueError):
    """An archive of cache entries cannot be read or must not be unpacked."""

    def __init__(self, path: str, problem: str, kept: int) -> None:
        super().__init__(
            f"The archive {path} was refused: {problem}. {kept} of its entries were imported before that."
            " Export it again with `opforge cache export`."
        )
        self.path, self.problem, self.kept = path, problem, kept


class PortError(OpforgeError, ValueError):
    """A file cannot be ported."""

    def __init__(self, path: str, problem: str, advice: str) -> None:
        super().__init__(f"{path} cannot be ported: {problem}. {advice}.")
        self.path, self.problem, self.advice = path, problem, advice


class ExtraNotInstalledError(OpforgeError, ImportError):
    """A part of opforge needs a package that comes with an optional extra."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the package {package!r}, which is not installed."
            f" Install it by: pip install 'opforge[{extra}]'."
        )
        self.what, self.package, self.extra = what, package, extra


class HostfileError(OpforgeError, ValueError):
    """A line of a hostfile cannot be used."""

    def __init__(self, path: str, line: int, text: str, problem: str, expected: str) -> None:
        super().__init__(f"{path}, line {line}: {text!r}: {problem}. Expected {expected}.")
        self.path, self.line, self.text, self.problem, self.expected = path, line, text, problem, expected


class CoresError(OpforgeError, ValueError):
    """Ranks cannot be given the cores that were asked for."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"Cores cannot be given to ranks: {problem}. {advice}.")
        self.problem, self.advice = problem, advice


class LauncherNotFoundError(OpforgeError, RuntimeError):
    """The program that a launcher needs is not installed, or is not one that is known."""

    def __init__(self, launcher: str, problem: str, advice: str) -> None:
        super().__init__(f"The launcher {launcher!r} cannot be used here: {problem}. {advice}.")
        self.launcher, self.problem, self.advice = launcher, problem, advice


class LaunchError(OpforgeError, RuntimeError):
    """A job could not be started, or one of its processes failed; none of it runs any more."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"The launch failed: {problem}. {advice}.")
        self.problem, self.advice = problem, advice


class DeepSpeedError(OpforgeError, ImportError):
    """DeepSpeed is missing, or too different from the version that opforge knows."""

    def __init__(self, problem: str, tested: str) -> None:
        super().__init__(
            f"DeepSpeed cannot be run on opforge: {problem}. opforge was tested with DeepSpeed{tested}; beside torch it"
            f" is installed by: pip install --no-build-isolation 'deepspeed{tested}'"
        )
        self.problem, self.tested = problem, tested


class InspectionError(OpforgeError, ValueError):
    """A file, an entry or an op cannot be looked into."""

    def __init__(self, what: str, problem: str, advice: str) -> None:
        super().__init__(f"{what} cannot be inspected: {problem}. {advice}.")
        self.what, self.problem, self.advice = what, problem, advice
