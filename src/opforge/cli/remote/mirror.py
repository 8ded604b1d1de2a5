"""`opforge mirror`: copies a remote to another store."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from opforge.cli.guard import FAILED, OK, Guarded, json_option
from opforge.cli.kernels.transfers import Transfers
from opforge.cli.output import counted, emit_json, size_text
from opforge.cli.selection import normalized

from .commands import opened


@click.command("mirror", cls=Guarded)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
def command(source: str, target: str, names: Sequence[str], as_json: bool) -> None:
    """Copy what the remote FROM offers and TO lacks, with signatures and blobs: all, or some ops and packages.

    NAME is an op, or a package as ORG/NAME. No key is needed: those who fetch from TO trust the keys that signed.

    \b
    Examples:
      opforge mirror https://ops.example/ops file:///shared/ops
      opforge mirror s3://kernels/ops file:///shared/ops CPUAdam
    """
    from opforge.packages.form.names import check
    from opforge.packages.registry import mirror as packages
    from opforge.remote import mirror

    kernels = [check(name, "NAME") for name in names if "/" in name]
    ops = {normalized(name) for name in names if "/" not in name}
    (remote, there), (_remote, here), offered = opened(source), opened(target), set[str]()

    def accepts(op: str) -> bool:
        offered.add(op)
        return not ops or normalized(op) in ops

    copied = list(mirror.copy(there, here, accepts)) if ops or not names else []
    with Transfers(as_json) as transfers:
        packed = list(packages.copy(there, here, kernels, transfers)) if kernels or not names else []
    problems = [f"{entry.description}: {entry.problem}" for entry in copied if entry.problem]
    problems += [problem for entry in packed for problem in entry.problems]
    forms = {normalized(op) for op in offered}
    for name in names:
        if "/" not in name and normalized(name) not in forms:
            problems.append(f"{name!r} is no op of {remote}. It offers: {', '.join(sorted(offered)) or 'no op'}")
    if as_json:
        offers, releases = [entry._asdict() for entry in copied], [entry._asdict() for entry in packed]
        emit_json({"copied": offers, "packages": releases, "problems": problems})
    else:
        for problem in problems:
            click.echo(f"error: {problem}", err=True)
        size = size_text(sum(entry.size for entry in copied) + sum(entry.size for entry in packed))
        what = counted(sum(entry.offers for entry in copied), "offer", "offers")
        if packed:
            what += f" and {counted(sum(entry.releases for entry in packed), 'release', 'releases')}"
        click.echo(f"{what} copied, {size} of blobs")
    sys.exit(FAILED if problems else OK)
