"""Why no page is found: which part of each stored page's fingerprint differs from that of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from opforge.cache.store import Store
from opforge.remote.kinds import StoredArtifact

from . import adapter, features, page, remote, store
from .adapter import Adapter


class Explained(NamedTuple):
    """A stored page, and how it differs."""

    name: str
    path: str
    entries: int
    differs: tuple[str, ...]
    """Nothing if it is used here."""


def explain(among: Store, pages: Iterable[StoredArtifact]) -> list[Explained]:
    """Returns why each of these pages of a store is not used here.

    Where an adapter does nothing, as its JIT is not installed or of another release, that comes first.
    """
    return [Explained(one.name, one.path, len(one.facts["parts"]), tuple(_differences(among, one))) for one in pages]


def _differences(among: Store, one: StoredArtifact) -> Iterator[str]:
    name = one.name.partition("/")[0]
    if name not in adapter.every():
        yield f"no package that is installed here has the adapter {name}"
        return
    try:
        own = adapter.at(adapter.every()[name])
        here, there, idle = own.fingerprint(), one.facts["fingerprint"], own.version_problem()
    except Exception as error:  # of another package
        yield f"the adapter {name} cannot be used: {error}"
        return
    if idle:
        yield idle
    for part in sorted({*there, *here}):
        if there.get(part) != here.get(part):
            yield f"{part}: {there.get(part) or 'nothing'}, and here {here.get(part) or 'nothing'}"
    if lacking := features.lacking(one.facts["features"]):
        yield lacking
    if problem := _problem(among, own, one):
        yield problem


def _problem(among: Store, own: Adapter, one: StoredArtifact) -> str:
    """Returns why a page is not used whatever its fingerprint: it is damaged, or no key vouches for it now."""
    where = page.topic_of(one.facts)
    try:
        read = page.read(one.path, where, among.owners)
        return store.unfit(read.facts, own.holds) or (remote.kept_problem(read, where) if read.is_fetched else "")
    except (OSError, ValueError) as error:
        return str(error)
