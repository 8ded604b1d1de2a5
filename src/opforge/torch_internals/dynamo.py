"""The private parts of torch.compile's tracing that opforge uses: a function that is compiled ahead.

torch can keep a function with its guards (`torch._dynamo.aot_compile`), and load it without tracing. What torch leaves
out there is followed here:

- Guards that compare objects by their identity cannot be kept, and those of globals are checked against a copy. Their
  expressions are kept with a description of each value. It is compared when the function is loaded; at each call the
  values must be those objects still.
- The code of all functions that were inlined, the classes of values with their methods and attributes, what modules
  name, the defaults of the arguments, torch's settings, and what Python registers for the ops. They are compared before
  anything is unpickled. The objects behind them are compared at each call.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import inspect
import io
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from opforge.fast_path import library
from opforge.fast_path.library import LoadedOp
from opforge.foundation.lazy_torch import torch
from opforge.torch_internals import inductor

PLAIN = (bool, int, float, complex, str, bytes, type(None), types.MethodType)
"""Types of values that are the same if they are equal."""
RESTARTS = 8
"""How often torch may begin to trace a function again."""
TYPE_ALONE = "TYPE_MATCH"
BUILTINS = "__builtins_dict__"
_codes = threading.local()


class AheadError(ValueError):
    """A function cannot be compiled ahead, or what was compiled does not fit; the text says why."""


class Guard(NamedTuple):
    """A guard that torch does not keep, or checks against a copy: an expression, and its value."""

    expression: str
    kind: str
    description: str
    """Empty if torch checks the value itself when the function is loaded."""


class Options(NamedTuple):
    """How torch.compile is asked to compile."""

    mode: str | None = None
    dynamic: bool | None = None
    options: Mapping[str, Any] = {}


class Facts(NamedTuple):
    """The state that a compiled function depends on, besides its guards."""

    settings: str
    defaults: str
    program: Sequence[Sequence[str]]
    """The code that was inlined, classes, and what modules name: see `builders/registration/traced.py`."""
    ops: Sequence[str]
    registered: str
    """A digest of what Python registers for these ops."""
    guards: Sequence[Guard]
    is_of_rank: bool
    """Whether it may differ between ranks."""
    libraries: Sequence[str]
    """The keys of inductor's libraries that it needs."""


Describe = Callable[[Any], str]
"""Returns a digest of a value that another process can compare. Raises ValueError."""


class Pinned(Protocol):
    """The present values of a program."""

    def holds(self) -> bool:
        """Returns whether that is as it was stated."""


class Registrations(NamedTuple):
    """How ops and values are described."""

    describe: Describe
    ops_of: Callable[[Any], list[str]]
    of_ops: Callable[[Sequence[str]], str]
    program_of: Callable[[Iterable[types.CodeType], Iterable[type]], Sequence[Sequence[str]]]
    """Returns what states code and classes. Raises ValueError."""
    program_problem: Callable[[Sequence[Sequence[str]]], str]
    """Returns what of that is another now. Raises ValueError."""
    pin: Callable[[Sequence[Sequence[str]]], Pinned]


# -- what a function follows from --------------------------------------------------------------------------------------


def settings_digest(options: Options) -> str:
    """Returns a digest of all settings of torch.compile, and of the number of threads."""
    import torch._functorch.config
    import torch._inductor.config
    import torch.compiler.config

    configs = (torch._dynamo.config, torch._functorch.config, torch._inductor.config, torch.compiler.config)
    values = [config.save_config_portable(ignore_private_configs=False) for config in configs]
    shown = [sorted((name, _shown(value)) for name, value in each.items() if name not in LEFT_OUT) for each in values]
    text = repr([shown, torch.get_num_threads(), options.mode, options.dynamic, sorted(options.options.items())])
    return hashlib.sha256(text.encode()).hexdigest()


OF_JOBS = ("job_id", "pgo_extra_read_key", "pgo_extra_write_key")
LEFT_OUT = (*inductor.COMPILER_ALONE, "debug_dir_root", "base_dir", *OF_JOBS)
"""Settings that say where something is put, which compiler is started, or what a job is called."""


def _shown(value: Any) -> str:
    return repr(sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else value)


def _metadata(tensor: Any) -> str:
    return repr((type(tensor).__qualname__, tensor.dtype, str(tensor.device), [*tensor.shape], tensor.requires_grad))


def description(kind: str, value: Any, describe: Describe) -> str:
    """Returns the value that another process must find for a guard to hold. Raises AheadError."""
    if kind == TYPE_ALONE and type(value) not in PLAIN:
        return f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, torch.Tensor):
        return _metadata(value)
    if isinstance(value, torch.nn.Module):
        raise AheadError(f"a guard compares a {type(value).__qualname__} by its identity")
    try:
        return describe(value)
    except ValueError as error:
        raise AheadError(str(error)) from error


