"""Runs a plan in a private folder and records every file that it read."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from opforge.builders.declaration.abi import FACADE, TORCH_HEADERS
from opforge.builders.declaration.build_plan import Step
from opforge.builders.declaration.kernel_roots import FACADE as FACADE_ROOT
from opforge.builders.declaration.kernel_roots import OPFORGE_ABI, TRUSTED_ROOTS
from opforge.builders.facade import flags as facade
from opforge.builders.lookup.fit import is_of_toolkit
from opforge.cache.filesystem.disk import Disk, Stamp
from opforge.cache.filesystem.packages import KEPT_IN, PackageFiles
from opforge.cache.records.entry import BY_VARIABLES
from opforge.cache.records.inputs import Answer, Inputs, RootedPath
from opforge.cache.records.validity import DAY
from opforge.cache.single_flight import BuildResult
from opforge.errors import CompileError, UnstableInputError
from opforge.fast_path.lookup import DAY as TODAY
from opforge.fast_path.lookup import value_of
from opforge.foundation.environment import COMPILER_VARIABLES, HEADER_VARIABLES
from opforge.foundation.files import make_folder
from opforge.foundation.remembered_values import FlatStamps, stamps_of

from . import diagnostics, library_record, ninja
from .attempt import Attempt, run_steps
from .job import Job
from .reads.depfile import read_depfile
from .reads.files_read import compiler_folders, search_folders, source_folders
from .reads.provenance import Provenance, Read
from .reads.questions import content_of
from .reads.surroundings import Surroundings

ATTEMPTS = 3
"""How often a build is run again because a source changed while it was compiled."""

OTHER_COMPILER = "the compiler was replaced during the build. Load the op again: it is built with the new one"
REAL_NAMES = ("-ffile-prefix-map=", "-fdebug-prefix-map=")
"""The flag by which files have the names of roots, and the one that leaves __FILE__ as it is."""


class Run(NamedTuple):
    """The reads and the result of an accepted build."""

    inputs: Inputs
    stamps: dict[tuple[str, str], Stamp]
    """The stamp of each file that was read, by (root, path)."""
    reused: list[str]
    """The titles of the steps whose objects came from the store."""
    output: str
    """Output of the compilers, above all warnings."""


def execute(job: Job, folder: str, disk: Disk) -> BuildResult:
    """Builds in `folder`, which no other process uses. Returns the library and what it was built from.

    Raises CompileError, BuildResourceError, UnstableInputError.
    """
    work = os.path.join(folder, "work")
    make_folder(work)
    if job.plan.abi == FACADE:
        facade.link_torch_headers(Path(work, TORCH_HEADERS), Path(job.roots["torch"], "include"))
    began = time.time()
    library = f"{job.plan.op}.so"
    steps = job.toolchain.steps(job.located_plan, job.roots, library)
    try:
        run = _build_until_stable(job, work, steps, disk)
    except CompileError as error:
        if not _is_own_name(error, steps):
            raise
        steps = [step._replace(argv=tuple(word.replace(*REAL_NAMES) for word in step.argv)) for step in steps]
        run = _build_until_stable(job, work, steps, disk)
    if job.plan.stubs and not library_record.uses_stubs(job, os.path.join(work, library)):
        _link_without_stubs(job, work, steps[-1])
    record = library_record.read(job, os.path.join(work, library), run.inputs.result_key(job.plan.key))
    finished = os.path.join(folder, "entry")
    make_folder(finished)
    # dlopen distinguishes libraries by name: two results must not share one.
    path = os.path.join(finished, record["file"])
    shutil.copyfile(os.path.join(work, library), path)
    os.chmod(path, 0o500)
    build = {
        "components": job.plan.components(),
        "at": began,
        "steps": [step.title for step in steps],
        "reused": run.reused,
        "peak_bytes": ninja.peak_memory(work),
        "output": run.output,
    }
    by_variables = _found_by_variables(job, run.inputs, disk)
    own = run.inputs.shipped(TRUSTED_ROOTS, job.roots, disk)
    seconds = round(time.time() - began, 3)
    return BuildResult(finished, {**record, **by_variables, "seconds": seconds}, own, run.inputs, run.stamps, build)


def _found_by_variables(job: Job, inputs: Inputs, disk: Disk) -> dict[str, object]:
    """Returns the field of a record with what was read outside of every root, if variables made a header be found.

    There is none if they did not. The folders of toolkits, and those that the compiler searches by itself, do not
    count: machines have other headers there, and what an entry needs of those is in its record.
    """
    environment = dict(job.plan.environment)
    found = dict[str, list[RootedPath]]()
    for variable in HEADER_VARIABLES:
        named = filter(os.path.isabs, environment.get(variable, "").split(os.pathsep))
        folders = {path for name in named for path in (os.path.normpath(name), os.path.realpath(name))}
        rooted = [RootedPath("system", path[1:]) for path in folders if not is_of_toolkit(path)]
        if inputs.has_file_below(rooted):
            found[variable] = rooted
    if not found:
        return {}
    everywhere = [folder for folders in found.values() for folder in folders]
    toolkits = [folder for folder in inputs.searched if is_of_toolkit(folder.resolve(job.roots) or "")]
    unlisted = [RootedPath("system", path[1:]) for path in job.toolchain.unlisted_files()]
    others = [*inputs.compiler_folders, *toolkits, *unlisted]
    values = {variable: environment[variable] for variable in found}
    outside = inputs.of_system(everywhere, others, job.roots, disk)
    return {BY_VARIABLES: {"variables": values, "inputs": outside.to_json()}}


def _is_own_name(error: CompileError, steps: Sequence[Step]) -> bool:
    """Returns whether a build failed because a file includes itself, by `#include __FILE__`.

    __FILE__ has the name of a root in place of its path, so that the library is the same anywhere.
    """
    names = {word.rpartition("=")[2] for step in steps for word in step.argv if REAL_NAMES[0] in word}
    missing = filter(None, (diagnostics.MISSING_HEADER.match(str(line["message"])) for line in error.diagnostics))
    return any(match["name"].startswith(f"{name}/") for match in missing for name in names)


def read_before(folder: str, roots: Mapping[str, str]) -> FlatStamps:
    """Returns the files that the compilers of a failed build have listed, with their stamps.

    gcc and clang list them for a source with an error too, unless a header is missing. Headers of packages are left
    out. A file that has changed since the run began has a stamp that no file has: nobody knows which text failed.
    """
    work = os.path.join(folder, "work")
    packages = tuple(f"{roots[name]}/" for name in TRUSTED_ROOTS if roots.get(name, os.sep) != os.sep)
    files = set[str]()
    try:
        began = os.stat(os.path.join(work, "started")).st_mtime_ns
        for name in filter(lambda name: name.endswith(".d"), os.listdir(work)):
            with suppress(OSError):  # it is cut short
                files.update(os.path.join(work, listed) for listed in read_depfile(os.path.join(work, name), work))
    except OSError:  # it failed before a compiler ran
        return FlatStamps()
    paths = sorted(file for file in files if not file.startswith((f"{work}/", *packages)))
    stamps = FlatStamps(paths, stamps_of(paths)).pairs()
    return FlatStamps.of((path, stamp if 0 < stamp[2] < began else (-2, -2, -2, -2)) for path, stamp in stamps)


def _link_without_stubs(job: Job, work: str, link: Step) -> None:
    """Links again without the names of torch's libraries, of which no symbol is used: it loads without torch then."""
    os.unlink(os.path.join(work, link.output))
    inputs = tuple(name for name in link.inputs if name not in job.plan.stubs)
    argv = tuple(word for word in link.argv if word not in job.plan.stubs)
    run_steps(job, work, [link._replace(inputs=inputs, argv=argv)])


