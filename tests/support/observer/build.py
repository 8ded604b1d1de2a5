"""Builds an op while it is observed, in a folder of its own. Nothing is published."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, NamedTuple

from opforge.builders import toolchains
from opforge.builders.declaration.op_spec import root_paths
from opforge.builders.planner import make_plan
from opforge.builders.run.executor import execute
from opforge.builders.run.job import Job
from opforge.builders.run.parallelism import compiler_jobs
from opforge.builders.run.reads.depfile import read_depfile
from opforge.cache import staging
from opforge.cache.current_store import writable_store
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import Inputs
from opforge.cache.store import Store
from opforge.errors import CompileError

from .library import library, observing
from .reader import Observation, read_notes

if TYPE_CHECKING:
    from opforge.builders.declaration.op_spec import OpSpec


class ObservedBuild(NamedTuple):
    """A build with what its programs asked for."""

    job: Job
    inputs: Inputs
    """What opforge worked out by itself."""
    folder: str
    """The private folder that it was built in, which is gone."""
    observation: Observation
    """What the steps did, without ninja and what started it."""
    gaps: tuple[str, ...]
    """Why the notes are incomplete; empty if they are not."""
    listed: frozenset[str] = frozenset()
    """The files that the compilers, the assembler and the linker say they have read, outside of the folder."""


class NotObservableError(Exception):
    """A build works, and fails while it is observed."""

    def __init__(self, op: str, message: str) -> None:
        super().__init__(f"{op} is built without the observer, and not with it: {message}")


def observe(spec: OpSpec, store: Store | None = None, jobs: int | None = None) -> ObservedBuild:
    """Returns the build of an op, observed from the first step to the last: no object of the store is used.

    Raises:
        NotObservableError: The build fails only while it is observed.
        BuildError: It fails in any case.
        OSError: The notes cannot be read.
    """
    store = writable_store(store)
    toolchain = toolchains.find_toolchain(spec, store)
    plan = make_plan(spec, toolchain)
    folder = staging.new_folder(store.layout, plan.key)
    job = Job(
        plan=plan,
        roots=root_paths(spec, toolchain.root_paths()),
        toolchain=toolchain,
        jobs=compiler_jobs(jobs, plan, store.layout),
        layout=Layout(folder),  # objects and logs go where the build is, and are gone with it
        torch_target=spec.torch_target,
        portable=spec.portable,
        reuse=False,
    )
    try:
        preload = library()
        notes = os.path.join(folder, "notes")
        os.mkdir(notes, 0o700)
        try:
            with observing(preload, notes):
                result = execute(job, folder, store.disk)
        except CompileError as error:
            _build_plainly(job, store)
            raise NotObservableError(plan.op, str(error)) from error
        observation = read_notes(notes)
        gaps = tuple(observation.gaps())
        return ObservedBuild(job, result.inputs, folder, observation.steps(), gaps, listed_files(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def listed_files(folder: str) -> frozenset[str]:
    """Returns the files outside of a build's folder that its dependency files list. Raises OSError."""
    work = os.path.join(folder, "work")
    lists = sorted(name for name in os.listdir(work) if name.endswith(".d"))
    paths = {os.path.join(work, path) for name in lists for path in read_depfile(os.path.join(work, name), work)}
    return frozenset(path for path in paths if not path.startswith(folder + os.sep) and os.path.isfile(path))


def _build_plainly(job: Job, store: Store) -> None:
    """Builds the op unobserved. Raises the errors of a build."""
    folder = staging.new_folder(store.layout, job.plan.key)
    try:
        execute(job, folder, store.disk)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
