"""What binding needs to know of a host: its physical cores by NUMA node, and which memory is near and fast.

Everything is read below a root, from /sys, /proc, the affinity mask and the cgroup; no tool is started.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from opforge.accelerator.host.cgroup import cpu_quota
from opforge.accelerator.host.files import parse_list, read_number, read_text
from opforge.accelerator.host.topology import Topology, nodes_with_memory, usable_cpus
from opforge.errors import CoresError

from .cores import Core

_NODES, _CPUS = "sys/devices/system/node", "sys/devices/system/cpu"
_INTEL_KINDS = ("sys/devices/cpu_core/cpus", "sys/devices/cpu_atom/cpus", "sys/devices/cpu_lowpower/cpus")


@dataclass(frozen=True)
class Machine:
    """The part of a host that its ranks may use."""

    cores: tuple[Core, ...]
    """Physical cores; those of one NUMA node stand together, nodes of one socket beside each other."""
    packages: Mapping[int, int]
    """The socket of each NUMA node."""
    distances: Mapping[int, Mapping[int, int]]
    """Node to node, as the firmware tells; empty where it does not."""
    with_memory: frozenset[int]
    """The nodes with cores that have memory too, which this process may use."""
    fast_memory: Mapping[int, int]
    """For a node with cores: the nearest node that is high-bandwidth memory and nothing else (HBM in flat mode)."""
    quota: float | None
    """The processor time that the cgroup grants, in cores; None: all."""

    @classmethod
    def read(cls, root: str = "/", allowed: Collection[int] | None = None, listed: Collection[int] = ()) -> Machine:
        """Read the host; `listed` leaves only these hardware threads. CoresError for one that is not there or not ours.

        `allowed` is the affinity mask, that of this process by default.
        """
        cpus = usable_cpus(root, allowed)
        if listed:
            _check(root, listed, cpus)
            cpus = tuple(cpu for cpu in cpus if cpu in listed)
        host = Topology.read(root, cpus)
        node_of = {cpu: node.number for node in host.nodes for cpu in node.cpus}
        packages = {
            node.number: read_number(root, f"{_CPUS}/cpu{node.cpus[0]}/topology/physical_package_id") or 0
            for node in host.nodes
        }
        threads: dict[tuple[int, ...], list[int]] = {}
        for cpu in cpus:
            if cpu in node_of:
                threads.setdefault(_siblings(root, cpu), []).append(cpu)
        kinds = _kinds(root, cpus)
        cores = [Core(tuple(held), node_of[held[0]], kinds.get(held[0], 0)) for held in threads.values()]
        cores.sort(key=lambda core: (packages[core.node], core.node, core.kind, core.threads))
        distances = _distances(root)
        granted = nodes_with_memory(root)  # a policy that names another node is refused
        fast = _fast_memory(root, distances, [node.number for node in host.memory_only_nodes])
        return cls(
            cores=tuple(cores),
            packages=packages,
            distances=distances,
            with_memory=frozenset(
                node.number for node in host.nodes if node.memory and (not granted or node.number in granted)
            ),
            fast_memory={node: place for node, place in fast.items() if node in packages},
            quota=cpu_quota(root),
        )


def _check(root: str, listed: Collection[int], usable: Collection[int]) -> None:
    strange = sorted(set(listed).difference(usable))
    if not strange:
        return
    present = parse_list(read_text(root, f"{_CPUS}/online") or "")
    there = present and strange[0] in present
    problem = "is not ours: the affinity mask or the cpuset leaves it out" if there else "does not exist or is offline"
    raise CoresError(
        f"--bind-core-list names core {strange[0]}, which {problem}",
        f"This process may use {format_list(usable)}",
    )


def _siblings(root: str, cpu: int) -> tuple[int, ...]:
    return parse_list(read_text(root, f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list") or "") or (cpu,)


def _kinds(root: str, cpus: Collection[int]) -> dict[int, int]:
    """The kind of each hardware thread on a hybrid machine, 0 the fastest: Intel's lists, or Arm's capacities."""
    lists = [parse_list(read_text(root, path) or "") for path in _INTEL_KINDS]
    if any(lists):
        return {cpu: kind for kind, members in enumerate(lists) for cpu in members}
    capacity = {cpu: read_number(root, f"{_CPUS}/cpu{cpu}/cpu_capacity") or 0 for cpu in cpus}
    order = {value: kind for kind, value in enumerate(sorted(set(capacity.values()), reverse=True))}
    return {cpu: order[value] for cpu, value in capacity.items()}


def _distances(root: str) -> dict[int, dict[int, int]]:
    nodes = parse_list(read_text(root, f"{_NODES}/online") or "")
    found = {}
    for node in nodes:
        row = [int(word) for word in (read_text(root, f"{_NODES}/node{node}/distance") or "").split()]
        if len(row) == len(nodes):
            found[node] = dict(zip(nodes, row, strict=True))
    return found


def _fast_memory(root: str, distances: Mapping[int, Mapping[int, int]], bare: Collection[int]) -> dict[int, int]:
    """For each node with cores the nearest of the `bare` nodes (memory, no cores) that is fast and near to no other.

    Memory behind a bus (CXL) has no cores either: where the firmware tells bandwidths, only the faster counts.
    """
    with_cores = [node for node in distances if parse_list(read_text(root, f"{_NODES}/node{node}/cpulist") or "")]
    found: dict[int, int] = {}
    for node in with_cores:
        near = []
        for place in bare:
            far = distances[node].get(place)
            if far is None or far > min(distances[other].get(place, far) for other in with_cores):
                continue
            own, other = _bandwidth(root, node), _bandwidth(root, place)
            if own is None or other is None or other > own:
                near.append((far, place))
        if near:
            found[node] = min(near)[1]
    return found


def _bandwidth(root: str, node: int) -> int | None:
    """The bandwidth in MB/s that a node's memory gives those nearest to it, where the firmware tells."""
    return read_number(root, os.path.join(_NODES, f"node{node}", "access0/initiators/read_bandwidth"))


def format_list(numbers: Collection[int]) -> str:
    """Numbers as the kernel lists them: `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
