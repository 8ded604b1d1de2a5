"""Builds once, however many processes request the same, and keeps the result."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from opforge.errors import BuildError, CacheDirError

from . import staging
from .filesystem import lock
from .filesystem.disk import Stamp
from .filesystem.files import UNREADABLE, make_folder, write_file
from .records import failures, validity
from .records.entry import MANIFEST, Entry, integrity_problem
from .records.inputs import Inputs
from .store import Store


class BuildResult(NamedTuple):
    """What a build leaves in its staging folder, and what it read."""

    key: str
    """The entry's key."""
    folder: str
    """Holds the library and nothing else; becomes the entry."""
    binary: Mapping[str, Any]
    inputs: Inputs
    stamps: Mapping[tuple[str, str], Stamp]
    """The stamps of the inputs, by root and path, from before they were hashed."""
    manifest: Mapping[str, Any]


class SharedFailure(Exception):
    """The build that this process waited for failed; carries the failure."""

    def __init__(self, failure: failures.Failure) -> None:
        super().__init__(failure.attributes["message"])
        self.failure = failure


def build(
    store: Store,
    plan_key: str,
    description: str,
    label: str,
    root_paths: Mapping[str, str],
    execute: Callable[[str], BuildResult],
    look_again: Callable[[], Entry | None],
    state: str,
    timeout: float | None = None,
) -> Entry:
    """Builds under the plan's lock, or waits for the process that does; returns the entry.

    Args:
        store: Where the entry is published.
        plan_key: The plan's key, which names the lock.
        description: The key of the op's description.
        label: The op's name, for messages.
        root_paths: The paths of the roots on this machine.
        execute: Builds in the folder that it is called with.
        look_again: Returns the entry if another process has published it meanwhile. Called before each build.
        state: A key of the state of the sources. A waiter raises a failure only if it is of the same state.
        timeout: Seconds to wait for another process; None waits as long as it lives.

    Raises:
        BuildError: The build failed.
        SharedFailure: The build that this process waited for failed.
        CacheDirError: The store cannot be written.
        LockTimeoutError: Another process was building for longer than `timeout`.
    """
    began, since, path = time.time_ns(), time.monotonic(), store.layout.path("locks", plan_key)
    while True:
        with lock.acquire(path, label, timeout, ready=_has_news(store, plan_key), since=since) as result:
            entry = look_again()
            if entry:
                return entry
            if result is not lock.LockResult.FREE:
                failure = failures.since(store.layout, plan_key, began, state)
                if failure:
                    raise SharedFailure(failure)
            # READY but nothing usable here: it was the result of other sources or root paths, so wait again.
            if result is not lock.LockResult.READY:
                return _build(store, plan_key, description, root_paths, execute, state)


def _has_news(store: Store, plan_key: str) -> Callable[[], bool]:
    """Returns a function that returns whether a stat record or a failure of the plan was written since this call."""
    watched = (store.layout.plan(plan_key), failures.path(store.layout, plan_key))
    before = store.disk.flat_stamps(watched)
    return lambda: store.disk.flat_stamps(watched) != before


def _build(
    store: Store,
    plan_key: str,
    description: str,
    root_paths: Mapping[str, str],
    execute: Callable[[str], BuildResult],
    state: str,
) -> Entry:
    staging.sweep(store.layout)
    folder = staging.new_folder(store.layout, plan_key)
    try:
        entry = keep(store, plan_key, description, root_paths, execute(folder))
        failures.forget(store.layout, plan_key)
        return entry
    except BuildError as error:
        attributes = {name: value for name, value in vars(error).items() if name != "__notes__"}
        failures.note(store.layout, plan_key, failures.Failure(error.kind, attributes, state))
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep(store: Store, plan_key: str, description: str, root_paths: Mapping[str, str], result: BuildResult) -> Entry:
    """Publishes a result, or uses the entry that another process published first. Returns a checked entry.

    Raises:
        CacheDirError: The store cannot be written, or does not read back what was written.
    """
    manifest = {
        **result.manifest,
        "plan": plan_key,
        "description": description,
        "result": result.key,
        "binary": dict(result.binary),
        "inputs": result.inputs.to_json(),
    }
    path = os.path.join(result.folder, MANIFEST)
    write_file(path, json.dumps(manifest, indent=1).encode())
    for _attempt in range(3):
        is_first = staging.publish(store.layout, result.folder, result.key)
        entry = store.read_entry(store.layout, result.key, "built" if is_first else "cache")
        if entry is None:
            problem: str | None = "its manifest cannot be read"
        else:
            problem = integrity_problem(entry, store.owners, full=True)
            if not problem and not is_first:
                problem = _manifest_problem(entry, result)
            if not problem:
                library = store.disk.stamp(entry.library)
                binary = {**entry.binary, "stamp": list(library or ())}
                record = validity.stat_record(entry.key, result.inputs, binary, root_paths, store.disk, result.stamps)
                store.write_stat_record(plan_key, record, root_paths)
                _add_to_description(store.layout.description(description), result.key)
                return entry._replace(binary=binary, stat_record=record)
        if not staging.quarantine(store.layout, result.key, str(problem)):
            raise CacheDirError(
                store.layout.root,
                f"{store.layout.entry(result.key)} cannot be changed ({problem})",
                f"If another user has made it, take it over: sudo chown -R {os.geteuid()} {store.layout}",
            )
        if is_first:
            break
    raise CacheDirError(
        store.layout.root,
        f"what was just written to it reads back wrong ({problem})",
        "Check the disk, or set OPFORGE_CACHE_DIR to another",
    )


def _add_to_description(folder: str, entry_key: str) -> None:
    """Adds an entry to the folder of a description."""
    for is_last in (False, False, True):
        make_folder(folder)
        try:
            write_file(os.path.join(folder, entry_key), b"")
        except FileNotFoundError:
            if is_last:
                raise
            continue  # an eviction has just removed the folder, which was empty
        break


def _manifest_problem(entry: Entry, result: BuildResult) -> str | None:
    """Returns why the manifest of an entry that was there already does not belong to this result, or None.

    Two builds of one entry may differ in the bytes of the library, and in no other field.
    """
    same_bytes = {"size": entry.binary["size"], "sha256": entry.binary["sha256"]}
    binary = json.loads(json.dumps({**result.binary, **same_bytes}))
    try:
        inputs = Inputs.from_json(entry.manifest()["inputs"]).files
    except UNREADABLE:
        return "its manifest cannot be read"
    same_files = {file[:3] for file in inputs} == {file[:3] for file in result.inputs.files}
    return None if same_files and binary == entry.binary else "its manifest describes another library"
