"""The representation of a loaded op and of a builder: a few lines, which never raise an error. And help() of an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

MAX_FUNCTIONS = 6
MAX_WIDTH = 100


def op_text(op: Any) -> str:
    """Returns the representation of a loaded op: its name, where it came from, and its functions with their schemas."""
    return _text(op, op.__entry__.origin, op_schemas(op))


def python_op_text(op: Any, functions: Mapping[str, Callable[..., Any]], origin: str) -> str:
    """Returns the representation of an op whose functions are Python's."""
    return _text(op, origin, python_signatures(functions))


def op_help(op: Any) -> str:
    """Returns the text of help() for a loaded op: every function with its schema, the library, the target, the key."""
    record = op.__entry__.record
    facts = {
        "library": op.__file__,
        "origin": op.__entry__.origin,
        "target": record.get("target", ""),
        "abi": record.get("abi", ""),
        "key": op.__entry__.key,
    }
    return _help(op_schemas(op), facts)


def python_op_help(op: Any, functions: Mapping[str, Callable[..., Any]], origin: str) -> str:
    """Returns the text of help() for an op whose functions are Python's."""
    return _help(python_signatures(functions), {"library": op.__file__, "origin": origin})


def op_schemas(op: Any) -> list[str]:
    """Returns the schema of each function of a loaded op; of one without a schema, its name."""
    added = [name for name, value in vars(op).items() if callable(value) and not name.startswith("__")]
    names = dict.fromkeys((*op.__names__, *added))
    return [schema for name in names for schema in _schemas(op, name)]


def python_signatures(functions: Mapping[str, Callable[..., Any]]) -> list[str]:
    """Returns each function with its signature."""
    from inspect import signature

    return [f"{name}{signature(function)}" for name, function in functions.items()]


def builder_text(builder: Any) -> str:
    """Returns the representation of a builder: its class, name, target, sources, and the op that it has loaded."""
    target = builder._target or builder._requested or "this machine"
    try:
        sources: Any = builder.sources
        if callable(sources):  # of a builder in DeepSpeed's form
            sources = sources()
        listed = ", ".join(sources) if isinstance(sources, (list, tuple)) else str(sources)
    except Exception as error:  # a property of the author's
        listed = f"{type(error).__name__}: {error}"
    modes = [name for name in ("debug", "portable") if getattr(builder, name)]
    modes += [f"sanitize={builder.sanitize}"] if builder.sanitize else []
    loaded = builder._loaded.library if builder._loaded else None
    state = f"loaded from {getattr(loaded, '__file__', loaded)}" if loaded is not None else "not loaded"
    name = builder.name or getattr(builder, "NAME", "")
    head = f"<{type(builder).__name__} {name!r} for {', '.join([str(target), *modes])}"
    return f"{head}\n  {_shortened(listed)}\n  {state}>"


def _text(op: Any, origin: str, functions: Sequence[str]) -> str:
    lines = [_shortened(function) for function in functions[:MAX_FUNCTIONS]]
    if len(functions) > MAX_FUNCTIONS:
        lines.append(f"... and {len(functions) - MAX_FUNCTIONS} more: help(op) shows all")
    return "\n  ".join([f"<op {op.__name__!r} ({origin}) from {op.__file__ or 'Triton itself'}", *lines]) + ">"


def _help(functions: Sequence[str], facts: Mapping[str, str]) -> str:
    lines = [f"    {function}" for function in functions] or ["    no function is known by name"]
    return "\n".join(["Functions:", *lines, "", *(f"{name}: {value}" for name, value in facts.items())])


def _schemas(op: Any, name: str) -> list[str]:
    function = vars(op).get(name) or op.__find__(name)  # not getattr: that keeps what it finds
    if hasattr(function, "overloads"):  # a packet of torch's
        return [_schema(getattr(function, overload), name) for overload in function.overloads()]
    return [_schema(function, name)]


def _schema(function: Any, name: str) -> str:
    schema = getattr(function, "_schema", None)
    return str(schema).partition("::")[2] if schema is not None else name


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_WIDTH else f"{text[: MAX_WIDTH - 3]}..."
