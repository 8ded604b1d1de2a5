"""Builds one op into the store: lock, look again, run the plan, publish."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from opforge import limit_settings, settings
from opforge.builders import toolchains
from opforge.builders.lookup import memory
from opforge.builders.lookup.finder import sources_of
from opforge.builders.planner import make_plan
from opforge.builders.resources import raise_if_exhausted
from opforge.builders.spec import abi
from opforge.builders.spec.description import description_key
from opforge.builders.spec.op_spec import root_paths
from opforge.builders.waiting import build_notices as waiting
from opforge.builders.waiting.build_line import BuildLine
from opforge.cache import publish
from opforge.cache.current import writable_store
from opforge.cache.filesystem import lock
from opforge.cache.keys import key_of
from opforge.cache.layout import entry_name
from opforge.cache.maintenance import limits as bounds
from opforge.cache.publish import BuildResult, SharedFailure
from opforge.cache.records.entry import Entry
from opforge.cache.store import Match, Rejected, Store
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
from opforge.warm import machine_folder
from opforge.warm.lookup import count

from . import timeline
from .diagnostics import parse_diagnostics
from .executor import execute
from .job import Job
from .parallelism import compiler_jobs, note_peak

if TYPE_CHECKING:
    from opforge.builders.lookup.remotes import Building
    from opforge.builders.spec.op_spec import OpSpec

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
    waiting.check_builds_are_allowed(spec.name, rejected)
    store = writable_store(store)
    if not (announce and settings.remotes()):
        return _build(spec, rejected, on_progress, force, jobs, store, None, declared)
    from opforge.builders.lookup.remotes import Building

    with Building(spec, store) as building:
        entry = _build(spec, rejected, on_progress, force, jobs, store, building, declared)
        building.is_done(entry)
    return entry


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
    absent = memory.absent_paths(spec)  # before the sources are located, as in a look-up
    description = description_key(spec)
    lookup = memory.Lookup(spec, store, sources_of(spec, store), root_paths(spec), declared=declared)
    snapshot = memory.take_snapshot(lookup, description, absent)
    with timeline.span("plan"):
        try:
            toolchain = toolchains.find_toolchain(spec, store)
        except ToolchainNotFoundError as error:
            raise error.after([*map(str, rejected)]) from None
        plan, paths = make_plan(spec, toolchain), root_paths(spec, toolchain.root_paths())
    lock_path = store.layout.path("locks", plan.key)

    def progress(done: int, total: int, title: str) -> None:
        lock.progress(lock_path, f"step {done} of {total}, log {job.log}")
        (on_progress or line.step)(done, total, title)

    job = Job(
        plan=plan,
        roots=paths,
        toolchain=toolchain,
        jobs=compiler_jobs(jobs, plan, store.layout),
        layout=store.layout,
        torch_target=spec.torch_target,
        portable=spec.portable,
        reuse=not force,
        on_progress=progress,
    )
    (expected,) = waiting.weights([plan], store.layout)
    waiting.warn_if_ranks_wait(spec.name, expected)
    line = BuildLine(spec.name, expected)
    requested = built = time.time()
    output = ""

    def look_again() -> Match | None:
        if force:
            return None
        match = store.get(plan.key, paths, [], abi.interface_problem)
        return match or (building.look() if building else None)

    def run(folder: str) -> BuildResult:
        nonlocal built, output
        line.begins()
        timeline.mark("wait for the lock", requested)
        began = time.perf_counter()
        result = execute(job, folder, store.disk)
        if peak := result.build["peak_bytes"]:
            note_peak(plan, store.layout, peak)
        key = entry_name(result.inputs.result_key(plan.key), result.record["sha256"])
        emit("build", op=spec.name, seconds=time.perf_counter() - began, plan=plan.key, result=key)
        built, output = time.time(), result.build["output"]
        return result

    limits = limit_settings.cache_max_size(), limit_settings.cache_max_age()
    sources = [os.path.join(paths[source.root], source.path) for source in plan.sources]
    try:
        with nullcontext() if on_progress else line:
            match = publish.build(
                store,
                plan_key=plan.key,
                description=description,
                label=spec.name,
                root_paths=paths,
                execute=run,
                look_again=look_again,
                state=key_of([store.disk.stamp(path) for path in sources]),
                timeout=limit_settings.lock_timeout(),
            )
    except SharedFailure as shared:
        raise shared_error(shared.failure.kind, shared.failure.attributes) from None
    except BuildError:
        _count(store, failed=1)
        bounds.enforce(store.layout, *limits)  # a failed build leaves a log and the objects of its other sources
        raise
    except LockTimeoutError:  # an OSError too, and not the disk's
        raise
    except OSError as error:
        raise_if_exhausted(spec.name, error)
        if error.errno == errno.ENOENT and error.filename is None:  # the working folder was removed
            raise
        if error.filename is None:  # reading and writing of files that are open already: those in staging
            advice = "Check its disk, or set OPFORGE_CACHE_DIR to another folder"
            raise CacheDirError(store.layout.root, f"a build in it failed ({error})", advice) from error
        if os.fsdecode(error.filename).startswith(store.layout.root):
            advice = "Give yourself access to all of it, or set OPFORGE_CACHE_DIR to another folder"
            raise CacheDirError(store.layout.root, f"{error.filename}: {error.strerror}", advice) from error
        raise
    if built > requested:
        timeline.mark("publish", built)
        _count(store, built=1, building=time.time() - requested)
    else:
        timeline.mark("wait for the lock", requested)  # another process built it meanwhile
        _count(store, waited=1, waiting=time.time() - requested)
    bounds.enforce(store.layout, *limits)
    match = memory.with_compiler(match, toolchain.programs(), snapshot)
    is_own = match.entry.origin in ("built", "cache")  # what is fetched is remembered with the trust file's stamp
    if is_own and not settings.paranoid() and not lookup.sources:  # a look-up might take a layer's entry instead
        programs = {} if spec.uses_host_compiler else toolchain.programs()
        memory.remember(lookup._replace(root_paths=paths), programs, toolchain.programs(), match, snapshot)
    _log_first_warning(spec.name, output, match.entry)
    return match.entry


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
