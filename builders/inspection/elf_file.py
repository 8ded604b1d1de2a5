"""Reads the sections, symbols and notes of a 64-bit little-endian ELF file.

The format: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html, and for the versions of symbols
https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .reader import FileFormatError, Reader

MAGIC, FORM = b"\x7fELF", b"\x02\x01"
"""FORM: 64 bits, little-endian."""
HEADER = struct.Struct("<8xB7xHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SEGMENT = struct.Struct("<IIQQQQQQ")
SYMBOL = struct.Struct("<IBBHQQ")
DYNAMIC = struct.Struct("<qQ")
NEED, NEED_NAME = struct.Struct("<HHIII"), struct.Struct("<IHHII")
NOTE = struct.Struct("<III")
HASH, HASH_WORD, HASH_ENTRY = struct.Struct("<4I"), struct.Struct("<Q"), struct.Struct("<I")
NOBITS, NOTES, LARGE_INDEX, LARGE_COUNT = 8, 7, 0xFFFF, 0
"""Types of sections: without content, and notes. Values of the header that stand for a field of the first section."""
NEEDED, RPATH, TEXTREL, RUNPATH, FLAGS = 1, 15, 22, 29, 30
"""Tags of the dynamic section: a library that is needed, two search paths, two marks of relocations in code."""
TEXTREL_FLAG = 4
"""The mark of relocations in code among the FLAGS."""
STACK, EXECUTABLE = 0x6474E551, 1
"""The kind of segment that says how the stack is mapped, and the flag of memory that can be executed."""
UNDEFINED, DEFAULT, GLOBAL, WEAK, FUNCTION, CHOSEN = 0, 0, 1, 2, 2, 10
"""Of a symbol: the section if another library defines it, a visibility, two bindings, and two types: the second is
of a function that the loader chooses for the processor."""
CUDA, AMDGPU = "cuda", "amdgpu"
MACHINES = {0: "none", 21: "ppc64", 62: "x86_64", 183: "aarch64", 190: CUDA, 224: AMDGPU, 243: "riscv"}


class Section(NamedTuple):
    """A section's header. `link` is the section of its names; `info` depends on its kind."""

    kind: int
    address: int
    offset: int
    size: int
    link: int
    info: int


class Symbol(NamedTuple):
    """A symbol of a table."""

    name: str
    bind: int
    kind: int
    visibility: int
    section: int
    size: int


class Note(NamedTuple):
    """An entry of a section of notes."""

    name: bytes
    kind: int
    content: Reader


