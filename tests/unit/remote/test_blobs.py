"""Blobs: the same bytes for the same entry, and nothing but the files that the offer names."""

from __future__ import annotations

import io
import os
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opforge.cache.keys import canonical
from opforge.cache.transfer.archive import member
from opforge.cache.transfer.tar_reader import zstd
from opforge.remote import blobs, offers


@pytest.fixture
def packed(plain_entry, tmp_path):
    """The blob of an entry in a file, with its offer."""
    path = tmp_path / "blob"
    with path.open("w+b") as file:
        blob = blobs.pack(plain_entry.folder, plain_entry.record, file)
    return path, offers.Offer(plain_entry.record, blob)


def unpack(path, offer, folder):
    with path.open("rb") as file:
        blobs.check(file, offer.blob)
        blobs.unpack(file, offer, str(folder))


def written(offer, path, *members, unpacked=None):
    """Writes a blob with these (name, content) and returns an offer that names it."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members:
            header = name if isinstance(name, tarfile.TarInfo) else member(name, len(content))
            archive.addfile(header, io.BytesIO(content))
    return renamed(offer, path, zstd().compress(raw.getvalue()), unpacked or len(raw.getvalue()))


def renamed(offer, path, data, unpacked):
    from opforge.cache.keys import bytes_digest

    path.write_bytes(data)
    return offer._replace(blob=offers.Blob(bytes_digest(data), len(data), unpacked))


def test_the_same_entry_gives_the_same_bytes(packed, plain_entry, tmp_path):
    path, offer = packed
    with (tmp_path / "again").open("w+b") as file:
        record = dict(reversed(plain_entry.record.items()))
        assert blobs.pack(plain_entry.folder, record, file) == offer.blob
    assert path.read_bytes() == (tmp_path / "again").read_bytes()


def test_a_blob_unpacks_to_the_entry(packed, plain_entry, tmp_path):
    path, offer = packed
    unpack(path, offer, tmp_path / "entry")
    assert (tmp_path / "entry" / "record.json").read_bytes() == canonical(plain_entry.record)
    with open(plain_entry.library, "rb") as library:
        assert (tmp_path / "entry" / plain_entry.record["file"]).read_bytes() == library.read()
    assert sorted(os.listdir(tmp_path / "entry")) == sorted(["record.json", plain_entry.record["file"]])


def test_a_damaged_entry_is_not_packed(plain_entry, tmp_path):
    record = {**plain_entry.record, "sha256": "0" * 64}
    with (tmp_path / "blob").open("w+b") as file, pytest.raises(ValueError, match="is damaged: its library is not"):
        blobs.pack(plain_entry.folder, record, file)


@pytest.mark.parametrize(("change", "problem"), [(b"", "bytes instead of"), (b"xx", "bytes instead of")])
def test_a_blob_of_another_length_is_refused(packed, tmp_path, change, problem):
    path, offer = packed
    path.write_bytes(path.read_bytes()[:-1] + change)
    with pytest.raises(blobs.BlobError, match=problem):
        unpack(path, offer, tmp_path / "entry")


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_is_refused(packed, tmp_path_factory, at, bit):
    path, offer = packed
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    flipped = tmp_path_factory.mktemp("flipped") / "blob"
    flipped.write_bytes(data)
    with pytest.raises(blobs.BlobError, match="digest differs"):
        unpack(flipped, offer, flipped.parent / "entry")


def names_of(offer):
    prefix = f"entries/{offer.entry}"
    return f"{prefix}/record.json", f"{prefix}/{offer.record['file']}"


@pytest.mark.parametrize("kind", ["climbs", "absolute", "other", "link", "device", "folder", "too many", "twice"])
def test_a_signed_blob_with_other_members_is_refused(packed, plain_entry, tmp_path, kind):
    """The signer is trusted, and may still be wrong: nothing is written outside of the entry's folder."""
    path, offer = packed
    record, library = names_of(offer)
    with open(plain_entry.library, "rb") as file:
        content = file.read()
    link = tarfile.TarInfo(record)
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    device, folder = tarfile.TarInfo(record), tarfile.TarInfo(f"entries/{offer.entry}")
    device.type, folder.type = tarfile.CHRTYPE, tarfile.DIRTYPE
    good = [(record, canonical(offer.record)), (library, content)]
    members = {
        "climbs": [("entries/../../../outside", b"x"), *good],
        "absolute": [("/tmp/outside", b"x"), *good],
        "other": [(f"entries/{'0' * 32}-{'0' * 8}/record.json", canonical(offer.record)), good[1]],
        "link": [(link, b""), *good],
        "device": [(device, b""), *good],
        "folder": [(folder, b""), *good],
        "too many": [*good, (f"entries/{offer.entry}/more.so", b"x")],
        "twice": [*good, good[0]],
    }[kind]
    changed = written(offer, path, *members)
    is_plain_file = kind not in ("link", "device", "folder")
    problem = (
        "in the blob is not a file of its entry" if is_plain_file else "the blob cannot be unpacked: .* is not a file"
    )
    with pytest.raises(blobs.BlobError, match=problem):
        unpack(path, changed, tmp_path / "entry")
    assert {*os.listdir(tmp_path)} <= {"blob", "entry"} | {"store", "caches"}


def test_a_blob_that_lacks_a_file_is_refused(packed, tmp_path):
    path, offer = packed
    changed = written(offer, path, (names_of(offer)[0], canonical(offer.record)))
    with pytest.raises(blobs.BlobError, match=r"the blob lacks .*\.so"):
        unpack(path, changed, tmp_path / "entry")


def test_another_record_than_the_offers_is_refused(packed, plain_entry, tmp_path):
    path, offer = packed
    record, library = names_of(offer)
    text = canonical(offer.record).replace(b'"plain"', b'"plaim"')
    with open(plain_entry.library, "rb") as file:
        changed = written(offer, path, (record, text), (library, file.read()))
    with pytest.raises(blobs.BlobError, match="the record in the blob is not that of its offer"):
        unpack(path, changed, tmp_path / "entry")


def test_a_bomb_is_refused_before_it_is_unpacked(packed, tmp_path):
    path, offer = packed
    bomb = renamed(offer, path, zstd().compress(bytes(64 << 20)), offer.blob.unpacked)
    with pytest.raises(blobs.BlobError, match="cannot be unpacked"):
        unpack(path, bomb, tmp_path / "entry")
    record, library = names_of(offer)
    big = {**offer.record, "size": 64 << 20}
    lying = offer._replace(record=big)
    changed = written(lying, path, (record, canonical(big)), (library, bytes(64 << 20)), unpacked=20_000)
    with pytest.raises(blobs.BlobError, match="more than 200000 files or 20000 bytes"):
        unpack(path, changed, tmp_path / "entry2")
    assert not os.path.exists(tmp_path / "entry2" / big["file"])


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd" + b"\xff" * 100])
def test_what_is_no_archive_is_refused(packed, tmp_path, data):
    path, offer = packed
    with pytest.raises(blobs.BlobError):
        unpack(path, renamed(offer, path, data, 20_000), tmp_path / "entry")


def test_a_frame_that_asks_for_much_memory_is_refused(packed, tmp_path):
    path, offer = packed
    module = zstd()
    options = {module.CompressionParameter.window_log: 27, module.CompressionParameter.enable_long_distance_matching: 1}
    data = module.ZstdCompressor(options=options).compress(os.urandom(1 << 10) * 20_000, mode=2)
    with pytest.raises(blobs.BlobError, match="cannot be unpacked"):
        unpack(path, renamed(offer, path, data, 30 << 20), tmp_path / "entry")