def _build_until_stable(job: Job, work: str, steps: Sequence[Step], disk: Disk) -> Run:
    """Runs the build until no file that it read has changed meanwhile, and none that it looked for has come or gone.

    A file changed since the run began may have been read half way through the change, unless its stamp is the same
    before and after another whole run. So with the names that were looked for.
    """
    packages = PackageFiles(disk, job.layout.path(KEPT_IN))
    provenance = Provenance(
        job.roots,
        disk,
        job.toolchain.trusted_roots(),
        packages,
        job.toolchain.outside(job.plan, job.roots),
        job.plan.sources,
    )
    stamps: dict[tuple[str, str], Stamp] = {}
    looked_for: tuple[object, object] | None = None
    changed: list[str] = []
    written: list[str] = []
    precompiles = job.toolchain.precompiles
    for number in range(ATTEMPTS):
        started, day = _touch(os.path.join(work, "started")), value_of(TODAY)
        around = provenance.surroundings(
            work, started, source_folders(job), [*search_folders(job), *compiler_folders(job)]
        )
        attempt = Attempt(job, work, steps, provenance, disk if job.reuse and number == 0 else None, written)
        precompiles = attempt.run(precompiles)
        before, stamps = stamps, provenance.stamps(attempt.everything)
        changed = _changed(attempt.everything, provenance, around, stamps, before)
        if not changed:
            if job.plan.abi == FACADE:
                _check_branches(job, attempt.everything)
            inputs, of_units, has_day = attempt.inputs()
            looked = {path for own in (inputs, *of_units.values()) for path in provenance.looked_for(own)}
            changed = [path for path in sorted(looked) if around.has_come_or_gone(path)]
            looked_for_before, looked_for = looked_for, (inputs.present, inputs.answers)
            if provenance.stamps(attempt.everything) != stamps:
                changed = ["a file changed while it was being read"]
            elif has_day and Answer(DAY, (("", day),)) not in inputs.answers:
                changed = ["the day changed, and a file has __DATE__"]
            elif not changed or looked_for == looked_for_before:
                if _other_compiler(job):
                    raise UnstableInputError(f"{job.plan.op}: {OTHER_COMPILER}", job.plan.op)
                attempt.keep(of_units)
                return Run(inputs.without([OPFORGE_ABI.name]), stamps, attempt.reused_titles(), attempt.output)
        elif number == ATTEMPTS - 2:
            # A file that a flag names and that every run changes is an output of the compiler, not an input.
            written = changed
        attempt.remove_objects()
    raise UnstableInputError.of(job.plan.op, changed)


