"""`build-ops --shard`: the share of one machine of many. Each computes it alone; together they are all ops."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from opforge.cli.selection import Selected

AUTO = "auto"


class Shard(NamedTuple):
    """One share of several, counted from 1."""

    number: int
    total: int


class Scheduler(NamedTuple):
    """The variables by which a scheduler tells a job its place."""

    number: str
    total: str
    first: str = "0"
    """The smallest number: a digit, or the variable that holds it."""
    step: str = ""
    """The variable that holds the difference between two numbers; 1 if it is empty or not set."""


SCHEDULERS = {
    "a Slurm array": Scheduler(
        "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP"
    ),
    "a Kubernetes indexed job": Scheduler("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"),
    "GitLab CI": Scheduler("CI_NODE_INDEX", "CI_NODE_TOTAL", "1"),
    "CircleCI": Scheduler("CIRCLE_NODE_INDEX", "CIRCLE_NODE_TOTAL"),
    "Buildkite": Scheduler("BUILDKITE_PARALLEL_JOB", "BUILDKITE_PARALLEL_JOB_COUNT"),
    "opforge launch or torchrun": Scheduler("RANK", "WORLD_SIZE"),
    "srun": Scheduler("SLURM_PROCID", "SLURM_NTASKS"),
}
"""The first whose variables are both set is used. JOB_COMPLETIONS is not set by Kubernetes: put it into the job."""


def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Returns the option's value. Raises click.BadParameter if it is no share."""
    if value != AUTO:
        parsed(value)
    return value


def parsed(value: str | None) -> Shard | None:
    """Returns the shard that I/N names; None for None. Raises click.BadParameter."""
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", value)
    shard = Shard(int(match[1]), int(match[2])) if match else None
    if shard is None or not 1 <= shard.number <= shard.total:
        raise click.BadParameter(f"--shard {value!r} is not a share: expected I/N with I from 1 to N, or auto")
    return shard


def automatic(environment: Mapping[str, str]) -> Shard:
    """Returns the shard by the variables of a scheduler. Raises click.BadParameter if none has set them."""
    for name, scheduler in SCHEDULERS.items():
        texts = (environment.get(scheduler.number), environment.get(scheduler.total))
        if not all(texts):
            continue
        first = scheduler.first if scheduler.first.isdigit() else environment.get(scheduler.first, "0")
        try:
            number, count = (int(text or "") for text in texts)
            at, rest = divmod(number - int(first), int(environment.get(scheduler.step, "1")))
            shard = Shard(0 if rest else at + 1, count)
        except (ValueError, ZeroDivisionError):
            shard = Shard(0, 0)
        if not 1 <= shard.number <= shard.total:
            variables = f"{scheduler.number}={texts[0]!r}, {scheduler.total}={texts[1]!r}"
            raise click.BadParameter(
                f"--shard auto: {variables} ({name}) do not say which part of how many this is: type --shard I/N"
            )
        return shard
    variables = "; ".join(f"{scheduler.number} and {scheduler.total}" for scheduler in SCHEDULERS.values())
    raise click.BadParameter(f"--shard auto: expected one of these pairs of variables: {variables}")


def share(selected: Sequence[Selected], shard: Shard) -> list[Selected]:
    """Returns the ops of one shard, in their order.

    The heaviest op goes to the shard with the least so far. The weights are what every machine computes alike: how many
    sources there are, for how many architectures.
    """
    weights = [weight(op) for op in selected]
    order = sorted(range(len(selected)), key=lambda at: (-weights[at], selected[at].label, at))
    loads, own = [0.0] * shard.total, set[int]()
    for at in order:
        lightest = min(range(shard.total), key=lambda number: (loads[number], number))
        loads[lightest] += weights[at]
        if lightest == shard.number - 1:
            own.add(at)
    return [op for at, op in enumerate(selected) if at in own]


def weight(op: Selected) -> float:
    """Returns how much there is to compile for an op, as every machine computes it."""
    try:
        spec = op.builder().spec()
    except Exception:  # it fails in its shard, with its error
        return 1.0
    return float(len(spec.sources) * max(1, len(spec.target.arch)))
