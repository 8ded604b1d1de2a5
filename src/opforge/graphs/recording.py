"""What a scope has compiled and used: torch's artifacts and inductor's libraries, whichever thread compiled them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opforge import inductor

from . import bundle
from .bundle import Bundle

LIBRARY = "library"


class Recording(inductor.Observer):
    """Records what passes while it is observed, and offers the libraries of bundles."""

    def __init__(self, bundles: Iterable[Bundle]) -> None:
        """Begins empty."""
        self._offered = {key: path for each in bundles for key, path in each.libraries.items()}
        self._artifacts: dict[str, tuple[str, str, bytes]] = {}
        self._libraries: dict[str, str] = {}
        self.graphs: list[str] = []
        """What inductor has lowered: a function and its inputs each."""
        self.seconds = 0.0
        """How long torch has traced, looked up and compiled."""

    def artifact(self, kind: str, key: str, content: bytes) -> None:
        """Keeps an artifact."""
        self._artifacts[bundle.part_of(kind, key, content)] = kind, key, content

    def library(self, key: str, path: str) -> None:
        """Keeps where a library lies."""
        self._libraries[key] = path

    def library_path(self, key: str) -> str:
        """Returns the library of a bundle."""
        return self._offered.get(key, "")

    def lowered(self, what: str) -> None:
        """Notes a graph that no bundle has."""
        self.graphs.append(what)

    def traced(self, seconds: float) -> None:
        """Adds up the time."""
        self.seconds += seconds

    @property
    def parts(self) -> frozenset[str]:
        """What was compiled or used."""
        return frozenset([*self._artifacts, *(bundle.part_of(LIBRARY, key) for key in [*self._libraries])])

    @property
    def artifacts(self) -> list[tuple[str, str, bytes]]:
        """The artifacts, each with its kind and key."""
        return [self._artifacts[part] for part in sorted(self._artifacts)]

    @property
    def libraries(self) -> Mapping[str, str]:
        """Key -> path."""
        return dict(sorted(self._libraries.items()))
