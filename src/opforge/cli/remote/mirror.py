"""`opforge mirror`: copies a remote to another store."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from opforge.cli.guard import FAILED, OK, Guarded, json_option
from opforge.cli.output import counted, emit_json, size_text
from opforge.cli.selection import normalized

from .commands import opened


@click.command("mirror", cls=Guarded)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("ops", nargs=-1, metavar="[OP]...")
@json_option
def command(source: str, target: str, ops: Sequence[str], as_json: bool) -> None:
    """Copy the offers of the remote FROM that TO lacks, with their signatures and blobs: all, or those of some ops.

    No key is needed: those who fetch from TO trust the keys that signed the offers.
    """
    from opforge.remote import mirror

    names = {normalized(op) for op in ops}
    copied = list(mirror.copy(opened(source)[1], opened(target)[1], lambda op: not names or normalized(op) in names))
    problems = [entry for entry in copied if entry.problem]
    if as_json:
        emit_json({"copied": [entry._asdict() for entry in copied]})
    else:
        for entry in problems:
            click.echo(f"error: {entry.description}: {entry.problem}", err=True)
        size = size_text(sum(entry.size for entry in copied))
        click.echo(f"{counted(sum(entry.offers for entry in copied), 'offer', 'offers')} copied, {size} of blobs")
    sys.exit(FAILED if problems else OK)
