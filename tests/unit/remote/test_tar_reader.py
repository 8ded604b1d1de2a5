"""The archive in a blob is read in one pass and within bounds: on what it unpacks to, on memory, and on its members."""

from __future__ import annotations

import io
import random
import tarfile

import pytest
from support import child_processes

from opforge.remote import tar_reader
from opforge.remote.tar_reader import TarReader, zstd

UNPACK_WITH_LITTLE_MEMORY = """
import os, resource
from opforge.remote import tar_reader
path = os.environ["BLOB"]
tar_reader.zstd()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open(path, "rb") as file:
    reader = tar_reader.TarReader(file, 1 << 30)
    print(sum(len(chunk) for _member in reader.members() for chunk in reader.content()))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def new_member(name, kind=tarfile.REGTYPE, size=0):
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member


def tar(*members):
    """Returns an archive of (TarInfo or name, bytes)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as file:
        for name, content in members:
            member = new_member(name) if isinstance(name, str) else name
            member.size = len(content) if member.isreg() else 0
            file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def read(content, allowed=1 << 20):
    """Returns the files in an archive that is packed as a blob."""
    reader = TarReader(io.BytesIO(zstd().compress(bytes(content))), allowed)
    return {name: b"".join(reader.content()) for name, _size in reader.members()}


def refusal(content, allowed=1 << 20):
    with pytest.raises(ValueError, match=r".") as caught:
        read(content, allowed)
    return str(caught.value)


@pytest.mark.parametrize("name", ["x" * 120, "größe", "大きさ" * 20, "deep/er/" * 20 + "x"])
def test_every_name_is_read(name):
    assert read(tar((name, b"1"), ("b.so", b"22"))) == {name: b"1", "b.so": b"22"}


def test_an_empty_one_has_no_files():
    assert read(tar()) == {}


def test_a_member_that_claims_a_huge_or_a_negative_size_is_refused_at_once():
    for size in (-512, -1, 1 << 62):
        content = new_member("a.so", size=size).tobuf(tarfile.GNU_FORMAT) + b"x" * 512
        assert "'a.so' has no valid size" in refusal(content)
    huge = new_member("a.so", size=(8 << 30) - 1).tobuf(tarfile.GNU_FORMAT)
    assert "it holds more than 200000 files or 1048576 bytes" in refusal(huge + b"x" * 512)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_a_long_name_of_any_size_is_not_read_into_memory(kind):
    long = new_member("././@LongLink", kind, size=8 << 20)
    assert "'././@LongLink' is not a regular file" in refusal(long.tobuf(tarfile.GNU_FORMAT) + b"x" * 512, 1 << 40)


def test_a_record_that_changes_more_than_a_name_is_refused():
    member = new_member("a.so")
    member.pax_headers = {"GNU.sparse.map": "0,0"}
    assert "is not a regular file: it sets 'GNU.sparse.map'" in refusal(tar((member, b"1")))


def test_many_members_are_refused(monkeypatch):
    monkeypatch.setattr(tar_reader, "MAX_MEMBERS", 3)
    assert "it holds more than 3 files or" in refusal(tar(*((f"{number}.py", b"") for number in range(4))))


@pytest.mark.parametrize("zeroed", [512, 1024, 5000, 10_240, None], ids=str)
def test_one_whose_beginning_is_zeros_is_refused(zeroed):
    content = tar(("a.so", b"1" * 900)) + bytes(tarfile.RECORDSIZE)
    length = len(content) if zeroed is None else zeroed
    assert "damaged" in refusal(bytes(length) + content[length:])


def test_zeros_in_place_of_a_later_header_are_refused():
    content = bytearray(tar(("a.so", b"1"), ("b.so", b"2")))
    content[1024:1536] = bytes(512)
    assert "a header in it is only zeros: it is damaged" in refusal(content)


def test_zeros_without_end_are_not_read():
    content = tar(("a.so", b"1")) + bytes(tar_reader.MAX_PADDING)
    assert f"it has more than {tar_reader.MAX_PADDING} zeros at its end: it is damaged" in refusal(content, 8 << 20)


def test_one_that_is_cut_short_is_refused_unless_only_padding_is_missing():
    content = tar(("a.so", b"1" * 600), ("b.so", b"2"))
    needed = len(content.rstrip(b"\0")) // 512 * 512 + 512
    for length in [*range(0, needed, 256), needed]:
        assert "it is cut short" in (problem := refusal(content[:length])) or tar_reader.NO_ARCHIVE in problem
    assert [*read(content[: needed + 512])] == ["a.so", "b.so"]


@pytest.mark.parametrize("content", [b"not an archive" * 80, b"\0" * 511, random.Random(0).randbytes(2048)])
def test_what_is_no_archive_is_refused(content):
    assert tar_reader.NO_ARCHIVE in refusal(content)


def test_compressed_bytes_that_are_damaged_or_cut_are_refused():
    blob = zstd().compress(tar(("a.so", random.Random(1).randbytes(9000))))
    for damaged in (blob[: len(blob) // 2], blob[:40] + b"\xff\x00\xff" * 9 + blob[67:], blob[:10]):
        with pytest.raises(ValueError, match=r"its compressed data is cut short or damaged \(|it is not a tar archive"):
            reader = TarReader(io.BytesIO(damaged), 1 << 20)
            for _member in reader.members():
                b"".join(reader.content())


def test_a_name_that_is_no_text_is_shown_escaped():
    header = bytearray(new_member("abcd.so").tobuf(tarfile.USTAR_FORMAT))
    header[3] = 0xFF
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    assert [*read(bytes(header) + bytes(1024))] == ["abc\\xff.so"]


def test_a_large_member_is_not_held_in_memory(tmp_path):
    parts = [new_member("a.so", size=60 << 20).tobuf(tarfile.USTAR_FORMAT), bytes(60 << 20), bytes(1024)]
    (tmp_path / "blob").write_bytes(zstd().compress(b"".join(parts)))
    output = child_processes.run_python(UNPACK_WITH_LITTLE_MEMORY, env={"BLOB": str(tmp_path / "blob")})
    count, grown = map(int, output.split())
    assert count == 60 << 20 and grown < 20
