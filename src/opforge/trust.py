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


OWN_FOLDER = "Choose a folder of your own: files that another user made cannot be trusted"
"""What to do about a folder of another user."""
MAX_LINKS = 40
"""How many symbolic links one path may lead through, as for the kernel."""


def folder_problem(path: str, owners: Collection[int]) -> tuple[str, str] | None:
    """Returns why a folder cannot be trusted and what to do about it, or None. A missing folder is no problem.

    Each component of its path, every symbolic link and what it leads to included, must belong to one of `owners`, and
    nobody else may write it. Others may write a parent if its sticky bit keeps them from renaming what is not theirs:
    what lies below it on the path belongs to one of `owners`.
    """
    ahead = [part for part in reversed(os.path.abspath(path).split(os.sep)) if part]
    at, links = os.sep, 0
    while True:
        try:
            status = os.lstat(at)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{at} cannot be read ({error.strerror})", "Choose another folder"
        is_last, mode = not ahead, status.st_mode
        # Not a call for each component: most are folders that nobody else may write, and a hit looks at several paths.
        if status.st_uid not in owners or not stat.S_ISDIR(mode) or mode & 0o022:
            problem = _component_problem(at, status, owners, is_last)
            if problem:
                return problem
        if stat.S_ISLNK(mode):
            links += 1
            if links > MAX_LINKS:
                return f"{path} leads through more than {MAX_LINKS} links", "Choose another folder"
            target = os.readlink(at)
            ahead += [part for part in reversed(target.split(os.sep)) if part]
            at = os.sep if target.startswith(os.sep) else os.path.dirname(at)
            if not ahead:
                continue
        elif is_last:
            return None
        part = ahead.pop()
        at = os.path.dirname(at) if part == ".." else at if part == "." else f"{at.rstrip(os.sep)}/{part}"


def link_problem(folder: str) -> tuple[str, str] | None:
    """Returns why nothing may be written to a store's `folder`, and what to do about it, or None.

    A link there to another folder would lead what is written and removed out of the store.
    """
    try:
        with os.scandir(folder) as children:
            links = [child.path for child in children if child.is_symlink() and child.is_dir()]
    except OSError:
        return None  # missing, or reported by the first step that needs it
    links += [folder] if os.path.islink(folder) else []
    if not links:
        return None
    return f"{links[0]} is a symbolic link, and a store has none inside", f"Run: rm {links[0]}"


def _component_problem(
    path: str, status: os.stat_result, owners: Collection[int], is_last: bool
) -> tuple[str, str] | None:
    """Returns why one component of a path cannot be trusted and what to do about it, or None."""
    is_link = stat.S_ISLNK(status.st_mode)
    if not is_link and not stat.S_ISDIR(status.st_mode):
        return f"{path} is not a folder", "Choose another folder, or give that file another name"
    if status.st_uid not in owners:
        what = "the link " if is_link else ""
        reason = f"{what}{path} belongs to user {status.st_uid}, not to you (user {os.geteuid()})"
        return reason, OWN_FOLDER
    if not is_link and (bits := others_bits(status)) and (is_last or not status.st_mode & stat.S_ISVTX):
        who = "everybody" if bits & stat.S_IWOTH else f"group {status.st_gid}"
        is_shared = status.st_mode & stat.S_ISVTX  # as /tmp is: others need it as it is
        own = os.path.join(path, "opforge")
        advice = f"Choose a folder of your own in it, such as {own}" if is_shared else f"Run: chmod go-w {path}"
        return f"{path} can be written by {who}", advice
    return None


def others_bits(status: os.stat_result) -> int:
    """Returns the mode bits by which other users may write a file; a private group is the user."""
    bits = status.st_mode & (stat.S_IWOTH | stat.S_IWGRP)
    return 0 if bits == stat.S_IWGRP and is_private_group(status.st_gid) else bits


def listed_home() -> str:
    """Returns the home folder that the system lists for this user; empty if it lists none."""
    import pwd

    try:
        home = pwd.getpwuid(os.getuid()).pw_dir.rstrip("/")
    except KeyError:
        return ""
    return home if home[:1] == "/" else ""
