"""Runs a plan in a private folder and records every file that it read."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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
from opforge.cache.records.validity import DAY, NAMES
from opforge.cache.single_flight import BuildResult
from opforge.errors import BuildError, BuildResourceError, CompileError, UnstableInputError
from opforge.fast_path.lookup import DAY as TODAY
from opforge.fast_path.lookup import value_of
from opforge.foundation.environment import HEADER_VARIABLES
from opforge.foundation.files import write_file
from opforge.foundation.remembered_values import FlatStamps, stamps_of

from . import compilers, diagnostics, library_record, ninja, object_reuse, precompiled_header
from .job import Job
from .reads import assembled, questions
from .reads.depfile import read_depfile
from .reads.files_read import arguments, compiler_folders, reads_of_step, search_folders, source_folders
from .reads.provenance import Provenance, Read
from .reads.questions import Questions, content_of

ATTEMPTS = 3
"""How often a build is run again because a source changed while it was compiled."""

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
    os.mkdir(work, 0o700)
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
    os.mkdir(finished, 0o700)
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
    _run_steps(job, work, [link._replace(inputs=inputs, argv=argv)])


def _build_until_stable(job: Job, work: str, steps: Sequence[Step], disk: Disk) -> Run:
    """Runs the build until no file that it read has changed meanwhile, and none that it looked for has come or gone.

    A file changed since the run began may have been read half way through the change, unless its stamp is the same
    before and after another whole run. So with the names that were looked for.
    """
    packages = PackageFiles(disk, job.layout.path(KEPT_IN))
    provenance = Provenance(
        job.roots, disk, job.toolchain.trusted_roots(), packages, job.plan.outside(), job.plan.sources
    )
    previous: dict[tuple[str, str], Stamp] = {}
    looked_for: tuple[object, object] | None = None
    changed: list[str] = []
    written: list[str] = []
    precompiles = job.toolchain.precompiles
    for attempt in range(ATTEMPTS):
        started, day = _touch(os.path.join(work, "started")), value_of(TODAY)
        around = provenance.surroundings(
            work, started, source_folders(job), [*search_folders(job), *compiler_folders(job)]
        )
        reused = object_reuse.take(job, work, steps, disk) if job.reuse and attempt == 0 else {}
        run = [step for step in steps if step.output not in reused]
        kept, data = [step for step in steps if step.output in reused], set[str]()
        read = partial(_reads, job, work, provenance, reused, written, data, kept)
        taken = _Taken(reused, kept, disk if job.reuse and attempt == 0 else None)
        shared = _share_header(job, work, run, read, taken) if precompiles else None
        precompiles = shared is not None
        run, output, reads = shared or (run, _run_steps(job, work, run), read(run))
        everything = sorted({read for of_step in reads.values() for read in of_step})
        stamps = provenance.stamps(everything)
        changed = [
            read.path
            for read in everything
            if around.has_changed(
                read.path, stamps.get(read.location), previous.get(read.location), provenance.is_own(read)
            )
        ]
        if not changed:
            if job.plan.abi == FACADE:
                _check_branches(job, everything)
            inputs, of_units, has_day = _collect(job, work, steps, reads, reused, data, provenance)
            looked = {path for own in (inputs, *of_units.values()) for path in provenance.looked_for(own)}
            changed = [path for path in sorted(looked) if around.has_come_or_gone(path)]
            looked_for_before, looked_for = looked_for, (inputs.present, inputs.answers)
            if provenance.stamps(everything) != stamps:
                changed = ["a file changed while it was being read"]
            elif has_day and Answer(DAY, (("", day),)) not in inputs.answers:
                changed = ["the day changed, and a file has __DATE__"]
            elif not changed or looked_for == looked_for_before:
                object_reuse.keep(job, work, of_units)
                _keep_header(job, work, run, taken, reads, provenance)
                titles = [step.title for step in steps if step.output in reused]
                return Run(inputs.without([OPFORGE_ABI.name]), stamps, titles, output)
        elif attempt == ATTEMPTS - 2:
            # A file that a flag names and that every run changes is an output of the compiler, not an input.
            written = changed
        previous = dict(stamps)
        _remove_objects(work, run)
    raise UnstableInputError.of(job.plan.op, changed)


def _collect(
    job: Job,
    work: str,
    steps: Sequence[Step],
    reads: Mapping[str, Sequence[Read]],
    reused: Mapping[str, Inputs],
    data: set[str],
    provenance: Provenance,
) -> tuple[Inputs, dict[Step, Inputs], bool]:
    """Returns what a build and each compiled unit depend on, and whether a file that they read has a date."""
    asked = _questions(job, work, steps, reads, reused, data)
    folders, collect = (search_folders(job), compiler_folders(job)), provenance.collect
    compiled = [step for step in steps if step.unit and step.output not in reused]
    of_units = {step: collect(reads[step.output], *folders, asked[step.output]) for step in compiled}
    of_all = questions.of_all(asked.values())
    everything = sorted({read for of_step in reads.values() for read in of_step})
    return collect(everything, *folders, of_all), of_units, of_all.has_day


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


def _reads(
    job: Job,
    work: str,
    provenance: Provenance,
    reused: Mapping[str, Inputs],
    written: Collection[str],
    data: set[str],
    kept: Sequence[Step],
    run: Sequence[Step],
) -> dict[str, list[Read]]:
    """Returns the reads of each step by its output: of the steps that were run, and of those whose objects are kept."""
    list_assembled = partial(_assembled_files, job, work)
    return {
        step.output: reads_of_step(job, work, step, provenance, reused, written, data, list_assembled)
        for step in (*run, *kept)
    }


@dataclass
class _Taken:
    """Objects and headers that a run takes from the store."""

    reused: dict[str, Inputs]
    """The inputs of each object, by its name."""
    kept: list[Step]
    """The steps whose objects these are."""
    disk: Disk | None
    """None if nothing may be taken."""
    header: tuple[Step, RootedPath] | None = None
    """The step that makes a precompiled header which the store keeps, with a unit that can use it."""


def _share_header(
    job: Job, work: str, steps: Sequence[Step], read: Callable[[Sequence[Step]], dict[str, list[Read]]], taken: _Taken
) -> tuple[list[Step], str, dict[str, list[Read]]] | None:
    """Runs steps with a precompiled header if that saves time. `read` returns what steps have read that have been run.

    Returns the steps that were run, what the compilers printed, and what was read. None if there is no such header, or
    if the units are not the same without it: then nothing is compiled. Raises CompileError, BuildResourceError.
    """
    run = _with_header(job, work, steps, taken)
    making = next((step for step in run if step.output == precompiled_header.OUTPUT), None)
    if making is None:
        return None
    sharing = [step.output for step in run if precompiled_header.uses_header(step)]
    if making.output in taken.reused:  # it is there: nothing makes it
        run = [step for step in run if step != making]
        taken.kept.append(making)
    try:
        output = _run_steps(job, work, run)
    except (CompileError, BuildResourceError) as error:
        # The number of cores decides whether there is such a header: it must not decide whether the op can be built.
        # Without it less of the disk and of the memory is needed.
        failed = [step for step in steps if isinstance(error, CompileError) and step.title == error.step]
        if any(step.output not in sharing for step in failed):
            raise
        if failed:
            _run_steps(job, work, failed)  # usually the header is not the reason
        with suppress(OSError):
            os.unlink(job.log)
    else:
        reads = read(run)
        is_faithful = _is_faithful(job, reads[making.output], {read for name in sharing for read in reads[name]})
        if is_faithful or not sharing:
            for name in sharing:
                reads[name] += reads[making.output]
            taken.header = taken.header if is_faithful else None
            return run, output, reads
    _remove_objects(work, [*run, making])
    taken.kept[:] = [step for step in taken.kept if step != making]
    taken.reused.pop(making.output, None)
    return None


def _with_header(job: Job, work: str, steps: Sequence[Step], taken: _Taken) -> list[Step]:
    """Returns the steps with one that makes a precompiled header and those that use it, if that saves time.

    If the store has the header, it is taken. One that is kept is also made where a unit is being edited, as this will
    probably not be the last time; if there are processors for it, beside the units, which then do not wait for it.
    """
    share = partial(precompiled_header.apply, job.plan, steps, job.jobs, job.roots, work)
    if not object_reuse.keeps_header(job):
        return share()
    run = share(pays_for_one=True)
    unit = next((step.unit for step in run if step.unit and precompiled_header.uses_header(step)), None)
    if unit is None:
        return run
    taken.header = run[0], unit
    if taken.disk:
        inputs = object_reuse.take_header(job, work, *taken.header, taken.disk)
        if inputs:
            taken.reused[run[0].output] = inputs
            return run
    if not job.reuse or not any(object_reuse.is_edited(job, step) for step in steps):
        return share()
    return [run[0], *steps] if sum(map(precompiled_header.uses_header, run)) < job.jobs else run


def _keep_header(
    job: Job, work: str, run: Sequence[Step], taken: _Taken, reads: Mapping[str, Sequence[Read]], provenance: Provenance
) -> None:
    """Stores the precompiled header that this run has made, if the store keeps it, with what it was made from.

    What its units read and ask for is left out: ops share it.
    """
    if taken.header and taken.header[0] in run:
        making, unit = taken.header
        step = next(step for step in run if step.unit == unit)
        of_header = reads[making.output]
        (asked,) = _questions(job, work, [step], {step.output: of_header}, {}, ()).values()
        inputs = provenance.collect(of_header, search_folders(job), compiler_folders(job), asked)
        object_reuse.keep_header(job, work, making, unit, inputs)


def _is_faithful(job: Job, of_header: Collection[Read], of_units: Collection[Read]) -> bool:
    """Returns whether the units that share a precompiled header, by their objects, are the same without it."""
    named = {*search_folders(job)}
    own = [folder for folder in job.toolchain.search_folders() if folder not in named]
    return precompiled_header.is_faithful(of_header, of_units, own)


def _remove_objects(work: str, steps: Sequence[Step]) -> None:
    """Removes the objects that steps have compiled, so that they run again."""
    for step in steps:
        if (step.depfile or step.unit) and os.path.exists(os.path.join(work, step.output)):
            os.unlink(os.path.join(work, step.output))


def _questions(
    job: Job,
    work: str,
    steps: Sequence[Step],
    reads: Mapping[str, Sequence[Read]],
    reused: Mapping[str, Inputs],
    data: Collection[str],
) -> dict[str, Questions]:
    """Returns the questions in the files that each step has read, by its output.

    It runs the preprocessor first if macros name the headers. `data` are files that the preprocessor has not read.
    """
    words = [word for step in steps for word in arguments(step.argv)]
    everything = {read for of_step in reads.values() for read in of_step}
    own = {read.path for read in everything if not read.tree}
    is_clang = getattr(job.toolchain, "is_clang", False)
    is_dated = bool(os.environ.get(questions.DATE)) and not is_clang  # older clangs know no SOURCE_DATE_EPOCH
    paths = {read.path for read in everything}.difference(data)
    in_files = questions.in_files(paths, own, words, is_dated)
    units = {step.output: step for step in steps if step.unit}
    asked = dict[str, Questions]()
    for output, of_step in reads.items():
        paths = {read.path for read in of_step}
        asking = {"", *paths} & in_files.keys()
        here = questions.of_all(in_files[path] for path in asking)
        names = here.names | questions.implied_names(words, paths, is_clang)
        is_unclear = False
        if output in reused:
            names |= {*reused[output].asked_names()}
            is_unclear = any(answer.question == NAMES for answer in reused[output].answers)
        elif here.expressions and output in units:
            expanded = _expanded_names(job, work, units[output], here.expressions)
            names |= expanded or set()
            is_unclear = expanded is None and any(in_files[path].expressions for path in asking & own)
        asked[output] = here._replace(names=names, asks_for_any=here.asks_for_any or is_unclear)
    return asked


def _expanded_names(job: Job, work: str, step: Step, expressions: Iterable[bytes]) -> set[str] | None:
    """Returns the headers for which a unit asks by macros; None if these cannot be expanded."""
    macros = questions.macros_step(step)
    _run_steps(job, work, [macros])
    expansion = questions.expansion_step(getattr(job.toolchain, "host", job.toolchain).argv, work, macros, expressions)
    try:
        _run_steps(job, work, [expansion], keeps_log=False)
    except CompileError:  # a condition that was passed over, or is from before, need not fit the macros
        return None
    return questions.expanded_names(os.path.join(work, expansion.output))


def _assembled_files(job: Job, work: str, step: Step, folders: Sequence[str]) -> Iterable[str] | None:
    """Returns the files that the assembler reads for a unit, by compiling it again; None if that shows none.

    `folders` are those in which it looks for them.
    """
    if "-MD" not in step.argv:
        return None
    is_clang = getattr(getattr(job.toolchain, "host", job.toolchain), "is_clang", False)
    try:
        if not assembled.is_assembly(step):
            again = assembled.assembly_step(step, is_clang)
            _run_steps(job, work, [again], keeps_log=False)
            names = assembled.names_in(os.path.join(work, again.output))
            if names is not None:
                return assembled.files_named(names, folders)
        again = assembled.listing_step(step, is_clang)
        _run_steps(job, work, [again], keeps_log=False)
    except BuildError:  # a device's compiler, or too little memory: the objects are complete without it
        return None
    listing = os.path.join(work, again.assembled)
    if not os.path.isfile(listing):  # the assembler lists nothing
        return None
    return [os.path.join(work, name) for name in read_depfile(listing, work)]


def _touch(path: str) -> int:
    """Creates a file anew: not every file system sets times. Returns its ctime in the disk's nanoseconds."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    with open(path, "xb"):
        pass
    return os.stat(path).st_ctime_ns


