"""What a scope has compiled and used: torch's artifacts and inductor's libraries, whichever thread compiled them.

What came from a fetched bundle is another's: it is used, and never written into a bundle of this machine.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from opforge.torch_internals import inductor

from . import bundle
from .bundle import Bundle

LIBRARY = "library"


_signed_by_others: set[str] = set()
"""The digests of the artifacts that this process has taken from fetched bundles, or was given by the program."""
_made_here: set[str] = set()
"""The digests of those that are in bundles of this machine: they are its own, whoever else has them."""
_folders_of_others: set[str] = set()
"""The folders of fetched bundles."""


def note_whose(of: Bundle, artifacts: Iterable[tuple[str, str, bytes]]) -> None:
    """Keeps whose the content of a bundle is, for all scopes of this process."""
    digests = _signed_by_others if of.is_fetched else _made_here
    digests.update(bundle.digest_of_artifact(*artifact) for artifact in artifacts)
    if of.is_fetched:
        _folders_of_others.add(os.path.realpath(of.folder) + os.sep)


class Recording(inductor.Observer):
    """Records what passes while it is observed, and offers the libraries of bundles."""

    def __init__(self) -> None:
        """Begins empty."""
        self._offered: dict[str, str] = {}
        self._artifacts: dict[str, tuple[str, str, bytes]] = {}
        self._libraries: dict[str, str] = {}
        self._lock, self._began = threading.Lock(), time.perf_counter()
        self.graphs: list[str] = []
        """What inductor has lowered: a function and its inputs each."""
        self.seconds = 0.0
        """How long torch has traced, looked up and compiled, in all threads."""

    def offer(self, bundles: Iterable[Bundle]) -> None:
        """Offers the libraries of bundles: before those of others what was made here."""
        for each in sorted(bundles, key=lambda each: each.is_fetched):
            for key, path in each.libraries.items():
                self._offered.setdefault(key, path)

    def given(self, kind: str, key: str, content: bytes) -> None:
        """Notes an artifact that this process did not make."""
        _signed_by_others.add(bundle.digest_of_artifact(kind, key, content))

    def artifact(self, kind: str, key: str, content: bytes) -> None:
        """Keeps an artifact, unless it is another's."""
        digest = bundle.digest_of_artifact(kind, key, content)
        if digest not in _signed_by_others or digest in _made_here:
            self._artifacts[bundle.part_of(kind, key, content)] = kind, key, content

    def library(self, key: str, path: str) -> None:
        """Keeps where a library lies, unless it is another's."""
        if not os.path.realpath(path).startswith(tuple(_folders_of_others)):
            self._libraries[key] = path

    def library_path(self, key: str) -> str:
        """Returns the library of a bundle."""
        return self._offered.get(key, "")

    def depends_on(self, graph: Any) -> str:
        """Returns a digest of what Python has registered for the ops of a graph. Raises UndescribedError."""
        from opforge.builders.registration import compile_tag  # torch is here, and compiles

        try:
            return compile_tag.of_graph(graph)
        except ValueError as error:
            compile_tag.say(error)
            raise

    def lowered(self, what: str) -> None:
        """Notes a graph that no bundle has."""
        self.graphs.append(what)

    def traced(self, began: float, ended: float) -> None:
        """Adds up the time since the scope began."""
        with self._lock:
            self.seconds += max(0.0, ended - max(began, self._began))

    @property
    def parts(self) -> frozenset[str]:
        """What was compiled here, now or before, and used."""
        return frozenset([*self._artifacts, *(bundle.part_of(LIBRARY, key) for key in [*self._libraries])])

    @property
    def artifacts(self) -> list[tuple[str, str, bytes]]:
        """The artifacts of these, each with its kind and key."""
        return [self._artifacts[part] for part in sorted(self._artifacts)]

    @property
    def libraries(self) -> Mapping[str, str]:
        """The libraries of these: key -> path."""
        return dict(sorted(self._libraries.items()))
