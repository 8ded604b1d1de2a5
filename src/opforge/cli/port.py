"""`opforge port`: rewrites code for one vendor's device, lists it, or shows the changes."""

from __future__ import annotations

import difflib
import importlib.util
import io
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.errors import ExtraNotInstalledError

from . import messages
from .guard import FAILED, OK, Guarded, json_option
from .output import counted, emit_json

if TYPE_CHECKING:
    from opforge.port.files import PortedFile
    from opforge.port.findings import Finding

EXIT_CODES = (
    "Exit codes: 0 success; 1 a file could not be ported or, with --check, vendor-specific code was found;"
    " 2 wrong usage; 130 interrupted."
)
CLEAR_LINE = "\r\x1b[K"
"""Makes a terminal go to the beginning of the line and clear it."""


@click.command("port", cls=Guarded, epilog=EXIT_CODES)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(exists=True))
@click.option(
    "--check", is_flag=True, help="Change nothing. List vendor-specific code, with exit code 1 if there is any."
)
@click.option("--diff", "as_diff", is_flag=True, help="Change nothing. Print what would change as a unified diff.")
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Leave out files and folders, by name or path. Repeatable."
)
@json_option
def command(paths: Sequence[str], check: bool, as_diff: bool, exclude: Sequence[str], as_json: bool) -> None:
    """Make code for one vendor's device run on all: torch.cuda.f() becomes get_accelerator().f().

    PATH is a Python file or a folder of Python files. Files are changed in place, and their formatting is kept. Code
    that cannot be decided is left unchanged and listed. A line with the comment `# opforge: keep` is neither changed
    nor listed.

    \b
    Examples:
      opforge port --diff src/
      opforge port --check src/ train.py
    """
    if check and as_diff:
        raise click.UsageError("--check and --diff exclude each other: expected one of them.")
    if importlib.util.find_spec("libcst") is None:
        raise ExtraNotInstalledError("opforge port", "libcst", "port")
    from opforge.port.files import python_files

    sources = list(python_files(paths, exclude))
    if not sources:
        raise click.UsageError(f"there is no Python file in {', '.join(paths)}.")
    ported = _port(sources, write=not check and not as_diff)
    if as_json:
        files = list(ported)
        emit_json(_document(files, check, as_diff))
    else:
        files = _print_files(ported, check, as_diff)
    vendor_specific = check and any(file.changes or file.left for file in files)
    sys.exit(FAILED if vendor_specific or any(file.problem for file in files) else OK)


def _port(paths: Sequence[str], write: bool) -> Iterator[PortedFile]:
    """Ports each file. If standard error is a terminal, it shows which one is in progress."""
    from opforge.port.files import port_file

    shows_progress, width = messages.shows_progress(), shutil.get_terminal_size().columns - 1
    for number, path in enumerate(paths, 1):
        if shows_progress:
            click.echo(CLEAR_LINE + f"{number} of {len(paths)}: {path}"[:width], nl=False, err=True)
        try:
            file = port_file(path, write)
        finally:
            if shows_progress:
                click.echo(CLEAR_LINE, nl=False, err=True)
        yield file


def _print_files(ported: Iterable[PortedFile], check: bool, as_diff: bool) -> list[PortedFile]:
    """Prints each file when it is done, then the totals. With --diff standard output holds the diff alone."""
    files = []
    for file in ported:
        files.append(file)
        if file.problem:
            messages.show_error(file.problem)
        elif check:
            _print_findings(file.path, (finding for finding in file.findings if finding.kind != "note"))
        else:
            if as_diff:
                click.echo(_diff(file), nl=False)
            elif file.changes:
                click.echo(f"{file.path}: {counted(file.changes, 'change', 'changes')}")
            _print_findings(file.path, file.findings if as_diff else file.remaining, hidden="converted", err=as_diff)
    click.echo(_totals_text(files, "would change" if check or as_diff else "changed"), err=as_diff)
    return files


def _print_findings(path: str, findings: Iterable[Finding], hidden: str = "", err: bool = False) -> None:
    for finding in findings:
        if finding.kind != hidden:
            arrow = "->" if finding.kind == "converted" else "--"
            position = f"{path}:{finding.line}:{finding.column}"
            click.echo(f"{position}: {finding.kind}: {finding.text} {arrow} {finding.message}", err=err)


def _diff(file: PortedFile) -> str:
    # str.splitlines would split at form feeds too, which no patch does.
    before, after = (io.StringIO(text, newline="\n").readlines() for text in (file.before, file.text))
    lines = difflib.unified_diff(before, after, file.path, file.path)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _totals(files: Sequence[PortedFile]) -> dict[str, int]:
    return {
        "files": len(files),
        "changes": sum(file.changes for file in files),
        "left": sum(file.left for file in files),
        "failed": sum(bool(file.problem) for file in files),
    }


def _totals_text(files: Sequence[PortedFile], verb: str) -> str:
    totals = _totals(files)
    changes, changed_files = counted(totals["changes"], "place", "places"), sum(bool(file.changes) for file in files)
    text = f"{counted(len(files), 'file', 'files')}: {changes} {verb} in {changed_files}, {totals['left']} left to you"
    return text + (f", {totals['failed']} failed" if totals["failed"] else "")


def _document(files: Sequence[PortedFile], check: bool, as_diff: bool) -> dict[str, Any]:
    return {
        "written": not check and not as_diff,
        "files": [
            {
                "path": file.path,
                "changes": file.changes,
                "left": file.left,
                "problem": file.problem,
                "findings": [finding.as_json() for finding in file.findings],
            }
            | ({"diff": _diff(file)} if as_diff else {})
            for file in files
            if file.findings or file.problem
        ],
        "total": _totals(files),
    }
