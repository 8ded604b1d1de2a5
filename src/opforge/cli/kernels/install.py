"""`opforge install`: packages in an environment, for a user, or in a folder.

One release is installed by `packages/registry/install_release.py`, which `packages/project/install_locked.py` calls for
each of a lock file. Its files and its record are written by `packages/installed/add.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.cli import messages
from opforge.cli.guard import FAILED, OK, Guarded, json_option
from opforge.cli.output import emit_json

from .options import into_options, is_folder, remote_option, root_of, show_unsigned
from .transfers import Transfers

if TYPE_CHECKING:
    from opforge.packages.installed.layout import Root
    from opforge.packages.installed.releases import Installed
    from opforge.packages.project.lock_file import LockedKernel
    from opforge.packages.registry.selection import Choice, Source


@click.command("install", cls=Guarded)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@into_options
@remote_option
@click.option("--frozen", is_flag=True, help="Install the releases of the lock file, and fail if it is out of date.")
@click.option("--offline", is_flag=True, help="Use no network: only folders (file://), and installed packages.")
@click.option("--all-platforms", is_flag=True, help="Install every variant, for an image that serves many machines.")
@click.option("--dry-run", is_flag=True, help="Show which variant would be installed, and why each other would not.")
@click.option(
    "--for",
    "machine",
    type=click.Path(exists=True, dir_okay=False),
    help="With --dry-run, for another machine: a file of opforge report --machine.",
)
@json_option
def install(
    kernels: Sequence[str],
    into: str | None,
    user: bool,
    urls: Sequence[str],
    frozen: bool,
    offline: bool,
    all_platforms: bool,
    dry_run: bool,
    machine: str | None,
    as_json: bool,
) -> None:
    """Install kernel packages; without KERNEL, those in the lock file of the project in this folder.

    KERNEL is ORG/NAME, with an optional version or range after it, or a folder that `opforge pack` has written, such
    as ./relu. Of each, the variant that fits this machine best is downloaded, and every file is checked.

    \b
    Examples:
      opforge install acme/relu@2
      opforge install "acme/relu>=2.1,<3" --user --remote https://kernels.example/ops
      opforge install --frozen
      opforge install ./kernels/relu --into /opt/kernels
      opforge install acme/relu --dry-run --for cluster.json
    """
    if machine and not dry_run:
        raise click.UsageError("--for shows what another machine would get: add --dry-run.")
    if dry_run:
        if not kernels or frozen:
            raise click.UsageError("--dry-run shows the variants of packages: name one, without --frozen.")
        from .dry_run import show

        sys.exit(OK if show(kernels, machine, urls, offline, as_json) else FAILED)
    if kernels and frozen:
        raise click.UsageError("--frozen installs the project's own kernels: name none")
    root = root_of(into, user)
    if kernels:
        _print(_installed(root, kernels, urls, offline, all_platforms, as_json), (), as_json)
    else:
        _print(*_of_project(root, frozen, all_platforms, urls, offline, as_json), as_json)


def _of_project(
    root: Root, frozen: bool, all_platforms: bool, urls: Sequence[str], offline: bool, as_json: bool
) -> tuple[list[tuple[Installed, bool]], list[dict[str, Any]]]:
    """Installs the packages of the project in this folder; returns them, and those that no device here needs."""
    from opforge.packages.project.install_locked import install_locked

    skipped: list[dict[str, Any]] = []

    def skip(kernel: LockedKernel, devices: Sequence[str], backend: str) -> None:
        version = str(kernel.version)
        skipped.append({"name": kernel.name, "version": version, "devices": devices, "backend": backend})

    folder = os.getcwd()
    with Transfers(as_json) as transfers:
        done = install_locked(root, folder, frozen, all_platforms, urls, transfers, show_unsigned, offline, skip)
    return done, skipped


def _installed(
    root: Root, kernels: Sequence[str], urls: Sequence[str], offline: bool, all_platforms: bool, as_json: bool
) -> list[tuple[Installed, bool]]:
    """Installs named packages, from folders and from stores.

    All are chosen before the first is installed: one that is not there changes nothing.
    """
    from opforge.packages.registry import install_release as installing
    from opforge.packages.registry import selection

    among = selection.sources(urls, offline) if any(not is_folder(text) for text in kernels) else []
    try:
        chosen = [_chosen(text, among, all_platforms) for text in kernels if not is_folder(text)]
    finally:
        installing.note_withdrawals(among, root)
    show_unsigned([choice.verified for choices in chosen for choice in choices])
    results = [(_from_folder(root, text), True) for text in filter(is_folder, kernels)]
    with Transfers(as_json) as transfers:
        return results + [
            installing.install_release(root, choice, transfers) for choices in chosen for choice in choices
        ]


def _from_folder(root: Root, folder: str) -> Installed:
    from opforge.errors import KernelInstallError, PublishError
    from opforge.packages.installed.add import from_folders
    from opforge.packages.registry.publish import packed_variants

    try:
        variants = packed_variants(folder)
    except PublishError as error:
        raise KernelInstallError(error.what, error.reason, error.hint) from error
    name = str(variants[0].metadata.opforge.get("name", f"local/{variants[0].metadata.name}"))
    return from_folders(root, name, [variant.folder for variant in variants])


def _chosen(text: str, among: Sequence[Source], all_platforms: bool) -> list[Choice]:
    from opforge.errors import KernelNotFoundError
    from opforge.packages.registry import dependencies, selection

    requirement = selection.parse_requirement(text)
    try:
        return dependencies.resolve([requirement], among, all_platforms=all_platforms)
    except KernelNotFoundError as error:
        if not os.path.isdir(text):
            raise
        advice = f"{error.advice}\nFor the folder of that name: opforge install ./{text}"
        raise KernelNotFoundError(error.name, error.searched, advice) from error


def _print(results: Sequence[tuple[Installed, bool]], skipped: Sequence[dict[str, Any]], as_json: bool) -> None:
    from opforge.packages.load.search import folder_problem

    roots = dict.fromkeys(release.root for release, _is_new in results)
    problems = ((root.path, folder_problem(root)) for root in roots)
    warnings = [f"get_kernel loads nothing from {path}: {problem}" for path, problem in problems if problem]
    if as_json:
        kernels = [to_json(release) | {"new": is_new} for release, is_new in results]
        emit_json({"kernels": kernels, "skipped": skipped, "warnings": warnings})
        return
    for row in skipped:
        devices = " or ".join(row["devices"])
        click.echo(f"skipped {row['name']} {row['version']}: required for {devices}, and torch is for {row['backend']}")
    for release, is_new in results:
        state = "installed" if is_new else "installed already:"
        labels = ", ".join(part.candidate.label for part in release.variants)
        click.echo(f"{state} {release.name} {release.version} ({labels}) in {release.root.path}")
        if release.withdrawn:
            messages.show("warning", f"{release.name} {release.version} was withdrawn: {release.withdrawn}")
    for warning in warnings:
        messages.show("warning", warning)


def to_json(release: Installed) -> dict[str, Any]:
    """Returns the object that --json prints for an installed release."""
    return {
        "name": release.name,
        "version": str(release.version),
        "folder": release.root.path,
        "scope": release.root.scope,
        "digest": release.digest,
        "signer": release.signer,
        "source": release.source,
        "withdrawn": release.withdrawn,
        "stops": release.stops,
        "variants": [
            {"label": part.candidate.label, "digest": part.digest, "folder": part.folder, "size": part.size}
            for part in release.variants
        ],
    }
