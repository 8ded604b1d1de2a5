"""`opforge cache`: explains the cache. `ls`, `rm`, `verify` and `gc` are commands of their own."""

from __future__ import annotations

import click

from opforge.cli.guard import Guarded, GuardedGroup, json_option
from opforge.cli.output import emit_json

from .explain import command as explain
from .pin import pin_command, unpin_command
from .stats import command as stats


@click.group("cache", cls=GuardedGroup)
def group() -> None:
    """Explain why an op is not in the cache, count hits and misses, and pin entries.

    `opforge ls`, `rm`, `verify` and `gc` list, remove and check its entries, and `opforge mirror cache:` copies them.
    """


group.moved = {
    "clear": "opforge rm --all",
    "export": "opforge mirror cache:",
    "gc": "opforge gc",
    "import": "opforge mirror",
    "ls": "opforge ls",
    "rm": "opforge rm",
    "verify": "opforge verify",
}
for _command in (explain, stats, pin_command, unpin_command):
    group.add_command(_command)


@group.command("path", cls=Guarded)
@json_option
def path_command(as_json: bool) -> None:
    """Print the cache folder: OPFORGE_CACHE_DIR, or the platform's default.

    \b
    Example:
      opforge cache path
    """
    from opforge.foundation import settings

    path = settings.cache_dir()
    rows = {"path": path, "chosen": settings.cache_dir.is_set(), "layers": settings.cache_layers()}
    emit_json(rows) if as_json else click.echo(path)
