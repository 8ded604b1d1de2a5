"""Objects that an earlier build compiled from the same files: reused from the store, and put into it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from opforge import formats
from opforge.builders.declaration.build_plan import Step
from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of
from opforge.cache.records import objects
from opforge.cache.records.inputs import Inputs, RootedPath
from opforge.cache.records.validity import Observation

from .job import Job
from .provenance import Read


def take(job: Job, work: str, steps: Sequence[Step], disk: Disk) -> dict[str, Inputs]:
    """Copies every stored object that still fits into the folder `work`.

    Returns the inputs of each, by the name of the object.
    """
    reused, seen = {}, Observation(job.roots, disk)
    for step in steps:
        if step.unit:
            target = os.path.join(work, step.output)
            inputs = objects.reuse(job.layout, _unit_key(job, step), seen, target)
            if inputs:
                reused[step.output] = inputs
    return reused


def keep(
    job: Job,
    work: str,
    steps: Sequence[Step],
    reused: Mapping[str, Inputs],
    reads: Mapping[str, Sequence[Read]],
    inputs: Inputs,
) -> None:
    """Stores the objects that this build compiled, each with the files that it read."""
    for step in steps:
        if step.unit and step.output not in reused:
            own = {read.location for read in reads[step.output]}
            files = tuple(file for file in inputs.files if RootedPath(file.root, file.path) in own)
            objects.keep(
                job.layout, _unit_key(job, step), os.path.join(work, step.output), inputs._replace(files=files)
            )


def _unit_key(job: Job, step: Step) -> str:
    """Returns the key of one compilation: the same for one source in two ops that have the same flags."""
    assert step.unit is not None
    shared = job.plan.of(step.unit)._replace(
        op="", version="", sources=(), link_flags=(), libraries=(), stubs=(), kernels=()
    )
    return key_of([formats.OBJECT, shared.components(), step.unit])
