"""Cases of no op, for the tests: they need no compiler and end at once."""

from __future__ import annotations

import time

from opforge.ops.cases import OURS, Case, MissingError, Seconds

events = []
"""What the contenders have done."""


def _sleeping(seconds):
    return lambda inputs: lambda: time.sleep(seconds)


def _absent(inputs):
    raise MissingError("it is not installed: install it")


def _broken(inputs):
    raise ZeroDivisionError("no\nmore lines")


def _interrupted(inputs):
    raise KeyboardInterrupt


def _measures_itself(inputs):
    return lambda: Seconds(0.004, 0.001)


def _with_an_end(inputs):
    inputs.place.stack.callback(events.append, "ended")
    return lambda: None


def case(name="sleep", ours=0.001, **contenders):
    return Case(
        name,
        lambda place: (),
        sizes=(1, 2),
        ours=contenders.pop(OURS, _sleeping(ours)),
        rivals={"slower": _sleeping(0.02), **contenders},
        baseline=("slower",),
        amount=lambda size, itemsize: size * itemsize,
        goals={"baseline": 1.5},
    )


SLEEP = (case(absent=_absent, broken=_broken, reports=_measures_itself, ends=_with_an_end),)
OF_AN_OP = Case("forward", lambda place: (), "forward", sizes=(1,))
"""Calls a function of a loaded op, and no builder names it."""
OURS_IS_MISSING = (case(**{OURS: _absent}),)
OURS_FAILS = (case(**{OURS: _broken}), case("other"))
INTERRUPTED = (case("before"), case(**{OURS: _interrupted}), case("after"))
HUGE = (
    Case(
        "huge",
        lambda place: (),
        sizes=(1,),
        ours=_sleeping(0.001),
        rivals={"slower": _sleeping(0.002)},
        baseline=("slower",),
        amount=lambda size, itemsize: 1 << 50,
    ),
)


def gloo(rank):
    """Runs in each of several processes."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{rank.folder}/meet", rank=rank.rank, world_size=rank.ranks)
    values = torch.ones(rank.size)
    return lambda: dist.all_reduce(values)


def fails_in_the_second_rank(rank):
    if rank.rank:
        raise RuntimeError("rank 1 has no luck")
    return lambda: None
