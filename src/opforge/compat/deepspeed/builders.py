"""The builders that DeepSpeed gets from opforge, by DeepSpeed's names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from opforge.errors import BuilderError

if TYPE_CHECKING:
    from opforge.accelerator.interface.accelerator import Accelerator
    from opforge.builders.spec.op_spec import OpSpec

ON_DEVICE = ("FusedAdamBuilder", "FusedLambBuilder", "FusedLionBuilder", "QuantizerBuilder")
"""Those whose ops DeepSpeed calls with tensors of the device."""
DROP_IN = ("CPUAdagradBuilder", "CPUAdamBuilder", "CPULionBuilder", *ON_DEVICE)
"""The builders whose ops have the functions that DeepSpeed calls, with their arguments."""

log = logging.getLogger("opforge")


def served(ours: Accelerator, theirs: Any, names: Collection[str]) -> dict[str, Any]:
    """Class by name, for those of `names` that the accelerator offers. One that cannot be used is left out, and logged:
    what another package adds must not stop the rest.
    """
    found = {}
    for name in names:
        try:
            kind: Any = ours.get_op_builder(name)
        except BuilderError as error:
            log.warning("%s stays DeepSpeed's own: %s", name, error)
            continue
        # Every accelerator offers the host's ops too, and these know no tensor of a device.
        if kind is not None and (name not in ON_DEVICE or _runs_on(ours, kind)):
            found[name] = _joint_builder(kind, theirs.get_op_builder(name), ours)
    return found


def _runs_on(accelerator: Accelerator, kind: Any) -> bool:
    return accelerator.name in getattr(kind, "devices", (accelerator.name,))


def _joint_builder(ours: Any, theirs: Any, accelerator: Accelerator) -> Any:
    """The subclass of our builder whose op falls back on DeepSpeed's. Made without arguments, as DeepSpeed makes it, it
    is for the accelerator's own target, or for the host.
    """

    def spec(self: Any) -> OpSpec:
        """Return the declaration for the accelerator's target, unless another one was requested."""
        # Not when the builder is made: that must not open a device, which a later fork could not use.
        if self._requested is None and _runs_on(accelerator, ours):
            self._requested = accelerator.target()
        spec: OpSpec = ours.spec(self)
        return spec

    def load(self: Any, verbose: bool = False) -> Any:
        """Load opforge's op; DeepSpeed's is built only when a function is called that opforge's lacks."""
        op = ours.load(self, verbose)
        return op if theirs is None else JointOp(op, lambda: theirs().load(verbose))

    members = {"__module__": ours.__module__, "__doc__": ours.__doc__, "spec": spec, "load": load}
    return type(ours.__name__, (ours,), members)


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
