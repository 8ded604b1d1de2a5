"""Reads files of torch strictly: two readers of one zip file may find other members in it, or other bytes.

torch stores its members one behind the other, uncompressed, in one folder. A file is refused in which the list at its
end says other than what stands before each member, in which members overlap, or have names that are no plain paths.
Nothing of it is written or unpacked here, and what is read has at most the size of the file.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
from types import TracebackType
from typing import IO, NamedTuple

from opforge.cache import trees

MAX_MEMBERS = 100_000
CHUNK = 1 << 20
LOCAL = struct.Struct("<4s5H3I2H")
"""The header before a member: signature, version, flags, method, time, date, checksum, two sizes, two lengths."""
SIGNATURE = b"PK\x03\x04"
SIZE_FOLLOWS, UTF8, IN_EXTRA = 0x8, 0x800, 0xFFFFFFFF
"""Flags: the sizes stand behind the member, as torch writes them; its name is UTF-8. A size that stands elsewhere."""


class Member(NamedTuple):
    """Where a member lies in the file."""

    offset: int
    size: int


class Archive:
    """A file of torch: its members by name, without torch's folder."""

    def __init__(self, path: str) -> None:
        """Opens a file and checks its form. Raises OSError, ValueError."""
        self._file = open(path, "rb")  # noqa: SIM115  # closed by `close`
        try:
            with zipfile.ZipFile(self._file) as listed:
                infos = sorted(listed.infolist(), key=lambda info: info.header_offset)
                comment, end = listed.comment, listed.start_dir
            self.root = _root(infos, comment)
            self.members = self._members(infos, end)
        except (zipfile.BadZipFile, NotImplementedError) as error:  # the second: it names a version that needs more
            self.close()
            raise ValueError(str(error)) from error
        except BaseException:
            self.close()
            raise

    def _members(self, infos: list[zipfile.ZipInfo], end: int) -> dict[str, Member]:
        members, free = dict[str, Member](), 0
        for info in infos:
            what = ascii(info.filename)[:100]
            if info.header_offset < free or (not members and info.header_offset):
                raise ValueError(f"{what} lies in another member, or behind other bytes than members")
            self._file.seek(info.header_offset)
            header = self._file.read(LOCAL.size)
            if len(header) < LOCAL.size:
                raise ValueError(f"{what} lies behind the end of the file")
            signature, _version, flags, method, _time, _date, _sum, stored, size, name, extra = LOCAL.unpack(header)
            text = self._file.read(name)
            sizes = (0, info.file_size) if flags & SIZE_FOLLOWS else (info.file_size, IN_EXTRA)
            is_same = signature == SIGNATURE and text == info.orig_filename.encode() and flags == info.flag_bits
            if not is_same or method != info.compress_type or stored not in sizes or size not in sizes:
                raise ValueError(f"{what} is another member than the list at the end of the file says")
            offset = info.header_offset + LOCAL.size + name + extra
            free = offset + info.file_size
            if free > end:
                raise ValueError(f"{what} lies behind the end of the members")
            members[info.filename.removeprefix(self.root)] = Member(offset, info.file_size)
        return members

    def read(self, name: str, most: int) -> bytes:
        """Returns a member. Raises ValueError if there is none of this name, or it is larger than `most`; OSError."""
        member = self.members.get(name)
        if member is None:
            raise ValueError(f"{name} is missing")
        if member.size > most:
            raise ValueError(f"{name} has {member.size} bytes, and at most {most} are read")
        self._file.seek(member.offset)
        return self._file.read(member.size)

    def digest_of(self, name: str, target: IO[bytes] | None = None) -> str:
        """Returns the SHA-256 of a member, and copies it to a target. Raises OSError."""
        digest, (offset, left) = hashlib.sha256(), self.members[name]
        self._file.seek(offset)
        while left and (chunk := self._file.read(min(CHUNK, left))):
            left -= len(chunk)
            digest.update(chunk)
            if target is not None:
                target.write(chunk)
        return digest.hexdigest()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _root(infos: list[zipfile.ZipInfo], comment: bytes) -> str:
    """Returns torch's folder, with a slash. Raises ValueError for names and forms that torch would not write."""
    names = [info.filename for info in infos]
    roots = {name.partition("/")[0] for name in names}
    if len(roots) != 1 or len(set(names)) != len(names) or len(names) > MAX_MEMBERS or comment:
        raise ValueError("it is not a program that torch has saved: expected one folder in it, and each name once")
    root = f"{roots.pop()}/"
    for info in infos:
        what = ascii(info.filename)[:100]
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise ValueError(f"{what} is compressed: torch compresses nothing")
        if info.flag_bits & ~(SIZE_FOLLOWS | UTF8):
            raise ValueError(f"{what} is encrypted, or has another flag that torch does not set")
        if problem := trees.path_problem(info.filename.removeprefix(root)):
            raise ValueError(problem.replace("a package", "a program").replace("the package", "the program"))
    return root


def name_of(path: str) -> str:
    """Returns the name of a program by its file's: up to the first dot, with '_' for other characters."""
    name = os.path.basename(path).partition(".")[0]
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in name)
