"""The steps of a build into the store: plan, lock, look again, run, admit. `load_op.build` takes them in order."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from opforge.builders import toolchains
from opforge.builders.declaration import abi
from opforge.builders.declaration.description import description_key
from opforge.builders.declaration.kernel_roots import TRUSTED_ROOTS
from opforge.builders.declaration.op_spec import OpSpec, root_paths
from opforge.builders.lookup import remembered_lookups
from opforge.builders.lookup.remotes import Building
from opforge.builders.planner import make_plan
from opforge.builders.resources import raise_for
from opforge.builders.waiting import expected_time
from opforge.builders.waiting.build_line import BuildLine
from opforge.cache.filesystem import lock
from opforge.cache.keys import key_of
from opforge.cache.layout import entry_name
from opforge.cache.maintenance import limits as bounds
from opforge.cache.schema import FormatError
from opforge.cache.single_flight import BuildResult, SharedFailure, alone, keep, staged
from opforge.cache.store import Match, Rejected, RejectedRecord, Store
from opforge.errors import (
    BuildError,
    BuildResourceError,
    CompileError,
    LockTimeoutError,
    ToolchainNotFoundError,
    UnstableInputError,
)
from opforge.fast_path.library import Entry
from opforge.fast_path.lookup import count
from opforge.foundation import remembered_values_writer, settings
from opforge.foundation.events import emit
from opforge.foundation.remembered_values import FlatStamps

from . import ninja, timeline
from .diagnostics import joined_flags_hint, parse_diagnostics
from .executor import execute, read_before
from .job import Job
from .memory_needs import MemoryNeeds
from .parallelism import chosen_jobs, compiler_jobs
from .reads.surroundings import files_near

log = logging.getLogger("opforge")


class PlannedBuild:
    """A build: the decisions before the lock is taken, and its steps. `load_op.build` takes these in order."""

    def __init__(
        self,
        spec: OpSpec,
        store: Store,
        rejected: Sequence[Rejected] = (),
        on_progress: ninja.Progress | None = None,
        force: bool = False,
        jobs: int | None = None,
        announce: bool = True,
        declared: str = "",
    ) -> None:
        """Finds the compiler and makes the plan. The arguments are those of `load_op.build`, for a store to write to.

        Raises ToolchainNotFoundError, with the rejected entries in it, and SettingError.
        """
        self._spec, self._store, self._force, self._on_progress = spec, store, force, on_progress
        # The memory that the compilers of entries which do not fit needed, by source.
        learnt = tuple(peak for entry in rejected if isinstance(entry, RejectedRecord) for peak in entry.peaks)
        absent = remembered_lookups.absent_paths(spec)  # before the sources are located, as in a look-up
        self._description = description_key(spec)
        lookup = remembered_lookups.lookup_of(spec, store, declared=declared, asks=True)
        self._snapshot = remembered_lookups.take_snapshot(lookup, self._description, absent)
        with timeline.span("plan"):
            try:
                self._toolchain = toolchains.find_toolchain(spec, store)
            except ToolchainNotFoundError as error:
                raise error.after([*map(str, rejected)]) from None
            self._plan = plan = make_plan(spec, self._toolchain)
        self._roots = root_paths(spec, self._toolchain.root_paths())
        self._lookup = lookup._replace(root_paths=self._roots)
        self._limits = settings.cache_max_size(), settings.cache_max_age()
        layout = store.layout
        self._job = self._new_job(jobs, learnt)
        (self._expected,) = expected_time.weights([plan], layout)
        self._line, self._lock = BuildLine(spec.name, self._expected), layout.path("locks", plan.key)
        self._requested, self._built = time.time(), 0.0
        self._output = ""
        """The output of the compilers."""
        self._read, self._state = FlatStamps(), ""
        """The files that the build has read, if it failed; and the key of the state of the sources."""
        self._building: Building | None = None
        if announce and settings.remotes():
            self._building = Building(spec, store)

    def _new_job(self, jobs: int | None, learnt: Sequence[tuple[str, int]]) -> Job:
        """Returns the job to run. `learnt` is the memory that the compilers of entries needed which do not fit."""
        spec, plan, layout = self._spec, self._plan, self._store.layout
        return Job(
            plan=plan,
            roots=self._roots,
            toolchain=self._toolchain,
            jobs=compiler_jobs(jobs, plan, layout),
            layout=layout,
            torch_target=spec.torch_target,
            portable=spec.portable,
            reuse=not self._force,
            on_progress=self._progress,
            needs=MemoryNeeds(plan, self._roots, layout, learnt),
            is_chosen=chosen_jobs(jobs) is not None,
            is_extension=spec.extension_libraries is not None,
        )

    def announced(self) -> AbstractContextManager[object]:
        """Returns the block in which the remotes may see a claim of the build. After it the build may be published."""
        return self._building or nullcontext()

    @contextmanager
    def alone(self) -> Iterator[Match | None]:
        """Holds the plan's lock. Yields what another process, or another node, has published meanwhile, or None.

        Raises what the build in this block raises, the error of another process's build, CacheDirError,
        LockTimeoutError.
        """
        spec, store = self._spec, self._store
        try:
            with nullcontext() if self._on_progress else self._line:
                self._state, timeout = self._state_of_sources(), settings.lock_timeout()
                with alone(store, self._plan.key, spec.name, self._look_again, self._state, timeout) as match:
                    yield match
        except SharedFailure as shared:
            raise shared_error(shared.failure.kind, shared.failure.attributes) from None
        except BuildError:
            _count(store, failed=1)
            # It leaves a log, and the objects of its other sources.
            bounds.enforce(store.layout, *self._limits)
            raise
        except LockTimeoutError:  # an OSError too, and not the disk's
            raise
        except OSError as error:
            raise_for(spec.name, store.layout.root, error)
            raise

    def _look_again(self) -> Match | None:
        if self._force:
            return None
        match = self._store.get(self._plan.key, self._roots, abi.interface_problem)[0]
        return match or (self._building.look() if self._building else None)

    @contextmanager
    def run(self) -> Iterator[BuildResult]:
        """Builds in a staging folder, which is removed after this block. The plan's lock must be held."""
        spec, plan, store = self._spec, self._plan, self._store
        with staged(store, plan.key, self._state, lambda: self._read) as folder:
            self._line.begins()
            expected_time.warn_if_ranks_wait(spec.name, self._expected)  # of many ranks this one builds
            timeline.mark("wait for the lock", self._requested)
            began = time.perf_counter()
            try:
                result = execute(self._job, folder, store.disk)
            except BuildError:
                self._read = read_before(folder, self._roots)
                raise
            key = entry_name(result.inputs.result_key(plan.key), result.record["sha256"])
            emit("build", op=spec.name, seconds=time.perf_counter() - began, plan=plan.key, result=key)
            self._built, self._output = time.time(), result.build["output"]
            yield result

    def admit(self, result: BuildResult) -> Match:
        """Checks the result of `run` and publishes it. Returns the entry. Raises CacheDirError, BuildError."""
        try:
            return keep(self._store, self._plan.key, self._description, self._roots, result)
        except FormatError as error:
            strange = next(_not_utf8([result.record, result.inputs.to_json()]), None)
            if strange is None:
                raise
            problem = f"it cannot be recorded: its record would name {strange!a}, which is not UTF-8"
            advice = "Rename that file or folder, or correct the variable that names it"
            raise BuildError(f"{self._spec.name}: {problem}. {advice}.", self._spec.name) from error

    def done(self, match: Match) -> Entry:
        """Counts the build, enforces the store's limits and remembers the outcome. Returns the entry."""
        store = self._store
        if self._built:
            timeline.mark("publish", self._built)
            _count(store, built=1, building=time.time() - self._requested)
        else:
            timeline.mark("wait for the lock", self._requested)  # another process built it meanwhile
            _count(store, waited=1, waiting=time.time() - self._requested)
        bounds.enforce(store.layout, *self._limits)
        programs = self._toolchain.programs()
        match = remembered_lookups.with_compiler(match, programs, self._snapshot)
        is_own = match.entry.origin in ("built", "cache")  # what is fetched is remembered with the trust file's stamp
        if is_own and not settings.paranoid() and not self._lookup.sources:  # it might take a layer's entry instead
            named = {} if self._spec.uses_host_compiler else programs
            remembered_lookups.remember(self._lookup, named, programs, match, self._snapshot)
        _log_first_warning(self._spec.name, self._output, match.entry)
        if self._built and (hint := joined_flags_hint(self._spec.search_flags)):
            log.warning("%s: built, but %s", self._spec.name, hint)  # -DA and -L take what follows as their value
        if self._building:
            self._building.is_done(match.entry)
        return match.entry

    def _state_of_sources(self) -> str:
        """Returns a key of the state of the op's sources, and of what lies beside them and in its include folders.

        A failure is another process's too only if that has seen the same state: a header may have been corrected since
        the build began that failed. Of very many files only the nearest are looked at, the same by each process: if the
        key were each process's own, all of them would repeat a build that fails, one after another. What the failed
        build has read elsewhere is compared by its failure: see `read_before`.
        """
        plan, roots, disk = self._plan, self._roots, self._store.disk
        sources = [os.path.join(roots[source.root], source.path) for source in plan.sources]
        own = [folder for folder in plan.include if folder.root not in TRUSTED_ROOTS]
        folders = [*map(os.path.dirname, sources), *(os.path.join(roots[folder.root], folder.path) for folder in own)]
        paths = dict.fromkeys([*sources, *files_near(folders)])
        return key_of([[os.path.basename(path), disk.stamp(path)] for path in paths])

    def _progress(self, done: int, total: int, title: str) -> None:
        lock.progress(self._lock, f"step {done} of {total}, log {self._job.log}")
        (self._on_progress or self._line.step)(done, total, title)


