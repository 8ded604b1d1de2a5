"""Builds a plan once, however many processes request it at the same time, and publishes the result."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from opforge import formats
from opforge.errors import BuildError
from opforge.machine_folder import write_file
from opforge.memory import FlatStamps
from opforge.warm.library import BUILD, RECORD

from . import staging
from .admit import admit
from .filesystem import lock
from .filesystem.disk import Stamp
from .keys import key_of
from .records import failures
from .records.entry import record_text
from .records.inputs import Inputs
from .records.validity import Observation
from .store import Match, Store


class BuildResult(NamedTuple):
    """What a build leaves in its staging folder, and what it read."""

    folder: str
    """Holds the library and nothing else; becomes the entry."""
    record: Mapping[str, Any]
    """The library's record, without the keys of its plan and its description."""
    own: Inputs
    """The inputs below the op's own roots, which the record holds."""
    inputs: Inputs
    stamps: Mapping[tuple[str, str], Stamp]
    """The stamps of the inputs, by root and path, from before they were hashed."""
    build: Mapping[str, Any]
    """How it was built: the plan's components, steps, times, output."""


class SharedFailure(Exception):
    """The build that this process waited for failed; carries the failure."""

    def __init__(self, failure: failures.Failure) -> None:
        super().__init__(failure.attributes["message"])
        self.failure = failure


def build_once(
    store: Store,
    plan_key: str,
    description: str,
    label: str,
    root_paths: Mapping[str, str],
    execute: Callable[[str], BuildResult],
    look_again: Callable[[], Match | None],
    state: str,
    timeout: float | None = None,
    read: Callable[[], FlatStamps] = FlatStamps,
) -> Match:
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
        read: Returns the files that the build which has just failed had read. A waiter raises its failure only if they
            have not changed since.

    Raises:
        BuildError: The build failed.
        SharedFailure: The build that this process waited for failed.
        CacheDirError: The store cannot be written.
        LockTimeoutError: Another process was building for longer than `timeout`.
    """
    since, path = time.monotonic(), store.layout.path("locks", plan_key)
    earlier_failure = failures.latest_id(store.layout, plan_key)
    while True:
        with lock.acquire(path, label, timeout, ready=_has_news(store, plan_key), since=since) as result:
            match = look_again()
            if match:
                return match
            if result is not lock.LockResult.FREE:
                failure = failures.after(store.layout, plan_key, earlier_failure, state)
                if failure:
                    raise SharedFailure(failure)
            # READY but nothing usable here: it was the result of other sources or root paths, so wait again.
            if result is not lock.LockResult.READY:
                return _build(store, plan_key, description, root_paths, execute, state, read)


def _has_news(store: Store, plan_key: str) -> Callable[[], bool]:
    """Returns a function that returns whether an entry or a failure of the plan was published since this call."""
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
    read: Callable[[], FlatStamps],
) -> Match:
    staging.sweep(store.layout)
    folder = staging.new_folder(store.layout, plan_key)
    try:
        match = keep(store, plan_key, description, root_paths, execute(folder))
        failures.forget(store.layout, plan_key)
        return match
    except BuildError as error:
        attributes = {name: value for name, value in vars(error).items() if name != "__notes__"}
        failures.note(store.layout, plan_key, failures.Failure(error.kind, attributes, state), read())
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep(store: Store, plan_key: str, description: str, root_paths: Mapping[str, str], result: BuildResult) -> Match:
    """Publishes a result, or uses the entry that another process published first. Returns the checked entry.

    Raises:
        CacheDirError: The store cannot be written, or does not read back what was written.
    """
    record = {
        **result.record,
        "format": formats.RECORD,
        "key": result.inputs.result_key(plan_key),
        "plan": plan_key,
        "description": description,
        "inputs": result.own.to_json(),
        "inputs_key": key_of(result.inputs.to_json()),
    }
    build = {**result.build, "inputs": result.inputs.to_json()}
    write_file(os.path.join(result.folder, RECORD), record_text(record))
    write_file(os.path.join(result.folder, BUILD), json.dumps(build).encode())
    entry, _is_new = admit(store.layout, result.folder, store.owners)
    stamped = Observation(root_paths, store.disk, result.stamps).stamps(build["inputs"])
    return Match(entry._replace(watched=stamped.watched), stamped, store.pointer(plan_key, entry.key))
