"""Scopes in which no build may begin, and torch.compile and Triton compile nothing."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from opforge.errors import BuildForbiddenError
from opforge.torch_internals import inductor

_forbidding: list[object] = []
"""The `no_builds` scopes that this process is in."""


class no_builds:
    """A scope in which an op that is not built yet is an error, in all threads: `with opforge.no_builds():`.

    Entering it costs nothing. Raises BuildForbiddenError where a build would begin. Ops that are loaded, or stored,
    are used as ever.

    Graphs of torch.compile and kernels of Triton are covered too: CompileForbiddenError where inductor would lower a
    graph after a miss, Triton a kernel, or a C++ compiler would start for them. torch wraps this error in one of
    its own, whose text includes it. Tracing that ends in a hit is allowed. Other JITs are covered inside
    `opforge.warm`, while their adapter is active.
    """

    def __enter__(self) -> None:
        _forbidding.append(self)
        if are_builds_forbidden not in inductor.refusals:
            inductor.refusals.append(are_builds_forbidden)
        inductor.watch()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _forbidding.remove(self)


def are_builds_forbidden() -> bool:
    """Returns whether this process is in a `no_builds` scope."""
    return bool(_forbidding)


def check_builds_are_allowed(op: str, rejected: Iterable[object]) -> None:
    """Raises BuildForbiddenError within a `no_builds` scope. `rejected` are the stored entries that do not fit."""
    if _forbidding:
        raise BuildForbiddenError(op, [*map(str, rejected)])
