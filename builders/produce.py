"""Runs a plan in a private folder and accounts for everything that it read."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opforge import errors
from opforge.cache.disk import Disk, Stamp
from opforge.cache.inputs import Inputs
from opforge.cache.keys import result_key
from opforge.cache.store import Product
from opforge.errors import CompileError, UnstableInputError

from . import diagnostics, elf, ninja
from .abis import REGISTER, STABLE, TORCH
from .plan import BuildPlan, Step
from .provenance import Provenance, Read, parse_depfile
from .toolchains.protocol import Toolchain

ATTEMPTS = 3
"""How often a build is run again because a source changed under it, or because ninja was killed."""


class Job(NamedTuple):
    """A plan with everything needed to run it."""

    plan: BuildPlan
    roots: Mapping[str, str]
    toolchain: Toolchain
    jobs: int
    log: str
    """Where the whole output of a failed build is kept."""
    torch_target: str
    on_progress: ninja.Progress | None = None


def produce(job: Job, folder: str, disk: Disk) -> Product:
    """Build in `folder`, which is this builder's alone, and describe the result.

    Raises CompileError, BuildResourceError or UnstableInputError.
    """
    work = os.path.join(folder, "work")
    os.mkdir(work, 0o700)
    began = time.time()
    library = f"{job.plan.op}.so"
    steps = job.toolchain.steps(job.plan, job.roots, library)
    ninja.write_build_file(work, steps)
    inputs, stamps = _build_until_stable(job, work, steps, disk)
    result = result_key(job.plan.key, [(one.root, one.path, one.digest) for one in inputs.files])
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
        "built": {"at": began, "seconds": round(time.time() - began, 3), "steps": [step.title for step in steps]},
    }
    return Product(result, finished, binary, inputs, stamps, manifest)


def _build_until_stable(
    job: Job, work: str, steps: Sequence[Step], disk: Disk
) -> tuple[Inputs, dict[tuple[str, str], Stamp]]:
    """Run the build until no file that it read has changed meanwhile; returns what it read and the stamps of it.

    The clock that counts is the disk's: a file changed since the build file was last touched may have been read half
    way through, unless its stamp is the same before and after a whole further run.
    """
    provenance = Provenance(job.roots, disk)
    previous: dict[tuple[str, str], Stamp] = {}
    changed: list[str] = []
    for _attempt in range(ATTEMPTS):
        started = _touch(os.path.join(work, "build.ninja"))
        _run(job, work)
        reads = _reads(work, steps, provenance)
        stamps = provenance.stamps(reads)
        changed = [
            read.path
            for read in reads
            if (stamp := stamps.get(read.where)) is None
            or (stamp.ctime_ns >= started and previous.get(read.where) != stamp)
        ]
        if not changed:
            inputs = provenance.collect(reads, _search(job))
            if provenance.stamps(reads) == stamps:
                return inputs, stamps
            changed = ["a file changed while it was being read"]
        previous = dict(stamps)
        for step in steps:
            if step.depfile and os.path.exists(os.path.join(work, step.output)):
                os.unlink(os.path.join(work, step.output))
    raise UnstableInputError.of(job.plan.op, changed)


def _touch(path: str) -> int:
    """Stamp a file with the disk's own time, and return it: nanoseconds."""
    os.utime(path)
    return os.stat(path).st_ctime_ns


def _run(job: Job, work: str) -> None:
    outcome = ninja.run(work, job.jobs, job.on_progress)
    if outcome.status == 128 + 9:
        outcome = ninja.run(work, job.jobs, job.on_progress)  # killed from outside, once: what is done is not lost
    if outcome.status:
        try:
            with open(job.log, "w", encoding="utf-8") as file:
                file.write(outcome.output)
        except OSError:
            pass  # the error itself says what matters
        raise diagnostics.explain(job.plan.op, outcome.status, outcome.output, job.log)


def _reads(work: str, steps: Sequence[Step], provenance: Provenance) -> list[Read]:
    paths = set()
    for step in steps:
        if step.depfile:
            with open(os.path.join(work, step.depfile), encoding="utf-8", errors="surrogateescape") as file:
                paths |= {os.path.join(work, name) for name in parse_depfile(file.read())}
    return [provenance.place(path) for path in sorted(paths)]


def _search(job: Job) -> list[str]:
    plan = job.plan
    named = [os.path.join(job.roots[one.root], one.path) for one in (*plan.include, *plan.system_include)]
    return [*named, *job.toolchain.search_folders()]


def _describe(job: Job, library: str, result: str) -> dict[str, Any]:
    """The binary's record in its manifest. Raises CompileError where the library lacks what its ABI promises."""
    plan = job.plan
    facts = elf.inspect(library)
    with open(library, "rb") as file:
        content = file.read()
    if plan.abi == STABLE and REGISTER not in facts["exports"]:
        raise CompileError(
            f"{plan.op}: no source registers an op. Write a STABLE_TORCH_LIBRARY({plan.op}, m) block after"
            " #include <torch/csrc/stable/library.h>, or choose abi='c' for plain functions, abi='torch' for pybind."
        )
    return {
        "file": f"{plan.op}-{result[:16]}.so",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "op": plan.op,
        "abi": plan.abi,
        "target": plan.target,
        "torch_target": job.torch_target,
        "requires": dict(plan.requires),
        "python_module": plan.abi == TORCH and f"PyInit_{plan.op}" in facts["exports"],
        **facts,
    }


def shared_error(kind: str, message: str) -> errors.BuildError:
    """The builder's error, raised again in a process that waited for it."""
    kinds = {one.kind: one for one in (errors.CompileError, errors.BuildResourceError, errors.UnstableInputError)}
    return kinds.get(kind, errors.BuildError)(message)
