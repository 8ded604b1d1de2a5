"""torch.compile: its scope is that of `opforge.compiled`, whose bundles have the same label."""

from __future__ import annotations

from collections.abc import Callable

from opforge.graphs import session
from opforge.graphs.session import Session
from opforge.torch_internals import inductor

from .adapter import Adapter
from .entries import Entries


class Inductor(Adapter):
    """Begins and ends `opforge.compiled`, which finds whole graphs: torch has no place where entries could be given.

    Its artifacts are bundles of the kind `compiled`, and nothing is in pages.
    """

    name, module, package, versions, holds, carries = "inductor", "torch", "torch", inductor.TORCH, "pickle", r"(?!)"

    def __init__(self) -> None:
        super().__init__()
        self._sessions = list[tuple[Entries, Session]]()

    def begin(self, entries: Entries) -> None:
        """Begins the scope of the same name."""
        self._sessions.append((entries, session.enter(entries.topic.label)))

    def end(self, entries: Entries) -> None:
        """Ends it."""
        for pair in [pair for pair in self._sessions if pair[0] is entries]:
            self._sessions.remove(pair)
            session.leave(pair[1])

    def install(self) -> Callable[[], object]:
        """Changes nothing: `opforge.compiled` does."""
        return lambda: None


INDUCTOR = Inductor()