def _run_steps(job: Job, work: str, steps: Sequence[Step], keeps_log: bool = True) -> str:
    """Runs the steps. Returns what the compilers printed. Raises CompileError, BuildResourceError.

    `keeps_log` says whether the output of a failure is kept for the user; not if the build goes on without the steps.
    """
    outcome = compilers.run_steps(job, work, steps)
    missing = _missing_output(work, steps, outcome)
    if outcome.status or missing:
        log = job.log if keeps_log else ""
        try:
            if log:
                write_file(log, outcome.output.encode("utf-8", "surrogateescape"))
        except OSError:
            log = ""  # the error message alone has to do
        if missing:
            raise diagnostics.missing_output(job.plan.op, *missing, log)
        is_on_facade = job.plan.abi == FACADE
        raise diagnostics.build_error(job.plan.op, outcome.status, outcome.output, log, work, is_on_facade)
    return diagnostics.compiler_output(outcome.output)


def _missing_output(work: str, steps: Sequence[Step], outcome: ninja.Outcome) -> tuple[Step, str] | None:
    """Returns the first step that succeeded without writing one of its files, and that file's name; or None.

    If a step failed, only the steps that wrote its inputs are known to have succeeded: its own message about a missing
    input would not help.
    """
    succeeded = list(steps)
    if outcome.status:
        lines = [line.split() for line in outcome.output.splitlines() if line.startswith("FAILED:")]
        inputs = {name for step in steps if any(step.output in line for line in lines) for name in step.inputs}
        succeeded = [step for step in steps if step.output in inputs]
    for step in succeeded:
        for name in filter(None, (step.output, step.depfile)):
            if not os.path.isfile(os.path.join(work, name)):
                return step, name
    return None
