"""The error of groups of processes."""

from __future__ import annotations

from .base import OpforgeError


class GroupError(OpforgeError, RuntimeError):
    """The ranks of a group in shared memory cannot be connected, or one of them failed.

    `reason` is "late", "ended", "left", "disagree", "closed", "fork", "elsewhere" or "setup"; `about` is the rank that
    it is about, if there is one.
    """

    def __init__(self, rank: int, size: int, reason: str, about: int | None, problem: str, advice: str) -> None:
        super().__init__(f"The group of {size} ranks in shared memory failed on rank {rank}: {problem}. {advice}.")
        self.rank, self.size, self.reason, self.about = rank, size, reason, about
        self.problem, self.advice = problem, advice
