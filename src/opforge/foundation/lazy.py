"""Values that are computed at first use: public names of packages (PEP 562), and properties of objects."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property  # noqa: TID251
else:

    class cached_property(functools.cached_property):  # noqa: TID251
        """A property that is computed at its first use in each object, without a lock, as from Python 3.12 on.

        Before that functools has one lock for all objects of a class. A child that is forked while a thread holds it
        waits for ever. Threads that ask at the same time may each compute the value: the last one is kept.
        """

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            values = instance.__dict__
            if self.attrname not in values:
                values[self.attrname] = self.func(instance)
            return values[self.attrname]


def names(
    package: str, modules: Mapping[str, str], parent: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns a package's `__getattr__` and `__dir__`.

    `modules` maps each public name to the module that defines it, relative to `parent`: by default the package.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{parent or package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next access does not call __getattr__
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, list_names
