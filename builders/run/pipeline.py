"""Builds one op into the store: the slow half of `.load()`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from opforge import settings
from opforge.accelerator.host.cgroup import memory_left
from opforge.accelerator.host.topology import Topology
from opforge.builders.lookup.finder import look_up
from opforge.builders.resources import exhausted_resource
from opforge.builders.spec import abi
from opforge.builders.spec.build_plan import BuildPlan
from opforge.cache import publish
from opforge.cache.current import writable_store
from opforge.cache.filesystem import lock
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout, make_folder, write_file
from opforge.cache.maintenance import limits as bounds
from opforge.cache.publish import Product, SharedFailure
from opforge.cache.records.entry import Entry
from opforge.cache.store import Store
from opforge.errors import CacheDirError, ToolchainNotFoundError
from opforge.events import emit

from . import jobserver, ninja, timeline
from .diagnostics import parse_diagnostics
from .executor import produce, shared_error
from .job import Job

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder

log = logging.getLogger("opforge")
COMPILER_BYTES = {abi.PLAIN: 256 << 20, abi.STABLE: 512 << 20, abi.TORCH: 2 << 30}
"""Memory that one compiler may need, by ABI, until an op's own peak has been measured."""


def jobserver_for(asked: int | None, plans: Iterable[BuildPlan], layout: Layout) -> jobserver.Jobserver:
    """The compilers that building these plans may share: as many as the hungriest of them allows.

    Raises ToolchainNotFoundError where there is no ninja.
    """
    return jobserver.Jobserver(min(compiler_jobs(asked, plan, layout) for plan in plans), ninja.find_ninja())


def compiler_jobs(asked: int | None, plan: BuildPlan, layout: Layout) -> int:
    """How many compilers to run at once: as asked, or as cores, cgroup and free memory allow.

    What one needs was measured when the op was last built, if it was.
    """
    chosen = asked or settings.jobs()
    if chosen:
        return chosen
    cores, left = Topology.read().threads, memory_left()
    if left is None:
        return cores
    try:
        with open(_peak_file(plan, layout), encoding="ascii") as file:
            need = int(file.read())
    except (OSError, ValueError):
        need = COMPILER_BYTES[plan.abi]
    return max(1, min(cores, left // max(need, 1)))


def _peak_file(plan: BuildPlan, layout: Layout) -> str:
    return layout.path("peaks", key_of([plan.op, plan.abi]))


def _note_peak(plan: BuildPlan, layout: Layout, peak: int) -> None:
    """Keep the memory that a compiler took, in bytes, for the next build of this op."""
    try:
        make_folder(layout.path("peaks"))
        write_file(_peak_file(plan, layout), str(peak).encode())
    except OSError:
        return  # the next build takes the ABI's number again


def build(
    builder: OpBuilder, on_progress: ninja.Progress | None, force: bool, jobs: int | None, store: Store | None = None
) -> Entry:
    """Build `builder`'s op, or wait for whoever does. Raises BuildError, CacheDirError, LockTimeoutError."""
    store = writable_store(store)
    with timeline.span("plan"):
        try:
            toolchain = builder.toolchain(store)
        except ToolchainNotFoundError as error:
            raise error.after([*map(str, builder.trace)]) from None
        plan, places = builder.plan(toolchain), builder.places()
    lock_path = store.layout.path("locks", plan.key)

    def progress(done: int, total: int, title: str) -> None:
        lock.progress(lock_path, f"step {done} of {total}, log {job.log}")
        if on_progress:
            on_progress(done, total, title)

    job = Job(
        plan=plan,
        roots=places,
        toolchain=toolchain,
        jobs=compiler_jobs(jobs, plan, store.layout),
        layout=store.layout,
        torch_target=builder.torch_target,
        reuse=not force,
        on_progress=progress,
    )
    sources = [os.path.join(places[one.root], one.path) for one in plan.sources]

    asked = built = time.time()
    said = ""

    def look_again() -> Entry | None:
        return None if force else look_up(store, plan.key, places, [], settings.paranoid())

    def run(folder: str) -> Product:
        nonlocal built, said
        timeline.mark("wait for the lock", asked)
        began = time.perf_counter()
        product = produce(job, folder, store.disk)
        if peak := product.manifest["built"]["peak_bytes"]:
            _note_peak(plan, store.layout, peak)
        emit("build", op=builder.name, seconds=time.perf_counter() - began, plan=plan.key, result=product.result)
        built, said = time.time(), product.manifest["built"]["said"]
        return product

    limits = settings.cache_max_size(), settings.cache_max_age()
    try:
        entry = publish.build(
            store,
            plan_key=plan.key,
            description=builder.describe().key,
            label=builder.name,
            roots=places,
            produce=run,
            look_again=look_again,
            state=key_of([store.disk.stamp(path) for path in sources]),
            timeout=settings.lock_timeout(),
        )
    except SharedFailure as shared:
        raise shared_error(shared.failure.kind, shared.failure.told) from None
    except OSError as error:
        scarce = exhausted_resource(builder.name, error)
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
    _tell_of_warnings(builder.name, said, entry)
    return entry


def _tell_of_warnings(op: str, said: str, entry: Entry) -> None:
    """Log the first warning of a build that has just been made, and where all of them are kept."""
    found = [one for one in parse_diagnostics(said.splitlines()) if one["severity"] == "warning"]
    if found:
        count = f"{len(found)} warnings, the first of them" if len(found) > 1 else "a warning"
        message = "%s: built with %s: %s:%d: %s. What the compilers said is shown by: opforge inspect %s"
        log.warning(message, op, count, found[0]["file"], found[0]["line"], found[0]["message"], entry.folder)
