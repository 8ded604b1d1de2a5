"""Files whose stamps do not identify them: those of images, such as squashfs and ext3 in Apptainer, erofs, ISO 9660.

A system that writes a file sets the time of its change itself, to the nanosecond. In an image all times are those that
its maker chose. If these are fixed, files with other contents have equal times, sizes and inodes in two images, and the
mounted images have equal devices. Programs on the host may share one home folder, and so what is remembered of files.

What was mounted to be written is known by its mount (`remembered_values.py`): while it is mounted, the system sets the
times of what changes. So the disk of a virtual machine, which was an image, is not read again and again. All else is
known by its content.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import sys

SECOND_NS = 1_000_000_000
"""A time of change that is a whole second is an image's, or that of a file system with coarse times."""
UNIONS = frozenset({0x794C7630, 0x65735546, 0x61756673, 0x01021997})
"""overlay, FUSE (squashfuse, virtiofs), aufs and 9p, which may show an image's files with the image's times.
(linux/magic.h)"""
NUMBERED = frozenset({0x9123683E, 0xCA451A4E, 0x2FC12FC1})
"""Disks whose devices have no major number, as those of networks have none: btrfs, bcachefs, ZFS."""
EROFS = 0xE0F5E1E2
"""Keeps one time of a file, which its maker chose to the nanosecond, and shows it as all three."""
UNREADABLE = -1
BY_CONTENT, ALL_BY_CONTENT = -1, -2
"""Files are known by their content: those that were changed at a whole second, or all of them."""


def mount_of(place: str, number: int, is_disk: bool, is_written: bool) -> int:
    """Returns the part of a mount in its files' stamps: its number, 0 for none, BY_CONTENT or ALL_BY_CONTENT.

    Coarse times alone make a network's file system no image: Lustre's are whole seconds, and comparing contents there
    would be slow.

    Args:
        place: A folder or file of it.
        number: A number that no other mount has; 0 if it has none.
        is_disk: Whether its device is a disk, which may be an image too, such as ext4 in a file.
        is_written: Whether it was mounted to be written.
    """
    kind = file_system_type(place)
    if kind == EROFS:
        return ALL_BY_CONTENT
    if not is_written or kind in UNIONS:
        return BY_CONTENT
    return number or BY_CONTENT if is_disk or kind in NUMBERED else 0


def inode(path: str, status: os.stat_result) -> int:
    """Returns the last number of a small file's stamp: of one that may be an image's, from its content."""
    return status.st_ino if status.st_ctime_ns % SECOND_NS else content(path, status)


def needs_content(status: os.stat_result, mount: int) -> bool:
    """Returns whether a file is known by its content, on a mount for which `mount_of` returned this number."""
    return mount == ALL_BY_CONTENT or (mount == BY_CONTENT and not status.st_ctime_ns % SECOND_NS)


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
