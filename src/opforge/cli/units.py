"""Sizes and ages as types of click options. In the help an option's value has the function's name."""

from __future__ import annotations

import click

from opforge.foundation.settings.kinds import parse_age, parse_size, parse_time


def size(value: str) -> int:
    """Returns bytes, as `parse_size` reads them. Raises click.BadParameter."""
    try:
        return parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def age(value: str) -> float:
    """Returns seconds, as `parse_age` reads them. Raises click.BadParameter."""
    try:
        return parse_age(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def duration(value: str) -> float:
    """Returns seconds, as `parse_time` reads them. Raises click.BadParameter."""
    try:
        return parse_time(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
