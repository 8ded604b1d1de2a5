"""Records what a scope compiles and uses: torch's artifacts and inductor's libraries, whichever thread compiles them.

Artifacts of a fetched page were signed by another key: they are used, and never written into a page of this machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from opforge.cache.keys import bytes_digest
from opforge.foundation.fork_lock import ForkLock
from opforge.jits.entries import Entries
from opforge.jits.page import Files, Page
from opforge.torch_internals import inductor

from . import content
from .content import LIBRARY, Artifact

_signed_by_others: set[str] = set()
"""The digests of the artifacts that this process has taken from fetched pages, or was given by the program."""
_made_here: set[str] = set()
"""The digests of artifacts that are in pages of this machine, even if fetched pages have them too."""
_paths_of_others: set[str] = set()
"""The libraries of fetched pages, where this process has laid them."""
_laid: dict[tuple[str, str, bool], str] = {}
"""Where this process has laid a library, by its key, its digest and whether it was fetched: one is loaded once."""


def note_whose(is_fetched: bool, artifacts: Iterable[Artifact]) -> None:
    """Keeps whose the artifacts of a page are, for all scopes of this process."""
    digests = _signed_by_others if is_fetched else _made_here
    digests.update(content.digest_of(*artifact) for artifact in artifacts)


class Recording(inductor.Observer):
    """Records the artifacts that torch makes and uses, and provides the libraries of pages."""

    def __init__(self) -> None:
        """Begins empty."""
        self._offered: dict[str, Entries] = {}
        self._artifacts: dict[str, Artifact] = {}
        self._libraries: dict[str, str] = {}
        self._lock, self._began = ForkLock(), time.perf_counter()
        self.graphs: list[str] = []
        """The graphs that inductor has lowered, each a function and its inputs."""
        self.seconds = 0.0
        """How long torch has traced, looked up and compiled, in all threads."""

    def offer(self, entries: Entries, pages: Iterable[Page]) -> None:
        """Offers the libraries of pages."""
        self._offered.update({key: entries for one in pages for key in one.entries if key.startswith(LIBRARY)})

    def given(self, kind: str, key: str, content_: bytes) -> None:
        """Records an artifact that this process did not make."""
        _signed_by_others.add(content.digest_of(kind, key, content_))

    def artifact(self, kind: str, key: str, content_: bytes) -> None:
        """Keeps an artifact, unless it comes from a fetched page."""
        digest = content.digest_of(kind, key, content_)
        if digest not in _signed_by_others or digest in _made_here:
            self._artifacts[content.key_of(kind, key, content_)] = kind, key, content_

    def library(self, key: str, path: str) -> None:
        """Keeps the path of a library, unless it comes from a fetched page."""
        if os.path.realpath(path) not in _paths_of_others:
            self._libraries[LIBRARY + key] = path

    def library_path(self, key: str) -> str:
        """Returns the library of a page, compared with its digest, in a folder of this process; empty without one.

        A library that was made here is preferred to a fetched one.
        """
        entries = self._offered.get(LIBRARY + key)
        found = entries.find(LIBRARY + key) if entries is not None else None
        if entries is None or found is None or not found[1]:
            return ""
        one, files = found
        name, data = next(iter(files.items()))
        laid = key, bytes_digest(data), one.is_fetched
        if not os.path.isfile(_laid.get(laid, "")):
            try:
                _laid[laid] = entries.lay(f"{LIBRARY}{' '.join(map(str, laid))}", {name: data})[name]
            except OSError:
                return ""
        if one.is_fetched:
            _paths_of_others.add(os.path.realpath(_laid[laid]))
        return _laid[laid]

    def depends_on(self, graph: Any) -> str:
        """Returns a digest of what Python has registered for the ops of a graph. Raises UndescribedError."""
        from opforge.builders.registration import compile_tag  # torch is here, and compiles

        try:
            return compile_tag.of_graph(graph)
        except ValueError as error:
            compile_tag.say(error)
            raise

    def lowered(self, what: str) -> None:
        """Records a graph that no page has."""
        self.graphs.append(what)

    def traced(self, began: float, ended: float) -> None:
        """Adds up the time since the scope began."""
        with self._lock:
            self.seconds += max(0.0, ended - max(began, self._began))

    @property
    def keys(self) -> frozenset[str]:
        """The entries of what was compiled here, now or before, and used."""
        return frozenset([*self._artifacts, *self._libraries])

    def entries(self) -> dict[str, Files]:
        """Returns these with their files. Raises OSError."""
        found: dict[str, Files] = {key: content.of_artifact(self._artifacts[key]) for key in sorted(self._artifacts)}
        for key, path in sorted(self._libraries.items()):
            with open(path, "rb") as file:
                found[key] = {f"{key.removeprefix(LIBRARY)}.so": file.read()}
        return found
