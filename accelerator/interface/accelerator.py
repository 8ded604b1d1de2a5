"""The accelerator interface: one class, composed of one base class for each subject.

Names and arguments are those of DeepSpeed's accelerator interface, so that code moves over by changing an import.
A new accelerator subclasses `Accelerator`, sets four class attributes, and overrides the methods for which its device
differs from what `torch.get_device_module` offers. `devices/null.py` is the smallest complete one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .dtypes import DataTypes
from .environment import Environment
from .memory import Memory, Pinning
from .op_builders import BuilderLink
from .rng import RandomNumbers
from .streams import Graphs, Streams

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar

    from opforge.accelerator.capabilities import Capabilities

INTERFACE_VERSION = 1
"""The version of this interface. A change that breaks existing accelerators increments it."""


class Accelerator(RandomNumbers, Streams, Memory, DataTypes, Graphs, Pinning, BuilderLink, Environment):
    """What one kind of device is and can do.

    Sizes are in bytes, and `device_index` None means the current device. If a device lacks a feature, the method does
    nothing or returns an emulation: no method that returns a callable or a class ever returns None. A subclass sets
    `name`, `torch_device`, `synchronous` and `interface_version`, and its constructor takes no argument.
    """

    interface_version: ClassVar[int]
    """The INTERFACE_VERSION that the class was written for, as a number; opforge rejects a class with another one."""

    _in_use: ClassVar[Callable[[], Accelerator] | None] = None
    """Returns the accelerator in use. Set by the module that chooses one; None if it has not been imported."""

    @property
    def _name(self) -> str:
        """The name, as DeepSpeed's code reads it (`get_accelerator()._name`)."""
        return self.name

    def capabilities(self) -> Capabilities:
        """Returns what the accelerator can do, as one frozen value; the first call probes the device."""
        if self._capabilities is None:
            self._capabilities = self._find_capabilities()
        return self._capabilities

    def _find_capabilities(self) -> Capabilities:
        from opforge.accelerator.capabilities import Capabilities
        from opforge.accelerator.host.topology import Topology

        host = Topology.read(self.root)
        return Capabilities(
            device=self.name,
            device_name=self._model(),
            device_count=self.device_count(),
            dtypes=tuple(str(dtype).removeprefix("torch.") for dtype in self.supported_dtypes()),
            arch="+".join(self.target().arch),
            simd=self._simd(),
            triton=self.is_triton_supported(),
            graphs=self._captures_graphs(),
            total_memory=self.total_memory(),
            numa_nodes=tuple(node.number for node in host.nodes),
            memory_only_nodes=tuple(node.number for node in host.memory_only_nodes),
            cores=host.cores,
            threads=host.threads,
            compute_capability=self._compute_capability(),
        )

    def _model(self) -> str:
        get_name = self._device_function("get_device_name")
        return self.name if get_name is None else str(get_name())

    def _simd(self) -> tuple[str, ...]:
        return ()

    def _compute_capability(self) -> tuple[int, int] | None:
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def __copy__(self) -> Accelerator:
        """Returns this object: a copy of an object that refers to it uses the same device."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Accelerator:
        """Returns this object, as `__copy__` does: a model that keeps it as an attribute can be copied."""
        return self

    def __reduce__(self) -> tuple[Callable[[], Accelerator], tuple[()]]:
        """Pickles as the accelerator in use, which in the process that unpickles it may be another one."""
        in_use = Accelerator._in_use or type(self)
        return in_use, ()