def _other_compiler(job: Job) -> bool:
    """Returns whether another compiler is found now than the one that the plan and its keys name.

    If another thread has set variables since, that is not known: they are a part of a compiler's identity.
    """
    known = dict(job.plan.environment)
    is_same = all(os.environ.get(name, "") == known.get(name, "") for name in {*known, *COMPILER_VARIABLES})
    return is_same and job.toolchain.has_changed()


def _changed(
    reads: Iterable[Read],
    provenance: Provenance,
    around: Surroundings,
    stamps: Mapping[tuple[str, str], Stamp],
    before: Mapping[tuple[str, str], Stamp],
) -> list[str]:
    """Returns the files that may have changed since a run began, by their stamps after it and after the run before."""
    return [
        read.path
        for read in reads
        if around.has_changed(read.path, stamps.get(read.location), before.get(read.location), provenance.is_own(read))
    ]


def _check_branches(job: Job, reads: Iterable[Read]) -> None:
    """Raises CompileError if a source has a branch by torch's version that not every torch takes in the same way."""
    from opforge.builders.facade import torch_versions  # for builds on the facade alone
    from opforge.builders.facade.obstacles import without_comments

    for path in (read.path for read in reads if not read.tree and read.location.root != FACADE_ROOT.name):
        content = content_of(path)
        if b"TORCH_VERSION_" in content:
            plain = without_comments(content.decode("utf-8", "replace"))
            for start, macro in torch_versions.differing(plain):
                line = plain.count("\n", 0, start) + 1
                raise diagnostics.branch_by_version(job.plan.op, path, line, macro)


def _touch(path: str) -> int:
    """Creates a file anew: not every file system sets times. Returns its ctime in the disk's nanoseconds."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    with open(path, "xb"):
        pass
    return os.stat(path).st_ctime_ns