def problem(facts: Facts, function: Callable[..., Any], options: Options, by: Registrations) -> str:
    """Returns the change since a function was compiled; empty if there is none. Nothing is unpickled for it."""
    if facts.settings != settings_digest(options):
        return "torch's settings are others"
    try:
        if facts.defaults != _defaults(function, by.describe):
            return "the defaults of its arguments are others"
        if reason := by.program_problem(facts.program):
            return reason
        if facts.registered != by.of_ops(facts.ops):
            return "other kernels are registered for its ops"
    except ValueError as error:
        return str(error)
    return ""


def _defaults(function: Callable[..., Any], describe: Describe) -> str:
    plain: Any = getattr(function, "__func__", function)
    return describe((plain.__defaults__, tuple(sorted((plain.__kwdefaults__ or {}).items()))))


# -- compiling ---------------------------------------------------------------------------------------------------------


class Ahead:
    """A function that was compiled ahead, with the guards that torch does not keep."""

    def __init__(self, of: Any, function: Callable[..., Any], facts: Facts, by: Registrations) -> None:
        """Takes torch's object, and facts that hold now."""
        self._of, self._guards, self._describe = of, facts.guards, by.describe
        self._facts, self._by, self._registered = facts, by, (library.registrations, True)
        self._program, self._group = by.pin(facts.program), _group()
        plain: Any = getattr(function, "__func__", function)
        self._self = (function.__self__,) if isinstance(function, types.MethodType) else ()
        self._globals = _Globals(plain.__globals__, of._artifacts.runtime_env.import_sources)
        self._codes = [compile(guard.expression, "<guard>", "eval") for guard in facts.guards]
        self._pinned: list[Any] | None = None
        of.disable_guard_check()

    def fits(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Returns whether all guards hold for a call."""
        if _group() is not self._group or not self._program.holds() or not self._is_registered():
            return False
        try:
            local = self._of._artifacts.signature.bind(*self._self, *arguments, **named)
            local.apply_defaults()
            scope = {"L": local.arguments, "G": self._globals}
            values = [eval(code, EVALUATED, scope) for code in self._codes]  # noqa: S307 of a signed page
        except Exception:  # of the guarded values: anything
            return False
        if self._pinned is None:
            if not self._are_described(values):
                return False
            self._pinned = values
        elif not all(map(_is_same, values, self._pinned)):
            return False
        return bool(self._of.guard_check(*self._self, *arguments, **named))

    def _is_registered(self) -> bool:
        """Returns whether the registrations for its ops are as they were. They are described if any was made since."""
        if self._registered[0] != library.registrations:
            number = library.registrations
            try:
                self._registered = number, self._by.of_ops(self._facts.ops) == self._facts.registered
            except ValueError:
                self._registered = number, False
        return self._registered[1]

    def _are_described(self, values: Sequence[Any]) -> bool:
        try:
            pairs = zip(self._guards, values, strict=True)
            return all(
                not guard.description or guard.description == description(guard.kind, value, self._describe)
                for guard, value in pairs
            )
        except AheadError:
            return False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs the function; `fits` has returned that it may."""
        return self._of(*self._self, *arguments, **named)

    def to_bytes(self) -> bytes:
        """Returns the pickle that `load` takes. Raises AheadError."""
        try:
            return bytes(type(self._of).serialize(self._of).serialized_data)
        except Exception as error:  # of pickling: anything
            raise AheadError(f"it cannot be kept: {_first_line(error)}") from error


def _is_same(value: Any, pinned: Any) -> bool:
    return value is pinned or (type(value) in PLAIN and type(value) is type(pinned) and value == pinned)


EVALUATED: dict[str, Any] = {"__builtins__": {"type": type, "len": len, "list": list, "dict": dict}}
"""Functions that expressions of guards may call; an expression that calls any other is not kept."""


class _Globals:
    """The globals of a function as they are now, and the names that torch has made for what it imports."""

    def __init__(self, of: Mapping[str, Any], imported: Mapping[str, str]) -> None:
        self._of = of
        self._imported = {alias: importlib.import_module(name) for alias, name in imported.items()}

    def __getitem__(self, name: str) -> Any:
        if name in self._imported:
            return self._imported[name]
        return builtins.__dict__ if name.startswith(BUILTINS) else self._of[name]


def compiled(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    named: Mapping[str, Any],
    options: Options,
    by: Registrations,
) -> tuple[Ahead, Facts]:
    """Traces and compiles a function for arguments, without a call. Returns it and what it follows from.

    Raises AheadError; what torch raises if nothing may be compiled now.
    """
    plain: Any = getattr(function, "__func__", function)
    if not isinstance(plain, types.FunctionType):
        raise AheadError(f"it is a {type(plain).__qualname__}, expected a function, a method or a module")
    if plain.__closure__ and plain.__code__.co_freevars != ("__class__",):
        raise AheadError(f"it is a closure over {', '.join(plain.__code__.co_freevars)}")
    noted, settings = _Noted(), settings_digest(options)
    inductor.observers.append(noted)
    try:
        of = _traced(function, arguments, named, options, noted)
    finally:
        inductor.observers.remove(noted)
    ops = sorted({op for graph in noted.graphs for op in by.ops_of(graph)})
    guards = [
        Guard(expression, kind, "" if is_kept and not _may_vary(value) else description(kind, value, by.describe))
        for expression, kind, value, is_kept in noted.guards
    ]
    owner = getattr(function, "__self__", None)
    classes = [*noted.classes, *([] if owner is None else [owner if isinstance(owner, type) else type(owner)])]
    try:
        program = by.program_of(noted.codes, classes)
        defaults, is_of_rank = _defaults(function, by.describe), _may_read_rank(noted.codes, noted.values)
        facts = Facts(settings, defaults, program, ops, by.of_ops(ops), guards, is_of_rank, sorted(noted.libraries))
    except ValueError as error:
        raise AheadError(str(error)) from error
    return Ahead(of, function, facts, by), facts


def _traced(
    function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any], options: Options, noted: _Noted
) -> Any:
    """Returns what torch compiles a function to, and notes what tracing has read. Raises as `compiled` does."""
    from torch._dynamo import aot_compile, exc, hooks

    known = inspect.signature(aot_compile.aot_compile_fullgraph).parameters
    dynamic = {"dynamic": options.dynamic} if "dynamic" in known else {}
    if options.dynamic is not None and not dynamic:
        raise AheadError("this torch takes no `dynamic` there")
    asked = hooks.Hooks(guard_filter_fn=noted.keeps)
    backend = _backend(options, noted.graphs)
    try:
        with _noting(noted.codes), with_hook_guards(), _without_gradients(function):
            for attempt in range(RESTARTS + 1):
                noted.codes.clear()
                noted.graphs.clear()
                try:
                    of = aot_compile.aot_compile_fullgraph(
                        function, (tuple(arguments), dict(named)), hooks=asked, backend=backend, **dynamic
                    )
                    break
                except exc.RestartAnalysis:  # torch has learned something, such as that a float does not vary
                    if attempt == RESTARTS:
                        raise
    except Exception as error:  # of tracing: anything
        if inductor.is_forbidden():
            raise
        raise AheadError(_first_line(error)) from error
    return of


