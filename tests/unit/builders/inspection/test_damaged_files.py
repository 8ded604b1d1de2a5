"""Damaged files: one error that says what is damaged, within limits on steps and memory."""

from __future__ import annotations

import json
import os
import random
import struct
import tracemalloc

import pytest
from click.testing import CliRunner
from support import text_files
from support.fuzzing.fuzz_targets import load
from support.fuzzing.mutations import mutants
from support.fuzzing.step_limit import step_limit
from support.store.fake_store import FakeStore

from opforge.builders.inspection import cuobjdump, elf, elf_file, fatbin, hsaco, shims
from opforge.builders.inspection.examine import examine, examine_content
from opforge.builders.inspection.reader import FileFormatError, Reader
from opforge.cli.inspect import command

fuzz = load("fuzz_inspection")
SEEDS = [(parser, name) for parser in fuzz.PARSERS for name in fuzz.seeds(parser)]
MUTANTS, TRACED = 160, 40
"""How many mutants of each file are read, and of how many of these the steps and the memory are measured."""
STEPS_PER_BYTE, BYTES_PER_BYTE, BYTES = 6, 40, 1 << 20
"""Limits by the size of a file: lines of Python, and memory."""


@pytest.fixture(autouse=True)
def no_other_programs(monkeypatch):
    monkeypatch.setattr(cuobjdump, "find_cuobjdump", lambda: None)
    monkeypatch.setattr(shims, "torch_folder", lambda: None)


def seed(kind, name):
    return fuzz.seeds(kind)[name]


def elf_with(offset, value, size=8):
    """Returns the library of the corpus with another number at an offset."""
    content = seed("library", "host.so")
    return content[:offset] + value.to_bytes(size, "little") + content[offset + size :]


@pytest.mark.parametrize(("parser", "name"), SEEDS)
def test_every_file_of_the_corpus_is_intact(parser, name):
    content = seed(parser, name)
    assert "damaged" not in fuzz.run(parser, content)
    if parser != "msgpack":
        report = examine_content(name, content)
        assert report["images"] or report["exports"]


@pytest.mark.parametrize(("parser", "name"), SEEDS)
def test_a_damaged_file_is_read_or_refused_in_bounded_steps_and_memory(parser, name):
    content, chance = seed(parser, name), random.Random(f"{parser}/{name}")
    refused = 0
    for number, mutant in enumerate(mutants(content, chance, MUTANTS)):
        if number < TRACED:
            tracemalloc.start()
            with step_limit(STEPS_PER_BYTE * len(content) + 2000):
                result = fuzz.run(parser, mutant)
            _size, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < BYTES_PER_BYTE * len(content) + BYTES
        else:
            result = fuzz.run(parser, mutant)
        refused += "damaged" in result or "is no " in result
    assert refused > 0 or parser == "ptx", "the mutations reach nothing that the parser reads"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            seed("library", "host.so")[:-1],
            "x is damaged: its section table would end at byte 14480, beyond its 14479 bytes",
        ),
        (elf_with(0x28, 2**63), "x is damaged: its section table would end at byte"),
        (elf_with(0x3A, 1, 2), "x is damaged: its headers of sections have 1 bytes, and not 64"),
        (elf_with(0x3E, 999, 2), "x is damaged: its names are in section 999, and there are"),
        (elf_with(0x04, 1, 1), "x is not an ELF file of 64 bits, little-endian"),
        (elf_with(0x12, 0, 2), "x is not a library: its header names no machine"),
        (b"\x50\xed\x55\xba" + b"\0" * 12, "x is damaged: the header of the fatbin at byte 0 has 0 bytes, not 16"),
        (
            fatbin.HEADER.pack(0xBA55ED50, 1, 16, 48) + bytes(48),
            "a fatbin is damaged: the header of a part has 0 bytes, not 48 or more",
        ),
        (fatbin.BUNDLE + b"\xff" * 8, "x is damaged: the list of a bundle's code objects would end at byte 56"),
        (
            fatbin.BUNDLE + struct.pack("<QQQQ", 1, 0, 0, 2**40),
            f"x is damaged: the name of a code object has {2**40} bytes, more than 1024",
        ),
        (b"text", "x is not a library, a cubin, an HSACO, a fatbin, a bundle or a PTX file"),
    ],
)
def test_the_error_says_what_is_damaged(content, problem):
    with pytest.raises(FileFormatError) as caught:
        examine_content("x", content)
    assert str(caught.value).startswith(problem)


def overlapping_bundle(count, size):
    """Returns a bundle of many code objects that are all the same bytes: an ELF file with `size` symbols."""
    head = fatbin.BUNDLE + fatbin.COUNT.pack(count)
    triple = b"hipv4-amdgcn-amd-amdhsa--gfx90a"
    table = len(head) + count * (fatbin.OBJECT.size + len(triple))
    code = seed("hsaco", "gfx90a.hsaco") + bytes(size)
    objects = (fatbin.OBJECT.pack(table, len(code), len(triple)) + triple for _ in range(count))
    return head + b"".join(objects) + code


def test_parts_that_are_all_the_same_bytes_are_not_read_for_ever():
    content = overlapping_bundle(2000, 1000)
    with (
        step_limit(60 * len(content)),
        pytest.raises(FileFormatError, match="its parts refer to the same bytes again and again"),
    ):
        examine_content("x", content)


