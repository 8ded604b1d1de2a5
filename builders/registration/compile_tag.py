"""What torch.compile's caches must know of the loaded ops. Imported when torch computes the key of a graph.

Torch's keys contain the names of ops. A graph that was compiled for an earlier schema, or from an earlier fake kernel,
has the same key, and gives wrong results.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

SHAPES = ("Meta", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")
"""Dispatch keys whose kernels torch runs to learn the shapes and dtypes of results."""
TRACED = ("CompositeImplicitAutograd", "Autograd", "AutogradCPU", "AutogradCUDA", "Functionalize")
"""Dispatch keys whose kernels torch.compile traces through, so that a graph holds what they call."""
WRAPPERS = (functools.partial, functools._lru_cache_wrapper, staticmethod, classmethod, property)
WRAPPED = ("func", "args", "keywords", "__wrapped__", "__func__", "fget")
"""What wraps functions, and its attributes that say which."""
TEXTS = ("__doc__", "__module__", "__dict__", "__weakref__", "__firstlineno__", "__annotations__", "__qualname__")
"""Attributes of a class that do not say what it does."""
OWN_TAG = re.compile(r"\|opforge:[0-9a-f]{32}")


def behind(tag: str, ops: Mapping[str, Iterable[str]], fakes: Mapping[str, Callable[..., Any]]) -> str:
    """Returns the tag of a user with a digest of the ops behind it; `tag` itself if no op has a fake.

    `ops` are public names, `namespace::name` with `.overload` where there are several, or `namespace::` for all of one,
    by the entry that defines them.
    `fakes` are the Python fakes by public name. A digest that is in the tag already is replaced.
    """
    lines = sorted(
        {line for entry, names in ops.items() for name in _each(names) for line in _lines(entry, name, fakes)}
    )
    own = OWN_TAG.sub("", tag)
    if not lines:
        return own
    text = "\n".join([_version(), *lines])
    return f"{own}|opforge:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


@functools.lru_cache(1)
def _version() -> str:
    """Returns opforge's version, which its own ops in Python and their backward are of; empty without metadata."""
    try:
        return importlib.metadata.version("opforge")
    except importlib.metadata.PackageNotFoundError:  # it is a folder on the path
        return ""


def _each(names: Iterable[str]) -> Iterator[str]:
    """Yields the names of ops, for a namespace those of its ops."""
    import torch

    for name in names:
        if name.endswith("::"):
            yield from (op for op in torch._C._dispatch_get_all_op_names() if op.startswith(name))
        else:
            yield name


def _lines(entry: str, name: str, fakes: Mapping[str, Callable[..., Any]]) -> Iterator[str]:
    """Yields a line for each overload of an op that torch.compile can trace: all that a graph with it depends on."""
    import torch

    namespace, _, function = name.partition("::")
    function, _, overload = function.partition(".")
    packet = getattr(getattr(torch.ops, namespace), function, None)
    for other in packet.overloads() if packet is not None else ():
        if overload and other != overload:
            continue
        op = getattr(packet, other)
        fake = _python_fake(f"{namespace}::{function}", op.name(), fakes)
        keys = TRACED if fake else (*SHAPES, *TRACED)
        # The library's own kernels are in the entry's key, which changes with each of its builds.
        inside = any(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in keys)
        if fake or inside or not op._schema.returns:  # torch traces what returns nothing without a fake
            yield f"{op._schema} {_digest(fake) if fake else ''} {entry if inside else ''}"


def _python_fake(public: str, overload: str, fakes: Mapping[str, Callable[..., Any]]) -> Callable[..., Any] | None:
    """Returns the fake in Python that torch runs for an op, whoever registered it; None if there is none."""
    from torch._library import simple_registry

    for name in (overload, public):
        kernel = getattr(simple_registry.singleton.find(name).fake_impl, "kernel", None)
        if kernel is not None:
            return fakes.get(public) or kernel.func
    return fakes.get(public)