def _not_utf8(value: Any) -> Iterator[str]:
    """Yields each text in a record that has a byte of no character in it: names of files may have any."""
    if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for pair in value.items() for part in pair for text in _not_utf8(part))
    elif isinstance(value, (list, tuple)):
        yield from (text for part in value for text in _not_utf8(part))


def _count(store: Store, **amounts: float) -> None:
    """Counts for `opforge cache stats`, and writes it at once: the process may be killed before it ends."""
    count(store.layout.root, **amounts)
    remembered_values_writer.write_counts()


def _log_first_warning(op: str, output: str, entry: Entry) -> None:
    """Logs the first warning of a build, and the command that shows all of them."""
    warnings = [message for message in parse_diagnostics(output.splitlines()) if message["severity"] == "warning"]
    if warnings:
        count = f"{len(warnings)} warnings, the first of them" if len(warnings) > 1 else "a warning"
        text = "%s: built with %s: %s:%d: %s. All that the compilers printed is shown by: opforge inspect %s"
        first = warnings[0]
        log.warning(text, op, count, first["file"], first["line"], first["message"], entry.folder)


def shared_error(kind: str, attributes: Mapping[str, Any]) -> BuildError:
    """Returns the error of the process that built, for a process that waited for it."""
    classes = {error.kind: error for error in (CompileError, BuildResourceError, UnstableInputError)}
    error_class = classes.get(kind, BuildError)
    try:
        return error_class(**attributes)
    except (TypeError, ValueError):  # an opforge of another version has written it
        return error_class(str(attributes["message"]))