def test_names_that_overlap_do_not_fill_the_memory():
    """A table of n symbols whose names are the n ends of one long name: n * n bytes of names."""
    count = 4000
    names, labels = b"\0" + b"a" * count + b"\0", b"\0.dynsym\0.dynstr\0"
    symbols = b"".join(elf_file.SYMBOL.pack(1 + number, 0x12, 0, 1, 0, 8) for number in range(count))
    sections, contents, at = [bytes(elf_file.SECTION.size)], b"", 64 + 4 * elf_file.SECTION.size
    for label, kind, link, content in ((1, 11, 2, symbols), (9, 3, 0, names), (0, 3, 0, labels)):
        sections.append(elf_file.SECTION.pack(label, kind, 0, 0, at + len(contents), len(content), link, 0, 1, 24))
        contents += content
    header = b"\x7fELF\x02\x01" + elf_file.HEADER.pack(0, 3, 62, 1, 0, 0, 64, 0, 64, 0, 0, 64, 4, 3)[6:]
    file = elf_file.ElfFile(Reader(header + b"".join(sections) + contents))
    with pytest.raises(FileFormatError, match="refer to the same bytes again and again"):
        file.symbols(".dynsym")


def test_a_ptx_text_of_empty_lines_is_searched_once():
    text = b".version 9.0 .target\n" + b"\n \t" * (1 << 20)  # a pattern that backtracks would take hours
    assert examine_content("x", text)["images"][0]["arch"] == ""


def test_names_cannot_write_to_the_terminal():
    content = seed("library", "host.so").replace(b"length_of\0", b"len\x1b[2J\n\0\0")
    assert elf.of_library(elf_file.ElfFile(Reader(content)))["exports"] == ["add_one", "len\\x1b[2J\\n"]


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        (b"\x91\xc0", "its metadata is [None], expected a map"),
        (b"\x81\xaeamdhsa.kernels\x01", "its metadata has no list of kernels"),
        (b"\x81\xaeamdhsa.kernels\x91\x80", "a kernel of its metadata has no name"),
        (
            b"\x81\xaeamdhsa.kernels\x91\x82\xa5.name\xa1k\xab.vgpr_count\xa1x",
            ".vgpr_count of a kernel is 'x', expected a number",
        ),
        (b"\x81\x90\x01", "a key of a map is an array or a map"),
        (b"\x91" * 100 + b"\x01", "its values are nested more than 32 times"),
        (b"\xdd\xff\xff\xff\xff", "a value would end at byte 6, beyond its 5 bytes"),
        (b"\xc1", "byte 0 begins no value that AMD's metadata has (0xc1)"),
        (b"\x80\x01", "after its value there are 1 more bytes"),
    ],
)
def test_damaged_metadata_of_a_code_object_is_named(monkeypatch, metadata, problem):
    note = elf_file.Note(b"AMDGPU", hsaco.METADATA, Reader(metadata, "its metadata"))
    monkeypatch.setattr(elf_file.ElfFile, "notes", lambda self: iter([note]))
    with pytest.raises(FileFormatError) as caught:
        hsaco.kernels(Reader(seed("hsaco", "gfx90a.hsaco")), "gfx90a")
    assert str(caught.value).endswith(problem)


@pytest.mark.parametrize(("parser", "name"), [("library", "cuda.so"), ("hsaco", "gfx90a.hsaco")])
def test_the_command_reports_a_damaged_file_without_a_traceback(tmp_path, parser, name):
    chance = random.Random(7)
    path = tmp_path / "x.so"
    for mutant in mutants(seed(parser, name), chance, 40):
        path.write_bytes(mutant)
        done = CliRunner().invoke(command, [str(path)])
        assert done.exit_code in (0, 1) and isinstance(done.exception, (SystemExit, type(None))), done.exception
        if done.exit_code:
            assert done.stderr.startswith(f"error: {path} cannot be inspected: ")


def test_the_other_files_of_a_folder_are_shown_beside_a_damaged_one(tmp_path):
    (tmp_path / "good.so").write_bytes(seed("library", "host.so"))
    (tmp_path / "notes.txt").write_text("text")
    cut = tmp_path / "cut.so"
    cut.write_bytes(seed("library", "host.so")[:5000])
    problem = f"{cut} is damaged: its section table would end at byte 12816, beyond its 5000 bytes"
    done = CliRunner().invoke(command, [str(tmp_path), "--json"])
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert [file["path"] for file in report["files"]] == [str(tmp_path / "good.so")]
    assert report["problems"] == [problem]
    text = CliRunner().invoke(command, [str(tmp_path)])
    assert text.exit_code == 1 and "add_one" in text.stdout and text.stderr == f"error: {problem}\n"


@pytest.mark.parametrize("name", ["record.json", "build.json"])
def test_a_damaged_record_beside_a_library_is_no_error(tmp_path, name):
    store = FakeStore(tmp_path / "store", tmp_path / "src")
    key = store.add("x")
    library, path = store.library(key), os.path.join(store.layout.entry(key), name)
    os.unlink(library)
    with open(library, "wb") as file:
        file.write(seed("library", "host.so"))

    def entry():
        done = CliRunner().invoke(command, [store.layout.entry(key), "--json"])
        assert done.exit_code == 0, done.output
        (file,) = json.loads(done.stdout)["files"]
        return file["entry"]

    with open(path) as file:
        intact = json.load(file)
    assert entry()["op"] == "x"
    changed = {"record.json": {"file": "../x.so"}, "build.json": {"components": []}}[name]
    for text in ("", "[]", "{}", json.dumps(intact | changed)):
        text_files.write(os.path.dirname(path), name, text)
        assert entry() == {} if name == "record.json" else entry()["op"] == "x" and entry()["compiler"] == ""
    os.unlink(path)
    os.mkfifo(path)  # would wait for a writer for ever
    assert entry().get("op") == ("x" if name == "build.json" else None)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "sparse.so"
    with open(path, "wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(ValueError, match="is not a regular file of at most"):
        examine(str(path))
