"""`OpBuilder`: an op as data. A subclass names its sources and flags; all else is written once."""

from __future__ import annotations

import importlib
import logging
import os
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from opforge.fast_path import library, lookup
from opforge.foundation import environment, remembered_values

if TYPE_CHECKING:
    from opforge.accelerator.capabilities import Capabilities
    from opforge.accelerator.target import Target
    from opforge.cache.store import Rejected, Store
    from opforge.fast_path.library import Entry

    from .compatibility import Compatibility
    from .declaration.by_device import Macros, Words
    from .declaration.kernel_roots import KernelRoot
    from .declaration.op_spec import OpSpec
    from .run.ninja import Progress

log = logging.getLogger("opforge")
REPRESENTATION = "opforge.builders.display.representation"
COMPARE_SECONDS = 1.0
"""How long after a comparison of the compiler it is compared again."""
_seen: dict[tuple[str, ...], tuple[float, list[int]]] = {}
"""State that most builders share, compared once a second: the time of the last comparison, and the stamps."""


class Loaded:
    """The module that `load` returned, and the state it depends on, taken before the load: later changes are seen."""

    library: Any = None
    module: Any = None
    said: Any = None
    """The answers of the builder's own code, if that code decides about the op: it runs again at each load."""

    def __init__(self, builder: OpBuilder) -> None:
        self._began, self._compared = time.time_ns(), time.monotonic()
        self._is_racy: bool | None = None  # not known yet; a racy stamp may hide a change
        environment, *attributes = _state(builder)
        self._environment = dict(environment)
        # No value of OpBuilder's own attributes can be changed in place, as they are written there.
        at = type(builder).__mro__.index(OpBuilder) + 1 if lookup.is_as_written(OpBuilder) else -1
        self.attributes = [dict(names) if number == at else copied(names) for number, names in enumerate(attributes)]
        self._place = _working_folder(builder)
        self._links = _links(builder)
        self.adds = _adding(builder)
        self.watched = remembered_values.FlatStamps()
        """The files and folders that are compared."""
        self._entry, self._often = "", remembered_values.FlatStamps()
        self._rest: tuple[tuple[str, ...], list[int]] = ((), [])

    def binds_as(self, other: Loaded) -> bool:
        """Returns whether the library of another state would be given the same functions."""
        is_same = self.library is other.library and self.adds is other.adds and self.said == other.said
        return is_same and self.attributes == other.attributes

    def watch(self, entry: Entry, verbose: bool) -> None:
        """Takes the compared files from an entry: its first files at each load, and the others once a second."""
        level = logging.WARNING if verbose else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "%s: %s, %s", entry.record["op"], entry.origin, entry.library)
        self._entry, self.watched = entry.key, entry.watched
        watched = self.watched
        often = len(watched.paths) if entry.often < 0 else entry.often
        self._often = remembered_values.FlatStamps(watched.paths[:often], [*watched.numbers[: 4 * often]])
        self._rest = tuple(watched.paths[often:]), [*watched.numbers[4 * often :]]

    def watch_all(self, files: remembered_values.FlatStamps) -> None:
        """Takes files that are compared at each load."""
        self.watched = self._often = files

    def is_current(self, builder: OpBuilder) -> bool:
        """Returns whether the environment, the builder's attributes and all watched files are as they were.

        The compiler, and where another would be found, are compared once a second: they are three quarters of the files
        and folders, and change with nothing that a program does to its ops.
        """
        try:
            if self._is_racy is None:
                self._is_racy = self.watched.is_racy(self._began)
            is_same = not self._is_racy and _state(builder) == [self._environment, *self.attributes]
            # A table FOR_ALL_BUILDERS may have been made since: with one, the builder's spec is asked for each time.
            is_said = not lookup.tables_for_all(type(builder)) if self.said is None else self.said == said_by(builder)
            is_same = is_same and is_said
            is_same = is_same and (not self.adds or self.adds is _adding(builder))
        except Exception:  # of an attribute's own comparison: a tensor's has no truth value
            return False
        if not is_same or remembered_values.stamps_of(self._often.paths) != self._often.numbers:
            return False
        if self._entry and self._entry not in library.by_entry:  # another version's kernels have taken its place
            return False
        if (self._place and self._place != _working_folder(builder)) or (
            self._links and self._links != _links(builder)
        ):
            return False
        now = time.monotonic()
        if now - self._compared >= COMPARE_SECONDS:
            paths, numbers = self._rest
            seen = _seen.get(paths)
            if seen is None or now - seen[0] >= COMPARE_SECONDS:
                seen = _seen[paths] = now, remembered_values.stamps_of(paths)
            if seen[1] != numbers:
                return False
            self._compared = seen[0]
        return True


