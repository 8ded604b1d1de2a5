"""`NamedTuple`, made in a quarter of the time that `typing` takes.

typing compiles the annotation of each field, to check that it is a type; mypy has done that. The modules of a load that
fetches an op define sixty of these classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    import collections

    class _NamedTupleMeta(type):
        """Makes a subclass of tuple from the annotations of a class; its module must postpone these (PEP 563)."""

        def __new__(mcs, name, bases, names):
            if not bases:
                return super().__new__(mcs, name, bases, names)
            types = names.pop("__annotations__")
            defaults = [names.pop(field) for field in types if field in names]
            made = collections.namedtuple(name, types, defaults=defaults, module=names.pop("__module__"))
            made.__annotations__ = made.__new__.__annotations__ = types
            for attribute, value in names.items():
                setattr(made, attribute, value)
            return made

    class NamedTuple(metaclass=_NamedTupleMeta):
        """As typing.NamedTuple, for classes that are not generic."""
