"""`opforge cache export`, `import`, `pin`, `unpin`: what is done with chosen entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from opforge.cli.guard import Guarded, json_option
from opforge.cli.output import counted, emit_json, size_text
from opforge.cli.selection import folded

if TYPE_CHECKING:
    from opforge.cache.layout import Layout
    from opforge.cache.maintenance.listing import StoredEntry
    from opforge.cache.transfer.archive import Transfer

names_argument = click.argument("names", nargs=-1, metavar="[OP|KEY]...")


def chosen(layout: Layout, names: Sequence[str]) -> list[StoredEntry]:
    """The entries of these ops, or with these keys (a beginning of one is enough); all of them without a name.

    Raises click.UsageError for a name that stands for none.
    """
    from opforge.cache.maintenance import listing

    stored = [one for one in listing.entries(layout) if not one.problem]
    if not names:
        return stored
    found: dict[str, StoredEntry] = {}
    for name in names:
        matching = [one for one in stored if folded(one.op) == folded(name) or one.key.startswith(name)]
        if not matching:
            holds = ", ".join(sorted({one.op for one in stored})) or "no entry"
            raise click.UsageError(f"the cache has no entry of {name!r}; it holds: {holds}.")
        found.update({one.key: one for one in matching})
    return list(found.values())


@click.command("export", cls=Guarded)
@click.argument("file", type=click.Path(dir_okay=False))
@names_argument
@json_option
def export_command(file: str, names: Sequence[str], as_json: bool) -> None:
    """Write entries to one archive: those of some ops or keys, or all. The same entries give the same bytes."""
    from opforge.cache.current import own_store
    from opforge.cache.transfer import archive

    layout = own_store().layout
    results = [one.key for one in chosen(layout, names)]
    try:
        moved = archive.export(layout, results, file)
    except OSError as error:
        raise click.UsageError(f"{file} cannot be written: {error.strerror}. Choose another place.") from error
    _told(moved, "exported", as_json)


@click.command("import", cls=Guarded)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@json_option
def import_command(file: str, as_json: bool) -> None:
    """Take an archive's entries into the cache; each is checked first.

    What an archive holds will run as you: import only what you would install.
    """
    from opforge.cache.current import own_store, writable_store
    from opforge.cache.transfer import archive

    store = writable_store(own_store())
    _told(archive.unpack(store.layout, file, store.owners), "imported", as_json)


def _told(moved: Sequence[Transfer], verb: str, as_json: bool) -> None:
    if as_json:
        return emit_json({verb: [one.to_json() for one in moved]})
    for one in moved:
        click.echo(f"{verb if one.is_new else 'had already'} {one.op} {one.key[:12]}, {size_text(one.size)}")
    click.echo(f"{counted(sum(one.is_new for one in moved), 'entry', 'entries')} {verb}")
    return None


@click.command("pin", cls=Guarded)
@click.argument("names", nargs=-1, required=True, metavar="OP|KEY...")
@json_option
def pin_command(names: Sequence[str], as_json: bool) -> None:
    """Keep the entries of some ops or keys, whatever the limits say."""
    from opforge.cache.maintenance import pins

    _each(names, pins.pin, "pinned", as_json)


@click.command("unpin", cls=Guarded)
@click.argument("names", nargs=-1, required=True, metavar="OP|KEY...")
@json_option
def unpin_command(names: Sequence[str], as_json: bool) -> None:
    """Let the limits decide again."""
    from opforge.cache.maintenance import pins

    _each(names, pins.unpin, "unpinned", as_json)


def _each(names: Sequence[str], act: Callable[[Layout, str], None], verb: str, as_json: bool) -> None:
    from opforge.cache.current import own_store, writable_store

    layout = writable_store(own_store()).layout
    entries = chosen(layout, names)
    for one in entries:
        act(layout, one.key)
    if as_json:
        return emit_json({verb: [one.key for one in entries]})
    for one in entries:
        click.echo(f"{verb} {one.op} {one.key[:12]}")
    return None
