"""From a host and what was asked for to each slot's cores, memory nodes and number of threads. Pure but for reading."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.accelerator.host.files import parse_list
from opforge.errors import CoresError, SettingError

from .cores import Core, Share, share_out
from .devices import device_nodes
from .machine import Machine, format_list

BINDERS = ("KMP_AFFINITY", "GOMP_CPU_AFFINITY")
"""Variables by which an OpenMP runtime would bind threads by itself, against the cores that a rank was given."""
_HARMLESS = frozenset({"none", "disabled"})
SMT = ("keep", "skip")


class Wishes(NamedTuple):
    """How the ranks of a host are to be bound."""

    bind: bool = False
    """Whether each rank gets cores and memory of its own."""
    listed: tuple[int, ...] = ()
    """The only hardware threads that may be bound to; none: all."""
    smt: str = "keep"
    """`keep`: a rank runs on every hardware thread of its cores; `skip`: on the first of each."""
    accelerator: str = "cpu"
    """Ranks are put near their devices of this accelerator, where the bus tells."""
    threads: bool = True
    """Whether OMP_NUM_THREADS is set; not where the user has set it."""

    def arguments(self) -> list[str]:
        """The same as arguments of `opforge.launch.rank`."""
        told = [] if self.threads else ["--keep-threads"]
        if self.bind:
            told += ["--bind", "--smt", self.smt, "--accelerator", self.accelerator]
            told += ["--cores", format_list(self.listed)] if self.listed else []
        return told


class Binding(NamedTuple):
    """Where one rank runs."""

    cpus: tuple[int, ...]
    """The hardware threads of its own; none where it is not bound."""
    memory: tuple[int, ...]
    """The NUMA nodes of its memory policy; none where it has none."""
    policy: str
    """`bind`, `preferred` or nothing."""
    threads: int
    """What OMP_NUM_THREADS should be: its physical cores, within the cgroup's quota; at least 1."""

    def told(self) -> dict[str, Any]:
        """For a table and for JSON."""
        return {
            "cores": format_list(self.cpus) if self.cpus else "not bound",
            "memory": f"{self.policy} {format_list(self.memory)}" if self.policy else "-",
            "threads": self.threads,
        }


def parse_cores(text: str) -> tuple[int, ...]:
    """The numbers of --bind-core-list, such as `0-51,56-107`. Raises SettingError."""
    numbers: tuple[int, ...] = ()
    parts = text.replace(" ", "").split(",")
    bounds = [part.split("-") for part in parts]
    if all(
        1 <= len(ends) <= 2 and all(_small(end) for end in ends) and int(ends[0]) <= int(ends[-1]) for ends in bounds
    ):
        numbers = parse_list(",".join(parts))
    if not numbers:
        raise SettingError("--bind-core-list", text, "numbers of cores and ranges of them, such as 0-51,56-107")
    return numbers


def _small(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 6


def check_environment(environ: Mapping[str, str]) -> None:
    """Refuse variables that would bind threads elsewhere than to their rank's cores. Raises SettingError."""
    for name in BINDERS:
        value = environ.get(name, "")
        if value and value.lower() not in _HARMLESS:
            raise SettingError(
                name,
                value,
                "no such variable together with --bind-cores-to-rank, which binds each rank itself: unset it",
            )


def bindings(slots: int, wishes: Wishes, environ: Mapping[str, str], root: str = "/") -> tuple[Binding, ...]:
    """Where the rank of each slot of this host runs. Raises CoresError, SettingError."""
    machine = Machine.read(root, listed=wishes.listed)
    if not wishes.bind:
        usable = min(len(machine.cores), math.inf if machine.quota is None else machine.quota)
        return (Binding((), (), "", max(1, int(usable / slots))),) * slots
    check_environment(environ)
    near = device_nodes(wishes.accelerator, slots, environ, root)
    shares = (near and _near_devices(machine, near)) or share_out(machine.cores, slots)
    share_of_quota = math.inf if machine.quota is None else machine.quota / slots
    return tuple(_binding(machine, share, wishes.smt, share_of_quota) for share in shares)


def bound(
    slots: int, chosen: Sequence[int], wishes: Wishes, environ: Mapping[str, str], root: str = "/"
) -> tuple[Binding, ...]:
    """Where the chosen slots' ranks run, in their order. Raises as `bindings`."""
    if not wishes.bind:
        return bindings(len(chosen), wishes, environ, root)
    all_slots = bindings(slots, wishes, environ, root)
    return tuple(all_slots[slot] for slot in chosen)


def _near_devices(machine: Machine, near: Sequence[int]) -> list[Share] | None:
    """Share out the cores of each device's node among the ranks of that node; None where a node has too few.

    A node without a device lends its cores to the nearest one with a device on the same socket.
    """
    hosts = sorted(set(near))
    lent: dict[int, list[Core]] = {node: [] for node in hosts}
    for core in machine.cores:
        node = core.node if core.node in lent else _nearest(machine, core.node, hosts)
        if node is not None:
            lent[node].append(core)
    shares: dict[int, list[Share]] = {}
    for node in hosts:
        try:
            shares[node] = share_out(lent[node], list(near).count(node))
        except CoresError:
            return None
    return [shares[node].pop(0) for node in near]


def _nearest(machine: Machine, node: int, others: Collection[int]) -> int | None:
    beside = [other for other in others if machine.packages.get(other) == machine.packages[node]]
    return min(beside, key=lambda other: (machine.distances.get(node, {}).get(other, 0), other), default=None)


def _binding(machine: Machine, share: Share, smt: str, quota: float) -> Binding:
    cpus = [cpu for core in share for cpu in (core.threads if smt == "keep" else core.threads[:1])]
    nodes = sorted({core.node for core in share})
    fast = sorted({machine.fast_memory[node] for node in nodes if node in machine.fast_memory})
    own = tuple(node for node in nodes if node in machine.with_memory)
    # The kernel takes one preferred node; a rank on several nodes is kept to the memory of those.
    memory, policy = (tuple(fast), "preferred") if len(fast) == 1 else (own, "bind" if own else "")
    return Binding(tuple(sorted(cpus)), memory, policy, max(1, int(min(len(share), quota))))


def describe(slots: int, chosen: Sequence[int], wishes: Wishes, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """What `bound` says on this host, JSON-able."""
    return [one.told() for one in bound(slots, chosen, wishes, environ)]


def bind_cpus(cpus: Sequence[int]) -> None:
    """Bind this process, and those it starts, to hardware threads. Raises CoresError."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as problem:
        raise CoresError(
            f"the kernel refused to bind this rank to {format_list(cpus)} ({problem})",
            "Give the job a cpuset that does not change while it runs, or leave out --bind-cores-to-rank",
        ) from problem
