"""Objects that an earlier build compiled from the same files: reused from the store, and put into it.

The precompiled headers of the stable ABI and of the facade are such objects too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of
from opforge.cache.records import objects
from opforge.cache.records.inputs import Inputs, RootedPath
from opforge.cache.records.validity import Observation
from opforge.foundation import formats, settings

from . import precompiled_header
from .job import Job

ROOM = 1 << 30
"""The bytes that a store must be allowed to have, and that must be free on its disk, for headers to be kept there."""
EDITING = 3600
"""The seconds after a compilation in which the next one of the same unit is one of many edits."""


def take(job: Job, work: str, steps: Sequence[Step], disk: Disk) -> dict[str, Inputs]:
    """Copies every stored object that still fits into the folder `work`.

    Returns the inputs of each, by the name of the object.
    """
    reused, seen = {}, Observation(job.roots, disk)
    for step in steps:
        if step.unit:
            target = os.path.join(work, step.output)
            if inputs := objects.reuse(job.layout, _unit_key(job, step), seen, target):
                reused[step.output] = inputs
    return reused


def take_header(job: Job, work: str, making: Step, unit: RootedPath, disk: Disk) -> Inputs | None:
    """Copies a stored precompiled header that still fits into the folder `work`. Returns its inputs, or None.

    `making` is the step that would make it, and `unit` one that is to use it.
    """
    seen, target = Observation(job.roots, disk), os.path.join(work, making.output)
    return objects.reuse(job.layout, _header_key(job, making, unit), seen, target)


def keeps_header(job: Job) -> bool:
    """Returns whether the store keeps headers for a build.

    A small store would lose its entries to them, and on a full disk no build would succeed. Raises SettingError.
    """
    if job.plan.abi not in precompiled_header.IS_KEPT:
        return False
    limit = settings.cache_max_size()
    try:
        disk = os.statvfs(job.layout.path())
    except OSError:
        return False
    return min(disk.f_bavail * disk.f_frsize, ROOM if limit is None else limit) >= ROOM


def is_edited(job: Job, step: Step) -> bool:
    """Returns whether an object of this unit, of this text or another, was compiled a short time ago."""
    if not step.unit:
        return False
    try:
        compiled = os.stat(job.layout.path("objects", _unit_key(job, step))).st_mtime
    except FileNotFoundError:
        return False
    return time.time() - compiled < EDITING


def keep(job: Job, work: str, compiled: Mapping[Step, Inputs]) -> None:
    """Stores the objects of the steps that this build has run, each with what it was compiled from."""
    for step, inputs in compiled.items():
        objects.keep(job.layout, _unit_key(job, step), os.path.join(work, step.output), inputs)


def keep_header(job: Job, work: str, making: Step, unit: RootedPath, inputs: Inputs) -> None:
    """Stores the precompiled header that the step `making` has made for units such as this one, from these inputs."""
    objects.keep(job.layout, _header_key(job, making, unit), os.path.join(work, making.output), inputs, 1)


def _unit_key(job: Job, step: Step) -> str:
    """Returns the key of one compilation: the same for one source in two ops that have the same flags."""
    assert step.unit is not None
    return key_of([formats.OBJECT, _shared_plan(job, step.unit).components(), step.unit])


def _header_key(job: Job, making: Step, unit: RootedPath) -> str:
    """Returns the key of a precompiled header that units such as this one use, in ops that have the same flags."""
    shared = _shared_plan(job, unit)
    defines = tuple(define for define in shared.defines if f"-D{define[0]}=" != precompiled_header.OF_THE_MODULE)
    return key_of([formats.OBJECT, shared._replace(defines=defines).components(), making.title])


def _shared_plan(job: Job, unit: RootedPath) -> BuildPlan:
    """Returns the plan of one unit without what is its op's alone."""
    return job.plan.of(unit)._replace(op="", version="", sources=(), link_flags=(), libraries=(), stubs=(), kernels=())
