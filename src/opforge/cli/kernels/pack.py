"""`opforge pack`: makes a package of a project, audited, in the form of the Hugging Face hub."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from opforge.accelerator.target import Target
from opforge.cli import messages
from opforge.cli.guard import FAILED, OK, FolderPath, Guarded, json_option
from opforge.cli.output import emit_json, is_terminal, show_table, size_text
from opforge.cli.selection import all_targets, target_option

if TYPE_CHECKING:
    from opforge.packages.pack.run import Options, Packed, PassedOver
    from opforge.packages.sources.project import Project


@click.command("pack", cls=Guarded)
@click.argument("project", default=".", metavar="[PROJECT]")
@target_option
@click.option("--out", type=FolderPath(), help="Write build/ there; by default into the project.")
@click.option("--name", default="", help="The package's name, ORG/NAME, in place of the project's.")
@click.option("--version", "text", default="", help="The package's version, such as 2.3, in place of the project's.")
@click.option("--portable", is_flag=True, help="Build with zig, for glibc 2.28 and newer.")
@click.option("--split-arch", is_flag=True, help="Write a variant for each architecture of a device.")
@click.option("--with-source", is_flag=True, help="Add a variant with the sources, for machines that no other fits.")
@click.option(
    "--depend",
    "depend",
    multiple=True,
    metavar="NAME=PATH",
    help="A folder or a wheel with the headers of what a hub kernel depends on, such as cutlass_4_0.",
)
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Run at most this many compilers at once.")
@click.option("--no-try", is_flag=True, help="Do not import and test the variants that run here.")
@click.option(
    "--on", default="", metavar="URL", help="Build on the workers of an engine, as `build-ops --on` does, and fetch it."
)
@click.option("--check", is_flag=True, help="Pack twice in two folders, write nothing, and compare the bytes.")
@json_option
def command(
    project: str,
    targets: Sequence[Target],
    levels: Sequence[str],
    out: str | None,
    name: str,
    text: str,
    portable: bool,
    split_arch: bool,
    with_source: bool,
    depend: Sequence[str],
    jobs: int | None,
    no_try: bool,
    on: str,
    check: bool,
    as_json: bool,
) -> None:
    """Make a package: build its variants, audit them, and write them into build/.

    PROJECT is a folder with kernel.toml or a hub kernel's build.toml, or a builder as package.module:Class. By default
    it is this folder. A CPU op is built for the base level of this processor, unless targets are named.

    \b
    Examples:
      opforge pack
      opforge pack kernels/relu --cpu-level x86-64-v3 --portable
      opforge pack my_package.ops:ReluBuilder --name acme/relu --version 2.1 --out dist/
      opforge pack --check
    """
    from opforge.packages.pack.run import Options, pack
    from opforge.packages.sources import depends, reading

    provided = dict(map(depends.parse, depend))
    if provided and (check or on):
        raise click.UsageError("--depend is for a build here: a copy of the project, and a worker, do not have it.")
    if check and on:
        raise click.UsageError("--check packs copies of the project, which the workers of --on URL do not have.")
    with contextlib.redirect_stdout(sys.stderr):  # the module of the builder may print
        described = reading.read(project, name, text, provided)
    options = Options(all_targets(targets, levels), portable, split_arch, with_source, jobs, not no_try, on)
    report = _report if is_terminal() and not as_json else lambda _text: None
    if check:
        sys.exit(_compare(described, options, report, as_json))
    folder = os.path.abspath(out) if out else (described.folder if os.path.isdir(project) else os.getcwd())
    passed_over: list[PassedOver] = []
    note = (lambda _text: None) if as_json else functools.partial(messages.show, "note")
    packed = pack(described, folder, options, report=report, pass_over=passed_over.append, note=note)
    if as_json:
        variants = [variant.to_json() for variant in packed]
        value = {"name": described.name, "version": str(described.version), "variants": variants}
        emit_json(value | {"not_built": dict(passed_over)})
    else:
        _show(packed, passed_over)


def _compare(described: Project, options: Options, report: Callable[[str], None], as_json: bool) -> int:
    """Packs twice and prints what differs. Returns the exit code."""
    from opforge.packages.pack.reproducibility import differences

    different = differences(described, options, report)
    if as_json:
        emit_json({"name": described.name, "version": str(described.version), "different": different})
    elif different:
        click.echo(f"error: two packings of {described.name} differ in: {', '.join(different)}", err=True)
    else:
        click.echo(f"two packings of {described.name} {described.version} are the same, byte for byte")
    return FAILED if different else OK


def _show(packed: Sequence[Packed], passed_over: Sequence[PassedOver]) -> None:
    rows = []
    for variant in packed:
        outcomes = {*variant.checks.values()}
        each = (f"{check} {outcome}" for check, outcome in variant.checks.items())
        checks = ", ".join(outcomes if len(outcomes) == 1 else each)  # one reason for all is said once
        rows.append((variant.label, size_text(variant.size), variant.digest[:12], checks))
    show_table(("VARIANT", "SIZE", "DIGEST", "CHECKS"), rows, numbers=("SIZE",), optional="CHECKS")
    for backend, reason in passed_over:
        click.echo(f"not built: {backend}: {reason}", err=True)
    commit = packed[0].metadata.kernel if packed else None
    if commit and commit.dirty:
        messages.show("note", "the sources differ from the commit: publish will refuse this package")
    if packed and commit is None:
        messages.show("note", "the sources are in no commit of git: the package does not state where they come from")


def _report(text: str) -> None:
    click.echo(text, err=True)
