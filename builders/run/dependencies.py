"""Which files the steps of a build have read, as far as compilers, linkers, flags and sources tell."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from opforge.builders.spec.build_plan import Step
from opforge.cache.records.inputs import Inputs

from .provenance import Provenance, Read, files_assembled, files_in, folders_in, parse_depfile

if TYPE_CHECKING:
    from .executor import Job


def reads_of(
    job: Job, work: str, step: Step, provenance: Provenance, reused: Mapping[str, Inputs], written: Collection[str]
) -> list[Read]:
    """The files that a step's object was compiled from, now or when it was stored."""
    paths = set[str]()
    if step.output in reused:
        known = (one.resolve(provenance.roots) for one in reused[step.output].files)
        paths = {path for path in known if path is not None}
    elif step.depfile:
        with open(os.path.join(work, step.depfile), "rb") as file:
            named = (os.path.join(work, name) for name in parse_depfile(os.fsdecode(file.read())))
            paths = {path for path in named if not path.startswith(work + os.sep)}  # stubs and objects are its own
    elif step.unit:  # a compiler that tells of no header: its sources are all that is known
        paths = set(step.inputs)
    if step.unit and step.output not in reused:
        own = [path for path in paths if not provenance.place(path).seal]
        paths |= files_assembled(own, step.argv, searched_by(job))
    flags = {*job.plan.compile_flags, *job.plan.device_flags, *job.plan.link_flags}
    paths |= files_in(step.argv, flags).difference(written)
    return [provenance.place(path) for path in paths]


def searched_by(job: Job) -> list[str]:
    """The folders in which a new header or library would be found: those of the plan, of its flags, of the compiler."""
    plan = job.plan
    named = [os.path.join(job.roots[one.root], one.path) for one in (*plan.include, *plan.system_include)]
    told = folders_in((*plan.compile_flags, *plan.link_flags))
    libraries = dict(plan.environment).get("LIBRARY_PATH", "").split(os.pathsep)
    return [*named, *told, *filter(os.path.isabs, libraries), *job.toolchain.search_folders()]
