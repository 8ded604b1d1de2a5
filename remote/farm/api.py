"""Building on other machines: the interface for `build-ops --on` and packages."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from typing import Any

from opforge.builders.base import OpBuilder
from opforge.builders.lookup import remotes as lookups
from opforge.cache.current_store import current_store, writable_store
from opforge.errors import FarmError, SettingError
from opforge.fast_path.library import Entry
from opforge.foundation import settings
from opforge.remote import remotes
from opforge.remote.entry_source import RemoteEntries

from .dispatch import Dispatch
from .engines import open_engine
from .unit import Outcome, Unit, unit_of


def results_remote(text: str = "") -> str:
    """Returns the URL of the remote that takes results: this one, or the first of OPFORGE_REMOTES with push=1.

    Raises SettingError if there is none.
    """
    if text:
        remotes.parse(text, "remote")
        return text

    for url in settings.remotes():
        if remotes.parse(url).pushes:
            return url
    text = settings.remotes.found()[0]
    raise SettingError(settings.remotes.variable, text, "a remote with push=1: workers publish results there")


def build_on(
    on: Any,
    builders: Iterable[OpBuilder],
    remote: str = "",
    *,
    force: bool = False,
    jobs: int | None = None,
    same_toolchain: bool = False,
) -> list[Outcome]:
    """Builds ops on other machines, which publish the results to a remote; returns the outcome of each.

    Args:
        on: An executor of concurrent.futures, or of a library whose executors have `submit` too; a function that makes
            one, which is called again if the executor breaks; or what `build-ops --on` takes.
        builders: Builders whose classes the workers can import. A builder's target is its unit's.
        remote: The URL of the remote; by default the first of OPFORGE_REMOTES with push=1. The workers' keys sign.
        force: Builds what the remote has, too.
        jobs: Run at most this many compilers at once in one worker's process; by default the worker's own cores.
        same_toolchain: Refuse machines whose compilers, torch or C library differ from the first one's.

    Raises:
        FarmError: The scheduler cannot be reached, or two workers differ.
        StoreError: The remote cannot be written.
    """
    url = results_remote(remote)
    units = [unit_of(builder, url, force=force, jobs=jobs) for builder in builders]
    outcomes = dict(sent(on, units, same_toolchain))
    return [outcomes[number] for number in range(len(units))]


def sent(on: Any, units: Sequence[Unit], same_toolchain: bool) -> Generator[tuple[int, Outcome], None, None]:
    """Sends units, the ones to begin first before the others; yields the number and the outcome of each as it ends.

    Close it, or let it end: that ends the compilers on the other machines. Raises what `build_on` raises.
    """
    engine = open_engine(on)
    try:
        with closing(Dispatch(engine, units, same_toolchain).outcomes()) as outcomes:
            yield from outcomes
    finally:
        engine.close()


def bring(builder: OpBuilder, remote: str) -> Entry:
    """Returns the entry that a worker has published for a builder, after fetching it. Raises FarmError."""
    spec = builder.spec()
    request = lookups.request_for(spec, writable_store(current_store()), exact=True)
    if (match := request.fetched()) is None:
        _is_new, rejected = RemoteEntries([remotes.parse(remote)], is_fresh=True).fetch(request)
        match = request.fetched()
    if match is None:
        reasons = "; ".join(map(str, rejected)) or "it has no offer"
        raise FarmError(
            spec.name, f"the result cannot be fetched: {reasons}", "Trust the workers' key: opforge key trust"
        )
    return match.entry
