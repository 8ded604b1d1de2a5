"""One build of a plan, however many processes request it at the same time: lock, staging folder, result."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from opforge.errors import BuildError
from opforge.fast_path.library import BUILD, RECORD
from opforge.foundation import formats
from opforge.foundation.files import write_file
from opforge.foundation.remembered_values import FlatStamps

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
    """The library of a build, in its staging folder, and the build's inputs."""

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


@contextmanager
def alone(
    store: Store,
    plan_key: str,
    label: str,
    look_again: Callable[[], Match | None],
    state: str,
    timeout: float | None = None,
) -> Iterator[Match | None]:
    """Holds the plan's lock, after waiting for the process that has it. Yields what was published meanwhile, or None.

    With None, this process is the one that builds: see `staged` and `keep`.

    Args:
        store: Where the entry is published.
        plan_key: The plan's key, which names the lock.
        label: The op's name, for messages.
        look_again: Returns the entry if another process has published it meanwhile. Called whenever the lock is taken.
        state: A key of the state of the sources. A waiter raises a failure only if it is of the same state.
        timeout: Seconds to wait for another process; None waits as long as it lives.

    Raises:
        SharedFailure: The build that this process waited for failed.
        LockTimeoutError: Another process was building for longer than `timeout`.
    """
    since, path = time.monotonic(), store.layout.path("locks", plan_key)
    earlier_failure = failures.latest_id(store.layout, plan_key)
    while True:
        with lock.acquire(path, label, timeout, ready=_has_news(store, plan_key), since=since) as result:
            match = look_again()
            may_have_failed = match is None and result is not lock.LockResult.FREE
            if may_have_failed and (failure := failures.after(store.layout, plan_key, earlier_failure, state)):
                raise SharedFailure(failure)
            # READY but nothing usable here: it was the result of other sources or root paths, so wait again.
            if match or result is not lock.LockResult.READY:
                yield match
                return


def _has_news(store: Store, plan_key: str) -> Callable[[], bool]:
    """Returns a function that returns whether an entry or a failure of the plan was published since this call."""
    watched = (store.layout.plan(plan_key), failures.path(store.layout, plan_key))
    before = store.disk.flat_stamps(watched)
    return lambda: store.disk.flat_stamps(watched) != before


@contextmanager
def staged(store: Store, plan_key: str, state: str, read: Callable[[], FlatStamps] = FlatStamps) -> Iterator[str]:
    """Makes a staging folder for a build, and removes it. The error of a build is noted for the processes that wait.

    They raise it only if `state` is theirs, and if the files have not changed that `read` returns: those that the build
    which has just failed had read. Raises OSError.
    """
    staging.sweep(store.layout)
    folder = staging.new_folder(store.layout, plan_key)
    try:
        yield folder
        failures.forget(store.layout, plan_key)
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
