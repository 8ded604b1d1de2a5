"""Whom a folder must belong to before anything in it is loaded into the process."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from typing import NamedTuple


class Shipped(NamedTuple):
    """A layer inside an installed package, and what holds for that package's own code."""

    root: str
    owner: int
    """The user to whom the package belongs."""
    writable: int
    """The mode bits by which others may write it: its libraries need be no safer than the code beside them."""


def trusted_ids(names: Collection[str] = ()) -> frozenset[int]:
    """Root, the effective user, and each of `names` (user names or numbers) that exists here."""
    found = {0, os.geteuid()}
    for name in names:
        if name.isdecimal():
            found.add(int(name))
        else:
            import pwd

            try:
                found.add(pwd.getpwnam(name).pw_uid)
            except KeyError:
                continue
    return frozenset(found)


def _private_group(gid: int) -> bool:
    """Whether the group holds nobody but the user: the common Debian and Red Hat scheme, with umask 002."""
    import grp
    import pwd

    try:
        me = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == me.pw_gid and group.gr_name == me.pw_name and set(group.gr_mem) <= {me.pw_name}


def objection(path: str, owners: Collection[int]) -> tuple[str, str] | None:
    """Why a folder cannot be trusted and the command that mends it, or None. A folder that is missing is no objection.

    Each parent must belong to a trusted owner, and be writable by others only where the sticky bit keeps them from
    renaming what is not theirs. The folder itself must be writable by its owner alone.
    """
    parts = os.path.abspath(path).split(os.sep)
    for depth in range(1, len(parts) + 1):
        place = os.sep.join(parts[:depth]) or os.sep
        last = depth == len(parts)
        try:
            found = os.lstat(place)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{place} cannot be looked at ({error.strerror})", "Choose another folder"
        if stat.S_ISLNK(found.st_mode) and os.path.exists(place):
            return objection(os.path.realpath(path), owners)  # what counts is where it leads
        if not stat.S_ISDIR(found.st_mode):
            return f"{place} is not a folder", "Choose another folder, or give that file another name"
        if found.st_uid not in owners:
            return (
                f"{place} belongs to user {found.st_uid}, not to you (user {os.geteuid()})",
                "Choose a folder of your own"
                if not last
                else f"Choose a folder of your own, or take it over: sudo chown -R {os.geteuid()} {place}",
            )
        loose = found.st_mode & (stat.S_IWOTH | stat.S_IWGRP)
        if loose == stat.S_IWGRP and _private_group(found.st_gid):
            loose = 0
        if loose and (last or not found.st_mode & stat.S_ISVTX):
            who = "everybody" if found.st_mode & stat.S_IWOTH else f"group {found.st_gid}"
            return f"{place} can be written by {who}", f"Run: chmod go-w {place}"
    return None