def _load_torchs(builder: OpBuilder, entry: Entry, folders: str) -> Any:
    """Returns the functions of a library of torch's ABI; None if it was removed meanwhile. Raises LoadError."""
    from opforge.errors import LoadError

    from . import loader

    roots = [(*line.partition("=")[::2], "") for line in folders.splitlines()]
    try:
        return loader.load_entry(entry.record["op"], entry, builder.fakes, builder.signatures, roots)
    except LoadError:
        if os.path.exists(entry.library):
            raise
        return None


def _state(builder: OpBuilder) -> list[Any]:
    """Returns the environment, and the attributes of the builder and of its classes."""
    return [environment.variables(), vars(builder), *map(vars, type(builder).__mro__[:-1])]


def said_by(builder: OpBuilder) -> Any:
    """Returns the results of a builder's own code: the op's spec, and the arguments of the library's functions."""
    signatures = {name: (result, [*kinds]) for name, (result, kinds) in builder.signatures.items()}
    return builder.spec(), signatures, {**builder.fakes}


def _working_folder(builder: OpBuilder) -> str:
    """Returns the working folder if anything of the builder is relative to it; otherwise empty."""
    return lookup.working_folder() or ("" if lookup.file_of(type(builder))[:1] == "/" else lookup.current_folder())


def _links(builder: OpBuilder) -> list[tuple[str, str]]:
    """Returns the folders of headers that are reached through links, with what they lead to.

    The declaration is not checked yet: a wrong value names no folder, and the load reports it.
    """
    declared: list[Any] = [builder.include_dirs]
    if builder.groups:
        groups: Any = builder.groups if isinstance(builder.groups, (list, tuple)) else ()
        declared += [group.get("include_dirs", ()) for group in groups if isinstance(group, Mapping)]
    folders = [(path, os.path.realpath(path)) for each in declared for path in lookup.absolute(each)]
    return [pair for pair in folders if pair[0] != pair[1]]


def _adding(builder: OpBuilder) -> Any:
    """Returns the function that adds Python functions to the op; None if there is none, or if it is not imported."""
    where: object = builder.python_functions  # the declaration is not checked yet
    return library.adding(where) if where and isinstance(where, str) else None


FIXED = frozenset(
    {
        *(str, int, float, bool, bytes, type(None), types.FunctionType, types.BuiltinFunctionType),
        *(staticmethod, classmethod, types.GetSetDescriptorType),
    }
)
"""The kinds of values that do not change in place. What a function does is its author's own."""


def is_fixed(value: Any, depth: int = 6) -> bool:
    """Returns whether a value changes in no way that a comparison with a copy of it would not show."""
    kind = type(value)
    if kind in FIXED or isinstance(value, type) or kind.__module__.partition(".")[0] == "pathlib":
        return True
    if kind in (dict, types.MappingProxyType):
        return depth > 0 and all(is_fixed(part, depth - 1) for pair in value.items() for part in pair)
    is_ours = isinstance(value, tuple) and kind.__module__.startswith("opforge.")
    is_listed = kind in (list, tuple, set, frozenset) or is_ours
    return is_listed and depth > 0 and all(is_fixed(part, depth - 1) for part in value)


CONTAINERS = (dict, types.MappingProxyType, list, tuple, set)


def copied(value: Any, depth: int = 6) -> Any:
    """Returns a copy of an attribute, with copies of the lists, dicts and sets in it, down to `depth`.

    Other mutable values are not copied: a builder with such a value computes its spec each time.
    """
    kind: Any = type(value)
    if kind not in CONTAINERS or not depth:
        return value
    # The test is repeated here: a call for each attribute would be as many as all other calls of a hit.
    if kind in CONTAINERS[:2]:
        parts = value.copy().items()
        return {name: copied(part, depth - 1) if type(part) in CONTAINERS else part for name, part in parts}
    return kind([copied(part, depth - 1) if type(part) in CONTAINERS else part for part in value])