def _digest(function: Any) -> str:
    """Returns a digest of what a function does: its code, and what it takes from its module and its scope.

    It is the same in every process: it holds no address, path or line. What is torch's or Python's own has its name
    alone.
    """
    digest = hashlib.sha256()
    for part in _parts(function, set()):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    """Yields texts that state a value. `seen` are the ids of the objects that were begun."""
    kind = type(value)
    if value is None or value is Ellipsis or isinstance(value, (bool, int, float, complex, str, bytes)):
        yield f"{kind.__name__} {value!r}"
        return
    if kind.__module__ == "torch" and not hasattr(value, "storage"):  # a dtype, a device, a layout
        yield repr(value)
        return
    if not isinstance(value, (tuple, frozenset, types.CodeType)):  # whether equal constants are one object is chance
        if id(value) in seen:
            yield "again"
            return
        seen.add(id(value))
    yield kind.__qualname__
    if isinstance(value, types.CodeType):
        yield from _code_parts(value, seen)
    elif isinstance(value, types.FunctionType):
        yield from _function_parts(value, seen)
    elif isinstance(value, types.MethodType):
        yield from _all_parts((value.__func__, value.__self__), seen)
    elif isinstance(value, (set, frozenset)):
        yield from sorted("\0".join(_parts(item, set(seen))) for item in value)
    elif isinstance(value, (tuple, list)):
        yield from _all_parts(value, seen)
    elif isinstance(value, dict):
        yield from _all_parts([part for item in value.items() for part in item], seen)
    elif isinstance(value, types.ModuleType):
        yield value.__name__
    else:
        yield from _object_parts(value, seen)


def _all_parts(values: Iterable[Any], seen: set[int]) -> Iterator[str]:
    for value in values:
        yield from _parts(value, seen)


def _code_parts(code: types.CodeType, seen: set[int]) -> Iterator[str]:
    yield code.co_code.hex()
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    yield repr((counts, names))
    yield getattr(code, "co_exceptiontable", b"").hex()
    yield from _all_parts(code.co_consts, seen)


def _function_parts(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    """Yields what states a function: one of torch's or Python's own is stated by its name."""
    yield f"{function.__module__}.{function.__qualname__}"
    if _is_fixed(function.__module__):
        return
    yield from _parts(function.__code__, seen)
    yield from _all_parts((function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        try:
            yield from _parts(cell.cell_contents, seen)
        except ValueError:  # the variable has no value yet
            yield "empty"
    names = _names(function.__code__)
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        yield name
        yield from _parts(value, seen)
        if isinstance(value, types.ModuleType) and not _is_fixed(value.__name__):
            for attribute in sorted(names & vars(value).keys()):
                yield from _parts(vars(value)[attribute], seen)


def _names(code: types.CodeType) -> set[str]:
    """Returns the globals and attributes that a code object names, with those of the functions in it."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


def _object_parts(value: Any, seen: set[int]) -> Iterator[str]:
    """Yields what states a class, an instance, or a function of a library: its attributes, if it is of no library."""
    owner = value if isinstance(value, type) else type(value)
    name = getattr(value, "__qualname__", owner.__qualname__)
    yield f"{getattr(value, '__module__', None) or owner.__module__}.{name}"
    if type(value) in WRAPPERS:
        yield from _all_parts([getattr(value, name, None) for name in WRAPPED], seen)
    if _is_fixed(owner.__module__):
        return
    for base in owner.__mro__:
        if not _is_fixed(base.__module__):
            yield from _all_parts([vars(base)[name] for name in sorted(vars(base)) if name not in TEXTS], seen)
    if not isinstance(value, type):
        own = getattr(value, "__dict__", {})
        yield from _all_parts([part for name in sorted(own) for part in (name, own[name])], seen)


def _is_fixed(module: str | None) -> bool:
    """Returns whether a module is torch's or Python's own: torch's version is in torch's keys."""
    package = (module or "").partition(".")[0]
    return package in ("torch", "builtins") or package in sys.stdlib_module_names