class ElfFile:
    """An ELF file. Every method raises FileFormatError if a part that it reads is damaged."""

    def __init__(self, file: Reader) -> None:
        self._file = file
        if not file.starts_with(MAGIC + FORM):
            raise FileFormatError(f"{file.name} is not an ELF file of 64 bits, little-endian")
        fields = file.unpack(HEADER, 0, "its header")
        self.abi_version, _type, machine, _version, _entry, self._segments_at, offset, self.flags, *sizes = fields
        self.machine = MACHINES.get(machine, f"machine {machine}")
        _header, _segment, _segment_count, entry_size, count, names_index = sizes
        self._segment_count = sizes[2]
        self._all: list[Section] = []
        self.sections: dict[str, Section] = {}
        """By name; of several with the same name the first."""
        self._tables: dict[str, list[Symbol]] = {}
        if offset:
            self._read_sections(offset, entry_size, count, names_index)

    def _read_sections(self, offset: int, entry_size: int, count: int, names_index: int) -> None:
        if entry_size != SECTION.size:
            raise self._file.damaged(f"its headers of sections have {entry_size} bytes, and not {SECTION.size}")
        first = self._file.unpack(SECTION, offset, "its section table")
        count = first[5] if count == LARGE_COUNT else count
        names_index = first[6] if names_index == LARGE_INDEX else names_index
        table = self._file.content(offset, count * SECTION.size, "its section table")
        headers = list(SECTION.iter_unpack(table))
        self._all = [Section(fields[1], *fields[3:8]) for fields in headers]
        name_at = self._names(names_index)
        for fields, section in zip(headers, self._all, strict=True):
            self.sections.setdefault(name_at(fields[0]), section)

    def content(self, section: Section | None) -> Reader:
        """Returns the bytes of a section; empty if there is none, or if it has none in the file."""
        if section is None or section.kind == NOBITS:
            return self._file.part(0, 0, "an empty section")
        return self._file.part(section.offset, section.size, f"a section of {self._file.name}")

    def position(self, address: int) -> int | None:
        """Returns the position in the file of what is loaded at an address; None if none of the file is."""
        loaded = (section for section in self._all if section.address and section.kind != NOBITS)
        there = (section for section in loaded if 0 <= address - section.address < section.size)
        return next((section.offset + address - section.address for section in there), None)

    def text(self, position: int) -> str:
        """Returns the text at a position in the file."""
        return self._file.text(position, "a text")

    def symbols(self, name: str) -> list[Symbol]:
        """Returns the symbols of a table, which is read once; none if the file has no such table."""
        if name not in self._tables:
            self._tables[name] = self._symbols(name)
        return self._tables[name]

    def _symbols(self, name: str) -> list[Symbol]:
        section = self.sections.get(name)
        if section is None:
            return []
        table = self.content(section)
        if len(table) % SYMBOL.size:
            raise table.damaged(f"{name} has {len(table)} bytes, expected a multiple of {SYMBOL.size}")
        name_at = self._names(section.link)
        return [
            Symbol(name_at(at), info >> 4, info & 15, other & 3, index, size)
            for at, info, other, index, _value, size in SYMBOL.iter_unpack(table.content(0, len(table), name))
        ]

    def segments(self) -> list[tuple[int, int]]:
        """Returns the kind and the flags of each segment, which decide how the file is mapped."""
        at, segments = self._segments_at, list[tuple[int, int]]()
        for number in range(self._segment_count if at else 0):
            kind, flags, *_rest = self._file.unpack(SEGMENT, at + number * SEGMENT.size, "its segments")
            segments.append((kind, flags))
        return segments

    def dynamic(self) -> list[tuple[int, int]]:
        """Returns the tags of the dynamic section with their values."""
        section = self.sections.get(".dynamic")
        if section is None:
            return []
        table, entries = self.content(section), list[tuple[int, int]]()
        for at in range(0, len(table), DYNAMIC.size):
            tag, value = table.unpack(DYNAMIC, at, "its dynamic section")
            if tag == 0:
                break
            entries.append((tag, value))
        return entries

    def needed(self) -> list[str]:
        """Returns the names of the libraries that have to be loaded first."""
        return self._dynamic_texts(NEEDED)

    def search_path(self) -> list[str]:
        """Returns the folders in which these libraries are looked for first. $ORIGIN stands for the file's own."""
        return [folder for text in self._dynamic_texts(RPATH, RUNPATH) for folder in text.split(":") if folder]

    def _dynamic_texts(self, *tags: int) -> list[str]:
        section = self.sections.get(".dynamic")
        if section is None:
            return []
        name_at = self._names(section.link)
        return [name_at(value) for tag, value in self.dynamic() if tag in tags]

    def defines(self, name: str) -> bool:
        """Returns whether a library defines a symbol for others. Reads no more than it must: torch's have 400 MB."""
        table, symbols = self.content(self.sections.get(".gnu.hash")), self.sections.get(".dynsym")
        if symbols is None:
            return False
        if not len(table):
            return any(symbol.name == name and symbol.section != UNDEFINED for symbol in self.symbols(".dynsym"))
        what, code, digest = "its table of hashes", name.encode(), _gnu_hash(name.encode())
        buckets, first, words, shift = table.unpack(HASH, 0, what)
        if not (buckets and words):
            return False
        (word,) = table.unpack(HASH_WORD, HASH.size + digest // 64 % words * HASH_WORD.size, what)
        if not word >> digest % 64 & word >> (digest >> shift) % 64 & 1:
            return False
        at = HASH.size + words * HASH_WORD.size
        (index,) = table.unpack(HASH_ENTRY, at + digest % buckets * HASH_ENTRY.size, what)
        chain, rows = at + buckets * HASH_ENTRY.size, self.content(symbols)
        names = self.content(self._all[symbols.link]) if symbols.link < len(self._all) else rows.part(0, 0, what)
        while index >= first:
            (entry,) = table.unpack(HASH_ENTRY, chain + (index - first) * HASH_ENTRY.size, what)
            if entry | 1 == digest | 1:
                start, _info, _other, section, *_rest = rows.unpack(SYMBOL, index * SYMBOL.size, "a symbol")
                is_long = start + len(code) < len(names)
                if section != UNDEFINED and is_long and names.content(start, len(code) + 1, "a name") == code + b"\0":
                    return True
            if entry & 1:
                break
            index += 1
        return False

    def needed_versions(self) -> list[str]:
        """Returns the versions of other libraries' symbols that this one uses, such as GLIBC_2.14."""
        section = self.sections.get(".gnu.version_r")
        if section is None:
            return []
        table, name_at, versions = self.content(section), self._names(section.link), []
        at = 0
        for _library in range(section.info):
            _version, count, _file, first, following = table.unpack(NEED, at, "its table of versions")
            name_entry = at + first
            for _name in range(count):
                _hash, _flags, _index, name, step = table.unpack(NEED_NAME, name_entry, "its table of versions")
                versions.append(name_at(name))
                if not step:
                    break
                name_entry += step
            if not following:
                break
            at += following
        return versions

    def notes(self) -> Iterator[Note]:
        """Yields each note of every section of notes."""
        for section in self._all:
            if section.kind != NOTES:
                continue
            table, at = self.content(section), 0
            while at + NOTE.size <= len(table):
                name_size, size, kind = table.unpack(NOTE, at, "a note")
                at += NOTE.size
                name = table.content(at, name_size, "a note's name")
                at += _aligned(name_size)
                yield Note(name.rstrip(b"\0"), kind, table.part(at, size, "a note"))
                at += _aligned(size)

    def _names(self, index: int) -> Callable[[int], str]:
        """Returns a function that returns the name at a position of a section of names."""
        if not index < len(self._all):
            raise self._file.damaged(f"its names are in section {index}, and there are {len(self._all)}")
        table = self.content(self._all[index])
        names: dict[int, str] = {}

        def name_at(position: int) -> str:
            if position not in names:  # many symbols have the same name
                names[position] = table.text(position, "a name") if position else ""
            return names[position]

        return name_at


def _gnu_hash(name: bytes) -> int:
    """Returns the hash of a symbol's name: https://flapenguin.me/elf-dt-gnu-hash."""
    value = 5381
    for byte in name:
        value = value * 33 + byte & 0xFFFFFFFF
    return value


def _aligned(size: int) -> int:
    return (size + 3) & ~3