class OpBuilder:
    """Declares one op and loads it. Subclass it, fill in the class attributes, call `load()`.

        class ReluBuilder(OpBuilder):
            name, sources = "relu", ["relu.cpp"]      # beside this file

        ReluBuilder().load().relu(x)

    `target` is a Target or its text ("cpu:x86-64-v3"); by default the machine this runs on. `debug` keeps symbols and
    source paths; `sanitize` is a list for the compiler's -fsanitize, such as "address"; `portable` builds a library
    that older systems load too, and may be built for another processor. `name` is for builders ported from DeepSpeed.
    """

    # Not in the instance's dict: what is in it is compared by each further load.
    __slots__ = (
        *("__dict__", "__weakref__", "_in_own_verdict", "_loaded", "_requested", "_target", "_target_devices"),
        "trace",
    )
    trace: list[Rejected]
    """Every stored entry that the last `build` or `load` saw and did not take, with the reason."""
    name: ClassVar[str] = ""
    """The op's name: an identifier, the library's name and, for pybind sources, the module's."""
    sources: ClassVar[Words] = ()
    """Files to compile, below this class's folder or a kernel root. It may be a dict by device, as others may."""
    abi: ClassVar[str | Mapping[str, str]] = library.STABLE
    """"torch-stable": one for every torch from `torch_target` on; "c": plain functions; "torch": ATen and pybind;
    "torch-facade": the same sources as for "torch", and one library for every torch and Python."""
    version: ClassVar[str] = "1"
    """Part of the key: another version is another op. A change of a source needs no new version."""
    devices: ClassVar[Sequence[str]] = ("cpu",)
    """The devices that it can be built for."""
    architectures: ClassVar[Words] = ()
    """The device architectures of the build, such as "9.0a" or "gfx942"; by default the target's."""
    groups: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Further sources with flags, include folders and architectures of their own: see docs/builders.md."""
    requires_torch: ClassVar[str] = ""
    """The versions of torch that the op works with, such as ">=2.11,<2.14"."""
    include_dirs: ClassVar[Words] = ()
    """Folders for -I, found as sources are, or absolute."""
    kernel_roots: ClassVar[Sequence[KernelRoot]] = ()
    """Searched, in order, after the class's own folder and before opforge's kernels."""
    define_macros: ClassVar[Macros] = ()
    """(name, value) for -D; None for a name alone."""
    extra_compile_args: ClassVar[Words] = ()
    """Flags for the C++ compiler. Or a dict: "cxx"; a device's name, for its own sources; "nvcc" for CUDA and HIP."""
    extra_link_args: ClassVar[Words] = ()
    """Flags for the link, such as -L/the/folder."""
    libraries: ClassVar[Words] = ()
    """Names for -l."""
    torch_target: ClassVar[str] = library.OLDEST_TORCH
    """The oldest torch that the library must load under."""
    fakes: ClassVar[Mapping[str, Callable[..., Any]]] = types.MappingProxyType({})
    """Function name -> Python fake kernel, for ops that return tensors and have no Meta kernel of their own."""
    signatures: ClassVar[Mapping[str, tuple[Any, Sequence[Any]]]] = types.MappingProxyType({})
    """abi "c": function name -> (ctypes result, [ctypes arguments])."""
    python_functions: ClassVar[str] = ""
    """"module:function": gets the loaded op, returns more functions by name, for what no schema can express."""
    toolchain: ClassVar[str | Mapping[str, str]] = ""
    """"module:Class" of a toolchain of one's own; by default the one that serves the target's device."""
    tunable: ClassVar[Mapping[str, Sequence[int]]] = types.MappingProxyType({})
    """Name -> the numbers that `opforge tune` tries; the C++ reads them by <opforge/tunable.h>: see docs/tuning.md."""
    cases: ClassVar[str] = ""
    """"module:NAME" of a `Case`, or of a tuple of them, to compare, time and tune the op by: see docs/cases.md."""
    folder: ClassVar[str] = ""
    """Where `sources` and `include_dirs` are searched first; by default the folder of the class's own file."""

    _directory: ClassVar[str] = ""
    """The folder of a store for this op alone, behind the layers that all ops have; empty for the user's store."""

    def __init__(
        self,
        target: Target | str | None = None,
        *,
        debug: bool = False,
        sanitize: str = "",
        portable: bool = False,
        name: str = "",
    ) -> None:
        self._request(target, debug, sanitize, portable)
        self.trace, self._in_own_verdict = [], False
        if name:
            self.name = name  # type: ignore[misc]
        self._loaded: Loaded | None = None

    def _request(
        self, target: Target | str | None, debug: bool = False, sanitize: str = "", portable: bool = False
    ) -> None:
        """Sets the builder's target and modes; also from outside, if a subclass's constructor does not take them."""
        if target is not None and target != lookup.HOST:
            from opforge.accelerator.target import Target

            target = target if isinstance(target, Target) else Target.parse(target)
        self._requested: Target | str | None = target
        self._target: Target | None = None
        self._target_devices: Any = None
        """The devices that the target was chosen for; None if something else has set it."""
        self.debug, self.sanitize, self.portable = debug, sanitize, portable

    def __getstate__(self) -> Any:
        """Returns what a copy gets, also in another process: all but the loaded op, which belongs to this one."""
        attributes, slots = cast("tuple[Any, dict[str, Any]]", super().__getstate__())
        return attributes, {**slots, "_loaded": None}

    def __repr__(self) -> str:
        return str(importlib.import_module(REPRESENTATION).builder_text(self))

    def gate(self, capabilities: Capabilities) -> Iterable[str]:
        """Returns reasons why the op cannot run with these capabilities. Override it if the target does not decide."""
        return ()

    @property
    def target(self) -> Target:
        """The concrete target: "native" and a missing architecture mean this machine's own."""
        return self.spec().target

    def spec(self) -> OpSpec:
        """Returns the declaration, checked and resolved for the target. Override it to shape the build.

        Raises BuilderError, SettingError.
        """
        from .declaration import op_spec, targets

        is_other = self._target_devices is not None and self._target_devices != self.devices
        if self._target is None or self.architectures or self.groups or is_other:
            self._target = targets.of_declaration(self, self._requested)
            self._target_devices = copied(self.devices)
        return op_spec.resolve(self, self._target)

    def is_compatible(self, verbose: bool = False) -> Compatibility:
        """Returns whether `load()` can succeed here, with every reason why not. Builds nothing."""
        from . import compatibility

        return compatibility.verdict(self, verbose)

    def load(self, verbose: bool = False) -> Any:
        """Returns the op's functions, as attributes: from this process, a prebuilt layer, the cache, or a build.

        Within a process the same builder returns the same module until a file that it was built from, an attribute or
        an environment variable changes. Then the op is looked up again, and a new version is loaded beside the old one.
        Raises OpIncompatibleError, ToolchainNotFoundError, SourceNotFoundError, CompileError, LoadError and the other
        classes in `opforge.errors`.
        """
        if current := self.current():
            return current.module
        try:
            before, loaded = self._loaded, Loaded(self)
            if (hit := lookup.load(self, OpBuilder, _load_torchs)) is None:
                self._load(loaded, verbose)
            else:
                self.trace, (loaded.library, entry, due) = [], hit
                loaded.watch(entry, verbose)
                if due:
                    from opforge.cache.layout import Layout
                    from opforge.cache.maintenance import limits

                    limits.enforce_settings(Layout(due))
            loaded.module = before.module if before and before.binds_as(loaded) else self._bind(loaded.library)
            loaded.adds = _adding(self)  # its module may have been imported only now
            self._loaded = loaded
            return loaded.module
        except BaseException as error:
            from opforge.foundation.tracebacks import shorten

            shorten(error)
            raise

    def current(self) -> Loaded | None:
        """Returns the module that `load` returned last; None if anything that it depends on has changed since."""
        loaded = self._loaded
        return loaded if loaded is not None and loaded.is_current(self) else None

    def _load(self, loaded: Loaded, verbose: bool) -> None:
        from . import computed_spec, load_op

        if computed_spec.is_computed(self, OpBuilder, is_fixed):
            try:
                loaded.said = said_by(self)
            except Exception:  # the load below says what is wrong
                loaded.said = object()
        loaded.library, entry = load_op.load(self, lookup.declaration(self, OpBuilder), verbose)
        loaded.watch(entry, verbose)

    def build(
        self,
        on_progress: Progress | None = None,
        force: bool = False,
        jobs: int | None = None,
        store: Store | None = None,
        exact: bool = False,
    ) -> Entry:
        """Returns the op's entry: a stored one that fits, or a new one, published in `store` (by default the user's).

        `force` builds even if a stored entry fits; `jobs` bounds the number of compilers that run at once; `exact`
        refuses a layer's entry for a lower CPU level. Raises what `load` raises, except LoadError.
        """
        from . import load_op

        try:
            spec, declared = self.spec(), lookup.declaration(self, OpBuilder)
            return load_op.find_or_build(self, spec, declared, on_progress, force, jobs, store, exact)
        except BaseException as error:
            from opforge.foundation.tracebacks import shorten

            shorten(error)
            raise

    def _bind(self, loaded: Any) -> Any:
        return library.extended(loaded, self.python_functions)


lookup.as_written.update(vars(OpBuilder))
