"""Tuning results in a look-up: which one counts for an entry on this machine, and why others do not.

What it gives is remembered with the look-up, so a hit reads no result. One that cannot be used costs a warning and
leaves the library's defaults: a load never fails for it.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.builders.declaration import machine
from opforge.builders.declaration.op_spec import OpSpec
from opforge.builders.lookup import tuning_results as records
from opforge.builders.lookup.tuning_results import DTYPES, FETCHED, NEAREST, RESULT, StoredResult, path_of
from opforge.cache.current_store import current_store, writable_store
from opforge.cache.records import fetched_offer
from opforge.errors import CacheDirError
from opforge.fast_path import library, lookup
from opforge.fast_path.library import Entry
from opforge.foundation import remembered_values, remembered_values_writer, settings, upper_parts
from opforge.foundation.remembered_values import FlatStamps

log = logging.getLogger("opforge")
SOURCE = "fetched tuning results"
"""The part that fetches results and verifies them again, by its name in the table of upper parts."""
HINT = "The defaults are used. To time it again: opforge tune %s"
NOT_ASKED = 1.0
"""The time at which a remote is asked that may not be asked now: at once."""
Row = list[Any]
"""A dtype's number, the lowest and the highest size of calls, and values by name: what `library.set_tuned` takes."""
Place = tuple[str, Collection[int], int]
"""A store or layer: its folder, the users that its files may belong to, and the bits by which others may write them."""


class WantedResult(NamedTuple):
    """The subject that a result must be for."""

    op: str
    description: str
    target: str
    cores: int

    def path(self, root: str, ending: str = RESULT) -> str:
        """Returns where it lies in a store or a layer."""
        return path_of(root, self.description, self.target, self.cores, ending)


class Outcome(NamedTuple):
    """The result that counts for an entry, and the state that this follows from."""

    found: StoredResult | None
    """The result that was found; it may have a problem."""
    watched: FlatStamps
    """The files that were looked for, as they were before."""
    until: float = 0.0
    """When the remotes are asked again, in seconds since the epoch; 0 if they need not be."""
    rows: Sequence[Row] = ()
    problem: str = ""
    """Why the result that was found is not used."""


_resolved: dict[tuple[str, ...], Outcome] = {}
"""Entry key and the folders that were searched -> the last outcome here, while its files are the same."""
_refused: set[tuple[str, str]] = set()
"""Warnings that were given: a path, and why it is not used. A refusal is written to that file, so it is read again."""


def reset() -> None:
    """Forgets the results that this process has found."""
    _resolved.clear()
    _refused.clear()


def cores() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wanted(op: str, entry: Entry) -> WantedResult:
    """Returns the conditions that a result for an entry of the host must meet on this machine."""
    return WantedResult(op, entry.record["description"], entry.record["target"], cores())


def wanted_of_device(spec: OpSpec, entry: Entry) -> WantedResult:
    """Returns the conditions that a result for an entry of a device must meet: the device torch uses here."""
    arch = machine.current_arch(spec.target.device) or (spec.target.arch or ("",))[0]
    return WantedResult(spec.name, entry.record["description"], f"{spec.target.device}:{arch}", 0)


def apply(spec: OpSpec, entry: Entry) -> None:
    """Sets the values for an entry in its loaded library, or its defaults. Warns of a result that is not used."""
    outcome = resolve(spec, entry)
    try:
        if entry.key not in library.tuned:
            library.tunables(library.loaded_handle(entry))
        problem = outcome.problem or library.set_tuned(entry, outcome.rows)
        if problem and outcome.found:
            library.set_tuned(entry, [])
            warn(spec, outcome.found.path, problem)
    except OSError as error:
        names = ", ".join(name for name, _values in spec.tunable)
        text = "%s: %s cannot be set, because %s: %s. Its defaults are used"
        log.warning(text, spec.name, names, "its library lacks the functions of <opforge/tunable.h>", error)


def warn(spec: OpSpec, path: str, problem: str) -> None:
    """Says why a result is not used."""
    name = spec.builder if spec.package == "opforge" else f"MODULE:{spec.builder}"
    log.warning(f"%s: the tuning result %s is not used: %s. {HINT}", spec.name, path, problem, name)


def resolve(spec: OpSpec, entry: Entry, asks: bool = True) -> Outcome:
    """Returns the values for an entry on this machine. `asks` says whether the remotes may be asked for them."""
    places = searched(spec.package)
    key = (entry.key, *(place[0] for place in places))
    last = _resolved.get(key)
    is_same = last is not None and remembered_values.stamps_of(last.watched.paths) == [*last.watched.numbers]
    if last is None or not is_same or lookup.is_due(last.until):
        last = look(wanted(spec.name, entry), places, asks)
        problem, rows = last.found.problem if last.found else "", list[Row]()
        if last.found and not problem:
            rows, problem = table(last.found.value["rows"], dict(spec.tunable))
        last = _resolved[key] = last._replace(rows=rows, problem=problem)
    return last


