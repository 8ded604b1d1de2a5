"""Values that processes remember on disk: each is valid as long as the stamps of the files it follows from are equal.

    CACHE/opforge/machine/ID/lookups/NAME.json     CACHE is $XDG_CACHE_HOME, by default ~/.cache

It is kept for one user and one machine, beside the stores and not in one: a store that was copied, baked into an image
or mounted read-only has the same contents everywhere, but each machine has stamps of its own. If that folder cannot be
written, $XDG_RUNTIME_DIR is used. What is known of compilers and of the system's packages lies in the store instead: an
image brings it along with them.

NAME says everything that decides the value and has no stamp, or is a digest of that. The file is JSON: one digest, then
the paths and the value. The digest is that of the name, of the file's own text and of the stamps: if it is equal
(`is_still_valid`), the stamps are the same, and the file is intact and ours. Everything may be removed at any time: a
value that is not remembered is found again. `remembered_values_writer.py` writes it.

The module that a builder has loaded stays in the process: `Loaded` in `builders/base.py`.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from opforge.foundation import environment, file_owners, formats

ABSENT = (-1, -1, -1, -1)
"""The stamp of a path at which there is nothing."""
UNKNOWN = -1
"""The last number of a stamp if nothing is known of a file: there is none, or it cannot be read."""
PathStamp = tuple[str, tuple[int, ...]]
"""A path with its stamp; the stamp is ABSENT if there is nothing."""
RACY_NS = 2_000_000_000
"""How long before its stamp was taken a file must have been modified for the stamp to be trusted."""
AHEAD_NS = 2_000_000_000
"""How far after the present a file's time of change may lie: what is later was set by a clock that was wrong, or is
another's. Such a file is known by its content."""
SECOND_NS = 1_000_000_000
"""Only an image's files, and those of coarse file systems, are changed at whole seconds."""
MACHINE, LOOKUPS = "machine", "lookups"
MAX_BYTES = 8 << 20
"""No JSON file is larger. In memory, the values of damaged JSON take up to 25 times as much."""
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError)
"""Exceptions of reading a damaged file and using its fields: others may have written to the file."""
FUNCTION: Any = type(ctypes.memmove)
"""The class of C functions that return an address, of three arguments: further ones are ignored. ctypes has made it for
its memmove; another one, by CFUNCTYPE, would take as long as ten files that are looked at."""
_machine_id = ""
counts: dict[str, dict[str, float]] = {}
"""Counts of this process that are not written yet, by store."""
os.register_at_fork(after_in_child=counts.clear)  # the parent writes them


class FlatStamps:
    """Paths and their stamps, four numbers a path: size, times of the last modification and change, and inode."""

    __slots__ = ("numbers", "paths")

    def __init__(self, paths: Sequence[str] = (), numbers: Sequence[int] = ()) -> None:
        self.paths, self.numbers = paths, numbers

    @classmethod
    def of(cls, stamps: Iterable[PathStamp]) -> FlatStamps:
        """Returns the same stamps from pairs."""
        pairs = list(stamps)
        return cls([path for path, _stamp in pairs], [number for _path, stamp in pairs for number in stamp])

    def pairs(self) -> list[PathStamp]:
        """Returns each path with its stamp."""
        return [(path, tuple(self.numbers[4 * at : 4 * at + 4])) for at, path in enumerate(self.paths)]

    def is_racy(self, at_ns: int) -> bool:
        """Returns whether a file was modified later than two seconds before `at_ns`, when the stamps were taken.

        A second change within one tick of a coarse clock would not change such a stamp. (git's index has the same rule,
        and calls such a file racily clean.) A time of modification in the future says nothing: programs set it to what
        they like. The time of change is the system's own; a file that has one in the future is known by its content.
        """
        changed, modified, since = self.numbers[2::4], self.numbers[1::4], at_ns - RACY_NS
        if max(changed, default=0) <= since and max(modified, default=0) <= since:
            return False
        rows = zip(modified, changed, self.numbers[3::4], strict=True)
        times = [(written, change) for written, change, number in rows if number >= UNKNOWN]
        return any(change > since or since < written <= at_ns + RACY_NS for written, change in times)

    def ahead(self) -> list[str]:
        """Returns the paths that are known by their content because their time of change is in the future."""
        return [path for path, number in zip(self.paths, self.numbers[3::4], strict=True) if number < UNKNOWN]


def stamps_of(paths: Iterable[str], links: int = 0) -> list[int]:
    """Returns the stamps of many paths in one flat list, four numbers a path: ABSENT if there is nothing.

    Of the first `links` paths a link is not followed: it is compared itself.
    """
    stamps: list[int] = []
    devices: dict[int, int] = {}
    take = os.lstat if links else os.stat
    ahead = time.time_ns() + AHEAD_NS
    for path in paths:
        try:
            status = take(path)
        except (OSError, ValueError):
            stamps += ABSENT
        else:
            inode, changed, modified = status.st_ino, status.st_ctime_ns, status.st_mtime_ns
            if not changed % SECOND_NS or changed == modified == status.st_atime_ns or changed > ahead:
                inode = image_inode(path, status, devices, not links)
            stamps += (status.st_size, modified, changed, inode)
        if links:
            links -= 1
            if not links:
                take = os.stat
    return stamps


