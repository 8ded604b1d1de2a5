"""Blobs that are damaged or hostile, made at random out of a valid one."""

from __future__ import annotations

import io
import random
import tarfile

from opforge.remote.tar_reader import zstd

NAMES = ["/etc/opforge", "../../outside", "a/../../outside", "", ".", "..", "deep", "a\nb", "é.so", ".hidden"]
KINDS = b"0\x001234567gxLKSZ"
FIELDS = ((0, 100), (100, 8), (124, 12), (124, 12), (156, 1), (157, 100), (257, 8), (345, 155))
"""Where a header has its fields, and their lengths: name, mode, size, kind, link, magic, prefix."""
SIZES = (0, 1, 511, 513, 1 << 20, (8 << 30) - 1)


class Mutator:
    """Makes blobs out of a valid one."""

    def __init__(self, blob: bytes, chance: random.Random) -> None:
        self.content, self.chance = zstd().decompress(blob), chance
        content = self.content
        with tarfile.open(fileobj=io.BytesIO(content)) as file:
            self.members = [(member.name, file.extractfile(member).read()) for member in file]

    def blob(self) -> bytes:
        """Returns the next blob."""
        chance = self.chance
        content = self.content if chance.random() < 0.4 else self._from_members()
        for _time in range(chance.choice((0, 1, 1, 1, 2, 5))):
            content = chance.choice((self._flip, self._cut, self._repeat, self._zero, self._header))(content)
        content = zstd().compress(content, level=1)
        if chance.random() < 0.15:
            for _time in range(chance.choice((0, 0, 1, 3))):
                content = chance.choice((self._flip, self._cut, self._repeat, self._zero))(content)
        return content

    def _from_members(self) -> bytes:
        chance, buffer = self.chance, io.BytesIO()
        members = [(tarfile.TarInfo(name), content) for name, content in self.members]
        for _time in range(chance.choice((0, 1, 1, 2))):
            place = chance.randrange(len(members))
            member, content = members[place]
            action = chance.randrange(6)
            if action == 0:
                members.insert(chance.randrange(len(members) + 1), members[place])
            elif action == 1:
                members.insert(chance.randrange(len(members) + 1), (self._hostile(), chance.randbytes(20)))
            elif action == 2:
                member.name = chance.choice([*NAMES, member.name + chance.choice(("/x", "\n", ".", "/.."))])
            elif action == 3:
                member.type = bytes([chance.choice(KINDS)])
            elif action == 4:
                member.pax_headers = {chance.choice(("path", "size", "GNU.sparse.map", "mtime")): chance.choice(NAMES)}
            else:
                members[place] = (member, content[: chance.randrange(len(content) + 1)])
        with tarfile.open(
            fileobj=buffer, mode="w", format=chance.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
        ) as tar:
            for member, content in members:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return buffer.getvalue()

    def _hostile(self) -> tarfile.TarInfo:
        prefix = self.chance.choice(("", "deep/er/"))
        member = tarfile.TarInfo(prefix + self.chance.choice(NAMES))
        member.type = bytes([self.chance.choice(KINDS)])
        member.linkname = self.chance.choice(("", "/etc/passwd", "../../../outside"))
        return member

    def _flip(self, content: bytes) -> bytes:
        changed = bytearray(content)
        for _time in range(self.chance.choice((1, 1, 3, 20)) if changed else 0):
            changed[self.chance.randrange(len(changed))] = self.chance.randrange(256)
        return bytes(changed)

    def _cut(self, content: bytes) -> bytes:
        return content[: self.chance.randrange(len(content) + 1)]

    def _repeat(self, content: bytes) -> bytes:
        start, place = (self.chance.randrange(len(content) + 1) // 512 * 512 for _time in range(2))
        return content[:place] + content[start : start + 512 * self.chance.choice((1, 2, 50))] + content[place:]

    def _zero(self, content: bytes) -> bytes:
        start = self.chance.choice((0, self.chance.randrange(len(content) + 1) // 512 * 512))
        length = min(self.chance.choice((4, 512, 1024, 10_240, 1 << 20)), len(content) - start)
        return content[:start] + bytes(length) + content[start + length :]

    def _header(self, content: bytes) -> bytes:
        """Changes a field of a header and gives it a valid checksum: otherwise the header would not be read."""
        starts = [place - 257 for place in range(257, len(content), 512) if content[place : place + 5] == b"ustar"]
        if not starts:
            return content
        start, chance = self.chance.choice(starts), self.chance
        header = bytearray(content[start : start + 512].ljust(512, b"\0"))
        field, length = chance.choice(FIELDS)
        value = chance.choice((chance.randbytes(length), b"\x80" + b"\0" * (length - 2) + b"\x05", b"\xff" * length))
        if field == 124:
            value = chance.choice((value, b"%011o\0" % chance.choice(SIZES), b"-0000000777\0"))
        header[field : field + length] = value[:length].ljust(length, b"\0")
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
        return content[:start] + bytes(header) + content[start + 512 :]
