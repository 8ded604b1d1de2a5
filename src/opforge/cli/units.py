"""Sizes and ages as types of click options. In the help an option's value has the type's name."""

from __future__ import annotations

from collections.abc import Callable

import click

from opforge.foundation.settings.kinds import parse_age, parse_size, parse_time


def _quantity(name: str, parse: Callable[[str], float]) -> Callable[[str], float]:
    """Returns a function that reads what `parse` reads, and raises click.BadParameter."""

    def read(value: str) -> float:
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    read.__name__ = name
    return read


SIZE, AGE, DURATION = _quantity("size", parse_size), _quantity("age", parse_age), _quantity("duration", parse_time)
