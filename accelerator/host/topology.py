"""Cores and NUMA nodes that this process may use: /sys within the affinity mask, the cpuset and the cgroup's quota.

A cpuset needs no reading of its own: the kernel has cut the affinity mask and `Mems_allowed` down to it already.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from .cgroup import cap_cores, cpu_quota
from .files import parse_list, read_fields, read_text

_NODES, _CPUS = "sys/devices/system/node", "sys/devices/system/cpu"


@dataclass(frozen=True)
class NumaNode:
    """One NUMA node."""

    number: int
    cpus: tuple[int, ...]
    """Numbers of its hardware threads that this process may run on."""
    memory: int
    """Bytes of memory on it; 0 where the machine does not tell."""


@dataclass(frozen=True)
class Topology:
    """The part of the machine that this process may use."""

    nodes: tuple[NumaNode, ...]
    """NUMA nodes with hardware threads that it may run on; at least one."""
    memory_only_nodes: tuple[NumaNode, ...]
    """NUMA nodes with memory that it may use and no processors at all, such as HBM in flat mode."""
    cores: int
    """Physical cores, no more than the cgroup's quota rounded up."""
    threads: int
    """Hardware threads, likewise."""

    @classmethod
    def read(cls, root: str = "/", allowed: Collection[int] | None = None) -> Topology:
        """Read /sys and /proc below `root`; `allowed` is the affinity mask's threads, ours by default."""
        cpus = usable_cpus(root, allowed)
        nodes = usable_nodes(root, cpus) or (NumaNode(0, cpus, read_fields(root, "proc/meminfo").get("MemTotal", 0)),)
        quota = cpu_quota(root)
        return cls(
            nodes=nodes,
            memory_only_nodes=_memory_only_nodes(root),
            cores=cap_cores(len({_siblings(root, cpu) for cpu in cpus}), quota),
            threads=cap_cores(len(cpus), quota),
        )


def usable_cpus(root: str = "/", allowed: Collection[int] | None = None) -> tuple[int, ...]:
    """Give the numbers of the hardware threads that are online and in the affinity mask."""
    if allowed is None:
        # macOS has no affinity masks.
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    online = parse_list(read_text(root, f"{_CPUS}/online") or "")
    return tuple(sorted(set(allowed).intersection(online) if online else allowed)) or tuple(sorted(allowed))


def usable_nodes(root: str, cpus: Collection[int]) -> tuple[NumaNode, ...]:
    """Give the NUMA nodes that hold some of these hardware threads, by number; none where /sys does not tell."""
    found = []
    for number, all_cpus in _node_cpus(root):
        usable = tuple(cpu for cpu in all_cpus if cpu in cpus)
        if usable:
            found.append(NumaNode(number, usable, _node_memory(root, number)))
    return tuple(found)


def _memory_only_nodes(root: str) -> tuple[NumaNode, ...]:
    usable = nodes_with_memory(root)
    return tuple(
        NumaNode(number, (), memory)
        for number, cpus in _node_cpus(root)
        if not cpus and (not usable or number in usable) and (memory := _node_memory(root, number))
    )


def nodes_with_memory(root: str) -> frozenset[int]:
    """Give the NUMA nodes whose memory the cpuset lets this process have; none where the kernel does not tell."""
    status = (read_text(root, "proc/self/status") or "").splitlines()
    granted = (line.partition(":")[2] for line in status if line.startswith("Mems_allowed_list:"))
    return frozenset(parse_list(next(granted, "")))


def _node_cpus(root: str) -> list[tuple[int, tuple[int, ...]]]:
    numbers = parse_list(read_text(root, f"{_NODES}/online") or "")
    return [(number, parse_list(read_text(root, f"{_NODES}/node{number}/cpulist") or "")) for number in numbers]


def _node_memory(root: str, number: int) -> int:
    for line in (read_text(root, f"{_NODES}/node{number}/meminfo") or "").splitlines():
        words = line.split()
        if len(words) >= 4 and words[2] == "MemTotal:":
            return int(words[3]) * 1024
    return 0


def _siblings(root: str, cpu: int) -> str:
    """Give what is the same for the hardware threads of one core, and for no other."""
    return (read_text(root, f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list") or str(cpu)).strip()
