"""Runs a plan in a private folder and accounts for everything that it read."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from opforge import errors
from opforge.builders.inspection import elf
from opforge.builders.spec.abi import PLAIN, REGISTER, STABLE, TORCH
from opforge.builders.spec.build_plan import Step
from opforge.cache.filesystem.disk import Disk, Stamp
from opforge.cache.keys import entry_key, key_of
from opforge.cache.publish import BuildResult
from opforge.cache.records import objects
from opforge.cache.records.inputs import Inputs, RootedPath
from opforge.errors import UnstableInputError

from . import diagnostics, ninja, precompiled_header, timeline
from .dependencies import reads_of_step, search_folders
from .job import Job
from .provenance import Provenance, Read

UNIT_FORMAT = 1
ATTEMPTS = 3
"""How often a build is run again because a source changed under it, or because ninja was killed."""


def produce(job: Job, folder: str, disk: Disk) -> BuildResult:
    """Build in `folder`, which is this builder's alone, and describe the result.

    Raises CompileError, BuildResourceError or UnstableInputError.
    """
    work = os.path.join(folder, "work")
    os.mkdir(work, 0o700)
    began = time.time()
    library = f"{job.plan.op}.so"
    steps = job.toolchain.steps(job.plan, job.roots, library)
    meanwhile = threading.Thread(target=elf.import_elftools)
    with suppress(RuntimeError):  # where no more threads can be started, it is imported when it is needed
        meanwhile.start()
    try:
        inputs, stamps, reused, said = _build_until_stable(job, work, steps, disk)
    finally:
        if meanwhile.ident is not None:
            meanwhile.join()
    peak = ninja.peak_memory(work)
    result = entry_key(job.plan.key, [(one.root, one.path, one.digest) for one in inputs.files])
    binary = _describe(job, os.path.join(work, library), result)
    finished = os.path.join(folder, "entry")
    os.mkdir(finished, 0o700)
    # dlopen knows a library by its name: it must not be shared by two different results.
    place = os.path.join(finished, binary["file"])
    shutil.copyfile(os.path.join(work, library), place)
    os.chmod(place, 0o500)
    manifest = {
        "op": job.plan.op,
        "components": job.plan.components(),
        "built": {
            "at": began,
            "seconds": round(time.time() - began, 3),
            "steps": [step.title for step in steps],
            "reused": reused,
            "peak_bytes": peak,
            "said": said,
        },
    }
    return BuildResult(result, finished, binary, inputs, stamps, manifest)


def _build_until_stable(
    job: Job, work: str, steps: Sequence[Step], disk: Disk
) -> tuple[Inputs, dict[tuple[str, str], Stamp], list[str], str]:
    """Run the build until no file that it read has changed meanwhile.

    Returns what it read, the stamps of that, the titles of the steps whose objects were reused, and what the compilers
    said. The clock that counts is the disk's: a file changed since the build file was last touched may have been read
    half way through, unless its stamp is the same before and after a whole further run.
    """
    provenance = Provenance(job.roots, disk, job.toolchain.trusted_roots())
    previous: dict[tuple[str, str], Stamp] = {}
    changed: list[str] = []
    written: list[str] = []
    for attempt in range(ATTEMPTS):
        started = _touch(os.path.join(work, "started"))
        reused = _reuse_objects(job, work, steps, disk) if job.reuse and attempt == 0 else {}
        run = [step for step in steps if step.output not in reused]
        if job.toolchain.precompiles:
            run = precompiled_header.apply(job.plan, run, job.jobs, job.roots, work)
        ninja.write_build_file(work, run)
        said = _run(job, work, run)
        done = [*run, *(step for step in steps if step.output in reused)]
        reads = {step.output: reads_of_step(job, work, step, provenance, reused, written) for step in done}
        for step in run:
            maker = precompiled_header.header_step(step, run)
            if maker:
                reads[step.output] += reads[maker.output]
        everything = sorted({read for one in reads.values() for read in one})
        stamps = provenance.stamps(everything)
        changed = [
            read.path
            for read in everything
            if (stamp := stamps.get(read.where)) is None
            or (stamp.ctime_ns >= started and previous.get(read.where) != stamp)
        ]
        if not changed:
            inputs = provenance.collect(everything, search_folders(job))
            if provenance.stamps(everything) == stamps:
                _keep_objects(job, work, steps, reused, reads, inputs)
                return inputs, stamps, [step.title for step in steps if step.output in reused], said
            changed = ["a file changed while it was being read"]
        if attempt == ATTEMPTS - 2:
            written = changed  # of those that flags name, what every run changes is an output of the compilers
        previous = dict(stamps)
        for step in run:
            if (step.depfile or step.unit) and os.path.exists(os.path.join(work, step.output)):
                os.unlink(os.path.join(work, step.output))
    raise UnstableInputError.of(job.plan.op, changed)


def _unit(job: Job, step: Step) -> str:
    """The key of all that one compilation is told: equal for the same source in two ops with the same flags."""
    told = job.plan._replace(op="", version="", sources=(), link_flags=(), libraries=(), stubs=(), kernels=())
    return key_of([UNIT_FORMAT, told.components(), step.unit])


def _reuse_objects(job: Job, work: str, steps: Sequence[Step], disk: Disk) -> dict[str, Inputs]:
    """Put what was compiled before from the same files in its place; returns each one's inputs by its output."""
    digests: dict[str, str | None] = {}
    found = {}
    for step in steps:
        if step.unit:
            target = os.path.join(work, step.output)
            inputs = objects.reuse(job.layout, _unit(job, step), job.roots, disk, digests, target)
            if inputs:
                found[step.output] = inputs
    return found


