"""An archive is read in one pass and within bounds: on what it unpacks to, on memory, and on what may be opened."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import tarfile
import zlib

import pytest
from support import child_processes
from support.store.fake_archives import ENTRY, entry_keys, members, new_member, refusal_of, rewrite

from opforge.cache.transfer import archive, tar_reader

UNPACK_WITH_LITTLE_MEMORY = """
import os, resource, sys
from support.store.fake_store import ME
from opforge.cache import current
from opforge.cache.layout import Layout
from opforge.cache.transfer import archive
from opforge.errors import ArchiveError
root, path = os.environ["ROOT"], os.environ["ARCHIVE"]
current.prepare(root, ME)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    archive.unpack(Layout(root), path, ME)
except ArchiveError as error:
    print(error.problem)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print("grown", grown >> 10, "MiB; staging", os.listdir(os.path.join(root, "v2", "staging")))
"""


def zeros(compressor, size, name="a.so"):
    """Returns a compressed archive of one library of zeros."""
    member = new_member(f"{ENTRY}/{name}")
    member.size = size
    parts = [compressor.compress(member.tobuf(tarfile.USTAR_FORMAT))]
    parts += [compressor.compress(bytes(1 << 20)) for _part in range(size >> 20)]
    return b"".join([*parts, compressor.compress(bytes(1024)), compressor.flush()])


def unpack_with_little_memory(tmp_path, content):
    """Unpacks an archive in a process that may use 256 MiB; returns the reason of its refusal."""
    path = tmp_path / "ops.tar"
    path.write_bytes(content)
    env = {"ROOT": str(tmp_path / "bounded"), "ARCHIVE": str(path)}
    problem, _, usage = child_processes.run_python(UNPACK_WITH_LITTLE_MEMORY, env=env).partition("\n")
    assert usage.endswith("staging []\n"), usage
    return problem, int(usage.split()[1])


COMPRESSORS = {"gzip": lambda: zlib.compressobj(wbits=31), "bz2": bz2.BZ2Compressor, "xz": lzma.LZMACompressor}


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_small_archive_does_not_unpack_to_gigabytes(tmp_path, name):
    content = zeros(COMPRESSORS[name](), 72 << 20)
    problem, grown = unpack_with_little_memory(tmp_path, content)
    assert len(content) < 100_000 and problem == "it holds more than 200000 files or 67108864 bytes"
    assert grown < 20


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_large_member_is_not_held_in_memory(tmp_path, name):
    problem, grown = unpack_with_little_memory(tmp_path, zeros(COMPRESSORS[name](), 60 << 20))
    assert problem == f"entry {os.path.basename(ENTRY)} does not hold a record and its library"
    assert grown < 20


def test_the_memory_for_xz_is_bounded_whatever_the_archive_names(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0}]
    content = bytearray(lzma.compress(bytes(20_000), filters=filters))
    size_of_dictionary = content.index(b"\x21\x01", 12) + 2  # the filter's id, the length of its properties, the size
    content[size_of_dictionary] = 39  # 3 GiB
    header = content[12 : 12 + (content[12] + 1) * 4 - 4]
    content[12 + len(header) : 12 + len(header) + 4] = zlib.crc32(header).to_bytes(4, "little")
    problem, _grown = unpack_with_little_memory(tmp_path, bytes(content))
    assert problem == "its compressed data is cut short or damaged (Memory usage limit exceeded)"


def test_what_xz_writes_at_its_best_is_imported(packed, empty_store):
    path, keys = packed
    with open(path, "rb") as file:
        content = lzma.compress(file.read(), preset=9 | lzma.PRESET_EXTREME)
    with open(path, "wb") as file:
        file.write(content)
    assert [entry.key for entry in archive.unpack(empty_store, path, {os.geteuid()})] == keys


@pytest.mark.parametrize("name", ["record.json", "build.json"])
@pytest.mark.parametrize("text", [b"[],", b"{},", b'"a",', b"1,", b"[[[[[],"])
def test_a_file_of_many_small_values_takes_bounded_memory(tmp_path, text, name):
    body = b"[" + text * ((archive.MAX_JSON - 10) // len(text)) + b"0]"
    rewrite(tmp_path / "plain.tar", [(new_member(f"{ENTRY}/{name}"), body)])
    problem, grown = unpack_with_little_memory(tmp_path, (tmp_path / "plain.tar").read_bytes())
    assert problem and grown < 256


def test_many_empty_members_are_refused_at_the_first(tmp_path, empty_store):
    rewrite(tmp_path / "many.tar", [(new_member(f"entries/{number:032x}-{0:08x}/a.so"), b"") for number in range(5000)])
    assert "does not hold a record and its library" in str(refusal_of(empty_store, tmp_path / "many.tar"))


def test_an_entry_of_more_than_three_files_is_refused_before_the_fourth_is_written(packed, empty_store):
    path, keys = packed
    rewrite(path, [*members(path)[:3], (new_member(f"entries/{keys[0]}/fourth.so"), b"x" * 5000)])
    assert f"entry {keys[0]} does not hold a record and its library" in str(refusal_of(empty_store, path))
    assert entry_keys(empty_store) == set()


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("zeroed", [512, 1024, 5000, 10_240, None], ids=str)
def test_an_archive_whose_beginning_is_zeros_is_refused(packed, empty_store, compress, zeroed):
    path, _keys = packed
    with open(path, "rb") as file:
        content = file.read() + bytes(tarfile.RECORDSIZE)
    length = len(content) if zeroed is None else zeroed
    with open(path, "wb") as file:
        file.write(compress(bytes(length) + content[length:]))
    error = refusal_of(empty_store, path)
    assert "damaged" in error.problem and error.kept == 0


def test_an_archive_with_zeros_in_place_of_a_later_header_is_refused(packed, empty_store):
    path, keys = packed
    with open(path, "rb") as file:
        content = bytearray(file.read())
    start = content.index(f"entries/{keys[1]}".encode())
    content[start : start + 512] = bytes(512)
    with open(path, "wb") as file:
        file.write(content)
    assert "a header in it is only zeros: it is damaged" in str(refusal_of(empty_store, path))


def test_zeros_without_end_are_not_read(tmp_path, empty_store, packed):
    path, _keys = packed
    with open(path, "r+b") as file:
        file.truncate(1 << 40)
    error = refusal_of(empty_store, path)
    assert f"it has more than {tar_reader.MAX_PADDING} zeros at its end: it is damaged" in str(error)


def test_only_a_regular_file_is_opened(tmp_path, empty_store):
    os.mkfifo(tmp_path / "pipe")
    os.symlink("/dev/zero", tmp_path / "zeros")
    for path in (tmp_path / "pipe", tmp_path / "zeros", "/dev/zero", tmp_path):
        assert "cannot be imported: it is not a regular file. " in str(refusal_of(empty_store, path))


def test_an_entry_with_a_pipe_for_a_library_is_not_exported(fake_store, tmp_path):
    damaged, intact = fake_store.add("relu"), fake_store.add("adam")
    library = fake_store.library(damaged)
    os.unlink(library)
    os.mkfifo(library)
    exported = archive.export(fake_store.layout, [damaged, intact], str(tmp_path / "ops.tar"))
    assert [entry.key for entry in exported] == [intact]


def test_an_export_holds_the_files_of_an_entry_alone(fake_store, tmp_path, empty_store):
    key = fake_store.add("relu")
    with open(os.path.join(fake_store.layout.entry(key), ".nfs0001"), "w") as file:
        file.write("left by the file system")
    archive.export(fake_store.layout, [key], str(tmp_path / "ops.tar"))
    assert [entry.key for entry in archive.unpack(empty_store, str(tmp_path / "ops.tar"), {os.geteuid()})] == [key]


def test_a_disk_error_is_reported_as_what_it_is(packed, empty_store, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device", "/store/file")

    monkeypatch.setattr(archive, "_write", full)
    error = refusal_of(empty_store, packed[0])
    assert str(error).endswith(
        "/store/file: No space left on device. 0 of its entries were imported before that. Free some space or give"
        " yourself access there, or set OPFORGE_CACHE_DIR to another folder."
    )


def test_a_name_that_is_no_text_is_refused(packed, empty_store):
    path, _keys = packed
    member = new_member(f"{ENTRY}/a.so")
    record = json.dumps({}).encode()
    header = bytearray(member.tobuf(tarfile.USTAR_FORMAT))
    header[3] = 0xFF
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    with open(path, "wb") as file:
        file.write(bytes(header) + record.ljust(512, b"\0") + bytes(1024))
    assert "is not a file of an entry" in str(refusal_of(empty_store, path))
