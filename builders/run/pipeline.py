"""Builds one op into the store: lock, look again, run the plan, publish."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge import machine_folder, settings
from opforge.builders import toolchains
from opforge.builders.declaration import abi
from opforge.builders.declaration.description import description_key
from opforge.builders.declaration.kernel_roots import TRUSTED_ROOTS
from opforge.builders.declaration.op_spec import root_paths
from opforge.builders.lookup import memory
from opforge.builders.lookup.finder import sources_of
from opforge.builders.planner import make_plan
from opforge.builders.resources import raise_if_exhausted
from opforge.builders.waiting import expected_time
from opforge.builders.waiting.build_line import BuildLine
from opforge.builders.waiting.no_builds import check_builds_are_allowed
from opforge.cache.current import writable_store
from opforge.cache.filesystem import lock
from opforge.cache.keys import key_of
from opforge.cache.layout import entry_name
from opforge.cache.maintenance import limits as bounds
from opforge.cache.single_flight import BuildResult, SharedFailure, build_once
from opforge.cache.store import Match, Rejected, RejectedRecord, Store
from opforge.errors import (
    BuildError,
    BuildResourceError,
    CacheDirError,
    CompileError,
    LockTimeoutError,
    ToolchainNotFoundError,
    UnstableInputError,
)
from opforge.events import emit
from opforge.memory import FlatStamps
from opforge.warm.library import Entry
from opforge.warm.lookup import count

from . import timeline
from .diagnostics import parse_diagnostics
from .executor import execute, read_before
from .job import Job
from .memory_needs import MemoryNeeds
from .parallelism import chosen_jobs, compiler_jobs
from .reads.surroundings import files_near

if TYPE_CHECKING:
    from opforge.builders.declaration.build_plan import BuildPlan
    from opforge.builders.declaration.op_spec import OpSpec
    from opforge.builders.lookup.remotes import Building
    from opforge.builders.toolchains.toolchain import Toolchain

    from . import ninja

log = logging.getLogger("opforge")


def build(
    spec: OpSpec,
    rejected: Sequence[Rejected] = (),
    on_progress: ninja.Progress | None = None,
    force: bool = False,
    jobs: int | None = None,
    store: Store | None = None,
    announce: bool = True,
    declared: str = "",
) -> Entry:
    """Returns the op's entry: builds it in `store`, or waits for the process that does.

    `rejected` are the stored entries that do not fit: if there is no compiler, the error lists them. `force` builds
    even if another process has published an entry meanwhile. Without `announce` the remotes do not see the build: it
    is neither claimed nor published. The spec follows from the text `declared`, unless that is empty. Raises
    BuildError, CacheDirError, LockTimeoutError.
    """
    check_builds_are_allowed(spec.name, rejected)
    store = writable_store(store)
    if not (announce and settings.remotes()):
        return _build(spec, rejected, on_progress, force, jobs, store, None, declared)
    from opforge.builders.lookup.remotes import Building

    with Building(spec, store) as building:
        entry = _build(spec, rejected, on_progress, force, jobs, store, building, declared)
        building.is_done(entry)
    return entry


class _Plan(NamedTuple):
    """A build that may begin: everything that is decided before a lock is taken."""

    spec: OpSpec
    store: Store
    description: str
    toolchain: Toolchain
    plan: BuildPlan
    roots: Mapping[str, str]
    lookup: memory.Lookup
    snapshot: memory.Snapshot
    limits: tuple[int | None, float | None]
    learnt: tuple[tuple[str, int], ...] = ()
    """What the compilers of entries that do not fit needed, by source."""


def _build(
    spec: OpSpec,
    rejected: Sequence[Rejected],
    on_progress: ninja.Progress | None,
    force: bool,
    jobs: int | None,
    store: Store,
    building: Building | None,
    declared: str,
) -> Entry:
    """Returns the op's entry as `build` does. `building` is what the remotes see of it."""
    planned = _plan(spec, rejected, store, declared)
    run = _Run(planned, on_progress, force, jobs, building)
    try:
        match = run.once()
    except SharedFailure as shared:
        raise shared_error(shared.failure.kind, shared.failure.attributes) from None
    except BuildError:
        _count(store, failed=1)
        # It leaves a log, and the objects of its other sources.
        bounds.enforce(store.layout, *planned.limits)
        raise
    except LockTimeoutError:  # an OSError too, and not the disk's
        raise
    except OSError as error:
        raise_if_exhausted(spec.name, error)
        problem = _store_problem(store.layout.root, error)
        if problem:
            raise problem from error
        raise
    run.count()
    bounds.enforce(store.layout, *planned.limits)
    match = memory.with_compiler(match, planned.toolchain.programs(), planned.snapshot)
    _remember(planned, match)
    _log_first_warning(spec.name, run.output, match.entry)
    return match.entry


