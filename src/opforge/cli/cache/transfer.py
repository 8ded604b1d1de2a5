"""`opforge cache export`, `import`, `pin` and `unpin`: commands for chosen entries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from opforge.cli import kinds, messages
from opforge.cli.completion import names as completed_names
from opforge.cli.guard import FAILED, OK, Guarded, json_option
from opforge.cli.output import OutputFile, counted, emit_json, size_text

from .entries import matching_entries

if TYPE_CHECKING:
    from opforge.cache.layout import Layout
    from opforge.cache.transfer.archive import Transfer


@click.command("export", cls=Guarded)
@click.argument("file", type=OutputFile(dir_okay=False))
@click.argument("names", nargs=-1, metavar="[OP|KEY]...", shell_complete=completed_names.stored)
@json_option
def export_command(file: str, names: Sequence[str], as_json: bool) -> None:
    """Write entries to an archive: all of them, or those of some ops or keys.

    The same entries produce the same archive, byte for byte. What was fetched from a remote is left out, and reported:
    `opforge mirror` copies it with its signatures. The exit code is 1 if nothing else was requested.

    \b
    Examples:
      opforge cache export ops.tar
      opforge cache export adam.tar CPUAdam
    """
    from opforge.cache.current import own_store
    from opforge.cache.transfer import archive

    store = own_store()
    entries = matching_entries(store.layout, kinds.by_kind(names, "cache pin")["op"])
    labels, left_out = {entry.key: entry.op for entry in entries}, list[archive.LeftOut]()
    try:
        moved = archive.export(store.layout, labels, file, left_out)
    except OSError as error:
        raise click.UsageError(f"{file} cannot be written: {error.strerror or error}. Choose another path.") from error
    if as_json:
        absent = [{"op": labels[entry.result], **entry._asdict()} for entry in left_out]
        emit_json({"exported": [entry.to_json() for entry in moved], "left_out": absent})
    else:
        for entry in left_out:
            messages.show(
                "warning", f"{labels[entry.result]} {entry.result[:12]} is not in the archive: {entry.reason}"
            )
        _print_moved(moved, "exported", as_json)
    sys.exit(FAILED if left_out and not moved else OK)


@click.command("import", cls=Guarded)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@json_option
def import_command(file: str, as_json: bool) -> None:
    """Add an archive's entries to the cache. Each is checked first.

    The libraries of an archive will run with your permissions: import only what you would install.

    \b
    Example:
      opforge cache import ops.tar
    """
    from opforge.cache.current import own_store, writable_store
    from opforge.cache.transfer import archive

    store = writable_store(own_store())
    _print_moved(archive.unpack(store.layout, file, store.owners), "imported", as_json)


def _print_moved(moved: Sequence[Transfer], verb: str, as_json: bool) -> None:
    if as_json:
        return emit_json({verb: [entry.to_json() for entry in moved]})
    for entry in moved:
        click.echo(f"{verb if entry.is_new else 'had already'} {entry.op} {entry.key[:12]}, {size_text(entry.size)}")
    click.echo(f"{counted(sum(entry.is_new for entry in moved), 'entry', 'entries')} {verb}")
    return None


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

    _for_each_entry(names, pins.pin, "pinned", as_json)


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

    _for_each_entry(names, pins.unpin, "unpinned", as_json)


def _for_each_entry(names: Sequence[str], action: Callable[[Layout, str], None], verb: str, as_json: bool) -> None:
    from opforge.cache.current import own_store, writable_store

    layout = writable_store(own_store()).layout
    entries = matching_entries(layout, kinds.by_kind(names, "cache pin")["op"])
    for entry in entries:
        action(layout, entry.key)
    if as_json:
        return emit_json({verb: [entry.key for entry in entries]})
    for entry in entries:
        click.echo(f"{verb} {entry.op} {entry.key[:12]}")
    return None
