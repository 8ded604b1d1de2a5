"""The installed packages that a command names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from opforge.packages.installed.releases import Installed


def releases_of(names: Sequence[str]) -> list[Installed]:
    """Returns the installed releases of these packages, or all. Raises click.UsageError for one that is not there."""
    from opforge.packages.form import version
    from opforge.packages.installed import layout, releases

    found = [
        release
        for root in layout.roots()
        for package in releases.names(root)
        if not names or package in names
        for release in releases.matching(root, package, version.ANY)
    ]
    missing = sorted({*names} - {release.name for release in found} - {result["name"] for result in damaged(names)})
    if missing:
        from difflib import get_close_matches

        there = sorted({name for root in layout.roots() for name in releases.names(root)})
        known = {**{name.partition("/")[2]: name for name in there}, **dict(zip(there, there, strict=True))}
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
        if not names or name in names
        for number in releases.damaged(root, name)
    ]