def inode_of(path: str, status: os.stat_result, follows: bool = True) -> int:
    """Returns the last number of a file's stamp; without `follows` the status is of a link itself, if it is one."""
    changed = status.st_ctime_ns
    is_images = not changed % SECOND_NS or changed == status.st_mtime_ns == status.st_atime_ns
    if is_images or changed > time.time_ns() + AHEAD_NS:
        return image_inode(path, status, {}, follows)
    return status.st_ino


def image_inode(path: str, status: os.stat_result, devices: dict[int, int], follows: bool) -> int:
    """Returns the last number of the stamp of a file that may be an image's: see `opforge.foundation.images`.

    That is the inode, with the number of the mount if there is one; or a number from the content. `devices` has what is
    known of each device, and must not be older than the status: another image may get the same device.
    That of a file with a time of change in the future is below UNKNOWN.
    """
    if status.st_ctime_ns > time.time_ns() + AHEAD_NS:
        from opforge.foundation import images

        return UNKNOWN - 1 - (images.content(path, status) >> 2)
    mount = devices.get(status.st_dev)
    if mount is None:
        mount = devices[status.st_dev] = mount_of(path, status, follows)
    if mount < 0:
        from opforge.foundation import images  # for images that are mounted read-only, and unions

        return images.content(path, status) if images.needs_content(status, mount) else status.st_ino
    return status.st_ino if status.st_ctime_ns % SECOND_NS else (status.st_ino + mount) % (1 << 63)


def is_known_by_content(path: str) -> bool:
    """Returns whether a file's or folder's stamp has a number from its content: a folder's has that of its names."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    mount = mount_of(path, status, True)
    if mount >= 0:
        return False
    from opforge.foundation import images

    return images.needs_content(status, mount)


BOOT_ID = "/proc/sys/kernel/random/boot_id"
_UNIQUE_ID, _ID_AT, _STATX_BYTES = 0x4000, 144, 256
"""The number of statx for a mount's id that no other mount gets until the system is started again (Linux 6.8), and
where it is in struct statx. (linux/stat.h)"""
_AT_FDCWD, _AT_NOFOLLOW, _AT_NO_AUTOMOUNT = -100, 0x100, 0x800
_mounts: dict[bytes, int] = {}
"""By a mount's id: what `mount_of` returns for its files."""
_system: list[Any] = []
"""An identifier of this start of the system, the function statx, and the class of its buffer."""


def mount_of(path: str, status: os.stat_result, follows: bool) -> int:
    """Returns the number that a device adds to the inodes in its files' stamps; path and status are those of one file.

    That is a number for what is mounted to be written, and since when: 0 if stamps identify the files by themselves.
    What is negative says that they are known by their content: see `images.mount_of`.
    """
    try:
        mount = mount_id(path, follows)
    except (OSError, ImportError, ValueError):  # OSError: also a C library without statx
        mount = b""
    if mount and mount in _mounts:
        return _mounts[mount]
    number = int.from_bytes(hashlib.sha256(_system[0] + mount).digest()[:7], "big") if mount else 0
    place = path if follows else os.path.dirname(path)
    is_disk = os.major(status.st_dev) != 0  # a network's file system, a union and tmpfs have no such number
    if not (number and is_disk and is_writable(place)):
        from opforge.foundation import images

        number = images.mount_of(place, number, is_disk, is_writable(place))
    if mount:
        _mounts[mount] = number
    return number


def is_writable(path: str) -> bool:
    """Returns whether the file system on which a path is was mounted to be written."""
    try:
        return not os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError:
        return False


