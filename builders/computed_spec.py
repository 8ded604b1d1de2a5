"""Whether a builder's spec may change although its attributes compare as equal: then it is computed at each load."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from opforge.fast_path import lookup
from opforge.fast_path.lookup import FLAG_ENDINGS

from .declaration.op_spec import DEEPSPEED_METHODS

NOT_OF_THE_BUILD = frozenset({"gate", "is_compatible", "fakes", "signatures"})
"""Attributes that a builder may override or declare without changing its spec."""


def is_computed(builder: Any, base: type, is_fixed: Callable[..., bool]) -> bool:
    """Returns whether a builder's spec may change although its attributes compare as equal.

    That is so if code of the author's shapes the build (a method of OpBuilder's, a property, DeepSpeed's methods), if
    a value is no plain one, by `is_fixed` (what is in it, or what it stands for, may change in place), or if a table
    FOR_ALL_BUILDERS applies.
    """
    kind = type(builder)
    if lookup.tables_for_all(kind):
        return True
    spaces = [vars(builder), *(vars(at) for at in kind.__mro__ if at not in (base, object)), lookup.set_on(base)]
    own = lookup.as_written
    for space in spaces:
        for name, value in space.items():
            if name in ("__getattr__", "__getattribute__"):
                return True
            if name[:2] == "__":
                continue
            if isinstance(value, (types.FunctionType, staticmethod, classmethod)):
                shapes = name in own or name in DEEPSPEED_METHODS or name.endswith(FLAG_ENDINGS)
                if shapes and name not in NOT_OF_THE_BUILD and not _is_opforges(value):
                    return True
            elif name in ("fakes", "signatures"):
                if not is_fixed(value, 3):
                    return True
            elif not is_fixed(value) and not (isinstance(value, property) and _is_opforges(value.fget)):
                return True
    return False


def _is_opforges(function: Any) -> bool:
    return str(getattr(getattr(function, "__func__", function), "__module__", "")).startswith("opforge.")
