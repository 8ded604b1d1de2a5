"""`opforge lock`: writes or checks the lock file of the project in this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from opforge.cli.guard import FAILED, Guarded, json_option
from opforge.cli.output import counted, emit_json

from .options import remote_option, show_unsigned


@click.command("lock", cls=Guarded)
@click.option("--check", is_flag=True, help="Write nothing; fail if the file does not match the project.")
@click.option("--upgrade", is_flag=True, help="Choose the newest releases again, not the locked ones.")
@click.option("--upgrade-kernel", "names", multiple=True, metavar="NAME", help="Upgrade this kernel alone. Repeatable.")
@remote_option
@json_option
def command(check: bool, upgrade: bool, names: Sequence[str], urls: Sequence[str], as_json: bool) -> None:
    """Choose a release of each kernel that the project requires, and write them into opforge.lock.

    The project's kernels are those in [tool.opforge.kernels] of pyproject.toml, or in kernels.toml. The file has
    the digest of each release, which covers every variant, so it serves every machine. --check asks no remote.

    \b
    Examples:
      opforge lock --remote https://kernels.example/ops
      opforge lock --check
      opforge lock --upgrade-kernel acme/relu
    """
    from opforge.packages.project import lock_file, locking
    from opforge.packages.registry import selection
    from opforge.packages.registry.install_release import note_withdrawals

    folder = os.getcwd()
    if check and (upgrade or names):
        raise click.UsageError("--check writes nothing: leave out --upgrade and --upgrade-kernel")
    before = locking.current(folder) if names else None
    present = [kernel.name for kernel in before.kernels] if before else []
    if absent := sorted(set(names) - set(present)):
        listed = ", ".join(present) or "none"
        raise click.UsageError(f"{', '.join(absent)} is not in the lock file, which has: {listed}")
    if check:
        problems = locking.problems(folder)
        if as_json:
            emit_json({"problems": problems})
        else:
            for problem in problems:
                click.echo(f"error: {problem}", err=True)
            if not problems:
                click.echo(f"{lock_file.FILE} is what the project requires")
        sys.exit(FAILED if problems else 0)
    chosen = names if names else () if upgrade else None
    among = selection.sources(urls)
    try:
        lock, changes = locking.make(folder, among, chosen, show_unsigned)
    finally:
        note_withdrawals(among)
    is_new = lock_file.write(folder, lock)
    if as_json:
        kernels = [
            {"name": kernel.name, "version": str(kernel.version), "digest": kernel.digest} for kernel in lock.kernels
        ]
        emit_json({"kernels": kernels, "changes": changes, "written": is_new})
        return
    for line in changes:
        click.echo(line)
    click.echo(
        f"{counted(len(lock.kernels), 'kernel', 'kernels')} in {lock_file.FILE}" + ("" if is_new else ", unchanged")
    )
