"""`opforge new`: creates a project that builds, tests, benchmarks and ships itself."""

from __future__ import annotations

import os
import shlex

import click

from opforge.new.project import BUILD_SYSTEMS, KINDS, SETUPTOOLS, create

from .guard import Guarded, json_option
from .output import emit_json


@click.command("new", cls=Guarded)
@click.argument("path", metavar="NAME")
@click.option("--kind", type=click.Choice(tuple(KINDS)), default="cpu", show_default=True, help="The kind of project.")
@click.option(
    "--build-system",
    type=click.Choice(tuple(BUILD_SYSTEMS)),
    default=SETUPTOOLS,
    show_default=True,
    help="What makes its wheel. flit is wrapped by opforge.backend, as any other could be.",
)
@json_option
def command(path: str, kind: str, build_system: str, as_json: bool) -> None:
    """Create a project of an op, or of an accelerator.

    NAME is the new folder, or an empty one such as `.`, and its last part the name of the package. The project has an
    op that works, its case, which tests, check, bench and tune read, a wheel that holds the built op, a kernel package,
    and the file of a public forge that builds the wheels. Existing files are not changed.

    \b
    Examples:
      opforge new my-relu
      opforge new kernels/my-norm --kind triton
      opforge new my-relu --build-system scikit-build-core
      opforge new acme --kind accelerator
    """
    files = create(path, kind, build_system)
    if as_json:
        emit_json({"files": files})
        return
    for file in files:
        click.echo(os.path.join(path, os.path.relpath(file, path)))
    change = () if os.path.samefile(path, ".") else (f"cd {shlex.quote(path)}",)
    steps = (*change, *BUILD_SYSTEMS[build_system].steps(), "python -m pytest")
    click.echo("\n  ".join(("\nNext:", *steps)), err=True)
