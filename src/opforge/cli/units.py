"""Sizes and ages for click's `type`; a function's name is what the help calls the value."""

from __future__ import annotations

import click

from opforge.units import parse_age, parse_size


def size(value: str) -> int:
    """Bytes: see `parse_size`. Raises click.BadParameter."""
    try:
        return parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def age(value: str) -> float:
    """Seconds: see `parse_age`. Raises click.BadParameter."""
    try:
        return parse_age(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
