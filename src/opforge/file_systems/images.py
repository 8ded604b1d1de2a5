"""Files whose stamps do not identify them: those of images, such as squashfs and ext3 in Apptainer, erofs, ISO 9660.

A system that writes a file sets the time of its change itself, to the nanosecond. In an image all times are those that
its maker chose. If these are fixed, files with other contents have equal times, sizes and inodes in two images, and the
mounted images have equal devices. Programs on the host may share one home folder, and so what is remembered of files.

What was mounted to be written is known by its mount: while it is mounted, the system sets the times of what changes. So
the disk of a virtual machine, which was an image, is not read again and again. All else is known by its content.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import sys
from functools import cache
from typing import Any

SECOND_NS = 1_000_000_000
"""A time of change that is a whole second is an image's, or that of a file system with coarse times."""
UNIONS = frozenset({0x794C7630, 0x65735546, 0x61756673})
"""overlay, FUSE (squashfuse) and aufs, which may show an image's files with the image's times. (linux/magic.h)"""
UNREADABLE = -1
MOUNT_ID_UNIQUE, _MOUNT_ID, _SIZE = 0x4000, 144, 256
"""The number of statx for a mount's id that no other mount gets until the system is started again (Linux 6.8), and
where it is in struct statx. (linux/stat.h)"""
AT_FDCWD, AT_NOFOLLOW = -100, 0x100
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def inode(path: str, status: os.stat_result, mounts: dict[int, int] | None = None) -> int:
    """Returns the last number of a file's stamp: its inode; in an image, with its mount, or what its content gives.

    `mounts` keeps what is known of devices. It must not be older than the status.
    """
    if not is_image(path, status):
        return status.st_ino
    if os.major(status.st_dev):
        mounts = {} if mounts is None else mounts
        if status.st_dev not in mounts:
            mounts[status.st_dev] = written_mount(path)
        if mounts[status.st_dev]:
            return (status.st_ino + mounts[status.st_dev]) % (1 << 63)
    return content(path, status)


def is_known_by_content(path: str) -> bool:
    """Returns whether a file's or folder's stamp has a number from its content: a folder's has that of its names."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return is_image(path, status) and not (os.major(status.st_dev) and written_mount(path))


def written_mount(path: str) -> int:
    """Returns a number for what is mounted, since when, to be written; 0 for a read-only mount, or if it is unknown."""
    buffer = ctypes.create_string_buffer(_SIZE)
    try:
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return 0
        boot, statx = _boot()
        known = statx(AT_FDCWD, os.fsencode(path), AT_NOFOLLOW, MOUNT_ID_UNIQUE, buffer) == 0
    except (OSError, AttributeError, ValueError):  # AttributeError: a C library without statx
        return 0
    mask = int.from_bytes(buffer.raw[:4], sys.byteorder)
    if not (known and boot and mask & MOUNT_ID_UNIQUE):
        return 0
    return int.from_bytes(hashlib.sha256(boot + buffer.raw[_MOUNT_ID : _MOUNT_ID + 8]).digest()[:7], "big")


@cache
def _boot() -> tuple[bytes, Any]:
    """Returns what identifies this start of the system, and the C library's statx. Raises OSError, AttributeError."""
    with open(BOOT_ID, "rb") as file:
        return file.read().strip(), ctypes.CDLL(None).statx


def is_image(path: str, status: os.stat_result) -> bool:
    """Returns whether a file or folder may be an image's.

    A disk that can be written may be one too, such as ext4 in a file. Coarse times alone make a network's file system
    none: Lustre's are whole seconds, and comparing contents there would be slow.
    """
    if status.st_ctime_ns % SECOND_NS:
        return False
    if os.major(status.st_dev):  # of a disk; a network's, a union and tmpfs have none
        return True
    place = os.path.dirname(path) if stat.S_ISLNK(status.st_mode) else path
    try:
        return bool(os.statvfs(place).f_flag & os.ST_RDONLY) or file_system_type(place) in UNIONS
    except OSError:
        return False


def file_system_type(path: str) -> int:
    """Returns the number of a file system's type, as `statfs` reports it on Linux; 0 if it is not known."""
    if sys.platform != "linux":
        return 0
    numbers = (ctypes.c_long * 64)()  # struct statfs takes less; its first field is the type
    return numbers[0] & 0xFFFFFFFF if ctypes.CDLL(None).statfs(os.fsencode(path), numbers) == 0 else 0


def content(path: str, status: os.stat_result) -> int:
    """Returns a number from the digest of a file's bytes, a link's target, or a folder's names and links."""
    digest = hashlib.sha256()
    try:
        if stat.S_ISLNK(status.st_mode):
            digest.update(os.fsencode(os.readlink(path)))
        elif stat.S_ISDIR(status.st_mode):
            for name in sorted(os.listdir(path)):
                place = os.path.join(path, name)
                target = os.readlink(place) if os.path.islink(place) else ""
                digest.update(os.fsencode(f"{name}\0{target}\0"))
        elif stat.S_ISREG(status.st_mode):
            with open(path, "rb", buffering=0) as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
    except OSError:
        return UNREADABLE
    return int.from_bytes(digest.digest()[:8], "big")