def load(content: bytes, function: Callable[..., Any], facts: Facts, by: Registrations) -> Ahead:
    """Returns a function that was compiled ahead. The content is unpickled. Raises AheadError."""
    plain: Any = getattr(function, "__func__", function)
    try:
        of: Any = torch.compiler.load_compiled_function(io.BytesIO(content), f_globals=plain.__globals__)
        return Ahead(of, function, facts, by)
    except Exception as error:  # of unpickling: anything
        if inductor.is_forbidden():
            raise
        raise AheadError(_first_line(error)) from error


def _may_vary(value: Any) -> bool:
    """Returns whether torch may have traced a global as a symbol: its guard of that reads a copy of the globals."""
    return isinstance(value, torch.Tensor) or type(value) in PLAIN


class _Noted(inductor.Observer):
    """Observations while a function is compiled."""

    def __init__(self) -> None:
        self.libraries: set[str] = set()
        self.graphs: list[Any] = []
        self.codes: list[types.CodeType] = []
        self.classes: list[type] = []
        self.guards: list[tuple[str, str, Any, bool]] = []
        self.values: list[Any] = []

    def library(self, key: str, path: str) -> None:
        """Notes a library."""
        self.libraries.add(key)

    def keeps(self, entries: Sequence[Any]) -> list[bool]:
        """Returns for each guard whether torch can keep it; notes those that it cannot, and those of globals."""
        from torch._dynamo.guards import CheckFunctionManager

        unsupported = set(CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES)
        kept, self.guards, self.classes = [], [], []
        self.values = [entry.value for entry in entries]
        # An op cannot be pickled, and torch would pickle it for a guard of a part of it.
        ops = tuple(
            f"{each.orig_guard.name}.".replace("[", ".") for each in entries if isinstance(each.value, LoadedOp)
        )
        for entry in entries:
            if entry.guard_type == TYPE_ALONE:
                self.classes.append(type(entry.value))
            can_keep = not unsupported.intersection([entry.guard_type, *(entry.derived_guard_types or ())])
            can_keep = can_keep and not f"{entry.orig_guard.name}.".replace("[", ".").startswith(ops)
            kept.append(can_keep)
            expression = str(entry.orig_guard.name)
            if expression and (entry.is_global or not can_keep):
                self.guards.append((expression, entry.guard_type, entry.value, can_keep))
            elif not can_keep:
                raise AheadError(f"a guard {entry.guard_type} has no expression")
        return kept


