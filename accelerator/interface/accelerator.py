"""The accelerator interface: one class, put together from a part for each subject.

The names and arguments are those of DeepSpeed's accelerator interface, so that code moves over by an import.
A new accelerator subclasses `Accelerator`, sets four class attributes and overrides where its device differs from what
`torch.get_device_module` offers; `null.py` is the smallest whole one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .dtypes import DataTypes
from .environment import Environment
from .memory import Memory
from .op_builders import BuilderLink
from .pinning import Pinning
from .rng import RandomNumbers
from .streams import Graphs, Streams

if TYPE_CHECKING:
    from typing import ClassVar

    from opforge.accelerator.capabilities import Capabilities

INTERFACE_VERSION = 1
"""Raised when a change to the interface breaks accelerators written for the version before."""


class Accelerator(RandomNumbers, Streams, Memory, DataTypes, Graphs, Pinning, BuilderLink, Environment):
    """What one kind of device is and can do.

    Sizes are in bytes, `device_index` None means the current device, and a device without a feature gets a working
    stand-in or a no-op: nothing that a caller will call is ever None. A subclass sets `name`, `torch_device`,
    `synchronous` and `interface_version`, and its constructor takes no argument.
    """

    interface_version: ClassVar[int]
    """The INTERFACE_VERSION that the class was written for, as a plain number; another one is refused by name."""

    def capabilities(self) -> Capabilities:
        """Give what the accelerator can do, as one frozen value. Found once."""
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
            graphs=self._graph_class() is not None,
            total_memory=self.total_memory(),
            numa_nodes=tuple(node.number for node in host.nodes),
            memory_only_nodes=tuple(node.number for node in host.memory_only_nodes),
            cores=host.cores,
            threads=host.threads,
            compute_capability=self._compute_capability(),
        )

    def _model(self) -> str:
        named = self._device_function("get_device_name")
        return self.name if named is None else str(named())

    def _simd(self) -> tuple[str, ...]:
        return ()

    def _compute_capability(self) -> tuple[int, int] | None:
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"
