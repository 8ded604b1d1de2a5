"""Builds one op into the store: the slow half of `.load()`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opforge import settings
from opforge.builders import toolchains
from opforge.builders.lookup.finder import FindToolchain, look_up
from opforge.builders.planner import make_plan
from opforge.builders.resources import exhausted_resource
from opforge.builders.spec.description import describe
from opforge.builders.spec.root_paths import root_paths
from opforge.cache import publish
from opforge.cache.current import writable_store
from opforge.cache.filesystem import lock
from opforge.cache.keys import key_of
from opforge.cache.maintenance import limits as bounds
from opforge.cache.publish import BuildResult, SharedFailure
from opforge.cache.records.entry import Entry
from opforge.cache.store import Rejected, Store
from opforge.errors import CacheDirError, ToolchainNotFoundError
from opforge.events import emit

from . import timeline
from .diagnostics import parse_diagnostics
from .executor import produce, shared_error
from .job import Job
from .jobs import compiler_jobs, note_peak

if TYPE_CHECKING:
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
    find_toolchain: FindToolchain = toolchains.find_toolchain,
) -> Entry:
    """Returns the op's entry: builds it in `store`, or waits for the process that does.

    `rejected` are the stored entries that do not fit: if there is no compiler, the error lists them. `force` builds
    even if another process has published an entry meanwhile. Raises BuildError, CacheDirError, LockTimeoutError.
    """
    store = writable_store(store)
    with timeline.span("plan"):
        try:
            toolchain = find_toolchain(spec, store)
        except ToolchainNotFoundError as error:
            raise error.after([*map(str, rejected)]) from None
        plan, paths = make_plan(spec, toolchain), root_paths(spec, toolchain.root_paths())
    lock_path = store.layout.path("locks", plan.key)

    def progress(done: int, total: int, title: str) -> None:
        lock.progress(lock_path, f"step {done} of {total}, log {job.log}")
        if on_progress:
            on_progress(done, total, title)

    job = Job(
        plan=plan,
        roots=paths,
        toolchain=toolchain,
        jobs=compiler_jobs(jobs, plan, store.layout),
        layout=store.layout,
        torch_target=spec.torch_target,
        reuse=not force,
        on_progress=progress,
    )
    sources = [os.path.join(paths[one.root], one.path) for one in plan.sources]

    asked = built = time.time()
    said = ""

    def look_again() -> Entry | None:
        return None if force else look_up(store, plan.key, paths, [], settings.paranoid())

    def run(folder: str) -> BuildResult:
        nonlocal built, said
        timeline.mark("wait for the lock", asked)
        began = time.perf_counter()
        result = produce(job, folder, store.disk)
        if peak := result.manifest["built"]["peak_bytes"]:
            note_peak(plan, store.layout, peak)
        emit("build", op=spec.name, seconds=time.perf_counter() - began, plan=plan.key, result=result.key)
        built, said = time.time(), result.manifest["built"]["said"]
        return result

    limits = settings.cache_max_size(), settings.cache_max_age()
    try:
        entry = publish.build(
            store,
            plan_key=plan.key,
            description=describe(spec).key,
            label=spec.name,
            root_paths=paths,
            execute=run,
            look_again=look_again,
            state=key_of([store.disk.stamp(path) for path in sources]),
            timeout=settings.lock_timeout(),
        )
    except SharedFailure as shared:
        raise shared_error(shared.failure.kind, shared.failure.attributes) from None
    except OSError as error:
        scarce = exhausted_resource(spec.name, error)
        if scarce:
            raise scarce from error
        if error.filename is not None and os.fsdecode(error.filename).startswith(store.layout.root):
            advice = "Give yourself access to all of it, or set OPFORGE_CACHE_DIR to another folder"
            raise CacheDirError(store.layout.root, f"{error.filename}: {error.strerror}", advice) from error
        raise
    if built > asked:
        timeline.mark("publish", built)
    else:
        timeline.mark("wait for the lock", asked)  # another built it meanwhile
    bounds.enforce(store.layout, *limits)
    _tell_of_warnings(spec.name, said, entry)
    return entry


def _tell_of_warnings(op: str, said: str, entry: Entry) -> None:
    """Log the first warning of a build that has just been made, and where all of them are kept."""
    found = [one for one in parse_diagnostics(said.splitlines()) if one["severity"] == "warning"]
    if found:
        count = f"{len(found)} warnings, the first of them" if len(found) > 1 else "a warning"
        message = "%s: built with %s: %s:%d: %s. What the compilers said is shown by: opforge inspect %s"
        log.warning(message, op, count, found[0]["file"], found[0]["line"], found[0]["message"], entry.folder)
