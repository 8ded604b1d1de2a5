"""`opforge cache`: shows the cache and moves its entries. `ls`, `rm`, `verify` and `gc` are commands of their own."""

from __future__ import annotations

import click

from opforge.cli.guard import Guarded, GuardedGroup, json_option
from opforge.cli.output import emit_json

from .explain import command as explain
from .stats import command as stats
from .transfer import export_command, import_command, pin_command, unpin_command


@click.group("cache", cls=GuardedGroup)
def group() -> None:
    """Explain why an op is not in the cache, count its hits, and pin, export and import what it holds.

    `opforge ls`, `rm`, `verify` and `gc` list, remove and check its entries.
    """


group.moved = {
    "clear": "opforge rm --all",
    "gc": "opforge gc",
    "ls": "opforge ls",
    "rm": "opforge rm",
    "verify": "opforge verify",
}
for _command in (explain, stats, export_command, import_command, pin_command, unpin_command):
    group.add_command(_command)


@group.command("path", cls=Guarded)
@json_option
def path_command(as_json: bool) -> None:
    """Print the cache folder: OPFORGE_CACHE_DIR, or the platform's default.

    \b
    Example:
      opforge cache path
    """
    from opforge import settings

    path = settings.cache_dir()
    rows = {"path": path, "chosen": settings.cache_dir.is_set(), "layers": settings.cache_layers()}
    emit_json(rows) if as_json else click.echo(path)
