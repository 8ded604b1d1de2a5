"""The sources that a look-up asks if nothing is found on this machine: their protocol, and the table of them.

A source brings an entry into the user's store, where the look-up then finds it by its description. Nothing here imports
one: it is named by a string, and imported when a look-up has missed and a remote is configured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, NamedTuple, Protocol

from opforge.accelerator.entry_points import entry_points
from opforge.builders.declaration.description import description_key
from opforge.builders.declaration.machine import this_machine
from opforge.builders.declaration.op_spec import OpSpec, root_paths
from opforge.cache.current_store import writable_store
from opforge.cache.store import Fit, Match, Rejected, Sought, Store
from opforge.errors import CacheDirError, SettingError
from opforge.fast_path.library import Entry
from opforge.foundation import upper_parts

from .fit import fit_of, fit_of_prebuilt

log = logging.getLogger("opforge")
GROUP = "opforge.sources"
"""The group of entry points by which another package adds a source."""
BUILT_IN = (upper_parts.UPPER["fetched entries"],)
"""Sources as "module:factory", in the order in which they are asked."""


class Request(NamedTuple):
    """An entry that a look-up has not found."""

    op: str
    target: str
    description: str
    """The key of the op's description, by which a source is asked."""
    judge: Callable[[Mapping[str, Any]], Fit]
    """Returns whether an entry with this record can be used here, and its rank."""
    root_paths: Mapping[str, str]
    store: Store
    """The user's store, which can be written."""
    is_exact: bool = False
    """Whether an entry for a lower CPU level is refused."""
    since: float = 0.0
    """Misses before this time, in seconds since the epoch, are asked again."""

    def fetched(self) -> Match | None:
        """Returns the entry that this node has fetched by now and that can be used; None if there is none."""
        return self.store.fetched.find(self.description, self.judge, self.root_paths, self.store.disk)[0]


class RemoteSource(Protocol):
    """The operations of a source. No method raises for a failure of the source or the network: it logs a warning."""

    def fetch(self, request: Request) -> Sought[bool]:
        """Brings an entry that fits into the store, as one that was fetched; returns whether there is a new one."""
        ...

    def offered(self, request: Request) -> Sought[str]:
        """Returns a line for the entry that would be fetched; empty if there is none. Fetches no library."""
        ...

    def claim(self, request: Request, identity: Sequence[object]) -> bool:
        """Claims a build in the cluster, or waits for the node that has claimed it.

        Returns whether an entry was brought into the store meanwhile; otherwise it must be built here. `identity` is
        what the build is for besides the description. The wait ends after OPFORGE_LOCK_TIMEOUT at the latest.
        """
        ...

    def built(self, request: Request, entry: Entry | None) -> None:
        """Takes note of a build that ended: what is new may be published in the background. Returns at once.

        None if it failed.
        """
        ...


def sources() -> list[RemoteSource]:
    """Returns the sources that exist: opforge's own, then those of other packages. A broken one is left out."""
    usable = list[RemoteSource]()
    for path in (*BUILT_IN, *(point.value for point in entry_points(GROUP))):
        try:
            usable.append(resolve_name(path)())
        except SettingError:
            raise
        except Exception as error:  # another package's code may raise anything
            log.warning("The source of ops %s cannot be used: %s: %s", path, type(error).__name__, error)
    return usable


def request_for(spec: OpSpec, store: Store, exact: bool = False) -> Request:
    """Returns the request of a look-up. Raises SourceNotFoundError."""
    judge = fit_of_prebuilt(spec, fit_of(spec, exact, this_machine(spec.target.device)))
    return Request(spec.name, str(spec.target), description_key(spec), judge, root_paths(spec), store, exact)


def bring(spec: OpSpec, store: Store, exact: bool, since: float = 0.0) -> Sought[Store | None]:
    """Brings an entry for the spec into the user's store, if a source has one; returns that store then.

    A source that had nothing before `since`, in seconds since the epoch, is asked again.
    """
    try:
        store = writable_store(store)
    except CacheDirError as error:
        problem = f"nothing can be fetched into it: {error.problem}"
        return None, (Rejected(str(store.layout), problem),)
    request, rejected = request_for(spec, store, exact)._replace(since=since), list[Rejected]()
    for source in sources():
        is_new, others = source.fetch(request)
        rejected += others
        if is_new:
            return store, tuple(rejected)
    return None, tuple(rejected)


class Building:
    """A build, as the sources see it: it may be claimed before, and its result may be published.

    In a `with` block; leaving it by an exception ends the claim.
    """

    def __init__(self, spec: OpSpec, store: Store) -> None:
        self._request, self._sources = request_for(spec, store), sources()
        self._identity = (spec.target, spec.portable)
        self._entry: Entry | None = None
        self._has_claimed = False

    def __enter__(self) -> Building:
        return self

    def __exit__(self, *_error: object) -> None:
        for source in self._sources:
            source.built(self._request, self._entry)

    def look(self) -> Match | None:
        """Returns the entry that another node has built and published, after waiting for it; None if it is built here.

        Call it while the plan is locked: one process of a node waits.
        """
        if self._has_claimed:
            return None
        self._has_claimed = True
        match = self._request.fetched()  # by the process that had the lock before
        if match or not any(source.claim(self._request, self._identity) for source in self._sources):
            return match
        return self._request.fetched()

    def is_done(self, entry: Entry) -> None:
        """Notes the entry of the build. It is published when the block ends, if it is new."""
        self._entry = entry
