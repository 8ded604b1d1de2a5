"""The readers of ELF and MessagePack agree with pyelftools and msgpack on intact files."""

from __future__ import annotations

import glob
import os
import sysconfig
from collections import Counter

import msgpack as reference
import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection
from hypothesis import given
from hypothesis import strategies as st
from support.fuzzing.fuzz_targets import load

from opforge.builders.inspection import msgpack
from opforge.builders.inspection.elf_file import ElfFile
from opforge.builders.inspection.reader import Reader

fuzz = load("fuzz_inspection")
MAX_LIBRARIES, MAX_BYTES = 25, 4 << 20


def libraries():
    """Returns paths of this machine's libraries: those of Python's own modules and of the C library's folder."""
    import _ctypes

    folders = [os.path.dirname(getattr(_ctypes, "__file__", "") or sysconfig.get_path("platstdlib"))]
    folders += glob.glob("/lib/*-linux-gnu") or ["/lib64"]
    paths = {os.path.realpath(path) for folder in folders for path in glob.glob(os.path.join(folder, "*.so*"))}
    small = [path for path in sorted(paths) if os.path.getsize(path) < MAX_BYTES and is_elf(path)]
    return small[:: max(1, len(small) // MAX_LIBRARIES)]


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(6) == b"\x7fELF\x02\x01"


def names(table):
    return [symbol.name for symbol in table.iter_symbols()] if table else []


def compare(path):
    """Asserts that both readers see the same sections, symbols, libraries, versions and notes."""
    with open(path, "rb") as file:
        elf, expected = ElfFile(Reader(file.read())), ELFFile(file)
        counts = Counter(section.name for section in expected.iter_sections())
        for section in expected.iter_sections():
            if counts[section.name] == 1:
                own = elf.sections[section.name]
                fields = ("sh_addr", "sh_offset", "sh_size", "sh_link", "sh_info")
                assert own[1:] == tuple(section[name] for name in fields)
        for name in (".dynsym", ".symtab"):
            assert [symbol.name for symbol in elf.symbols(name)] == names(expected.get_section_by_name(name)), name
        dynamic = expected.get_section_by_name(".dynamic")
        needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")] if dynamic else []
        assert elf.needed() == needed
        section = expected.get_section_by_name(".gnu.version_r")
        versions = (
            [version.name for _file, entries in section.iter_versions() for version in entries] if section else []
        )
        assert elf.needed_versions() == versions
        notes = [
            (note["n_name"].encode("latin-1"), note["n_descsz"])
            for section in expected.iter_sections()
            if isinstance(section, NoteSection)
            for note in section.iter_notes()
        ]
        assert [(note.name, len(note.content)) for note in elf.notes()] == notes


def test_the_libraries_of_this_machine_read_as_pyelftools_reads_them():
    paths = libraries()
    assert len(paths) > 5
    for path in paths:
        compare(path)


@pytest.mark.parametrize(
    "path", ["library/host.so", "library/cuda.so", "cubin/sm_80.cubin", "hsaco/gfx90a.hsaco"], ids=os.path.basename
)
def test_the_files_of_the_corpus_read_as_pyelftools_reads_them(path):
    compare(os.path.join(fuzz.CORPUS, path))


TEXT = st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), max_size=40)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(TEXT, inner, max_size=20), max_leaves=60
)


@given(VALUES)
def test_what_msgpack_packs_is_unpacked(value):
    assert msgpack.unpack(Reader(reference.packb(value))) == value


@pytest.mark.parametrize(
    "value", ["x" * 40, "x" * 300, "x" * 70_000, [1] * 20, [1] * 70_000, {n: n for n in range(70_000)}]
)
def test_every_length_is_unpacked(value):
    assert msgpack.unpack(Reader(reference.packb(value))) == value


def test_the_metadata_of_a_code_object_is_what_msgpack_unpacks():
    (content,) = fuzz.seeds("msgpack").values()
    assert msgpack.unpack(Reader(content)) == reference.unpackb(content)
