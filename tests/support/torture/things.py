"""What the torture of faults puts in place of a file or a folder of a store."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
import stat
from collections.abc import Callable
from typing import Any

STRANGERS = (0, 4242, 65534)
"""The user ids that files are given."""
TIMES = (-1, 0, 1, 1_000_000_000, 1_700_000_000, 4_102_444_800, 253_402_300_799)
"""The times, in seconds, that files are given: before 1970, past, and until the end of the year 9999."""
NAMES = ("a", "b\udcff", "c\n", ".tmp", "x.1.00000000.tmp", "0" * 32, "0" * 32 + "-" + "0" * 8)
"""What lies in a folder that is put in a file's place."""
VALUES = (None, True, -1, 0, 1 << 70, 1e308, "", "x" * 10_000, "\0", "../../../outside", [], {}, [[]], {"": None})
"""What a field of a record is replaced by."""


def paths_in(folders: list[str]) -> tuple[list[str], list[str]]:
    """Returns the files below some folders, links and other things included, and the folders below them."""
    files, inner = [], []
    for folder in folders:
        for parent, names, others in os.walk(folder):
            linked = [name for name in names if os.path.islink(os.path.join(parent, name))]
            files += [os.path.join(parent, name) for name in (*others, *linked)]
            inner += [os.path.join(parent, name) for name in names if name not in linked]
    return sorted(files), sorted(inner)


