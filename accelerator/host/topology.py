"""Cores and NUMA nodes that this process may use: those of /sys within the affinity mask, cpuset and cgroup quota.

The cpuset itself is not read, because the kernel already limits the affinity mask and `Mems_allowed` to it.
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
    """Bytes of memory on it; 0 if unknown."""


@dataclass(frozen=True)
class Topology:
    """The part of the machine that this process may use."""

    nodes: tuple[NumaNode, ...]
    """NUMA nodes with hardware threads that the process may run on; at least one."""
    memory_only_nodes: tuple[NumaNode, ...]
    """NUMA nodes with memory that the process may use and without processors, such as HBM in flat mode."""
    cores: int
    """Physical cores, no more than the cgroup's quota rounded up."""
    threads: int
    """Hardware threads, with the same limit."""

    @classmethod
    def read(cls, root: str = "/", allowed: Collection[int] | None = None) -> Topology:
        """Reads /sys and /proc below `root`. `allowed` replaces this process's affinity mask."""
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
    """Returns the numbers of the hardware threads that are online and in the affinity mask."""
    if allowed is None:
        # macOS has no affinity masks.
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    online = parse_list(read_text(root, f"{_CPUS}/online") or "")
    return tuple(sorted(set(allowed).intersection(online) if online else allowed)) or tuple(sorted(allowed))


def usable_nodes(root: str, cpus: Collection[int]) -> tuple[NumaNode, ...]:
    """Returns the NUMA nodes that hold some of these hardware threads, by number; empty if /sys lists no nodes."""
    nodes = []
    for number, all_cpus in _node_cpus(root):
        if usable := tuple(cpu for cpu in all_cpus if cpu in cpus):
            nodes.append(NumaNode(number, usable, _node_memory(root, number)))
    return tuple(nodes)


def _memory_only_nodes(root: str) -> tuple[NumaNode, ...]:
    usable = nodes_with_memory(root)
    return tuple(
        NumaNode(number, (), memory)
        for number, cpus in _node_cpus(root)
        if not cpus and (not usable or number in usable) and (memory := _node_memory(root, number))
    )


def nodes_with_memory(root: str) -> frozenset[int]:
    """Returns the NUMA nodes whose memory the cpuset lets this process use; empty if the kernel reports none."""
    status = (read_text(root, "proc/self/status") or "").splitlines()
    lists = (line.partition(":")[2] for line in status if line.startswith("Mems_allowed_list:"))
    return frozenset(parse_list(next(lists, "")))


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
    """Returns a text that the hardware threads of one core have in common, and no other has."""
    return (read_text(root, f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list") or str(cpu)).strip()