def _backend(options: Options, graphs: list[Any]) -> Any:
    inductor_wrapper: Any = torch._TorchCompileInductorWrapper

    class Noting(inductor_wrapper):  # type: ignore[misc]
        """inductor, which notes the graphs that it gets."""

        def __call__(self, module: Any, *arguments: Any, **named: Any) -> Any:
            graphs.append(module)
            return super().__call__(module, *arguments, **named)

    make: Any = Noting
    return make(options.mode, dict(options.options), options.dynamic)


@contextmanager
def _noting(codes: list[types.CodeType]) -> Iterator[None]:
    """Notes the code of all functions that this thread traces."""
    from torch._dynamo import package

    kind = package.SourceInfo
    if not hasattr(kind, "_opforge_original"):
        kind._opforge_original = original = kind.add_code  # type: ignore[attr-defined]

        def add_code(self: Any, code: types.CodeType) -> None:
            if (noted := getattr(_codes, "noted", None)) is not None:
                noted.append(code)
            original(self, code)

        kind.add_code = add_code  # type: ignore[method-assign]
    _codes.noted = codes
    try:
        yield
    finally:
        _codes.noted = None


@contextmanager
def _without_gradients(function: Any) -> Iterator[None]:
    """Hides the gradients of a module's parameters: torch cannot read a guard of a parameter that has one."""
    module = getattr(function, "__self__", None)
    parameters = list(module.parameters()) if isinstance(module, torch.nn.Module) else []
    kept = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
    for parameter, _gradient in kept:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def _group() -> Any:
    """Returns the process group of all ranks; None if there is none."""
    distributed = torch.distributed
    return distributed.group.WORLD if distributed.is_available() else None


def ranks(is_for_all: bool = False) -> str:
    """Returns the facts of the process group that torch takes as constants, and that no guard checks.

    The rank is one of them, as a function may branch on it, unless the function is for all ranks.
    """
    if _group() is None:
        return ""
    distributed: Any = torch.distributed
    shown = f"{distributed.get_backend()} {distributed.get_world_size()}"
    return shown if is_for_all else f"{shown} {distributed.get_rank()}"


def is_for_all_ranks() -> bool:
    """Returns whether torch is asked for graphs that every rank can run, by its setting `compile_on_one_rank`."""
    import torch.compiler.config

    return _group() is not None and bool(getattr(torch.compiler.config, "compile_on_one_rank", False))


RANK_NAMES = frozenset(
    """
    rank get_rank local_rank get_local_rank get_node_local_rank global_rank get_global_rank group_rank get_group_rank
    get_coordinate _coordinate_on_dim _is_current_rank_part_of_mesh
    """.split()  # noqa: SIM905
)
"""What code names that reads the rank. torch takes its value as a constant, also in a graph for all ranks."""
COMPUTING = frozenset({"getattr", "attrgetter", "methodcaller", "__getattribute__", "vars", "__dict__", "eval"})
"""What code names that reads attributes by names that it computes."""
MESH, GROUP = "DeviceMesh", "ProcessGroup"
"""Classes whose attributes are constants that may hold the rank. Guards compare the ranks of a mesh, not of a group."""


def _may_read_rank(codes: Iterable[types.CodeType], values: Iterable[Any]) -> bool:
    """Returns whether a program may have read the rank: by a name in its code, or through a value of its guards.

    A function under another name, or under a name that is computed, has a guard.
    """
    values = [*values]
    names = {name for code in codes for name in code.co_names}
    if names & RANK_NAMES or any(map(_is_constant_of_rank, values)):
        return True
    classes = {each.__name__ for value in values for each in type(value).__mro__}
    return GROUP in classes or (MESH in classes and bool(names & COMPUTING))


def _is_constant_of_rank(value: Any) -> bool:
    """Returns whether torch takes what a function returns as a constant, which may be the rank."""
    if not isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return False
    return value.__name__ in RANK_NAMES or hasattr(value, "_dynamo_marked_constant")


def with_hook_guards() -> Any:
    """Returns a context in which torch has guards for that the modules of a module have no hooks."""
    config: Any = torch._dynamo.config
    return config.patch(skip_nnmodule_hook_guards=False)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:300]}"
