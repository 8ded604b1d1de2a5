"""Sizes and ages as types of click options. In the help an option's value has the type's name."""

from __future__ import annotations

from collections.abc import Callable

import click

from opforge.foundation.settings.kinds import parse_age, parse_size, parse_time


class Quantity(click.ParamType):
    """What a function reads from a text. Its ValueError is wrong usage."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number of bytes or seconds. Raises click.BadParameter."""
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE, AGE, DURATION = Quantity("size", parse_size), Quantity("age", parse_age), Quantity("duration", parse_time)