def _plan(spec: OpSpec, rejected: Sequence[Rejected], store: Store, declared: str) -> _Plan:
    """Returns the build of a spec. Raises ToolchainNotFoundError, with the rejected entries in it, and SettingError."""
    absent = memory.absent_paths(spec)  # before the sources are located, as in a look-up
    description = description_key(spec)
    lookup = memory.Lookup(spec, store, sources_of(spec, store), root_paths(spec), declared=declared)
    snapshot = memory.take_snapshot(lookup, description, absent)
    with timeline.span("plan"):
        try:
            toolchain = toolchains.find_toolchain(spec, store)
        except ToolchainNotFoundError as error:
            raise error.after([*map(str, rejected)]) from None
        plan, roots = make_plan(spec, toolchain), root_paths(spec, toolchain.root_paths())
    limits = settings.cache_max_size(), settings.cache_max_age()
    learnt = tuple(peak for entry in rejected if isinstance(entry, RejectedRecord) for peak in entry.peaks)
    return _Plan(spec, store, description, toolchain, plan, roots, lookup, snapshot, limits, learnt)


class _Run:
    """A planned build in this process: it is run here, or by the process that has the plan's lock."""

    def __init__(
        self,
        planned: _Plan,
        on_progress: ninja.Progress | None,
        force: bool,
        jobs: int | None,
        building: Building | None,
    ) -> None:
        self.output = ""
        """What the compilers have printed."""
        spec, layout = planned.spec, planned.store.layout
        self._planned, self._force, self._building = planned, force, building
        self._lock = layout.path("locks", planned.plan.key)
        self._job = Job(
            plan=planned.plan,
            roots=planned.roots,
            toolchain=planned.toolchain,
            jobs=compiler_jobs(jobs, planned.plan, layout),
            layout=layout,
            torch_target=spec.torch_target,
            portable=spec.portable,
            reuse=not force,
            on_progress=self._progress,
            needs=MemoryNeeds(planned.plan, planned.roots, layout, planned.learnt),
            is_chosen=chosen_jobs(jobs) is not None,
            is_extension=spec.extension_libraries is not None,
        )
        (expected,) = expected_time.weights([planned.plan], layout)
        self._expected, self._line = expected, BuildLine(spec.name, expected)
        self._on_progress = on_progress
        self._requested, self._built = time.time(), 0.0
        self._read = FlatStamps()
        """The files that the build has read, if it failed."""

    def once(self) -> Match:
        """Returns the entry, built here or by another process. Raises what `build_once` raises."""
        spec, store, roots = self._planned.spec, self._planned.store, self._planned.roots
        with nullcontext() if self._on_progress else self._line:
            return build_once(
                store,
                plan_key=self._planned.plan.key,
                description=self._planned.description,
                label=spec.name,
                root_paths=roots,
                execute=self._execute,
                look_again=self._look_again,
                state=self._state(),
                timeout=settings.lock_timeout(),
                read=lambda: self._read,
            )

    def _state(self) -> str:
        """Returns a key of the state of the op's sources, and of what lies beside them and in its include folders.

        A failure is another process's too only if that has seen the same state: a header may have been corrected since
        the build began that failed. Of very many files only the nearest are looked at, the same by each process: if the
        key were each process's own, all of them would repeat a build that fails, one after another. What the failed
        build has read elsewhere is compared by its failure: see `read_before`.
        """
        plan, roots, disk = self._planned.plan, self._planned.roots, self._planned.store.disk
        sources = [os.path.join(roots[source.root], source.path) for source in plan.sources]
        own = [folder for folder in plan.include if folder.root not in TRUSTED_ROOTS]
        folders = [*map(os.path.dirname, sources), *(os.path.join(roots[folder.root], folder.path) for folder in own)]
        paths = dict.fromkeys([*sources, *files_near(folders)])
        return key_of([[os.path.basename(path), disk.stamp(path)] for path in paths])

    def count(self) -> None:
        """Counts the build, or the wait for it, for `opforge cache stats`."""
        if self._built:
            timeline.mark("publish", self._built)
            _count(self._planned.store, built=1, building=time.time() - self._requested)
        else:
            timeline.mark("wait for the lock", self._requested)  # another process built it meanwhile
            _count(self._planned.store, waited=1, waiting=time.time() - self._requested)

    def _progress(self, done: int, total: int, title: str) -> None:
        lock.progress(self._lock, f"step {done} of {total}, log {self._job.log}")
        (self._on_progress or self._line.step)(done, total, title)

    def _look_again(self) -> Match | None:
        """Returns the entry that another process, or another node, has published meanwhile."""
        if self._force:
            return None
        match = self._planned.store.get(self._planned.plan.key, self._planned.roots, abi.interface_problem)[0]
        return match or (self._building.look() if self._building else None)

    def _execute(self, folder: str) -> BuildResult:
        """Builds in a folder, with the plan's lock held."""
        self._line.begins()
        expected_time.warn_if_ranks_wait(self._planned.spec.name, self._expected)  # of many ranks this one builds
        timeline.mark("wait for the lock", self._requested)
        began = time.perf_counter()
        spec, plan, store = self._planned.spec, self._planned.plan, self._planned.store
        try:
            result = execute(self._job, folder, store.disk)
        except BuildError:
            self._read = read_before(folder, self._planned.roots)
            raise
        key = entry_name(result.inputs.result_key(plan.key), result.record["sha256"])
        emit("build", op=spec.name, seconds=time.perf_counter() - began, plan=plan.key, result=key)
        self._built, self.output = time.time(), result.build["output"]
        return result


