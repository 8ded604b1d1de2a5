"""How many compilers run at once, by what each of them needs."""

from __future__ import annotations

import itertools

import pytest

from opforge.builders.run.schedule import Schedule, schedule

GB = 1 << 30


def many(**counts):
    """Returns the needs of steps: many(_2=3) are three that need 2 GB."""
    sizes = [int(name[1:]) * GB for name, count in counts.items() for _ in range(count)]
    return {f"{number}.o": size for number, size in enumerate(sizes)}


@pytest.mark.parametrize(
    ("needs", "cores", "left", "jobs", "depth"),
    [
        (many(_1=8), 8, None, 8, 0),
        (many(_1=8), 8, 8 * GB, 8, 0),
        (many(_8=2), 64, 16 * GB, 64, 0),  # all of them fit
        (many(_2=8), 8, 8 * GB, 4, 4),
        (many(_8=8), 8, 4 * GB, 1, 1),
        (many(_8=8), 8, 0, 1, 1),
        (many(_8=1, _1=20), 8, 12 * GB, 5, 1),
        (many(_4=4, _1=20), 8, 10 * GB, 4, 2),
        ({}, 8, 0, 8, 0),
    ],
)
def test_as_many_compilers_run_as_there_is_memory_for(needs, cores, left, jobs, depth):
    chosen = schedule(needs, cores, left)
    assert (chosen.jobs, chosen.depth) == (jobs, depth)
    assert chosen.is_bound_by_memory == bool(depth)


def test_no_choice_of_running_steps_needs_more_than_is_left():
    for light, heavy, cores, left in itertools.product((1, 3), (2, 5, 9), (2, 4, 7), (9, 14, 30)):
        needs = many(**{f"_{light}": 5, f"_{heavy}": 5}) if light != heavy else {}
        chosen = schedule(needs, cores, left * GB)
        assert isinstance(chosen, Schedule) and 1 <= chosen.jobs <= cores
        if not chosen.heavy:
            worst = sorted(needs.values())[-chosen.jobs :]
        else:
            of_heavy = sorted(need for output, need in needs.items() if output in chosen.heavy)[-chosen.depth :]
            others = sorted(need for output, need in needs.items() if output not in chosen.heavy)
            worst = of_heavy + others[-(chosen.jobs - chosen.depth) :] * (chosen.jobs > chosen.depth)
        assert sum(worst) <= left * GB, (light, heavy, cores, left)
