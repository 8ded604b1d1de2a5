"""One run of a build's steps: what it takes from the store, what it compiles, and what both have read and asked for."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from opforge.builders.declaration.abi import FACADE
from opforge.builders.declaration.build_plan import Step
from opforge.cache.filesystem.disk import Disk
from opforge.cache.records.inputs import Inputs, RootedPath
from opforge.cache.records.validity import NAMES
from opforge.errors import BuildError, BuildResourceError, CompileError
from opforge.foundation.files import write_file
from opforge.foundation.lazy import cached_property

from . import compilers, diagnostics, ninja, object_reuse, precompiled_header
from .job import Job
from .reads import assembled, questions
from .reads.depfile import read_depfile
from .reads.files_read import arguments, compiler_folders, reads_of_step, search_folders
from .reads.provenance import Provenance, Read
from .reads.questions import Questions


class Attempt:
    """One run of the steps of a build."""

    def __init__(
        self,
        job: Job,
        work: str,
        steps: Sequence[Step],
        provenance: Provenance,
        disk: Disk | None,
        written: Collection[str],
    ) -> None:
        """Takes the objects that still fit from the store.

        Args:
            job: The job.
            work: The build folder.
            steps: The steps.
            provenance: Assigns paths to roots.
            disk: What the store's objects are compared with; None if none are taken.
            written: The files that flags name and that the compilers write: these are no inputs.
        """
        self._job, self._work, self._steps = job, work, steps
        self._provenance, self._disk, self._written = provenance, disk, written
        self._reused = object_reuse.take(job, work, steps, disk) if disk else {}
        """The inputs of what came from the store, by its name."""
        self._kept = [step for step in steps if step.output in self._reused]
        self._run = [step for step in steps if step.output not in self._reused]
        self._header: tuple[Step, RootedPath] | None = None
        """The step that makes a precompiled header which the store keeps, with a unit that can use it."""
        self._text = set[str]()
        """The files that more than an assembler has read: one that a unit embeds may be a header of another one."""
        self._reads: dict[str, list[Read]] = {}
        """What each step has read, by its output."""
        self.output = ""
        """What the compilers have printed."""

    def run(self, precompiles: bool) -> bool:
        """Runs the steps, with a precompiled header if that is allowed and saves time. Returns whether they had one.

        Raises CompileError, BuildResourceError.
        """
        has_header = precompiles and self._run_with_header()
        if not has_header:
            self.output = run_steps(self._job, self._work, self._run)
            self._reads = self._reads_of([*self._run, *self._kept])
        return has_header

    @cached_property
    def everything(self) -> list[Read]:
        """All files that the steps have read."""
        return sorted({read for of_step in self._reads.values() for read in of_step})

    def reused_titles(self) -> list[str]:
        """Returns the titles of the steps whose objects came from the store."""
        return [step.title for step in self._steps if step.output in self._reused]

    def inputs(self) -> tuple[Inputs, dict[Step, Inputs], bool]:
        """Returns what the build and each compiled unit depend on, and whether a file that they read has a date."""
        asked = self._questions(self._steps, self._reads)
        compiled = [step for step in self._steps if step.unit and step.output not in self._reused]
        of_units = {step: self._inputs(self._reads[step.output], asked[step.output]) for step in compiled}
        of_all = questions.of_all(asked.values())
        return self._inputs(self.everything, of_all), of_units, of_all.has_day

    def keep(self, of_units: Mapping[Step, Inputs]) -> None:
        """Stores the compiled units with their inputs, and the precompiled header that was made, if the store keeps it.

        What the header's units read and ask for is no part of its inputs: ops share it.
        """
        object_reuse.keep(self._job, self._work, of_units)
        if self._header and self._header[0] in self._run:
            making, unit = self._header
            step = next(step for step in self._run if step.unit == unit)
            of_header = self._reads[making.output]
            (asked,) = self._questions([step], {step.output: of_header}).values()
            object_reuse.keep_header(self._job, self._work, making, unit, self._inputs(of_header, asked))

    def remove_objects(self, further: Sequence[Step] = ()) -> None:
        """Removes what the steps, and further ones, have compiled, so that they run again."""
        for step in (*self._run, *further):
            if (step.depfile or step.unit) and os.path.exists(os.path.join(self._work, step.output)):
                os.unlink(os.path.join(self._work, step.output))

    def _reads_of(self, steps: Iterable[Step]) -> dict[str, list[Read]]:
        """Returns the reads of steps by their outputs. They have been run, or their objects are kept."""
        job, work, reads = self._job, self._work, dict[str, list[Read]]()
        list_assembled = partial(_assembled_files, job, work)
        for step in steps:
            data = set[str]()
            reads[step.output] = reads_of_step(
                job, work, step, self._provenance, self._reused, self._written, data, list_assembled
            )
            self._text |= {read.path for read in reads[step.output]} - data
        return reads

    def _inputs(self, reads: Iterable[Read], asked: Questions) -> Inputs:
        return self._provenance.collect(reads, *self._folders, asked)

    @cached_property
    def _folders(self) -> tuple[list[str], list[str]]:
        return search_folders(self._job), compiler_folders(self._job)

    def _run_with_header(self) -> bool:
        """Runs the steps with a precompiled header if that saves time.

        Returns False if there is no such header, or if the units are not the same without it: then nothing is compiled.
        """
        run = self._with_header()
        making = next((step for step in run if step.output == precompiled_header.OUTPUT), None)
        if making is None:
            return False
        if making.output in self._reused:  # it is there: nothing makes it
            run = [step for step in run if step != making]
            self._kept.append(making)
        if self._is_built_with(making, run):
            return True
        self.remove_objects([making])
        self._kept = [step for step in self._kept if step != making]
        self._reused.pop(making.output, None)
        return False

    def _is_built_with(self, making: Step, run: list[Step]) -> bool:
        """Runs steps of which some use a header. Returns whether the units are the same without it."""
        sharing = [step.output for step in run if precompiled_header.uses_header(step)]
        try:
            output = run_steps(self._job, self._work, run)
        except (CompileError, BuildResourceError) as error:
            # The number of cores decides whether there is such a header: it must not decide whether the op can be
            # built. Without it less of the disk and of the memory is needed.
            failed = [step for step in self._run if isinstance(error, CompileError) and step.title == error.step]
            if any(step.output not in sharing for step in failed):
                raise
            if failed:
                run_steps(self._job, self._work, failed)  # usually the header is not the reason
            with suppress(OSError):
                os.unlink(self._job.log)
            return False
        reads = self._reads_of([*run, *self._kept])
        is_faithful = _is_faithful(self._job, reads[making.output], {read for name in sharing for read in reads[name]})
        if sharing and not is_faithful:
            return False
        for name in sharing:
            reads[name] += reads[making.output]
        self._header = self._header if is_faithful else None
        self._run, self.output, self._reads = run, output, reads
        return True

    def _with_header(self) -> list[Step]:
        """Returns the steps with one that makes a precompiled header and those that use it, if that saves time.

        If the store has the header, it is taken. One that is kept is also made where a unit is being edited, as this
        will probably not be the last time; if there are processors for it, beside the units, which then do not wait
        for it.
        """
        job, steps = self._job, self._run
        share = partial(precompiled_header.apply, job.plan, steps, job.jobs, job.roots, self._work)
        if not object_reuse.keeps_header(job):
            return share()
        run = share(pays_for_one=True)
        unit = next((step.unit for step in run if step.unit and precompiled_header.uses_header(step)), None)
        if unit is None:
            return run
        self._header = run[0], unit
        inputs = object_reuse.take_header(job, self._work, run[0], unit, self._disk) if self._disk else None
        if inputs:
            self._reused[run[0].output] = inputs
            return run
        if not job.reuse or not any(object_reuse.is_edited(job, step) for step in steps):
            return share()
        return [run[0], *steps] if sum(map(precompiled_header.uses_header, run)) < job.jobs else run

    def _questions(self, steps: Sequence[Step], reads: Mapping[str, Sequence[Read]]) -> dict[str, Questions]:
        """Returns the questions in the files that each step has read, by its output.

        It runs the preprocessor first if macros name the headers. What only an assembler has read asks nothing.
        """
        words = [word for step in steps for word in arguments(step.argv)]
        everything = {read for of_step in reads.values() for read in of_step}
        own = {read.path for read in everything if not read.tree}
        is_clang = getattr(self._job.toolchain, "is_clang", False)
        is_dated = bool(os.environ.get(questions.DATE)) and not is_clang  # older clangs know no SOURCE_DATE_EPOCH
        paths = {read.path for read in everything} & self._text
        in_files = questions.in_files(paths, own, words, is_dated)
        units = {step.output: step for step in steps if step.unit}
        asked = dict[str, Questions]()
        for output, of_step in reads.items():
            paths = {read.path for read in of_step}
            asking = {"", *paths} & in_files.keys()
            here = questions.of_all(in_files[path] for path in asking)
            names = here.names | questions.implied_names(words, paths, is_clang)
            is_unclear = False
            if output in self._reused:
                names |= {*self._reused[output].asked_names()}
                is_unclear = any(answer.question == NAMES for answer in self._reused[output].answers)
            elif here.expressions and output in units:
                expanded = _expanded_names(self._job, self._work, units[output], here.expressions)
                names |= expanded or set()
                is_unclear = expanded is None and any(in_files[path].expressions for path in asking & own)
            asked[output] = here._replace(names=names, asks_for_any=here.asks_for_any or is_unclear)
        return asked


def _is_faithful(job: Job, of_header: Collection[Read], of_units: Collection[Read]) -> bool:
    """Returns whether the units that share a precompiled header, by their objects, are the same without it."""
    named = {*search_folders(job)}
    own = [folder for folder in job.toolchain.search_folders() if folder not in named]
    return precompiled_header.is_faithful(of_header, of_units, own)


def _expanded_names(job: Job, work: str, step: Step, expressions: Iterable[bytes]) -> set[str] | None:
    """Returns the headers for which a unit asks by macros; None if these cannot be expanded."""
    macros = questions.macros_step(step)
    run_steps(job, work, [macros])
    expansion = questions.expansion_step(getattr(job.toolchain, "host", job.toolchain).argv, work, macros, expressions)
    try:
        run_steps(job, work, [expansion], keeps_log=False)
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
            run_steps(job, work, [again], keeps_log=False)
            if (names := assembled.names_in(os.path.join(work, again.output))) is not None:
                return assembled.files_named(names, folders)
        again = assembled.listing_step(step, is_clang)
        run_steps(job, work, [again], keeps_log=False)
    except BuildError:  # a device's compiler, or too little memory: the objects are complete without it
        return None
    listing = os.path.join(work, again.assembled)
    if not os.path.isfile(listing):  # the assembler lists nothing
        return None
    return [os.path.join(work, name) for name in read_depfile(listing, work)]


def run_steps(job: Job, work: str, steps: Sequence[Step], keeps_log: bool = True) -> str:
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
