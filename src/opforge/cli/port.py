"""`opforge port`: rewrites code that is tied to one vendor's device, or lists it, or shows what would change."""

from __future__ import annotations

import difflib
import importlib.util
import io
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.errors import ExtraNotInstalledError

from .guard import FAILED, OK, Guarded, json_option
from .output import counted, emit_json

if TYPE_CHECKING:
    from opforge.port.files import PortedFile
    from opforge.port.findings import Finding

EXIT_CODES = (
    "Exit codes: 0 all is well; 1 a file could not be ported or, with --check, something is tied to a vendor;"
    " 2 wrong usage; 130 interrupted."
)


@click.command("port", cls=Guarded, epilog=EXIT_CODES)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(exists=True))
@click.option(
    "--check", is_flag=True, help="Change nothing; list what is tied to a vendor, with exit code 1 if anything."
)
@click.option("--diff", "as_diff", is_flag=True, help="Change nothing; print what would change as a unified diff.")
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Leave out files and folders, by name or path. Repeatable."
)
@json_option
def command(paths: Sequence[str], check: bool, as_diff: bool, exclude: Sequence[str], as_json: bool) -> None:
    """Make code that is tied to one vendor's device run on all: torch.cuda.f() becomes get_accelerator().f().

    PATH is a Python file or a folder of them. Files are changed in place, with their formatting kept. What cannot
    be decided is left and listed. A line with the comment `# opforge: keep` is neither changed nor listed.

    \b
    Examples:
      opforge port --diff src/
      opforge port --check src/ train.py
    """
    if check and as_diff:
        raise click.UsageError(
            "--check and --diff exclude each other: both change nothing, and print different things."
        )
    if importlib.util.find_spec("libcst") is None:
        raise ExtraNotInstalledError("opforge port", "libcst", "port")
    from opforge.port.files import port_file, python_files

    files = list(python_files(paths, exclude))
    if not files:
        raise click.UsageError(f"there is no Python file in {', '.join(paths)}.")
    ported = (port_file(path, write=not check and not as_diff) for path in files)
    if as_json:
        done = list(ported)
        emit_json(_document(done, check, as_diff))
    else:
        done = _printed(ported, check, as_diff)
    tied = check and any(one.changes or one.left for one in done)
    sys.exit(FAILED if tied or any(one.problem for one in done) else OK)


def _printed(ported: Iterable[PortedFile], check: bool, as_diff: bool) -> list[PortedFile]:
    """Print each file as it is done, then the sum. With --diff standard output holds the diff alone."""
    done = []
    for one in ported:
        done.append(one)
        if one.problem:
            click.echo(f"error: {one.problem}", err=True)
        elif check:
            _print_findings(one.path, (each for each in one.findings if each.kind != "note"))
        else:
            if as_diff:
                click.echo(_diff(one), nl=False)
            elif one.changes:
                click.echo(f"{one.path}: {counted(one.changes, 'change', 'changes')}")
            _print_findings(one.path, one.findings if as_diff else one.remaining, quiet="converted", err=as_diff)
    click.echo(_sum(done, "would change" if check or as_diff else "changed"), err=as_diff)
    return done


def _print_findings(path: str, findings: Iterable[Finding], quiet: str = "", err: bool = False) -> None:
    for one in findings:
        if one.kind != quiet:
            arrow = "->" if one.kind == "converted" else "--"
            click.echo(f"{path}:{one.line}:{one.column}: {one.kind}: {one.text} {arrow} {one.message}", err=err)


def _diff(one: PortedFile) -> str:
    # str.splitlines would split at form feeds too, which no patch does.
    before, after = (io.StringIO(text, newline="\n").readlines() for text in (one.before, one.text))
    lines = difflib.unified_diff(before, after, one.path, one.path)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _sum(done: Sequence[PortedFile], verb: str) -> str:
    changes, left = sum(one.changes for one in done), sum(one.left for one in done)
    failed = sum(bool(one.problem) for one in done)
    told = f"{counted(len(done), 'file', 'files')}: {counted(changes, 'place', 'places')} {verb}"
    told += f" in {sum(bool(one.changes) for one in done)}, {left} left to you"
    return told + (f", {failed} failed" if failed else "")


def _document(done: Sequence[PortedFile], check: bool, as_diff: bool) -> dict[str, Any]:
    return {
        "written": not check and not as_diff,
        "files": [
            {
                "path": one.path,
                "changes": one.changes,
                "left": one.left,
                "problem": one.problem,
                "findings": [each.as_json() for each in one.findings],
            }
            | ({"diff": _diff(one)} if as_diff else {})
            for one in done
            if one.findings or one.problem
        ],
        "total": {
            "files": len(done),
            "changes": sum(one.changes for one in done),
            "left": sum(one.left for one in done),
            "failed": sum(bool(one.problem) for one in done),
        },
    }
