"""`opforge.compiled`, and two functions for code that cannot use `with`: compiled graphs are kept, and found again."""

from __future__ import annotations

from types import TracebackType

from opforge.errors import CompiledScopeError
from opforge.foundation.arguments import checked

from . import session
from .session import Session

_by_name: dict[str, list[Session]] = {}
"""The sessions that `load_compiled` has begun."""


class Graphs:
    """The compiled graphs of a scope: the found ones, and those that were compiled."""

    def __init__(self, of: Session) -> None:
        self._session, self._recording = of, of.recording

    @property
    def name(self) -> str:
        """The name of the scope."""
        return self._session.name

    @property
    def found(self) -> int:
        """How many pages of compiled graphs were found."""
        return len(self._session.pages)

    @property
    def compiled(self) -> tuple[str, ...]:
        """The graphs that were compiled since the scope began: the function, its line, and its inputs."""
        return tuple(self._recording.graphs) if self._recording else ()

    @property
    def seconds(self) -> float:
        """How many seconds torch.compile has taken: tracing alone, if nothing was compiled."""
        return self._recording.seconds if self._recording else 0.0

    @property
    def problem(self) -> str:
        """Why nothing was found and nothing is kept; empty if there is no problem."""
        return self._session.problem

    def __repr__(self) -> str:
        return f"<Graphs {self.name}: {self.found} pages found, {len(self.compiled)} graphs compiled>"


class compiled:
    """A scope in which torch.compile uses the graphs that were compiled under a name, and keeps those it compiles.

        with opforge.compiled("encoder"):
            loss = step(model, batch)  # the first call compiles

    Entering finds pages in the user's store, or fetches signed ones from a remote; leaving stores graphs that no page
    has. Wrap the code that compiles, and not a whole training: other processes of the job wait for the end of the
    scope, at most `OPFORGE_COMPILED_WAIT` seconds. Scopes may be nested and parallel. Scopes of one name share their
    graphs; scopes of two names each record the graphs that are compiled while they are open.

    A failure with a page is never an error: a one-line warning reports it, and torch compiles.

    Args:
        name: Up to 100 letters, digits, '_' and '-'. Raises SettingError for any other.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._sessions: list[Session] = []

    def __enter__(self) -> Graphs:
        """Finds the graphs, and returns an object with their number."""
        self._sessions.append(session.enter(self._name))
        return Graphs(self._sessions[-1])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stores what was compiled, after an error too."""
        session.leave(self._sessions.pop(), error is not None)


def load_compiled(name: str) -> Graphs:
    """Begins a scope like `compiled`, and returns it. `save_compiled` ends the scope.

    Raises SettingError for a name that cannot be one.
    """
    begun = session.enter(name)
    _by_name.setdefault(name, []).append(begun)
    return Graphs(begun)


@checked
def save_compiled(name: str) -> None:
    """Stores the graphs that were compiled since `load_compiled`. Raises CompiledScopeError if that was not called."""
    if not _by_name.get(name):
        raise CompiledScopeError(name, sorted(other for other, begun in _by_name.items() if begun))
    session.leave(_by_name[name].pop())
