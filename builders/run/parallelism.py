"""How many compilers run at once: as many as cores, memory and limits on processes allow."""

from __future__ import annotations

from collections.abc import Iterable

from opforge.accelerator.host.available_memory import memory_left
from opforge.accelerator.host.process_limit import processes_left
from opforge.accelerator.host.topology import Topology
from opforge.builders.declaration.build_plan import BuildPlan
from opforge.cache.layout import Layout
from opforge.foundation import settings

from . import jobserver, ninja
from .memory_needs import MemoryNeeds

OWN_PROCESSES, COMPILER_PROCESSES = 3, 4
"""Processes of a build (supervisor, ninja, a thread), and of one compiler (sh, g++, cc1plus, as)."""


def jobserver_for(jobs: int | None, plans: Iterable[BuildPlan], layout: Layout) -> jobserver.Jobserver:
    """Returns the jobserver for building these plans together: as many compilers as the least hungry plan allows.

    The build of a hungrier one holds several tokens for each of its compilers: see `compilers.py`. Raises
    ToolchainNotFoundError if there is no ninja.
    """
    slots = max(compiler_jobs(jobs, plan, layout) for plan in plans)
    return jobserver.Jobserver(slots, ninja.find_ninja(), chosen_jobs(jobs) is not None)


def chosen_jobs(jobs: int | None) -> int | None:
    """Returns the number of compilers that the caller (`jobs`) or the user has chosen; None if neither has."""
    return jobs or settings.jobs() or None


def compiler_jobs(jobs: int | None, plan: BuildPlan, layout: Layout) -> int:
    """Returns how many compilers to run at once: `jobs`, or as many as cores, cgroup, memory and `ulimit -u` allow.

    The memory of one compiler is what the hungriest of them took when the op was last built.
    """
    if chosen := chosen_jobs(jobs):
        return chosen
    cores, left = most_compilers(), memory_left()
    if left is None:
        return cores
    return max(1, min(cores, left // MemoryNeeds(plan, {}, layout).expected()))


def most_compilers() -> int:
    """Returns how many compilers may run at once if there is memory for all of them."""
    cores, processes = Topology.read().threads, processes_left()
    return cores if processes is None else max(1, min(cores, (processes - OWN_PROCESSES) // COMPILER_PROCESSES))
