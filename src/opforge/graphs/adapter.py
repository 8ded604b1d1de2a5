"""The adapter `inductor`: torch.compile has no place where entries could be given, so the hooks are in `session`."""

from __future__ import annotations

from collections.abc import Callable

from opforge.foundation import formats
from opforge.jits.adapter import Adapter
from opforge.jits.entries import Entries
from opforge.torch_internals import inductor

from . import content, session, topic
from .session import Session


class Inductor(Adapter):
    """Begins and ends `opforge.compiled`, which finds whole graphs and keeps them in pages of this adapter."""

    name, module, package, versions = content.ADAPTER, "torch", "torch", inductor.TORCH
    holds, carries, format = content.HOLDS, content.CARRIES, formats.GRAPHS
    scope = "opforge.compiled"

    def __init__(self) -> None:
        """Begins without a scope."""
        super().__init__()
        self._sessions = list[tuple[Entries, Session]]()

    def version_problem(self) -> str:
        """Returns why nothing is done: torch is not known here, and `opforge check compiled` has not tried it."""
        version = self.version()
        return inductor.version_problem(version) if version else super().version_problem()

    def fingerprint(self) -> dict[str, str]:
        """Returns where graphs fit."""
        return topic.fingerprint()

    def open(self, label: str) -> Entries:
        """Begins the scope of the same name, and returns its entries. Raises CacheDirError."""
        begun = session.enter(label)
        try:
            entries = begun.entries or super().open(label)
        except BaseException:
            session.leave(begun, by_error=True)
            raise
        if begun.recording is not None:
            entries.made = begun.recording.graphs  # also of what is compiled from now on
        self._sessions.append((entries, begun))
        return entries

    def begin(self, entries: Entries) -> None:
        """Does nothing: the scope has begun with its entries."""

    def end(self, entries: Entries) -> None:
        """Ends the scope."""
        at = next((at for at, (used, _begun) in enumerate(self._sessions) if used is entries), -1)
        if at >= 0:
            _entries, begun = self._sessions.pop(at)
            session.leave(begun)

    def install(self) -> Callable[[], object]:
        """Changes nothing: `opforge.compiled` does."""
        return lambda: None


INDUCTOR = Inductor()
