"""What one accelerator can do, as one frozen value. Builders gate on it and on nothing else."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Capabilities:
    """One accelerator's facts, probed once. Memory is in bytes; counts are of what this process may use."""

    device: str
    """The accelerator's name, as OPFORGE_ACCELERATOR takes it."""
    device_name: str
    """The model, in the maker's words; the accelerator's name where the machine does not tell."""
    device_count: int
    """Devices; for the CPU, NUMA nodes with cores."""
    dtypes: tuple[str, ...]
    """Names of the torch dtypes that the device computes in, such as `float32`."""
    arch: str
    """The architecture an op is built for, as in `Target.arch`; empty where it has none."""
    simd: tuple[str, ...]
    """Vector features of a CPU by the kernel's names, sorted; empty for other devices."""
    triton: bool
    """Whether Triton compiles for it."""
    graphs: bool
    """Whether the device itself captures and replays graphs, rather than a stand-in on the host."""
    total_memory: int
    """Bytes that the device has; for the CPU, that the machine and the cgroup grant."""
    numa_nodes: tuple[int, ...]
    """Numbers of the host's NUMA nodes on whose cores this process may run."""
    memory_only_nodes: tuple[int, ...]
    """Numbers of the usable NUMA nodes that have memory and no cores, such as HBM in flat mode."""
    cores: int
    """Physical cores of the host that this process may use, no more than the cgroup's quota rounded up."""
    threads: int
    """Hardware threads, likewise."""
    compute_capability: tuple[int, int] | None
    """CUDA's major and minor number; None for other devices."""

    def as_dict(self) -> dict[str, object]:
        """Give the fields by name in plain JSON types (tuples become lists)."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
