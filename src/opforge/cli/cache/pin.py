"""`opforge cache pin` and `unpin`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from opforge.cli import kinds
from opforge.cli.completion import names as completed_names
from opforge.cli.guard import Guarded, json_option
from opforge.cli.output import emit_json

from .entries import matching_entries

if TYPE_CHECKING:
    from opforge.cache.layout import Layout


@click.command("pin", cls=Guarded)
@click.argument("names", nargs=-1, required=True, metavar="OP|KEY...", shell_complete=completed_names.stored)
@json_option
def pin_command(names: Sequence[str], as_json: bool) -> None:
    """Never evict the entries of these ops or keys.

    \b
    Example:
      opforge cache pin CPUAdam
    """
    from opforge.cache.records import pins

    _for_each_entry(names, "cache pin", pins.pin, "pinned", as_json)


@click.command("unpin", cls=Guarded)
@click.argument("names", nargs=-1, required=True, metavar="OP|KEY...", shell_complete=completed_names.stored)
@json_option
def unpin_command(names: Sequence[str], as_json: bool) -> None:
    """Undo `pin`: the limits apply to these entries again.

    \b
    Example:
      opforge cache unpin CPUAdam
    """
    from opforge.cache.records import pins

    _for_each_entry(names, "cache unpin", pins.unpin, "unpinned", as_json)


def _for_each_entry(
    names: Sequence[str], command: str, action: Callable[[Layout, str], None], verb: str, as_json: bool
) -> None:
    from opforge.cache.current_store import own_store, writable_store

    layout = writable_store(own_store()).layout
    entries = matching_entries(layout, kinds.by_kind(names, command)["op"])
    for entry in entries:
        action(layout, entry.key)
    if as_json:
        return emit_json({verb: [entry.key for entry in entries]})
    for entry in entries:
        click.echo(f"{verb} {entry.op} {entry.key[:12]}")
    return None
