"""`OpBuilder`: an op as data. A subclass names its sources and flags; finding, building, loading are written once."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from opforge import settings
from opforge.accelerator.host.cpuinfo import cpu_level
from opforge.accelerator.target import Target
from opforge.cache.current import current_store
from opforge.cache.filesystem.disk import Disk
from opforge.cache.records.entry import Entry
from opforge.cache.store import Rejected, Store
from opforge.errors import BuilderError, LoadError, OpIncompatibleError, PrebuiltRequiredError
from opforge.events import emit

from . import loader, planner
from .lookup.compatibility import Compatibility, capabilities_for, obstacles, target_objections
from .lookup.finder import find, tell_of_others
from .lookup.host_requirements import device_objection
from .spec import abi as abis
from .spec import kernel_roots as roots
from .toolchains.host import HostToolchain

if TYPE_CHECKING:
    from opforge.accelerator.capabilities import Capabilities

    from .run.ninja import Progress
    from .spec.build_plan import BuildPlan
    from .spec.description import OpDescription
    from .toolchains.toolchain import Toolchain

log = logging.getLogger("opforge")
LONGEST_NAME = 200
"""Bytes of an op's name: a file's name, which has more in it than this, may have 255."""


class OpBuilder:
    """Declares one op and loads it. Subclass it, fill in the class attributes, call `load()`.

        class ReluBuilder(OpBuilder):
            name, sources = "relu", ["relu.cpp"]      # beside this file

        ReluBuilder().load().relu(x)

    `target` is a Target or its text ("cpu:x86-64-v3"); by default the machine this runs on. `debug` keeps symbols and
    source paths; `sanitize` is a list for the compiler's -fsanitize, such as "address"; `portable` builds a library
    that older systems load too, and may be built for another processor.
    """

    name: ClassVar[str] = ""
    """The op's name: an identifier, the library's name and, for pybind sources, the module's."""
    sources: ClassVar[Sequence[str]] = ()
    """Files to compile, each below this class's own folder or one of its kernel roots."""
    abi: ClassVar[str] = abis.STABLE
    """"torch-stable": one for every torch from `torch_target` on; "c": plain functions; "torch": ATen and pybind."""
    version: ClassVar[str] = "1"
    """Part of the key: another one is another op. A change of a source needs none."""
    devices: ClassVar[Sequence[str]] = ("cpu",)
    """The devices that it can be built for."""
    include_dirs: ClassVar[Sequence[str]] = ()
    """Folders for -I, found as sources are, or absolute."""
    kernel_roots: ClassVar[Sequence[roots.KernelRoot]] = ()
    """Searched, in order, after the class's own folder and before opforge's kernels."""
    defines: ClassVar[Mapping[str, str]] = {}
    """Name -> value for -D; an empty value for a name alone."""
    cxx_flags: ClassVar[Sequence[str]] = ()
    """Flags for the C++ compiler, after opforge's own (-O3, the target's level, ...)."""
    device_flags: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Device -> flags for its own sources (`*.cu`, ...), in the words of its compiler."""
    link_flags: ClassVar[Sequence[str]] = ()
    """Flags for the link, such as -L/the/folder."""
    libraries: ClassVar[Sequence[str]] = ()
    """Names for -l."""
    torch_target: ClassVar[str] = abis.OLDEST_TORCH
    """The oldest torch that the library is to load under."""
    fakes: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    """Function name -> Python fake kernel, for ops that return tensors and have no Meta kernel of their own."""
    signatures: ClassVar[Mapping[str, tuple[Any, Sequence[Any]]]] = {}
    """abi "c": function name -> (ctypes result, [ctypes arguments])."""
    folder: ClassVar[str] = ""
    """Where `sources` and `include_dirs` are looked for first; by default the folder of the class's own file."""

    def __init__(
        self, target: Target | str | None = None, *, debug: bool = False, sanitize: str = "", portable: bool = False
    ) -> None:
        self._asked = Target.parse(target) if isinstance(target, str) else target
        self._target: Target | None = None
        self.debug, self.sanitize, self.portable = debug, sanitize, portable
        self.trace: list[Rejected] = []
        """Every stored entry that the last look-up saw and did not take, with the reason."""
        self._module: Any = None
        self._watched: tuple[tuple[str, tuple[int, ...]], ...] = ()

    # -- what the op is ----------------------------------------------------------------------------------------------

    def gate(self, capabilities: Capabilities) -> Iterable[str]:
        """Reasons why the op cannot run with these capabilities; override where an op needs more than its target."""
        return ()

    @property
    def target(self) -> Target:
        """The concrete target: "native" and a missing architecture stand for this machine's own."""
        if self._target is None:
            self._target = self._concrete(self._asked)
        return self._target

    def _concrete(self, asked: Target | None) -> Target:
        if asked is None:
            asked = Target("cpu") if "cpu" in self.devices else Target(self.devices[0])
        if asked.device != "cpu":
            from .lookup.device_requirements import concrete

            return concrete(asked)
        if not asked.arch or asked.arch == ("native",):
            level = cpu_level()
            return Target("cpu", (level,) if level else ())
        return asked

    def question(self) -> list[Any] | None:
        """All that the plan takes from the builder, JSON-able; None where a subclass makes its plans in its own way."""
        return planner.question(self) if _planning(type(self)) == _planning(OpBuilder) else None

    def search_roots(self) -> tuple[roots.KernelRoot, ...]:
        """Where its sources are looked for, in order: its own folder, its kernel roots, opforge's."""
        own = roots.KernelRoot(roots.OWN, self.folder or roots.folder_of(type(self)), "")
        return (own, *self.kernel_roots, roots.OPFORGE)

    def places(self) -> dict[str, str]:
        """Where each root lies on this machine."""
        return planner.places(self)

    def describe(self) -> OpDescription:
        """The op before any compiler is chosen. Reads its own sources; raises SourceNotFoundError, BuilderError."""
        from .spec.description import describe

        self._check()
        return describe(self, self._mode_flags())

    def plan(self, toolchain: Toolchain) -> BuildPlan:
        """The build plan for this target and compiler. Raises SourceNotFoundError, BuilderError."""
        self._check()
        return planner.make_plan(self, toolchain, self.search_roots(), self._mode_flags())

    def _mode_flags(self) -> tuple[str, ...]:
        flags = ("-g", "-fno-omit-frame-pointer") if self.debug or self.sanitize else ()
        return (*flags, f"-fsanitize={self.sanitize}") if self.sanitize else flags

    def _check(self) -> None:
        builder, name = type(self).__name__, self.name
        if not isinstance(name, str) or not name.isidentifier() or len(os.fsencode(name)) > LONGEST_NAME:
            expected = f"an identifier of at most {LONGEST_NAME} bytes"
            raise BuilderError(builder, f"name={name!r}", f"Expected {expected}, such as 'fused_adam'")
        if self.abi == abis.TORCH and not name.isascii():
            raise BuilderError(builder, f"name={name!r}", "Expected ASCII: it is a Python module's")
        for attribute in ("sources", "include_dirs", "cxx_flags", "link_flags", "libraries"):
            words(builder, attribute, getattr(self, attribute))
        if not self.sources:
            raise BuilderError(builder, "it names no sources", "Give it at least one file in `sources`")
        roots.check(builder, self.search_roots())

    # -- whether it can be used --------------------------------------------------------------------------------------

    def is_compatible(self, verbose: bool = False) -> Compatibility:
        """Whether `load()` can succeed here, with every reason why not. Builds nothing."""
        reasons = obstacles(self)
        if verbose:
            for reason in reasons:
                log.warning("%s: %s", self.name, reason)
        return Compatibility(tuple(reasons))

    def objections(self) -> list[str]:
        """Reasons that hold whatever is in the cache."""
        target = self.target
        if target.device not in self.devices:
            return [f"it is an op for {', '.join(self.devices)}, not for {target.device}"]
        reasons = target_objections(target, self.abi)
        if type(self).gate is not OpBuilder.gate:
            reasons += self.gate(capabilities_for(target, self.name))
        return reasons

    def toolchain(self, store: Store) -> Toolchain:
        """The compiler for this op's target. Raises ToolchainNotFoundError."""
        if self.target.device == "cpu" and not self.portable:
            return HostToolchain(store.layout, store.disk)
        from .toolchains import for_device, portable

        made = portable if self.portable else for_device
        return made(self.name, self.target, store.layout, store.disk)

    # -- finding, building, loading ----------------------------------------------------------------------------------

    def load(self, verbose: bool = False) -> Any:
        """The op's functions, as attributes: from this process, a prebuilt layer, the cache, or a build.

        Within a process the same builder gives the same module, unless one of the op's own files has changed: then the
        new version is built and loaded beside the old one. Raises OpIncompatibleError, ToolchainNotFoundError,
        SourceNotFoundError, CompileError, LoadError and their kin in `opforge.errors`.
        """
        if self._module is not None and (not self._watched or self._unchanged()):
            return self._module
        reasons = self.objections()
        if reasons:
            raise OpIncompatibleError(self.name, str(self.target), reasons)
        entry, module = self._load_entry(verbose)
        log.log(logging.WARNING if verbose else logging.INFO, "%s: %s, %s", self.name, entry.origin, entry.library)
        watched = [one for one in entry.watched if roots.is_own(one[0])]
        places = self.places() if watched else {}
        self._watched = tuple((os.path.join(places[root], path), tuple(stamp)) for root, path, *stamp in watched)
        self._module = module
        return module

    def _load_entry(self, verbose: bool) -> tuple[Entry, Any]:
        """Find or build, then load. An entry that was evicted in between is looked for once more."""
        for last in (False, True):
            entry = self.obtain(on_progress=_log_progress if verbose else None)
            if self.target.device != "cpu" and (problem := device_objection(entry.binary, self.target.arch)):
                raise LoadError(self.name, entry.library, problem, "Or build it with an older toolkit")
            began = time.perf_counter()
            try:
                module = loader.load_entry(self.name, entry, self.fakes, self.signatures)
            except LoadError:
                if last or os.path.exists(entry.library):
                    raise
                continue
            emit("load", op=self.name, seconds=time.perf_counter() - began, path=entry.library, origin=entry.origin)
            return entry, module
        raise AssertionError("unreachable")

    def _unchanged(self) -> bool:
        disk = Disk()
        return all(disk.stamp(path) == stamp for path, stamp in self._watched)

    def find(self, store: Store | None = None, exact: bool = False) -> Entry | None:
        """The prebuilt or cached entry that answers this op as it is now, or None. Fills `trace`.

        A layer's entry for a lower CPU level answers too, unless `exact`.
        """
        return find(self, store or current_store(), exact)

    def obtain(
        self,
        on_progress: Progress | None = None,
        force: bool = False,
        jobs: int | None = None,
        store: Store | None = None,
        exact: bool = False,
    ) -> Entry:
        """The entry of this op: found, or built and published in `store` (by default the user's own).

        `force` builds whatever is stored; `jobs` bounds the compilers that run at once; `exact` as for `find`.
        """
        if self.fakes and self.abi == abis.PLAIN:
            advice = "They are for ops of torch's, which plain functions are not"
            raise BuilderError(type(self).__name__, f"fakes with abi={self.abi!r}", advice)
        if self.signatures and self.abi != abis.PLAIN:
            raise BuilderError(type(self).__name__, f"signatures with abi={self.abi!r}", "They are for abi='c' alone")
        began = time.perf_counter()
        entry = None if force else self.find(store, exact)
        if entry:
            emit("hit", op=self.name, seconds=time.perf_counter() - began, path=entry.folder, origin=entry.origin)
            return entry
        if settings.prebuilt() == "require":
            tell_of_others(self, store or current_store())
            raise PrebuiltRequiredError(self.name, str(self.target), [*map(str, self.trace)])
        reasons = ["it was asked for"] if force else [*map(str, self.trace)]
        emit("miss", op=self.name, seconds=time.perf_counter() - began, reasons=reasons)
        from .run.pipeline import build

        return build(self, on_progress, force, jobs, store)


def _planning(kind: type[OpBuilder]) -> tuple[object, ...]:
    """The methods that shape a plan. A subclass that overrides one is asked each time."""
    return kind.plan, kind.toolchain, kind.places, kind.search_roots, kind.target, kind._mode_flags


def words(builder: str, name: str, given: Any) -> tuple[str, ...]:
    """The strings or paths of a list as strings. Raises BuilderError for what is none, above all for one string."""
    try:
        if not isinstance(given, (str, bytes, os.PathLike)):
            return tuple(os.fsdecode(one) for one in given)
    except TypeError:
        pass
    raise BuilderError(builder, f"{name}={given!r}", "Expected a list of strings, each a word of its own")


def _log_progress(done: int, total: int, title: str) -> None:
    log.warning("[%d/%d] %s", done, total, title)
