"""Which users a folder must belong to before anything in it is loaded into the process."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection

OVERFLOW = 65534
"""The id that Linux shows in place of a user's whom a user namespace does not map, unless the system says another."""
HELD = "/proc/self/fd"
"""The folder by whose names a process reaches what it has open, wherever it has been renamed to."""
ACL, LISTED_USER, LISTED_GROUP = "system.posix_acl_access", 2, 8
"""The attribute with a file's access-control list, and the kinds of entries in it that are for one user or group."""
USERS = "/etc/passwd"
held: dict[str, tuple[int, int]] = {}
"""The private folders that this process holds, by their paths below HELD: device and inode. See `cache/held.py`."""
_system_ids: dict[int, int] = {}
"""By the effective user, which changes with the namespace: what `system_id` has found."""
_members: dict[int, frozenset[str]] = {}
"""By a group's number: the users of this machine whose own group it is."""
_reported: set[str] = set()
"""The folders that others may write, and that the log says are used all the same."""


# Users.


def own_id() -> int:
    """Returns the effective user's id; -1, which owns nothing, if a user namespace gives that id to others too.

    So does `unshare -U`, which maps nobody. Files of the user's own cannot be told from theirs there.
    """
    user = os.geteuid()  # the only call for other users: a hit asks for this
    return -1 if user == OVERFLOW and system_id() == user else user


def trusted_ids(names: Collection[str] = ()) -> frozenset[int]:
    """Returns the ids of root, of the effective user, and of each of `names` (user names or numbers) that exists."""
    ids = {0, own_id()}
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


def system_id() -> int:
    """Returns the id that root's files have in a user namespace that does not map root; -1 anywhere else.

    It is the id of every other user too that the namespace does not map.
    """
    # A file of the kernel's own is root's. /proc/self/uid_map names the ids of the namespace around this one, which may
    # not be the system's: bubblewrap makes two, and the second one maps the user to the first one's 0.
    user = os.geteuid()
    if user not in _system_ids:
        try:
            with open("/proc/sys/kernel/overflowuid", "rb") as file:
                number = int(file.read(20))
                _system_ids[user] = number if os.fstat(file.fileno()).st_uid == number else -1
        except (OSError, ValueError):
            _system_ids[user] = -1  # without /proc, or on a system without such namespaces
    return _system_ids[user]


