"""The builders of opforge that replace DeepSpeed's, by DeepSpeed's names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from opforge.errors import BuilderError

if TYPE_CHECKING:
    from opforge.accelerator.interface.accelerator import Accelerator
    from opforge.builders.spec.op_spec import OpSpec

DEVICE_BUILDERS = ("FusedAdamBuilder", "FusedLambBuilder", "FusedLionBuilder", "QuantizerBuilder")
"""The builders whose ops DeepSpeed calls with tensors of the device."""
DROP_IN = ("CPUAdagradBuilder", "CPUAdamBuilder", "CPULionBuilder", *DEVICE_BUILDERS)
"""The builders whose ops have the functions that DeepSpeed calls, with the same arguments."""

log = logging.getLogger("opforge")


def replacement_builders(ours: Accelerator, theirs: Any, names: Collection[str]) -> dict[str, Any]:
    """Returns the builder classes by name, for those of `names` that the accelerator offers.

    A broken builder of another package is left out and logged, so that it does not stop the others.
    """
    builders = {}
    for name in names:
        try:
            kind: Any = ours.get_op_builder(name)
        except BuilderError as error:
            log.warning("%s is DeepSpeed's, not opforge's: %s", name, error)
            continue
        # Every accelerator offers the host's ops too, and these cannot use a device's tensors.
        if kind is not None and (name not in DEVICE_BUILDERS or _runs_on(ours, kind)):
            builders[name] = _with_fallback(kind, theirs.get_op_builder(name), ours)
    return builders


def _runs_on(accelerator: Accelerator, kind: Any) -> bool:
    return accelerator.name in getattr(kind, "devices", (accelerator.name,))


def _with_fallback(ours: Any, theirs: Any, accelerator: Accelerator) -> Any:
    """Returns a subclass of our builder whose op falls back on DeepSpeed's.

    DeepSpeed creates it without arguments. It is then for the accelerator's target, or for the host.
    """

    def spec(self: Any) -> OpSpec:
        """Returns the declaration for the accelerator's target, unless another one was requested."""
        # Not when the builder is created: target() may open the device, which then cannot be used after a fork.
        if self._requested is None and _runs_on(accelerator, ours):
            self._requested = accelerator.target()
        spec: OpSpec = ours.spec(self)
        return spec

    def load(self: Any, verbose: bool = False) -> Any:
        """Loads opforge's op. DeepSpeed's is built only when a function is called that opforge's lacks."""
        op = ours.load(self, verbose)
        return op if theirs is None else FallbackOp(op, lambda: theirs().load(verbose))

    members = {"__module__": ours.__module__, "__doc__": ours.__doc__, "spec": spec, "load": load}
    return type(ours.__name__, (ours,), members)


class FallbackOp:
    """opforge's op, with DeepSpeed's for the functions that opforge's lacks.

    The lacking functions are ZenFlow's, whose optimizer runs in other processes. They refer to optimizers by number, so
    every optimizer that was created in opforge's op is created in DeepSpeed's op too.
    """

    def __init__(self, ours: Any, load_theirs: Callable[[], Any]) -> None:
        self._ours, self._load_theirs = ours, load_theirs
        self._theirs: Any = None
        self._created: dict[tuple[str, int], tuple[Any, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        function = getattr(self._ours, name, None)
        if function is None:
            function = getattr(self._fallback(), name)
        elif name.startswith("create_"):
            function = self._create_in_both(name, function)
        setattr(self, name, function)  # the next access does not call __getattr__
        return function

    def _create_in_both(self, name: str, create: Callable[..., Any]) -> Callable[..., Any]:
        def create_optimizer(number: int, *arguments: Any) -> Any:
            self._created[name, number] = arguments
            if self._theirs is not None:
                getattr(self._theirs, name)(number, *arguments)
            return create(number, *arguments)

        return create_optimizer

    def _fallback(self) -> Any:
        if self._theirs is None:
            self._theirs = self._load_theirs()
            for (name, number), arguments in self._created.items():
                getattr(self._theirs, name)(number, *arguments)
        return self._theirs
