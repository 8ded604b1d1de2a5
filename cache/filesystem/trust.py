"""Which users a folder must belong to before anything in it is loaded into the process."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection


def trusted_ids(names: Collection[str] = ()) -> frozenset[int]:
    """Returns the ids of root, of the effective user, and of each of `names` (user names or numbers) that exists."""
    ids = {0, os.geteuid()}
    for name in names:
        if name.isdecimal():
            ids.add(int(name))
        else:
            import pwd

            try:
                ids.add(pwd.getpwnam(name).pw_uid)
            except KeyError:
                continue
    return frozenset(ids)


def is_private_group(gid: int) -> bool:
    """Returns whether the user is the group's only member: the usual scheme of Debian and Red Hat, with umask 002."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def folder_problem(path: str, owners: Collection[int]) -> tuple[str, str] | None:
    """Returns why a folder cannot be trusted and what to do about it, or None. A missing folder is no problem.

    Each parent must belong to one of `owners`, and others may write it only if its sticky bit keeps them from renaming
    what is not theirs. The folder itself must be writable by its owner alone.
    """
    parts = os.path.abspath(path).split(os.sep)
    for depth in range(1, len(parts) + 1):
        folder = os.sep.join(parts[:depth]) or os.sep
        is_last = depth == len(parts)
        try:
            status = os.lstat(folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{folder} cannot be read ({error.strerror})", "Choose another folder"
        if stat.S_ISLNK(status.st_mode) and os.path.exists(folder):
            return folder_problem(os.path.realpath(path), owners)  # the target is what counts
        if not stat.S_ISDIR(status.st_mode):
            return f"{folder} is not a folder", "Choose another folder, or give that file another name"
        if status.st_uid not in owners:
            return (
                f"{folder} belongs to user {status.st_uid}, not to you (user {os.geteuid()})",
                "Choose a folder of your own"
                if not is_last
                else f"Choose a folder of your own, or take it over: sudo chown -R {os.geteuid()} {folder}",
            )
        write_bits = status.st_mode & (stat.S_IWOTH | stat.S_IWGRP)
        if write_bits == stat.S_IWGRP and is_private_group(status.st_gid):
            write_bits = 0
        if write_bits and (is_last or not status.st_mode & stat.S_ISVTX):
            who = "everybody" if status.st_mode & stat.S_IWOTH else f"group {status.st_gid}"
            return f"{folder} can be written by {who}", f"Run: chmod go-w {folder}"
    return None
