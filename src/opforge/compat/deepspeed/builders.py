"""The builders of opforge that replace DeepSpeed's, by DeepSpeed's names."""

from __future__ import annotations

import logging
import sys
from abc import ABCMeta
from collections.abc import Collection
from typing import Any

from opforge.accelerator.interface.accelerator import Accelerator
from opforge.accelerator.interface.builder_protocol import create
from opforge.accelerator.interface.deepspeed_names import DEVICE_BUILDERS
from opforge.builders.cpu.adam import CPUAdamBuilder
from opforge.builders.declaration import targets
from opforge.builders.declaration.op_spec import OpSpec
from opforge.errors import BuilderError
from opforge.errors.base import unknown_name

from .methods import METHODS

HOST_BUILDERS = (
    "AsyncIOBuilder",
    "CCLCommBuilder",
    "CPUAdagradBuilder",
    "CPUAdamBuilder",
    "CPULionBuilder",
    "PinMemoryBuilder",
    "ShareMemCommBuilder",
    "UtilsBuilder",
)
"""The builders whose ops work on the host, whatever the accelerator is."""
ON_HOST_ONLY = ("InferenceBuilder", "InferenceCoreBuilder")
"""Builders whose ops have fewer functions for tensors of a GPU than DeepSpeed's own ops there."""
UNMEASURED = ("EvoformerAttnBuilder", "RaggedOpsBuilder")
"""Builders whose ops no GPU has shown to be as fast as DeepSpeed's own: there they replace these only if named."""
DROP_IN = (*HOST_BUILDERS, *DEVICE_BUILDERS)
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
        if ours.name != "cpu" and (name in ON_HOST_ONLY or (name in UNMEASURED and names is DROP_IN)):
            continue
        if kind is not None and (name not in DEVICE_BUILDERS or _runs_on(ours, kind)):
            builders[name] = _joint_class(kind, deepspeeds_class(name, theirs), ours)
    return builders


def check_names(ours: Accelerator, theirs: Any, names: Collection[str]) -> None:
    """Raises BuilderError for a name that neither opforge nor DeepSpeed has a builder of.

    A builder that only DeepSpeed has stays DeepSpeed's, with a warning: it was requested of opforge.
    """
    for name in names:
        if name in DROP_IN or name in ours.op_builders() or ours.get_op_builder(name) is not None:
            continue
        if deepspeeds_class(name, theirs) is None:
            raise BuilderError("install", *unknown_name("builders", name, {*DROP_IN, *ours.op_builders()}))
        log.warning("%s is DeepSpeed's own: opforge has no such op", name)


def deepspeeds_class(name: str, theirs: Any) -> Any:
    """Returns DeepSpeed's builder class of that name: its accelerator's, else another device's; None if there is none.

    An accelerator that lacks a builder returns None, or a class that stands for every missing builder.
    """
    kind = theirs.get_op_builder(name)
    if getattr(kind, "__name__", "") == name:
        return kind
    package = "deepspeed.ops.op_builder"
    modules = [module for path, module in sys.modules.items() if path.startswith(f"{package}.")]
    kinds = [kind for module in modules if isinstance(kind := vars(module).get(name), type)]
    # A module of the package itself is CUDA's. Those of other vendors are in folders.
    return min(kinds, key=lambda kind: (kind.__module__.count("."), kind.__module__), default=None)


def _runs_on(accelerator: Accelerator, kind: Any) -> bool:
    return accelerator.name in getattr(kind, "devices", (accelerator.name,))


def _joint_class(ours: Any, theirs: Any, accelerator: Accelerator) -> Any:
    """Returns a subclass of our builder that has the other attributes of DeepSpeed's builder `theirs`, if there is one.

    DeepSpeed creates it without arguments. It is then for the accelerator's target, or for the host.
    """

    def spec(self: Any) -> OpSpec:
        """Returns the declaration for the accelerator's target, unless another one was requested."""
        # Not when the builder is created: target() may open the device, which then cannot be used after a fork.
        if self._requested is None and self._target is None and _runs_on(accelerator, ours):
            self._target = targets.concrete(accelerator.target())
        # Of this class `sources` and others are methods, and its attributes are whatever DeepSpeed's callers set.
        modes = {"debug": self.debug, "sanitize": self.sanitize, "portable": self.portable}
        declared = create(ours, self._target or self._requested, **modes)
        spec: OpSpec = declared.spec()
        self._target = declared._target
        return spec

    def load(self: Any, verbose: bool = False) -> Any:
        """Returns the op, which is loaded once in a process: it knows the optimizers that were created in it."""
        key = ours, self._requested, self.debug, self.sanitize, self.portable
        if key not in _loaded:
            _loaded[key] = ours.load(self, verbose)
        return _loaded[key]

    def __getattr__(self: Any, name: str) -> Any:
        """Returns an attribute that only DeepSpeed's builder has, such as `absolute_name`."""
        if theirs is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(theirs(), name)

    members = {"__module__": ours.__module__, "__doc__": ours.__doc__}
    members |= {"spec": spec, "load": load, "__getattr__": __getattr__, **METHODS}
    # Read on the class. The others are not copied: what flags and sources return is of our op.
    members |= {name: getattr(theirs, name) for name in ("NAME", "BUILD_VAR") if hasattr(theirs, name)}
    members |= _static_methods(theirs, ours)
    if issubclass(ours, CPUAdamBuilder):
        members["python_functions"] = "opforge.compat.deepspeed.zenflow:functions"
    kind = type(ours.__name__, (ours,), members)
    if isinstance(theirs, ABCMeta):
        theirs.register(kind)  # for isinstance(builder, deepspeed.ops.op_builder.OpBuilder)
    return kind


def _static_methods(theirs: Any, ours: Any) -> dict[str, Any]:
    """Returns the static methods that only DeepSpeed's builder has: they are called on the class."""
    methods: dict[str, Any] = {}
    for base in reversed(getattr(theirs, "__mro__", ())):
        methods |= {name: value for name, value in vars(base).items() if isinstance(value, staticmethod)}
    return {name: method for name, method in methods.items() if not hasattr(ours, name)}


_loaded: dict[tuple[Any, ...], Any] = {}
"""The loaded ops by builder class and what was requested of it. `install` makes new classes, and keeps the ops."""
