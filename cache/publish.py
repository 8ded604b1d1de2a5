"""The slow half of a store: build once, however many ask, and keep what was built."""

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
from .records import failures, stat_record
from .records.entry import MANIFEST, Entry, damage
from .records.inputs import Inputs
from .store import Store


class Product(NamedTuple):
    """What a producer leaves in its staging folder, and what it read."""

    result: str
    folder: str
    """Holds the library and nothing else; becomes the entry."""
    binary: Mapping[str, Any]
    inputs: Inputs
    stamps: Mapping[tuple[str, str], Stamp]
    """The stamps of the inputs, by root and path, from before they were hashed."""
    manifest: Mapping[str, Any]


class SharedFailure(Exception):
    """The builder that this process waited for failed; carries its failure."""

    def __init__(self, failure: Any) -> None:
        super().__init__(failure.told["message"])
        self.failure = failure


def build(
    store: Store,
    plan_key: str,
    description: str,
    label: str,
    roots: Mapping[str, str],
    produce: Callable[[str], Product],
    look_again: Callable[[], Entry | None],
    state: str,
    timeout: float | None = None,
) -> Entry:
    """Build under the plan's lock, once however many ask, and publish.

    `produce` builds in the folder it is given; `look_again` is asked first, for another may have built meanwhile;
    `state` names the state of the sources, so that a waiter takes over only a failure of the same sources.
    """
    began, since, path = time.time_ns(), time.monotonic(), store.layout.path("locks", plan_key)
    while True:
        with lock.held(path, label, timeout, ready=_news(store, plan_key), since=since) as turn:
            found = look_again()
            if found:
                return found
            if turn is not lock.Turn.FIRST:
                failure = failures.since(store.layout, plan_key, began, state)
                if failure:
                    raise SharedFailure(failure)
            if turn is not lock.Turn.READY:  # otherwise what came answers others, and this one waits on
                return _build(store, plan_key, description, roots, produce, state)


def _news(store: Store, plan_key: str) -> Callable[[], bool]:
    """Whether a ticket or a failure of this plan has come since this was called."""
    watched = (store.layout.plan(plan_key), failures.path(store.layout, plan_key))
    before = store.disk.flat_stamps(watched)
    return lambda: store.disk.flat_stamps(watched) != before


def _build(
    store: Store,
    plan_key: str,
    description: str,
    roots: Mapping[str, str],
    produce: Callable[[str], Product],
    state: str,
) -> Entry:
    staging.sweep(store.layout)
    folder = staging.begin(store.layout, plan_key)
    try:
        product = produce(folder)
        entry = keep(store, plan_key, description, roots, product)
        failures.forget(store.layout, plan_key)
        return entry
    except BuildError as error:
        told = {name: value for name, value in vars(error).items() if name != "__notes__"}
        failures.note(store.layout, plan_key, failures.Failure(error.kind, told, state))
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep(store: Store, plan_key: str, description: str, roots: Mapping[str, str], product: Product) -> Entry:
    """Publish a product, or take the entry that another published first. Returns a checked entry."""
    manifest = {
        **product.manifest,
        "plan": plan_key,
        "description": description,
        "result": product.result,
        "binary": dict(product.binary),
        "inputs": product.inputs.to_json(),
    }
    path = os.path.join(product.folder, MANIFEST)
    write_file(path, json.dumps(manifest, indent=1).encode())
    for _attempt in range(3):
        first = staging.publish(store.layout, product.folder, product.result)
        entry = store.read_entry(store.layout, product.result, "built" if first else "cache")
        problem = "its manifest cannot be read" if entry is None else damage(entry, store.owners, full=True)
        if entry and not problem and not first:
            problem = _disagreement(entry, product)
        if entry and not problem:
            library = store.disk.stamp(entry.library)
            binary = {**entry.binary, "stamp": list(library or ())}
            ticket = stat_record.make(entry.result, product.inputs, binary, roots, store.disk, product.stamps)
            store.write_ticket(plan_key, ticket, roots)
            _describe(store.layout.description(description), product.result)
            return entry._replace(binary=binary, ticket=ticket)
        problem = problem or "it cannot be read"
        if not staging.set_aside(store.layout, product.result, problem):
            raise CacheDirError(
                store.layout.root,
                f"{store.layout.entry(product.result)} cannot be changed ({problem})",
                f"If another user has made it, take it over: sudo chown -R {os.geteuid()} {store.layout}",
            )
        if first:
            break
    raise CacheDirError(
        store.layout.root,
        f"what was just written to it reads back wrong ({problem})",
        "Check the disk, or set OPFORGE_CACHE_DIR to another",
    )


def _describe(folder: str, result: str) -> None:
    """Say that a result answers a description."""
    for last in (False, False, True):
        make_folder(folder)
        try:
            write_file(os.path.join(folder, result), b"")
        except FileNotFoundError:
            if last:
                raise
            continue  # an eviction has just removed the folder, which was empty
        break


def _disagreement(entry: Entry, product: Product) -> str | None:
    """Why the manifest of an entry that was there already is not that of this result, or None.

    Two builds of one result may differ in their bytes, and in nothing else that is told of them.
    """
    told = json.loads(json.dumps({**product.binary, "size": entry.binary["size"], "sha256": entry.binary["sha256"]}))
    try:
        inputs = Inputs.from_json(entry.manifest()["inputs"]).files
    except UNREADABLE:
        return "its manifest cannot be read"
    same = {one[:3] for one in inputs} == {one[:3] for one in product.inputs.files}
    return None if same and told == entry.binary else "its manifest speaks of another library"
