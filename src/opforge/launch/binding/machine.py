"""The hardware of a host that binding depends on: physical cores by NUMA node, and which memory is near and fast.

Everything is read below a root, from /sys, /proc, the affinity mask and the cgroup. No process is started.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from opforge.accelerator.host.cgroup import cpu_quota
from opforge.accelerator.host.files import parse_list, read_number, read_text
from opforge.accelerator.host.topology import Topology, nodes_with_memory, usable_cpus
from opforge.errors import CoresError
from opforge.launch.core_list import format_list

from .cores import Core

_NODES, _CPUS = "sys/devices/system/node", "sys/devices/system/cpu"
_INTEL_KINDS = ("sys/devices/cpu_core/cpus", "sys/devices/cpu_atom/cpus", "sys/devices/cpu_lowpower/cpus")


@dataclass(frozen=True)
class Machine:
    """The part of a host that its ranks may use."""

    cores: tuple[Core, ...]
    """Physical cores, sorted by socket, then by NUMA node."""
    packages: Mapping[int, int]
    """The socket of each NUMA node."""
    distances: Mapping[int, Mapping[int, int]]
    """The distance from node to node in the firmware's table. Empty if there is none."""
    with_memory: frozenset[int]
    """The nodes with cores that also have memory which this process may use."""
    fast_memory: Mapping[int, int]
    """For a node with cores: the nearest node that is only high-bandwidth memory (HBM in flat mode)."""
    quota: float | None
    """The processor time that the cgroup grants, in cores. None: unlimited."""

    @classmethod
    def read(cls, root: str = "/", allowed: Collection[int] | None = None, core_list: Collection[int] = ()) -> Machine:
        """Reads the host.

        Args:
            root: The folder that holds /sys and /proc.
            allowed: The affinity mask; by default that of this process.
            core_list: The only hardware threads to use. Empty: all.

        Raises:
            CoresError: A listed hardware thread does not exist, or this process may not use it.
        """
        cpus = usable_cpus(root, allowed)
        if core_list:
            _check_core_list(root, core_list, cpus)
            cpus = tuple(cpu for cpu in cpus if cpu in core_list)
        host = Topology.read(root, cpus)
        node_of = {cpu: node.number for node in host.nodes for cpu in node.cpus}
        packages = {
            node.number: read_number(root, f"{_CPUS}/cpu{node.cpus[0]}/topology/physical_package_id") or 0
            for node in host.nodes
        }
        siblings: dict[tuple[int, ...], list[int]] = {}
        for cpu in cpus:
            if cpu in node_of:
                siblings.setdefault(_siblings(root, cpu), []).append(cpu)
        kinds = _kinds(root, cpus)
        cores = [Core(tuple(threads), node_of[threads[0]], kinds.get(threads[0], 0)) for threads in siblings.values()]
        cores.sort(key=lambda core: (packages[core.node], core.node, core.kind, core.threads))
        distances = _distances(root)
        allowed_memory = nodes_with_memory(root)  # the kernel refuses a memory policy with any other node
        fast = _fast_memory(root, distances, [node.number for node in host.memory_only_nodes])
        return cls(
            cores=tuple(cores),
            packages=packages,
            distances=distances,
            with_memory=frozenset(
                node.number
                for node in host.nodes
                if node.memory and (not allowed_memory or node.number in allowed_memory)
            ),
            fast_memory={node: memory for node, memory in fast.items() if node in packages},
            quota=cpu_quota(root),
        )


def _check_core_list(root: str, core_list: Collection[int], usable: Collection[int]) -> None:
    unusable = sorted(set(core_list).difference(usable))
    if not unusable:
        return
    online = parse_list(read_text(root, f"{_CPUS}/online") or "")
    problem = "does not exist or is offline"
    if unusable[0] in online:
        problem = "this process may not use: the affinity mask or the cpuset excludes it"
    raise CoresError(
        f"--bind-core-list names core {unusable[0]}, which {problem}",
        f"This process may use {format_list(usable)}",
    )


def _siblings(root: str, cpu: int) -> tuple[int, ...]:
    return parse_list(read_text(root, f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list") or "") or (cpu,)


def _kinds(root: str, cpus: Collection[int]) -> dict[int, int]:
    """Returns the kind of each hardware thread, 0 the fastest: by Intel's lists of kinds, or by Arm's capacities."""
    lists = [parse_list(read_text(root, path) or "") for path in _INTEL_KINDS]
    if any(lists):
        return {cpu: kind for kind, members in enumerate(lists) for cpu in members}
    capacity = {cpu: read_number(root, f"{_CPUS}/cpu{cpu}/cpu_capacity") or 0 for cpu in cpus}
    order = {value: kind for kind, value in enumerate(sorted(set(capacity.values()), reverse=True))}
    return {cpu: order[value] for cpu, value in capacity.items()}


def _distances(root: str) -> dict[int, dict[int, int]]:
    nodes = parse_list(read_text(root, f"{_NODES}/online") or "")
    distances = {}
    for node in nodes:
        row = [int(word) for word in (read_text(root, f"{_NODES}/node{node}/distance") or "").split()]
        if len(row) == len(nodes):
            distances[node] = dict(zip(nodes, row, strict=True))
    return distances


def _fast_memory(root: str, distances: Mapping[int, Mapping[int, int]], memory_only: Collection[int]) -> dict[int, int]:
    """Returns, for each node with cores, the nearest of the `memory_only` nodes that is fast and nearer to no other.

    Memory behind a bus (CXL) has no cores either. If the firmware gives bandwidths, only memory that is faster than
    the node's own counts.
    """
    with_cores = [node for node in distances if parse_list(read_text(root, f"{_NODES}/node{node}/cpulist") or "")]
    nearest: dict[int, int] = {}
    for node in with_cores:
        near = []
        for memory in memory_only:
            distance = distances[node].get(memory)
            if distance is None:
                continue
            if distance > min(distances[other].get(memory, distance) for other in with_cores):
                continue  # it is another node's memory
            own, other = _bandwidth(root, node), _bandwidth(root, memory)
            if own is None or other is None or other > own:
                near.append((distance, memory))
        if near:
            nearest[node] = min(near)[1]
    return nearest


def _bandwidth(root: str, node: int) -> int | None:
    """Returns the bandwidth in MB/s between a node's memory and the cores nearest to it. None if it is not known."""
    return read_number(root, os.path.join(_NODES, f"node{node}", "access0/initiators/read_bandwidth"))