def mount_id(path: str, follows: bool = True) -> bytes:
    """Returns the id of the mount on which a file is; empty if the system has none that is unique.

    Raises OSError, ImportError, ValueError.
    """
    if not _system:
        from _ctypes import call_cdeclfunction, dlopen, dlsym

        # No CFUNCTYPE: making its class takes longer than all else here.
        statx = dlsym(dlopen(None, os.RTLD_NOW), "statx")  # type: ignore[arg-type]
        handle = os.open(BOOT_ID, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _system[:] = os.read(handle, 64), call_cdeclfunction, statx, ctypes.c_char * _STATX_BYTES
        finally:
            os.close(handle)
    _boot, call, statx, buffer_type = _system
    buffer = buffer_type()
    flags = _AT_NO_AUTOMOUNT if follows else _AT_NO_AUTOMOUNT | _AT_NOFOLLOW
    if call(statx, (_AT_FDCWD, os.fsencode(path), flags, _UNIQUE_ID, buffer)):
        return b""
    is_unique = int.from_bytes(buffer[:4], sys.byteorder) & _UNIQUE_ID
    return buffer[_ID_AT : _ID_AT + 8] if is_unique else b""


HEAD = 68
"""The length of a file's text before its content: `["`, the 64 digits of the digest, and `",`."""


def digest_of(name: str, text: bytes, stamps: Sequence[int]) -> bytes:
    """Returns the digest of what is remembered: of its name, the text of the file's content, and its files' stamps.

    As JSON, two hundred numbers would take as long to parse as all else.
    """
    try:
        numbers = struct.pack(f"={len(stamps)}q", *stamps)
    except struct.error:  # an inode of 64 bits
        numbers = struct.pack(f"={len(stamps)}Q", *[number % (1 << 64) for number in stamps])
    return hashlib.sha256(b"%d %s\0%s%s" % (formats.REMEMBERED, name.encode(), text, numbers)).hexdigest().encode()


def name_of(parts: object, variables: Iterable[tuple[bytes, bytes]] = ()) -> str:
    """Returns the name of a value that these parts and variables decide, besides the files that have stamps.

    Parts are strings, numbers, and lists of them: these have one repr, in a third of the time of canonical JSON.
    """
    text = repr(parts).encode("utf-8", "surrogateescape")
    return hashlib.sha256(b"\0".join([text, *map(b"=".join, variables)])).hexdigest()[:32]


def recall(
    name: str, stamp: Callable[[Iterable[str], int], list[int]] | None = None, folder: str = ""
) -> tuple[Any, FlatStamps] | None:
    """Returns the value that is remembered under a name, and the stamps of the files that it follows from.

    None if there is none, if one of the files has changed, or if the file is not what was written under this name.

    Args:
        name: What decides the value and has no stamp.
        stamp: Takes the stamps; by default `stamps_of`.
        folder: A folder of a store that was checked when it was opened; by default this machine's.
    """
    for at in [folder] if folder else kept_folders():
        try:
            data = read_file(f"{at}/{name}.json", MAX_BYTES, is_private=not folder)
        except OSError:
            continue
        except ValueError:
            return None
        try:
            paths, links, value = parsed(data)
            numbers = (stamp or stamps_of)(paths, links)
            return (value, FlatStamps(paths, numbers)) if is_still_valid(name, data, numbers) else None
        except UNREADABLE:  # of a value before its digest is compared: no schema on the path of a hit
            return None
    return None


def is_still_valid(name: str, data: bytes, stamps: Sequence[int]) -> bool:
    """Returns whether the text of a file was written under this name, and its paths have the same stamps as then."""
    return digest_of(name, data[HEAD:], stamps) == data[2 : HEAD - 2]


def parsed(data: bytes) -> tuple[list[str], int, Any]:
    """Returns the paths, how many of the first are links, and the value of a file's text. Raises one of UNREADABLE."""
    _digest, (paths, links, value) = json.loads(data)
    return paths, links, value


def written(name: str, watched: FlatStamps, value: object, links: int) -> bytes:
    """Returns the text of the file from which `recall` returns this value."""
    text = json.dumps([[*watched.paths], links, value], separators=(",", ":")).encode() + b"]"
    return b'["%s",%s' % (digest_of(name, text, watched.numbers), text)


def folders() -> list[str]:
    """Returns the folders that may hold what this machine remembers, the preferred one first. They need not exist."""
    bases = [environment.cache_home(), environment.variable("XDG_RUNTIME_DIR")]
    return [f"{base}/opforge/{MACHINE}/{_id()}" for base in bases if base[:1] == "/"]


def _id() -> str:
    """Returns the machine's id: that of systemd or D-Bus, otherwise the host's name."""
    global _machine_id
    if not _machine_id:
        for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
            try:
                _machine_id = read_file(path, 4096).decode("ascii").strip()[:64]
            except (OSError, ValueError):
                continue
            if _machine_id.isalnum():
                return _machine_id
        _machine_id = os.uname().nodename.replace("/", "_") or "unknown"
    return _machine_id


def reset() -> None:
    """Forgets this machine's name, and what was counted."""
    global _machine_id
    _machine_id = ""
    counts.clear()


def kept_folders() -> list[str]:
    """Returns the folders in which something is remembered already, and that only this user can have written."""
    kept = []
    for folder in folders():
        lookups = f"{folder}/{LOOKUPS}"
        try:
            if is_private(lookups):
                kept.append(lookups)
        except OSError:
            continue
    return kept


def is_private(folder: str) -> bool:
    """Returns whether a folder is this user's and nobody else can write it: what it holds was written by opforge."""
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == file_owners.own_id() and not status.st_mode & 0o022


def read_file(path: str, max_bytes: int, is_private: bool = False) -> bytes:
    """Returns the bytes of a file of opforge's. Raises OSError, or ValueError for what opforge cannot have written.

    Anything may have been put in the file's place. A pipe does not block, a device or a huge sparse file is not read.
    With `is_private` it must be the user's, no link, and nobody else may write it.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags | os.O_NOFOLLOW if is_private else flags)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            raise ValueError(f"{path} is not a regular file of at most {max_bytes} bytes")
        if is_private and (status.st_uid != file_owners.own_id() or status.st_mode & 0o022):
            raise ValueError(f"{path} can be written by others")
        return os.read(handle, status.st_size)
    finally:
        os.close(handle)
