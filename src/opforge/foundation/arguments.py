"""Finds the argument of a public call that is of a wrong type, by the annotations of the function.

What is in a container is not looked at, and a class that is not in KINDS accepts anything: the code behind it says what
is wrong. A function on the path of a hit looks only after an error; others are `checked` before they begin.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, wraps
from typing import Any, TypeVar, cast

from opforge.errors import SettingError

Function = TypeVar("Function", bound=Callable[..., Any])
TEXTS = (str, bytes, bytearray)
KINDS: Mapping[str, Callable[[Any], bool]] = {
    "None": lambda value: value is None,
    "str": lambda value: isinstance(value, str),
    "int": lambda value: hasattr(type(value), "__index__"),
    "float": lambda value: hasattr(type(value), "__float__"),
    "type": lambda value: isinstance(value, type),
    "PathLike": lambda value: hasattr(type(value), "__fspath__"),
    "Callable": callable,
    "Iterable": lambda value: isinstance(value, Iterable) and not isinstance(value, TEXTS),
    "Mapping": lambda value: isinstance(value, Mapping),
    "ExportedProgram": lambda value: hasattr(value, "graph_module"),
    "Module": lambda value: hasattr(value, "named_modules") and not isinstance(value, type),
    "Sequence": lambda value: isinstance(value, Sequence) and not isinstance(value, TEXTS),
}
"""The last word of an annotation's name -> whether a value is of that kind."""


def wrong(function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> SettingError | None:
    """Returns the error about the first argument of a call that does not fit its annotation, or None."""
    signature, kinds = _read(function)
    try:
        bound = signature.bind(*arguments, **named).arguments
    except TypeError:  # too many, too few or of another name: Python's own error says so
        return None
    for name, value in bound.items():
        if name in kinds and not any(KINDS.get(kind, lambda _value: True)(value) for kind in kinds[name]):
            return SettingError(name, value, str(signature.parameters[name].annotation))
    return None


def checked(function: Function) -> Function:
    """Makes a function raise SettingError for an argument that does not fit its annotation, before it begins."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if problem := wrong(function, arguments, named):
            raise problem
        return function(*arguments, **named)

    return cast("Function", call)


@cache
def _read(function: Callable[..., Any]) -> tuple[inspect.Signature, Mapping[str, tuple[str, ...]]]:
    """Returns the signature of a function, and the kinds that it names for each argument."""
    signature = inspect.signature(function)
    kinds = {
        name: tuple(_names(ast.parse(parameter.annotation, mode="eval").body))
        for name, parameter in signature.parameters.items()
        if isinstance(parameter.annotation, str) and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    return signature, kinds


def _names(annotation: ast.expr) -> Iterator[str]:
    """Yields the last word of each name that an annotation joins by `|`."""
    if isinstance(annotation, ast.BinOp):
        yield from _names(annotation.left)
        yield from _names(annotation.right)
    else:
        name = annotation.value if isinstance(annotation, ast.Subscript) else annotation
        yield ast.unparse(name).rpartition(".")[2]
