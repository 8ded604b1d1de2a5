"""How many compilers run at once: as many as cores, memory and limits on processes allow."""

from __future__ import annotations

from collections.abc import Iterable

from opforge import settings
from opforge.accelerator.host.cgroup import memory_left
from opforge.accelerator.host.process_limit import processes_left
from opforge.accelerator.host.topology import Topology
from opforge.builders.declaration import abi
from opforge.builders.declaration.build_plan import BuildPlan
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout
from opforge.machine_folder import make_folder, write_file

from . import jobserver, ninja

COMPILER_BYTES = {abi.PLAIN: 256 << 20, abi.STABLE: 512 << 20, abi.TORCH: 2 << 30}
"""Memory that one compiler may need, in bytes by ABI, until an op's own peak has been measured."""

OWN_PROCESSES, COMPILER_PROCESSES = 3, 4
"""Processes of a build (supervisor, ninja, a thread), and of one compiler (sh, g++, cc1plus, as)."""


def jobserver_for(jobs: int | None, plans: Iterable[BuildPlan], layout: Layout) -> jobserver.Jobserver:
    """Returns the jobserver for building these plans together: as many compilers as the hungriest plan allows.

    Raises ToolchainNotFoundError if there is no ninja.
    """
    return jobserver.Jobserver(min(compiler_jobs(jobs, plan, layout) for plan in plans), ninja.find_ninja())


def compiler_jobs(jobs: int | None, plan: BuildPlan, layout: Layout) -> int:
    """Returns how many compilers to run at once: `jobs`, or as many as cores, cgroup, memory and `ulimit -u` allow.

    The memory of one compiler is what it took when the op was last built.
    """
    chosen = jobs or settings.jobs()
    if chosen:
        return chosen
    cores, processes, left = Topology.read().threads, processes_left(), memory_left()
    if processes is not None:
        cores = max(1, min(cores, (processes - OWN_PROCESSES) // COMPILER_PROCESSES))
    if left is None:
        return cores
    need = ninja.read_peak(peak_file(plan, layout)) or COMPILER_BYTES[plan.abi]
    return max(1, min(cores, left // max(need, 1)))


def peak_file(plan: BuildPlan, layout: Layout) -> str:
    """Returns the path of the file that holds the memory one compiler took for this op, in bytes."""
    return layout.path("peaks", key_of([plan.op, plan.abi]))


def note_peak(plan: BuildPlan, layout: Layout, peak: int) -> None:
    """Writes the memory that one compiler took, in bytes, for the next build of this op."""
    try:
        make_folder(layout.path("peaks"))
        write_file(peak_file(plan, layout), str(peak).encode())
    except OSError:
        return  # the next build assumes the ABI's number again
