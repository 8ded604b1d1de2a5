"""The cores, memory nodes and number of threads of each slot of a host. Reads the host, changes nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.errors import CoresError, SettingError
from opforge.launch.bind_options import BindOptions
from opforge.launch.core_list import format_list

from .cores import Core, Share, share_out
from .devices import device_nodes
from .machine import Machine

AFFINITY_VARIABLES = ("KMP_AFFINITY", "GOMP_CPU_AFFINITY")
"""With these an OpenMP runtime binds threads itself, perhaps to cores of other ranks."""
_HARMLESS_VALUES = frozenset({"none", "disabled"})


class Binding(NamedTuple):
    """Where one rank runs."""

    cpus: tuple[int, ...]
    """Its own hardware threads. Empty if it is not bound."""
    memory: tuple[int, ...]
    """The NUMA nodes of its memory policy. Empty if it has none."""
    policy: str
    """`bind`, `preferred`, or empty."""
    threads: int
    """The value of OMP_NUM_THREADS: its physical cores, at most its share of the cgroup's quota; at least 1."""

    def as_row(self) -> dict[str, Any]:
        """Returns the cells of a table, JSON-able: cores, memory, threads."""
        return {
            "cores": format_list(self.cpus) if self.cpus else "not bound",
            "memory": f"{self.policy} {format_list(self.memory)}" if self.policy else "-",
            "threads": self.threads,
        }


def check_environment(environ: Mapping[str, str]) -> None:
    """Raises SettingError for a variable that would bind threads to other cores than their rank's."""
    for name in AFFINITY_VARIABLES:
        value = environ.get(name, "")
        if value and value.lower() not in _HARMLESS_VALUES:
            expected = "it to be unset with --bind-cores-to-rank, which binds each rank itself"
            raise SettingError(name, value, expected)


def slot_bindings(slots: int, options: BindOptions, environ: Mapping[str, str], root: str = "/") -> tuple[Binding, ...]:
    """Returns the binding of each slot of this host. Raises CoresError, SettingError."""
    machine = Machine.read(root, core_list=options.core_list)
    quota = math.inf if machine.quota is None else machine.quota
    if not options.bind:
        return (Binding((), (), "", max(1, int(min(len(machine.cores), quota) / slots))),) * slots
    check_environment(environ)
    nodes = device_nodes(options.accelerator, slots, environ, root)
    shares = (nodes and _shares_near_devices(machine, nodes)) or share_out(machine.cores, slots)
    return tuple(_binding(machine, share, options.smt, quota / slots) for share in shares)


def chosen_bindings(
    slots: int, chosen: Sequence[int], options: BindOptions, environ: Mapping[str, str], root: str = "/"
) -> tuple[Binding, ...]:
    """Returns the bindings of the chosen slots, in their order. Raises CoresError, SettingError."""
    if not options.bind:
        return slot_bindings(len(chosen), options, environ, root)
    all_slots = slot_bindings(slots, options, environ, root)
    return tuple(all_slots[slot] for slot in chosen)


def _shares_near_devices(machine: Machine, device_nodes: Sequence[int]) -> list[Share] | None:
    """Shares out the cores of each device's node among the ranks of that node. None if a node has too few.

    The cores of a node without a device go to the nearest node with a device on the same socket.
    """
    with_device = sorted(set(device_nodes))
    cores: dict[int, list[Core]] = {node: [] for node in with_device}
    for core in machine.cores:
        node = core.node if core.node in cores else _nearest(machine, core.node, with_device)
        if node is not None:
            cores[node].append(core)
    shares: dict[int, list[Share]] = {}
    for node in with_device:
        try:
            shares[node] = share_out(cores[node], list(device_nodes).count(node))
        except CoresError:
            return None
    return [shares[node].pop(0) for node in device_nodes]


def _nearest(machine: Machine, node: int, others: Collection[int]) -> int | None:
    same_socket = [other for other in others if machine.packages.get(other) == machine.packages[node]]
    distances = machine.distances.get(node, {})
    return min(same_socket, key=lambda other: (distances.get(other, 0), other), default=None)


def _binding(machine: Machine, share: Share, smt: str, quota: float) -> Binding:
    cpus = [cpu for core in share for cpu in (core.threads if smt == "keep" else core.threads[:1])]
    nodes = sorted({core.node for core in share})
    fast = sorted({machine.fast_memory[node] for node in nodes if node in machine.fast_memory})
    own = tuple(node for node in nodes if node in machine.with_memory)
    # The kernel accepts one preferred node only: a rank on several nodes is bound to their own memory.
    memory, policy = (tuple(fast), "preferred") if len(fast) == 1 else (own, "bind" if own else "")
    return Binding(tuple(sorted(cpus)), memory, policy, max(1, int(min(len(share), quota))))


def binding_rows(
    slots: int, chosen: Sequence[int], options: BindOptions, environ: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Returns the bindings of this host's chosen slots as rows. Raises CoresError, SettingError."""
    return [binding.as_row() for binding in chosen_bindings(slots, chosen, options, environ)]


def bind_cpus(cpus: Sequence[int]) -> None:
    """Binds this process, and the processes that it starts, to hardware threads. Raises CoresError."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise CoresError(
            f"the kernel refused to bind this rank to {format_list(cpus)} ({error})",
            "Run the job in a cpuset that does not change meanwhile, or omit --bind-cores-to-rank",
        ) from error