def remove(path: str) -> None:
    """Removes whatever is at a path; follows no link."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)


def snapshot(folder: str) -> dict[str, tuple[object, ...]]:
    """Returns what identifies each file and folder below a folder, and itself: modes, owners, times, contents."""
    state = {}
    for path in sum(paths_in([folder]), [folder]):
        status = os.lstat(path)
        content = os.readlink(path) if stat.S_ISLNK(status.st_mode) else ""
        if stat.S_ISREG(status.st_mode):
            with open(path, "rb") as file:
                content = hashlib.sha256(file.read()).hexdigest()
        state[path] = (status.st_mode, status.st_uid, status.st_gid, status.st_ino, status.st_mtime_ns, content)
    return state


class Damager:
    """Damages a store at random.

    Args:
        chance: Makes every choice.
        outside: A folder beside the store, to which links lead. Nothing may change it.
    """

    def __init__(self, chance: random.Random, outside: str) -> None:
        self.chance, self.outside = chance, outside

    def damage(self, path: str, files: list[str], is_live: bool = False) -> str:
        """Damages what is at a path; returns how, for messages. OSError means that it could not be done.

        `files` are those of the store. While processes use the store (`is_live`) no file changes in place, as on a disk
        that replaces it: a library that is cut while it is mapped ends its process, whatever opforge does.
        """
        kinds = [*REPLACEMENTS, *ATTRIBUTES] if is_live else [*REPLACEMENTS, *ATTRIBUTES, *CONTENTS]
        name = self.chance.choice(kinds)
        status = os.lstat(path)
        is_file = stat.S_ISREG(status.st_mode)
        if name not in REPLACEMENTS and is_file and status.st_nlink > 1:
            name = "nothing"  # this file is also one that lies outside: the damage must not touch it
        if name in ATTRIBUTES:
            ATTRIBUTES[name](self, path)
        elif name in CONTENTS:
            if is_file:
                self._rewrite(path, CONTENTS[name])
            else:
                name = "nothing"
                remove(path)
        else:
            temporary = f"{os.path.dirname(path)}/.planted"
            remove(temporary)
            REPLACEMENTS[name](self, temporary, files)
            if is_live and os.path.isfile(path) and os.path.lexists(temporary) and not os.path.isdir(temporary):
                os.replace(temporary, path)
                return name
            remove(path)
            if os.path.lexists(temporary):
                os.rename(temporary, path)
        return name

    def _rewrite(self, path: str, change: Callable[[Damager, bytes], bytes]) -> None:
        status = os.lstat(path)
        if status.st_size > 1 << 20:
            os.truncate(path, 0)
            return
        with open(path, "rb") as file:
            content = file.read()
        with open(path, "wb") as file:
            file.write(change(self, content))
        if self.chance.random() < 0.5:  # as a copy that keeps times
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _a_socket(self, path: str, _files: list[str]) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            folder = os.open(os.path.dirname(path), os.O_RDONLY)
            try:
                server.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")  # a socket's path may have 107 bytes
            finally:
                os.close(folder)

    def _sparse(self, path: str, _files: list[str]) -> None:
        with open(path, "wb") as file:
            file.truncate(1 << 42)

    def _folder(self, path: str, _files: list[str]) -> None:
        os.mkdir(path)
        for name in self.chance.sample(NAMES, self.chance.randrange(4)):
            with open(os.path.join(path, name), "w") as file:
                file.write("something")

    def _random_bytes(self, path: str, _files: list[str]) -> None:
        with open(path, "wb") as file:
            file.write(self.chance.randbytes(self.chance.randrange(5000)))

    def _another_file(self, path: str, files: list[str]) -> None:
        small = [name for name in files if os.path.isfile(name) and os.path.getsize(name) < 1 << 20]
        shutil.copy(self.chance.choice(small), path)

    def _link_out(self, path: str, _files: list[str]) -> None:
        os.symlink(self.chance.choice(sum(paths_in([self.outside]), [self.outside])), path)

    def _link_in(self, path: str, files: list[str]) -> None:
        target = self.chance.choice(files)
        os.symlink(self.chance.choice([target, os.path.dirname(target)]), path)

    def _hard_link_out(self, path: str, _files: list[str]) -> None:
        os.link(self.chance.choice(paths_in([self.outside])[0]), path, follow_symlinks=False)

    def _hard_link_in(self, path: str, files: list[str]) -> None:
        os.link(self.chance.choice(files), path, follow_symlinks=False)

    def _set_mode(self, path: str) -> None:
        if not os.path.islink(path):
            os.chmod(path, self.chance.choice([0, 0o200, 0o400, 0o666, 0o777, 0o1777, self.chance.randrange(0o10000)]))

    def _set_owner(self, path: str) -> None:
        if os.geteuid() == 0:
            os.chown(path, self.chance.choice(STRANGERS), self.chance.choice(STRANGERS), follow_symlinks=False)

    def _set_time(self, path: str) -> None:
        os.utime(path, (self.chance.choice(TIMES), self.chance.choice(TIMES)), follow_symlinks=False)

    def _cut(self, content: bytes) -> bytes:
        return content[: self.chance.randrange(len(content) + 1)]

    def _flip_bit(self, content: bytes) -> bytes:
        changed = bytearray(content)
        if changed:
            changed[self.chance.randrange(len(changed))] ^= 1 << self.chance.randrange(8)
        return bytes(changed)

    def _change_field(self, content: bytes) -> bytes:
        """Returns another value somewhere in a JSON file; in other files, one line twice."""
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            lines = content.splitlines(keepends=True)
            return b"".join([*lines, *lines[-1:]])
        holder: Any = {"": value}
        key: Any = ""
        while isinstance(holder[key], (dict, list)) and holder[key] and self.chance.random() < 0.8:
            holder = holder[key]
            key = self.chance.choice([*holder] if isinstance(holder, dict) else range(len(holder)))
        holder[key] = self.chance.choice(VALUES)
        return json.dumps(value).encode()

    def _nest(self, _content: bytes) -> bytes:
        return b"[" * 200_000


REPLACEMENTS: dict[str, Callable[[Damager, str, list[str]], None]] = {
    "nothing": lambda _self, _path, _files: None,
    "a pipe": lambda _self, path, _files: os.mkfifo(path),
    "a socket": Damager._a_socket,
    "a link to /dev/zero": lambda _self, path, _files: os.symlink("/dev/zero", path),
    "a link to /dev/full": lambda _self, path, _files: os.symlink("/dev/full", path),
    "a dangling link": lambda _self, path, _files: os.symlink("nowhere", path),
    "a link to itself": lambda _self, path, _files: os.symlink(path.replace(".planted", "."), path),
    "a link out of the store": Damager._link_out,
    "a link into the store": Damager._link_in,
    "a hard link out of the store": Damager._hard_link_out,
    "a hard link into the store": Damager._hard_link_in,
    "a folder": Damager._folder,
    "terabytes": Damager._sparse,
    "an empty file": lambda _self, path, _files: open(path, "w").close(),
    "random bytes": Damager._random_bytes,
    "another file of the store": Damager._another_file,
}
ATTRIBUTES: dict[str, Callable[[Damager, str], None]] = {
    "a mode": Damager._set_mode,
    "an owner": Damager._set_owner,
    "a time": Damager._set_time,
}
CONTENTS: dict[str, Callable[[Damager, bytes], bytes]] = {
    "cut": Damager._cut,
    "a bit": Damager._flip_bit,
    "a field": Damager._change_field,
    "deep nesting": Damager._nest,
}
