"""Runs the steps of a build with as many compilers at once as there is memory for.

If that depends on sources of which nothing is known, some of them are compiled first, as many as there is memory for
in the worst case, and the others follow by what these needed. If a compiler is killed for memory nevertheless, the
steps that are left are run once more with fewer compilers at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from opforge.accelerator.host.available_memory import memory_left
from opforge.builders.declaration.build_plan import Step
from opforge.builders.resources import is_out_of_memory

from . import jobserver, ninja, timeline
from .job import Job
from .parallelism import most_compilers
from .schedule import Schedule, schedule

log = logging.getLogger("opforge")
KILLED = 128 + 9
"""ninja's exit status after SIGKILL."""


def run_steps(job: Job, work: str, steps: Sequence[Step]) -> ninja.Outcome:
    """Runs the steps in the folder `work`. Returns how that ended, with all that was printed."""
    run = _Run(job, work, steps)
    try:
        first = run.measure_first()
        return first if first.status else run.all_steps(first.output)
    finally:
        if job.needs and run.has_learnt:
            job.needs.keep()


class _Run:
    """The steps of one build."""

    def __init__(self, job: Job, work: str, steps: Sequence[Step]) -> None:
        self.has_learnt = False
        self._job, self._work, self._steps = job, work, steps
        self._units = [step for step in steps if step.unit]
        self._server = jobserver.current()
        is_chosen = job.is_chosen or (self._server is not None and self._server.is_chosen)
        self._needs = None if is_chosen else job.needs
        self._done = 0

    def measure_first(self) -> ninja.Outcome:
        """Compiles some sources whose memory is not known, if all at once might need more than there is."""
        if self._needs is None or len(self._units) < 2:
            return ninja.Outcome(0, "")
        needs, guessed = self._needs.of(self._units)
        worst = schedule(needs, most_compilers(), memory_left())
        if not guessed or not worst.is_bound_by_memory:
            return ninja.Outcome(0, "")
        few = guessed[: worst.depth]
        outcome = self._ninja(Schedule(len(few)), self._part(len(few), worst.depth), few)
        return self._again(outcome, len(few), few) if is_out_of_memory(outcome.output) else outcome

    def all_steps(self, printed: str) -> ninja.Outcome:
        """Runs all steps that are not done. `printed` is what those printed that are."""
        chosen = self._schedule()
        at_once = min(chosen.jobs, max(1, len(self._units)))
        part = self._part(at_once, chosen.jobs) if chosen.is_bound_by_memory else 0
        outcome = self._ninja(chosen, part)
        if outcome.status == KILLED:
            outcome = self._ninja(chosen, part)  # once: the steps that are done are not lost
        elif outcome.status and is_out_of_memory(outcome.output):
            outcome = self._again(outcome, at_once)
        return outcome._replace(output=printed + outcome.output)

    def _schedule(self) -> Schedule:
        if self._needs is None:
            return Schedule(self._job.jobs)
        return schedule(self._needs.of(self._units)[0], most_compilers(), memory_left())

    def _part(self, jobs: int, full: int) -> int:
        """Returns the tokens to hold for `jobs` compilers, of which `full` would need all memory."""
        return -(-self._server.slots * jobs // full) if self._server else 0

    def _again(self, killed: ninja.Outcome, at_once: int, targets: Sequence[str] = ()) -> ninja.Outcome:
        """Runs the steps that are left with fewer compilers at once, after one was killed for memory."""
        if at_once < 2 and self._server is None:
            return killed  # it ran alone
        jobs = max(1, min(at_once // 2, self._schedule().jobs))
        beside = "and other builds beside it" if self._server else f"with {at_once} at once"
        text = "%s: a compiler was killed for lack of memory, %s. The other files are built again with %d at once"
        log.warning(text, self._job.plan.op, beside, jobs)
        outcome = self._ninja(Schedule(jobs), self._server.slots if self._server else 0, targets)
        return outcome if outcome.status else outcome._replace(output=_before_failures(killed.output) + outcome.output)

    def _ninja(self, chosen: Schedule, share: int, targets: Sequence[str] = ()) -> ninja.Outcome:
        began, log_bytes = time.time(), timeline.log_size(self._work)
        ninja.write_build_file(self._work, self._steps, chosen.heavy, max(1, chosen.depth))
        progress = self._progress if self._job.on_progress else None
        done, self._ended = self._done, 0
        known = dict(self._job.plan.environment)
        outcome = ninja.run(self._work, chosen.jobs, progress, targets, share, known)
        self._done = done + self._ended
        ended, line = timeline.mark("compile and link", began), timeline.current()
        if line is not None:
            titles = {step.output: step.title for step in self._steps}
            line.add_steps(self._job.plan.op, self._work, titles, log_bytes, ended)
        if self._job.needs and self._units:
            largest = 0 if outcome.status or targets else ninja.peak_memory(self._work)
            self._job.needs.learn(self._units, ninja.measured(self._work), largest)
            self.has_learnt = True
        return outcome

    def _progress(self, done: int, total: int, title: str) -> None:
        """Reports a step of this run of ninja as one of all steps: those of earlier runs are done."""
        assert self._job.on_progress is not None
        self._ended = done
        self._job.on_progress(self._done + done, max(len(self._steps), self._done + total), title)


def _before_failures(output: str) -> str:
    """Returns the output before the first command that failed: the rest is printed again."""
    return output.partition("FAILED:")[0].rpartition("\n")[0] + "\n"
