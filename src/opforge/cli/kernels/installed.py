"""The installed packages that a command names."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from opforge.packages.form.version import Version
    from opforge.packages.installed.releases import Installed


def releases_of(names: Sequence[str]) -> list[Installed]:
    """Returns the installed releases with these names, or all. Raises click.UsageError for one that is not there.

    A name may be a glob, and may have the version: ORG/NAME@VERSION.
    """
    from opforge.packages.form import version
    from opforge.packages.installed import layout, releases

    found = [
        release
        for root in layout.roots()
        for package in releases.names(root)
        for release in releases.matching(root, package, version.ANY)
        if not names or _meant(names, package, release.version)
    ]
    there = [(release.name, release.version) for release in found]
    there += [(result["name"], result["version"]) for result in damaged(names)]
    if missing := sorted({*names}.difference(*(_meant(names, *one) for one in there))):
        from difflib import get_close_matches

        installed = sorted({name for root in layout.roots() for name in releases.names(root)})
        known = {**{name.partition("/")[2]: name for name in installed}, **{name: name for name in installed}}
        near = [known[match] for name in missing for match in get_close_matches(name, known, n=1)]
        meant = f" Did you mean {near[0]}?" if near else ""
        raise click.UsageError(f"{', '.join(missing)} is not installed: opforge ls shows installed packages.{meant}")
    return found


def damaged(names: Sequence[str]) -> list[dict[str, Any]]:
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
        for number in releases.damaged(root, name)
        if not names or _meant(names, name, number)
    ]


def _meant(names: Sequence[str], package: str, number: Version | str) -> set[str]:
    """Returns those of the names that stand for a release."""
    return {one for one in names if any(map(fnmatchcase, (package, f"{package}@{number}"), (one, one)))}