def is_private_group(gid: int) -> bool:
    """Returns whether the user is the group's only member: the usual scheme of Debian and Red Hat, with umask 002."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    is_own = gid == user.pw_gid and group.gr_name == user.pw_name and _is_same(gid)
    return is_own and {*group.gr_mem, *_with_group(gid)} <= {user.pw_name}


def _with_group(gid: int) -> frozenset[str]:
    """Returns the users of this machine whose own group it is: a group does not list them.

    A directory server's users are not asked for: to list them takes seconds on a cluster, in each process.
    """
    if gid not in _members:
        try:
            with open(USERS, encoding="utf-8", errors="surrogateescape") as file:
                users = [line.split(":") for line in file]
        except OSError:
            users = []
        _members[gid] = frozenset(user[0] for user in users if len(user) > 3 and user[3] == str(gid))
    return _members[gid]


def _is_same(gid: int) -> bool:
    """Returns whether the list of groups is about this group.

    `unshare -r` gives the user's own group the number 0, whoever else is in it. A longer range is of numbers that were
    set apart for this user.
    """
    try:
        with open("/proc/self/gid_map", "rb") as file:
            ranges = [[int(word) for word in line.split()] for line in file.read(1 << 20).splitlines()]
    except (OSError, ValueError):
        return True  # without /proc, or on a system without such namespaces
    return any(inside <= gid < inside + count and (inside == outside or count > 1) for inside, outside, count in ranges)


# Folders.

OWN_FOLDER = "Choose a folder of your own: files that another user made cannot be trusted"
"""Advice about a folder of another user."""
MAX_LINKS = 40
"""How many symbolic links one path may lead through, as for the kernel."""


def folder_problem(
    path: str,
    owners: Collection[int],
    above: Collection[int] | None = None,
    shared: Collection[str] | None = None,
    for_file_inside: bool = False,
) -> tuple[str, str] | None:
    """Returns why a folder cannot be trusted and what to do about it, or None. A missing folder is no problem.

    Each component of its path, every symbolic link and what it leads to included, must belong to one of `owners`, and
    nobody else may write it. Others may write a parent if its sticky bit keeps them from renaming what is not theirs:
    what lies below it on the path belongs to one of `owners`. In a user namespace that does not map root, the folders
    above may belong to users that are not mapped, as root's do: but for what others may have put there.

    Args:
        path: The folder.
        owners: The user ids.
        above: Who may own the folders above it besides; None if all whom the user trusts are in `owners`.
        shared: The folders that others may write all the same: the user has named them. None if none can be named.
        for_file_inside: Whether a file in the folder is what is trusted: the caller judges the file itself.
    """
    judge = _Judge(owners, above, shared, for_file_inside)
    start = _held_start(path) if held else ""
    if start and not is_held(start):
        return f"the descriptor of {path} was closed", "Leave those files open that your code has not opened"
    ahead = [part for part in reversed(os.path.abspath(path)[len(start) :].split(os.sep)) if part]
    if start and not ahead:
        return None
    at, links = f"{start}/{ahead.pop()}" if start else os.sep, 0
    while True:
        try:
            status = os.lstat(at)
        except FileNotFoundError:
            return judge.outcome()
        except OSError as error:
            return f"{at} cannot be read ({error.strerror})", "Name one that this user can read, or set HOME to one"
        is_last, mode = not ahead, status.st_mode
        # Not a call for each component: most are folders that nobody else may write, and a hit looks at several paths.
        if status.st_uid not in owners or not stat.S_ISDIR(mode) or mode & 0o022:
            problem = judge.problem(at, status, is_last)
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
            return judge.outcome()
        part = ahead.pop()
        if part == ".." and at == start:
            return f"{path} leads out of the folder that is held", "Choose another folder"
        at = os.path.dirname(at) if part == ".." else at if part == "." else f"{at.rstrip(os.sep)}/{part}"


def _held_start(path: str) -> str:
    """Returns the folder that this process holds and that the path begins with; empty if there is none."""
    return next((folder for folder in held if path == folder or path.startswith(f"{folder}/")), "")


def is_held(folder: str) -> bool:
    """Returns whether a path below HELD is still that of the folder that was opened."""
    try:
        status = os.stat(folder)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == held[folder]


class _Judge:
    """Judges the components of one path. What it takes is described at `folder_problem`."""

    def __init__(
        self,
        owners: Collection[int],
        above: Collection[int] | None,
        shared: Collection[str] | None,
        for_file_inside: bool,
    ) -> None:
        self._owners, self._above, self._shared, self._for_file_inside = owners, above, shared, for_file_inside
        self._open: dict[str, os.stat_result] = {}
        """The folders that others may write, and that the user could name."""
        self._used: dict[str, os.stat_result] = {}
        """Those that the user has named."""

    def outcome(self) -> tuple[str, str] | None:
        """Returns the problem of the folders that others may write, and a hint for all of them; None without one."""
        if not self._open:
            for path, status in self._used.items():
                _report(path, status)
            return None
        path, status = next(iter(self._open.items()))
        names = ":".join([*(self._shared or ()), *self._open])
        name_them = f"set OPFORGE_TRUSTED_FOLDERS={quoted(names)} if you trust everybody who may write there"
        close = _advice_to_close(path, status)
        return f"{path} can be written by {_who(status)}", f"{close}; or {name_them}" if close else _sentence(name_them)

    def problem(self, path: str, status: os.stat_result, is_last: bool) -> tuple[str, str] | None:
        """Returns why one component of the path cannot be trusted and what to do about it, or None."""
        is_link = stat.S_ISLNK(status.st_mode)
        if not is_link and not stat.S_ISDIR(status.st_mode):
            return f"{path} is not a folder", "Choose another folder, or give that file another name"
        if status.st_uid not in self._owners and not (
            (self._for_file_inside or not is_last) and self._may_own_above(path, status.st_uid)
        ):
            what, is_own = f"the link {path}" if is_link else path, self._above is not None and is_last
            return owner_problem(what, status.st_uid, self._above or self._owners, is_own and not self._for_file_inside)
        if is_link or not others_bits(status, path) or (status.st_mode & stat.S_ISVTX and not is_last):
            return None
        if self._shared is not None:
            if path in self._shared:
                self._used[path] = status
            elif not (is_last and status.st_mode & stat.S_ISVTX):
                self._open[path] = status
            if path in self._shared or path in self._open:
                return None
        advice = _advice_to_close(path, status)
        if is_last and status.st_mode & stat.S_ISVTX:  # as /tmp is: others need it as it is
            advice = f"Choose a folder of your own in it, such as {os.path.join(path, 'opforge')}"
        user = status.st_uid
        return (
            f"{path} can be written by {_who(status)}",
            advice or f"Only user {user} can run: chmod go-w {quoted(path)}",
        )

    def _may_own_above(self, path: str, user: int) -> bool:
        return user in (self._above or ()) or (user == system_id() and not _may_be_anybodys(path))


def owner_problem(what: str, user: int, named: Collection[int] = (), is_own: bool = False) -> tuple[str, str]:
    """Returns why a file of this user cannot be trusted and what to do about it.

    `named` are those who are trusted already. With `is_own` naming the owner does not help.
    """
    reason = f"{what} belongs to user {user}"
    if user != system_id():
        reason += f", not to you (user {os.geteuid()})"
    else:
        reason += ", as do all files of users that this user namespace does not map (/proc/self/uid_map)"
        if user == os.geteuid():
            return f"{reason}, and yours", f"Run as another user than {user}: `unshare --map-current-user` keeps yours"
    if is_own:
        return reason, OWN_FOLDER
    names = ",".join(map(str, sorted({*named, user} - {0, -1, os.geteuid()})))
    return reason, f"{OWN_FOLDER}. If you trust that user, set OPFORGE_TRUSTED_OWNERS={names}"


def _may_be_anybodys(path: str) -> bool:
    """Returns whether others may have put a component of a path where it is."""
    parent = os.path.dirname(path)
    if parent == path:
        return False
    status = os.lstat(parent)
    return bool(status.st_mode & stat.S_ISVTX or others_bits(status, parent))


def _who(status: os.stat_result) -> str:
    if status.st_mode & stat.S_IWOTH:
        return "everybody"
    is_own = is_private_group(status.st_gid)
    return "others in its access-control list" if is_own else f"group {status.st_gid}"


def _advice_to_close(path: str, status: os.stat_result) -> str:
    """Returns the command by which this user closes a folder to others; empty if they cannot."""
    return f"Run: chmod go-w {quoted(path)}" if os.geteuid() in (0, status.st_uid) else ""


def quoted(path: str) -> str:
    """Returns a path as a shell takes it, for a command in an error's text."""
    from shlex import quote

    return quote(path)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _report(path: str, status: os.stat_result) -> None:
    """Logs, once a process, that a folder is used that others may write."""
    if path in _reported:
        return
    _reported.add(path)
    import logging  # not on the path of a hit without such a folder

    text = "%s can be written by %s, and OPFORGE_TRUSTED_FOLDERS names it: who may write there can run code as you."
    logging.getLogger("opforge").warning(text, path, _who(status))


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
    return f"{links[0]} is a symbolic link, and a store has none inside", f"Run: rm {quoted(links[0])}"


def others_bits(status: os.stat_result, place: str | int) -> int:
    """Returns the mode bits by which other users may write a file; a private group is the user.

    `place` is its path or descriptor: with an access-control list, the bits of the group are those of all in the list.
    """
    bits = status.st_mode & (stat.S_IWOTH | stat.S_IWGRP)
    is_own = bits == stat.S_IWGRP and is_private_group(status.st_gid) and not _is_listed_for_others(place)
    return 0 if is_own else bits


def _is_listed_for_others(place: str | int) -> bool:
    """Returns whether a file's access-control list has other users or further groups that may write."""
    import errno
    import struct

    try:
        entries = struct.iter_unpack("<HHI", os.getxattr(place, ACL)[4:])
    except AttributeError:
        return False  # a system without such lists
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.ENOTSUP)
    own = trusted_ids()
    return any(
        rights & 2 and (tag == LISTED_GROUP or (tag == LISTED_USER and number not in own))
        for tag, rights, number in entries
    )


def listed_home() -> str:
    """Returns the home folder that the system lists for this user; empty if it lists none."""
    import pwd

    try:
        home = pwd.getpwuid(os.getuid()).pw_dir.rstrip("/")
    except KeyError:
        return ""
    return home if home[:1] == "/" else ""
