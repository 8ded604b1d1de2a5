"""`opforge list`, `info`, `resolve` and `verify`: what is installed, what there is, and what would be chosen."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.cli.guard import FAILED, Guarded, json_option
from opforge.cli.messages import show_error
from opforge.cli.output import emit_json, show_table, size_text

from .options import is_folder, remote_option

if TYPE_CHECKING:
    from opforge.packages.choose.candidate import Candidate
    from opforge.packages.choose.environment import Environment
    from opforge.packages.installed.releases import Installed
    from opforge.packages.registry.selection import Verified


def _installed(name: str = "") -> list[Installed]:
    from opforge.packages.form import version
    from opforge.packages.installed import layout, releases

    return [
        release
        for root in layout.roots()
        for package in releases.names(root)
        if not name or package == name
        for release in releases.matching(root, package, version.ANY)
    ]


@click.command("list", cls=Guarded)
@json_option
def list_command(as_json: bool) -> None:
    """List the installed kernel packages.

    \b
    Example:
      opforge list --json
    """
    from .install import to_json

    releases = _installed()
    if as_json:
        emit_json({"kernels": [to_json(release) for release in releases]})
        return
    rows = [
        (
            release.name,
            release.version,
            ", ".join(part.candidate.label for part in release.variants),
            size_text(sum(part.size for part in release.variants)),
            release.root.scope,
            release.assurance,
            release.source,
        )
        for release in releases
    ]
    show_table(
        ("KERNEL", "VERSION", "VARIANTS", "SIZE", "WHERE", "SIGNATURE", "FROM"),
        rows,
        numbers=("SIZE",),
        optional="FROM",
    )


@click.command("info", cls=Guarded)
@click.argument("name")
@remote_option
@json_option
def info(name: str, urls: Sequence[str], as_json: bool) -> None:
    """Show the releases of a package: those that remotes have, and those that are installed.

    \b
    Example:
      opforge info acme/relu
    """
    from opforge.packages.form import names
    from opforge.packages.registry.selection import sources

    from .install import to_json

    names.check(name, "NAME")
    listed = []
    for source in sources(urls):
        entry = source.read_index(name)
        listed += [
            {
                "version": str(number),
                "remote": str(source.remote),
                "digest": entry.releases[number].digest,
            }
            for number in sorted(entry.releases if entry else (), reverse=True)
            if entry
        ]
    installed = [to_json(release) for release in _installed(name)]
    if as_json:
        emit_json({"name": name, "releases": listed, "installed": installed})
    else:
        here = {release["version"]: release["scope"] for release in installed}
        rows = [
            (entry["version"], here.get(entry["version"], ""), "", entry["remote"], entry["digest"][:12])
            for entry in listed
        ]
        remote_versions = {entry["version"] for entry in listed}
        rows += [
            (release["version"], release["scope"], release["withdrawn"], release["source"], release["digest"][:12])
            for release in installed
            if release["version"] not in remote_versions
        ]
        show_table(("VERSION", "INSTALLED", "WITHDRAWN", "FROM", "RELEASE"), rows)
        if not rows:
            show_error(f"no remote has {name}, and it is not installed: check the name, or name a remote with --remote")
    sys.exit(0 if listed or installed else FAILED)


@click.command("resolve", cls=Guarded)
@click.argument("kernel")
@click.option(
    "--for",
    "machine",
    type=click.Path(exists=True, dir_okay=False),
    help="Another machine: a file of opforge report --machine.",
)
@remote_option
@json_option
def resolve(kernel: str, machine: str | None, urls: Sequence[str], as_json: bool) -> None:
    """Show which variant of a package is chosen, and why each other is not.

    KERNEL is ORG/NAME with a version or a range if wanted, or a folder with variants, such as ./relu.

    \b
    Examples:
      opforge resolve acme/relu@2
      opforge resolve kernels/relu --for cluster.json
    """
    from opforge.packages.choose import environment, order

    here = _environment(machine) if machine else environment.here(["all"])
    where, candidates = _candidates(kernel, urls, here)
    decisions = order.decide(candidates, here)
    chosen = [candidate.label for candidate in order.best(candidates, here)]
    if as_json:
        variants = [
            {
                "label": choice.candidate.label,
                "fits": choice.candidate.label in chosen or not choice.problem,
                "problem": choice.problem,
                "properties": choice.candidate.properties.to_json(),
            }
            for choice in decisions
        ]
        emit_json({"kernel": kernel, "where": where, "chosen": chosen, "variants": variants})
    else:
        rows = []
        for choice in decisions:
            is_chosen = choice.candidate.label in chosen
            state = "chosen" if is_chosen else "rejected" if choice.problem else "fits"
            rows.append((choice.candidate.label, state, "" if is_chosen else choice.problem))
        show_table(("VARIANT", "STATE", "REASON"), rows)
        click.echo(where, err=True)
    sys.exit(0 if chosen else FAILED)


def _environment(path: str) -> Environment:
    from opforge.cache.filesystem.files import read_file
    from opforge.packages.choose import environment
    from opforge.packages.form.json_text import parse_object

    expected = "a file of opforge report --machine"
    return environment.from_json(parse_object(read_file(path), path, 1 << 20, expected), path)


def _candidates(kernel: str, urls: Sequence[str], here: Environment) -> tuple[str, list[Candidate]]:
    """Returns where a package was found, and its variants. Raises KernelNotFoundError and what reading it raises."""
    from opforge.errors import KernelFormatError, KernelNotFoundError
    from opforge.packages.choose import order
    from opforge.packages.load import checkout
    from opforge.packages.registry import selection

    if is_folder(kernel):
        variants, problems = checkout.variants(os.path.abspath(kernel))
        if problems or not variants:
            problem = problems[0] if problems else "there is no variant in it"
            raise KernelFormatError(kernel, problem, "a folder that opforge pack has written")
        return f"in {kernel}", [choice.candidate for choice in variants]
    name, numbers = selection.parse_requirement(kernel)
    searched: list[str] = []
    newest: Verified | None = None
    for verified in selection.releases(name, numbers, selection.sources(urls), None, searched):
        parts = [part.candidate for part in verified.release.variants]
        newest = newest or verified
        if order.best(parts, here):  # an older one that fits is what would be installed
            return _signed(verified), parts
    if newest is not None:
        return _signed(newest), [part.candidate for part in newest.release.variants]
    for release in _installed(name):
        if release.version in numbers:
            return f"release {release.version} in {release.root.path}", [part.candidate for part in release.variants]
    missing = [reason.removeprefix(selection.ABSENT) for reason in searched]
    advice = "Check the name and the version, or name a remote with --remote."
    raise KernelNotFoundError(kernel, [*missing, "what is installed"], advice)


def _signed(verified: Verified) -> str:
    release = verified.release
    return f"release {release.version} of {verified.source.remote}, signed by {verified.signer or 'nobody'}"


@click.command("verify", cls=Guarded)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--deep", is_flag=True, help="Hash every file, and check signatures against today's trust file.")
@json_option
def verify(names: Sequence[str], deep: bool, as_json: bool) -> None:
    """Check installed packages: that no file has changed since it was installed.

    \b
    Examples:
      opforge verify
      opforge verify acme/relu --deep
    """
    from opforge.packages.registry import verification

    releases = [release for release in _installed() if not names or release.name in names]
    results: list[dict[str, Any]] = [
        {
            "name": release.name,
            "version": str(release.version),
            "folder": release.root.path,
            "signer": release.signer,
            "index": release.index_kind,
            "problems": verification.problems(release, deep),
        }
        for release in releases
    ]
    results += _damaged(names)
    missing = sorted(set(names) - {result["name"] for result in results})
    if as_json:
        emit_json({"kernels": results, "missing": missing})
    else:
        intact = [f"intact, {release.assurance}" for release in releases]
        for number, result in enumerate(results):  # those that are damaged come last
            what = f"{result['name']} {result['version']} in {result['folder']}"
            click.echo(f"{what}: {'; '.join(result['problems']) or intact[number]}")
        for name in missing:
            click.echo(f"error: {name} is not installed", err=True)
    sys.exit(FAILED if missing or any(result["problems"] for result in results) else 0)


def _damaged(names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the releases whose own file cannot be read: nothing else of them is known."""
    from opforge.packages.installed import layout, releases

    return [
        {
            "name": name,
            "version": str(number),
            "folder": root.path,
            "problems": [f"{root.release(name, number.canonical)} cannot be read: install it again, or remove it"],
        }
        for root in layout.roots()
        for name in releases.names(root)
        if not names or name in names
        for number in releases.damaged(root, name)
    ]