def _keep_objects(
    job: Job,
    work: str,
    steps: Sequence[Step],
    reused: Mapping[str, Inputs],
    reads: Mapping[str, Sequence[Read]],
    inputs: Inputs,
) -> None:
    """Store the objects that this build compiled, each with the files that it read."""
    for step in steps:
        if step.unit and step.output not in reused:
            own = {read.where for read in reads[step.output]}
            part = inputs._replace(files=tuple(one for one in inputs.files if RootedPath(one.root, one.path) in own))
            objects.keep(job.layout, _unit(job, step), os.path.join(work, step.output), part)


def _touch(path: str) -> int:
    """Stamp a file with the disk's own time, and return it: nanoseconds."""
    with open(path, "wb"):
        os.utime(path)
    return os.stat(path).st_ctime_ns


def _run(job: Job, work: str, steps: Sequence[Step]) -> str:
    """Run the steps. Returns what the compilers said, above all warnings. Raises CompileError, BuildResourceError."""
    began, known = time.time(), timeline.log_size(work)
    outcome = ninja.run(work, job.jobs, job.on_progress)
    if outcome.status == 128 + 9:
        outcome = ninja.run(work, job.jobs, job.on_progress)  # killed from outside, once: what is done is not lost
    ended, line = timeline.mark("compile and link", began), timeline.current()
    if line is not None:
        line.add_steps(job.plan.op, work, {step.output: step.title for step in steps}, known, ended)
    unwritten = _unwritten(work, steps, outcome)
    if outcome.status or unwritten:
        log = job.log
        try:
            with open(log, "w", encoding="utf-8") as file:
                file.write(outcome.output)
        except OSError:
            log = ""  # the error itself says what matters
        if unwritten:
            raise diagnostics.missing_output(job.plan.op, *unwritten, log)
        raise diagnostics.build_error(job.plan.op, outcome.status, outcome.output, log)
    return diagnostics.compiler_output(outcome.output)


def _unwritten(work: str, steps: Sequence[Step], outcome: ninja.Outcome) -> tuple[Step, str] | None:
    """The first step that ended well without one of its files, and which, or None.

    Where a step failed, those ended well whose files it was given; what it says of a missing one helps nobody.
    """
    ended = list(steps)
    if outcome.status:
        lines = [line.split() for line in outcome.output.splitlines() if line.startswith("FAILED:")]
        given = {name for step in steps if any(step.output in line for line in lines) for name in step.inputs}
        ended = [step for step in steps if step.output in given]
    for step in ended:
        for name in filter(None, (step.output, step.depfile)):
            if not os.path.isfile(os.path.join(work, name)):
                return step, name
    return None


def _describe(job: Job, library: str, result: str) -> dict[str, Any]:
    """The binary's record in its manifest. Raises CompileError where the library lacks what its ABI promises."""
    plan = job.plan
    try:
        facts = elf.read_library(library)
    except ValueError as error:
        raise diagnostics.not_loadable(plan.op, str(error)) from error
    with open(library, "rb") as file:
        content = file.read()
    if plan.abi == STABLE and REGISTER not in facts["exports"]:
        raise diagnostics.no_registration(plan.op)
    modules = [name.removeprefix("PyInit_") for name in facts["exports"] if name.startswith("PyInit_")]
    if plan.abi == TORCH and modules and plan.op not in modules and REGISTER not in facts["exports"]:
        raise diagnostics.wrong_module_name(plan.op, modules[0])
    if plan.abi == PLAIN and not facts["exports"]:
        raise diagnostics.no_exports(plan.op)
    return {
        "file": f"{plan.op}-{result[:16]}.so",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "op": plan.op,
        "abi": plan.abi,
        "target": plan.target,
        "torch_target": job.torch_target,
        "requires": dict(plan.requires),
        "python_module": plan.abi == TORCH and plan.op in modules,
        **facts,
    }


def shared_error(kind: str, told: Mapping[str, Any]) -> errors.BuildError:
    """The builder's error, raised again in a process that waited for it."""
    kinds = {one.kind: one for one in (errors.CompileError, errors.BuildResourceError, errors.UnstableInputError)}
    made = kinds.get(kind, errors.BuildError)
    try:
        return made(**told)
    except (TypeError, ValueError):  # an opforge of another version has left it
        return made(str(told["message"]))