def searched(package: str) -> list[Place]:
    """Returns where results are looked for: the user's store, then layers, and what packages carry."""
    store = current_store()
    places = lookup.places(package, store.layout.root, [str(layer.layout) for layer in store.layers], store.owners)
    return [(store.layout.root, store.owners, 0), *(place[:3] for place in places)]


def look(what: WantedResult, places: Sequence[Place], asks: bool) -> Outcome:
    """Returns the first result that is there. One that cannot be used ends the search too, with its problem."""
    root, owners, _bits = places[0]
    fetched_path = what.path(root, FETCHED)
    paths = [*dict.fromkeys([*(what.path(place[0]) for place in places), fetched_path])]
    if settings.remotes() or os.path.lexists(fetched_path):
        paths.append(settings.trust_file())
    watched = FlatStamps(paths, remembered_values.stamps_of(paths))
    for place, allowed, bits in places:
        try:
            found = records.read_stored(what.path(place), allowed, bits)
        except FileNotFoundError:
            continue
        return Outcome(_fitting(found, what), watched)
    if (accepted := _fetched(fetched_path, what, owners)) is not None:
        return Outcome(_fitting(accepted, what), watched)
    if not settings.remotes():
        return Outcome(None, watched)
    return _ask(what, watched) if asks else Outcome(None, watched, NOT_ASKED)


def _fitting(found: StoredResult, what: WantedResult) -> StoredResult:
    """Returns a result as it is; with a problem if it is for something else."""
    expected = {"kernel": what.description, "target": what.target, "cores": what.cores}
    for name, value in () if found.problem else expected.items():
        if found.value[name] != value:
            return StoredResult(found.path, {}, f"{name!r} is {found.value[name]!r}, expected {value!r}")
    return found


def _fetched(path: str, what: WantedResult, owners: Collection[int]) -> StoredResult | None:
    """Returns the result that was fetched before; None if there is none, or it is not accepted any more."""
    try:
        found = records.read_stored(path, owners)
        if found.problem:
            return found
        note = fetched_offer.read(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return StoredResult(path, {}, str(error))
    # If the trust file has changed since, it decides again. Without a signer the remote was an unsigned one.
    is_old = bool(note.signer) and list(note.trust) != remembered_values.stamps_of([settings.trust_file()])
    if is_old and (reason := upper_parts.get(SOURCE).problem(path, what)):
        if (path, reason) not in _refused:
            log.warning("%s: the tuning result that was fetched before is not used any more: %s", what.op, reason)
        _refused.add((path, reason))
        return None
    return found


def _ask(what: WantedResult, watched: FlatStamps) -> Outcome:
    """Returns the result that a remote has. If none has it, they are asked again after a day."""
    again, trust_file = time.time() + lookup.ABSENT_SECONDS, [settings.trust_file()]
    name = remembered_values.name_of(("no tuning result", [*what], settings.remotes()))
    absent = remembered_values.recall(name)
    if absent is not None and not lookup.is_due(absent[0]["until"]):
        return Outcome(None, watched, absent[0]["until"])
    before = FlatStamps(trust_file, remembered_values.stamps_of(trust_file))
    if not remembered_values_writer.can_remember():
        return Outcome(None, watched, again)  # each load would ask
    try:
        store = writable_store(current_store())
    except CacheDirError:
        return Outcome(None, watched, again)  # the load has said so
    path = what.path(store.layout.root, FETCHED)
    if not upper_parts.get(SOURCE).bring(path, what):
        remembered_values_writer.remember(name, before, {"until": again}, time.time_ns())
        return Outcome(None, watched, again)
    fresh = FlatStamps(watched.paths, remembered_values.stamps_of(watched.paths))
    try:
        return Outcome(_fitting(records.read_stored(path, store.owners), what), fresh)
    except FileNotFoundError:  # another process has removed it
        return Outcome(None, watched, NOT_ASKED)


def table(rows: Iterable[Mapping[str, Any]], tunable: Mapping[str, Sequence[int]]) -> tuple[list[Row], str]:
    """Returns the rows for a library, and why they must not be used; empty if they may.

    A call takes the row of its dtype whose size is nearest by its ratio, if it is at most NEAREST times larger or
    smaller.
    """
    made = list[Row]()
    ordered = sorted((row for row in rows if not row["what"]), key=lambda row: (row["dtype"], row["size"]))
    for at, row in enumerate(ordered):
        for name, number in row["config"].items():
            if number not in tunable.get(name, ()):
                return [], f"it has the config {name}={number}, which the op does not have"
        if row["config"]:  # otherwise the default, in the gap that its neighbours leave
            same = [other["size"] for other in ordered[max(0, at - 1) : at + 2] if other["dtype"] == row["dtype"]]
            made.append([DTYPES[row["dtype"]], *interval(row["size"], same), dict(row["config"])])
    return made, ""


def interval(size: int, others: Iterable[int]) -> tuple[int, int]:
    """Returns the lowest and the highest size of calls for which a result at `size` counts, beside those at others."""
    low, high = -(-size // NEAREST), size * NEAREST
    for other in others:
        if other < size:
            low = max(low, math.isqrt(other * size) + 1)
        elif other > size:
            high = min(high, math.isqrt(other * size))
    return low, high
