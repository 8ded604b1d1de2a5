"""The builders that DeepSpeed gets from opforge, by DeepSpeed's names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from opforge.builders import cpu as host

if TYPE_CHECKING:
    from opforge.accelerator.interface import Accelerator

DROP_IN = ("CPUAdagradBuilder", "CPUAdamBuilder", "CPULionBuilder")
"""The builders whose ops have the functions that DeepSpeed's optimizers call, with their arguments."""


def served(ours: Accelerator, theirs: Any, names: Collection[str]) -> dict[str, Any]:
    """Class by name, for those of `names` that opforge has: the accelerator's own, else the host's.

    What runs on the host serves every device: DeepSpeed steps on the CPU for a GPU that offloads.
    """
    found = {name: kind for name in names if (kind := ours.get_op_builder(name) or _host_builder(name)) is not None}
    return {name: _joint_builder(kind, theirs.get_op_builder(name)) for name, kind in found.items()}


def _host_builder(name: str) -> Any:
    module, _, attribute = host.BUILDERS.get(name, "").partition(":")
    return getattr(importlib.import_module(module), attribute) if module else None


def _joint_builder(ours: Any, theirs: Any) -> Any:
    """The subclass of our builder whose op falls back on DeepSpeed's."""

    def load(self: Any, verbose: bool = False) -> JointOp:
        """Load opforge's op; DeepSpeed's is built only when a function is called that opforge's lacks."""
        return JointOp(ours.load(self, verbose), lambda: theirs().load(verbose))

    return type(ours.__name__, (ours,), {"__module__": ours.__module__, "__doc__": ours.__doc__, "load": load})


class JointOp:
    """Opforge's op, and DeepSpeed's for functions that opforge's lacks (ZenFlow's: an optimizer in other processes).

    Such functions speak of optimizers by number, so those that were created are made known to DeepSpeed's op too.
    """

    def __init__(self, ours: Any, load_theirs: Callable[[], Any]) -> None:
        self._ours, self._load_theirs = ours, load_theirs
        self._theirs: Any = None
        self._created: dict[tuple[str, int], tuple[Any, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self._ours, name, None)
        if found is None:
            found = getattr(self._other(), name)
        elif name.startswith("create_"):
            found = self._creating(name, found)
        setattr(self, name, found)  # the next access finds it without coming here
        return found

    def _creating(self, name: str, create: Callable[..., Any]) -> Callable[..., Any]:
        def created(number: int, *arguments: Any) -> Any:
            self._created[name, number] = arguments
            if self._theirs is not None:
                getattr(self._theirs, name)(number, *arguments)
            return create(number, *arguments)

        return created

    def _other(self) -> Any:
        if self._theirs is None:
            self._theirs = self._load_theirs()
            for (name, number), arguments in self._created.items():
                getattr(self._theirs, name)(number, *arguments)
        return self._theirs