def _store_problem(root: str, error: OSError) -> CacheDirError | None:
    """Returns the store's error that an error of the system stands for; None if it is about another file."""
    if error.filename is None:
        if error.errno == errno.ENOENT:  # the working folder was removed
            return None
        # reading and writing of files that are open already: those in staging
        advice = "Check its disk, or set OPFORGE_CACHE_DIR to another folder"
        return CacheDirError(root, f"a build in it failed ({error})", advice)
    if os.fsdecode(error.filename).startswith(root):
        advice = "Give yourself access to all of it, or set OPFORGE_CACHE_DIR to another folder"
        return CacheDirError(root, f"{error.filename}: {error.strerror}", advice)
    return None


def _remember(planned: _Plan, match: Match) -> None:
    """Remembers the entry for the next look-up, unless that might take another one."""
    is_own = match.entry.origin in ("built", "cache")  # what is fetched is remembered with the trust file's stamp
    if is_own and not settings.paranoid() and not planned.lookup.sources:  # it might take a layer's entry instead
        programs = planned.toolchain.programs()
        asked = {} if planned.spec.uses_host_compiler else programs
        memory.remember(
            planned.lookup._replace(root_paths=planned.roots, asks=True), asked, programs, match, planned.snapshot
        )


def _count(store: Store, **amounts: float) -> None:
    """Counts for `opforge cache stats`, and writes it at once: the process may be killed before it ends."""
    count(store.layout.root, **amounts)
    machine_folder.write_counts()


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
