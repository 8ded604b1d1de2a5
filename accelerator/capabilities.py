"""The capabilities of one accelerator, as one frozen value: the only argument of a builder's `gate`."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of one accelerator, probed once. Memory is in bytes; counts are of what this process may use."""

    device: str
    """The accelerator's name, as OPFORGE_ACCELERATOR takes it."""
    device_name: str
    """The vendor's name of the model; the accelerator's name if it is not known."""
    device_count: int
    """Number of devices; for the CPU, of NUMA nodes with cores."""
    dtypes: tuple[str, ...]
    """Names of the torch dtypes that the device computes in, such as `float32`."""
    arch: str
    """The architectures that an op is built for, joined by `+`, as in `Target.arch`; empty if it has none."""
    simd: tuple[str, ...]
    """A CPU's vector features by the kernel's names, sorted; empty for other devices."""
    triton: bool
    """Whether Triton compiles for it."""
    graphs: bool
    """Whether the device itself captures and replays graphs; if not, they are emulated on the host."""
    total_memory: int
    """The device's bytes; for the CPU, the machine's memory or the cgroup's limit, whichever is lower."""
    numa_nodes: tuple[int, ...]
    """Numbers of the host's NUMA nodes on whose cores this process may run."""
    memory_only_nodes: tuple[int, ...]
    """Numbers of the usable NUMA nodes that have memory and no cores, such as HBM in flat mode."""
    cores: int
    """Physical cores of the host that this process may use, no more than the cgroup's quota rounded up."""
    threads: int
    """Hardware threads of the host, with the same limits."""
    compute_capability: tuple[int, int] | None
    """CUDA's major and minor number. None for other devices."""

    def as_dict(self) -> dict[str, object]:
        """Returns the fields by name, in JSON types (tuples become lists)."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
