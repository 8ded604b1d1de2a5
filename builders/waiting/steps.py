"""The output of `load(verbose=True)`: why a build begins, and each step as it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from opforge.cache.store import NOT_BUILT, Rejected

log = logging.getLogger("opforge")
WORDS = {
    "compile": "compiled",
    "expand": "expanded",
    "link": "linked",
    "name": "prepared the link to",
    "precompile": "precompiled the header",
}
"""The first word of a step's title, and what is printed once it has ended."""
MAX_REASONS = 3


class Steps:
    """Prints the steps of one op's build. It is called as `ninja.Progress`."""

    def __init__(self, op: str, target: str, rejected: Callable[[], Sequence[Rejected]]) -> None:
        self._op, self._target, self._rejected = op, target, rejected
        self._has_begun = False

    def __call__(self, done: int, total: int, title: str) -> None:
        """Prints that a step has ended; before the first one, why the op is built."""
        if not self._has_begun:
            self._has_begun = True
            log.warning("%s: building it for %s, because %s", self._op, self._target, self._reasons())
        verb, _, what = title.partition(" ")
        log.warning("%s: step %d of %d: %s %s", self._op, done, total, WORDS.get(verb, verb), what)

    def _reasons(self) -> str:
        reasons = [str(rejected) for rejected in self._rejected() if rejected.reason != NOT_BUILT]
        if not reasons:
            return "it was not built yet with these flags and this compiler"
        more = [f"{len(reasons) - MAX_REASONS} more"] if len(reasons) > MAX_REASONS else []
        return f"no stored op fits: {'; '.join([*reasons[:MAX_REASONS], *more])}"
