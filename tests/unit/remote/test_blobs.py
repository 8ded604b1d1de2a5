"""Blobs: the same bytes for the same files, and nothing but the files that the statement's tree names."""

from __future__ import annotations

import hashlib
import io
import os
import resource
import stat
import subprocess
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.text_files import write

from opforge.cache.keys import bytes_digest
from opforge.cache.trees import File, digest_of_files
from opforge.remote import blobs
from opforge.remote.blobs import Blob, BlobError, Tree
from opforge.remote.stores import open_store
from opforge.remote.tar_reader import zstd

FILES = {"__init__.py": "import torch\n", "_ops.py": "ops = 1\n", "lib.so": "library" * 1000, "deep/er/x.json": "{}"}


@pytest.fixture
def folder(tmp_path):
    """A folder with a few files."""
    for name, text in FILES.items():
        write(tmp_path / "files", name, text)
    return tmp_path / "files"


@pytest.fixture
def packed(folder, tmp_path):
    """The blob of the folder in a file, with its tree."""
    path = tmp_path / "blob"
    with path.open("w+b") as file:
        tree, _hashes = blobs.pack(str(folder), FILES, file)
    return path, tree


def unpack(path, tree, folder):
    with open(path, "rb") as file:
        return blobs.unpack(file, tree, str(folder))


def written(path, *members, unpacked=None):
    """Writes a blob with these (name or header, content) and returns the tree that names it."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members:
            header = name if isinstance(name, tarfile.TarInfo) else blobs._header(name, len(content))
            archive.addfile(header, io.BytesIO(content))
    files = {
        name: File(name, bytes_digest(content), name.endswith(".so"))
        for name, content in members
        if not isinstance(name, tarfile.TarInfo) and name.isascii()
    }
    return named(
        path, zstd().compress(raw.getvalue()), unpacked or len(raw.getvalue()), digest_of_files(files.values())
    )


def named(path, data, unpacked, digest="0" * 64):
    path.write_bytes(data)
    return Tree(digest, Blob(bytes_digest(data), len(data), unpacked))


def test_a_blob_that_this_machine_has_no_room_for_is_no_fault_of_its_store(tmp_path):
    write(tmp_path / "files", "lib.so", os.urandom(1 << 16).hex())
    with (tmp_path / "blob").open("w+b") as file:
        tree, _hashes = blobs.pack(str(tmp_path / "files"), ["lib.so"], file)
        (tmp_path / "store").mkdir()
        store = open_store((tmp_path / "store").as_uri())
        assert store.put_if_absent(tree.blob.name, file)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # as a disk that is full
    try:
        with pytest.raises(OSError, match="File too large"):  # not BlobError, after which it is not asked for again
            blobs.fetch(store, tree, str(tmp_path), "first")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (tmp_path / "blob").unlink()
    assert [file.path for file in blobs.fetch(store, tree, str(tmp_path), "second")] == ["lib.so"]


def test_the_same_files_give_the_same_bytes(packed, folder, tmp_path):
    path, tree = packed
    for name in FILES:
        os.utime(folder / name, (1, 1))
        os.chmod(folder / name, 0o640)
    with (tmp_path / "again").open("w+b") as file:
        again, hashes = blobs.pack(str(folder), reversed(FILES), file)
    assert again == tree
    assert path.read_bytes() == (tmp_path / "again").read_bytes()
    assert hashes == {name: hashlib.sha256(text.encode()).hexdigest() for name, text in FILES.items()}


def test_blobs_keep_their_bytes(folder, packed):
    """What was packed once is found again under its name: by tar's headers and zstd's level."""
    path, tree = packed
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(FILES):
            header = tarfile.TarInfo(name)
            header.size, header.mode, header.mtime = len(FILES[name]), 0o500 if name == "lib.so" else 0o600, 0
            archive.addfile(header, io.BytesIO(FILES[name].encode()))
    assert zstd().decompress(path.read_bytes()) == raw.getvalue()
    assert tree.blob.unpacked == len(raw.getvalue())


def test_the_name_of_a_tree_can_be_computed_by_common_tools(packed, folder):
    _path, tree = packed
    script = """cd "$1"; find . -type f | sed 's|^./||' | LC_ALL=C sort | while read -r path; do
        case "$path" in *.so) flag=x;; *) flag=-;; esac
        printf '%s %s %s\\n' "$(sha256sum < "$path" | cut -d' ' -f1)" "$flag" "$path"
    done"""
    lines = subprocess.run(["sh", "-c", script, "sh", str(folder)], capture_output=True, check=True).stdout
    by_path = sorted(lines.decode().splitlines(keepends=True), key=lambda line: line.split(" ", 2)[2])
    assert hashlib.sha256("".join(by_path).encode()).hexdigest() == tree.digest


def test_a_blob_unpacks_to_its_files(packed, tmp_path):
    path, tree = packed
    files = unpack(path, tree, tmp_path / "out")
    assert [file.path for file in files] == sorted(FILES)
    assert {name: (tmp_path / "out" / name).read_text() for name in FILES} == FILES
    modes = {name: stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) for name in FILES}
    assert modes == {name: 0o700 if name == "lib.so" else 0o600 for name in FILES}


@pytest.mark.parametrize("odd", ["link", "pipe", "gone"])
def test_what_is_no_regular_file_is_not_packed(folder, tmp_path, odd):
    path = folder / "_ops.py"
    path.unlink()
    if odd == "link":
        path.symlink_to(folder)
    elif odd == "pipe":
        os.mkfifo(path)
    with (tmp_path / "blob").open("w+b") as file, pytest.raises((ValueError, OSError)):
        blobs.pack(str(folder), FILES, file)


def test_terabytes_are_not_packed(folder, tmp_path):
    os.truncate(folder / "lib.so", 1 << 42)
    with (tmp_path / "blob").open("w+b") as file, pytest.raises(ValueError, match="a blob holds at most 4294967296"):
        blobs.pack(str(folder), FILES, file)


@pytest.mark.parametrize("change", [b"", b"xx"])
def test_a_blob_of_another_length_is_refused(packed, tmp_path, change):
    path, tree = packed
    path.write_bytes(path.read_bytes()[:-1] + change)
    with pytest.raises(BlobError, match="bytes instead of"):
        unpack(path, tree, tmp_path / "out")


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_is_refused(packed, tmp_path_factory, at, bit):
    path, tree = packed
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    flipped = tmp_path_factory.mktemp("flipped") / "blob"
    flipped.write_bytes(data)
    with pytest.raises(BlobError, match="digest differs"):
        unpack(flipped, tree, flipped.parent / "out")


def header(kind, name="x", linkname="/etc/passwd"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, linkname
    return info


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ([("../x", b"a")], "'../x' does not stay inside the package"),
        ([("/etc/x", b"a")], "'/etc/x' does not stay inside the package"),
        ([("a/../../x", b"a")], "does not stay inside the package"),
        ([(header(tarfile.SYMTYPE), b"")], "'x' is not a regular file"),
        ([(header(tarfile.LNKTYPE), b"")], "'x' is not a regular file"),
        ([(header(tarfile.FIFOTYPE), b"")], "'x' is not a regular file"),
        ([(header(tarfile.CHRTYPE), b"")], "'x' is not a regular file"),
        ([(header(tarfile.DIRTYPE), b"")], "'x/' is not a regular file"),
        ([("x", b"a"), ("x", b"b")], "'x' is in it twice"),
        ([("x", b"a"), ("x/y", b"b")], "'x/y' is both a file and a folder in it"),
        ([("x/y", b"a"), ("x", b"b")], "'x' is both a file and a folder in it"),
        ([("caf\u00e9.py", b"a")], "cannot be in a package: expected up to"),
    ],
)
def test_a_signed_blob_that_leads_elsewhere_is_refused(tmp_path, members, problem):
    """The signer is trusted, and may still be wrong: nothing is written outside of the folder."""
    tree = written(tmp_path / "blob", *members)
    with pytest.raises(BlobError, match="the blob cannot be unpacked: ") as error:
        unpack(tmp_path / "blob", tree, tmp_path / "out")
    assert problem in str(error.value)
    assert sorted(os.listdir(tmp_path)) == ["blob", "out"]


@pytest.mark.parametrize("kind", ["lacks", "more", "other", "mode"])
def test_a_blob_with_other_files_than_its_tree_is_refused(packed, tmp_path, kind):
    path, tree = packed
    members = [(name, text.encode()) for name, text in sorted(FILES.items())]
    executable = tarfile.TarInfo("_ops.py")
    executable.mode, executable.size = 0o500, len(FILES["_ops.py"])
    changed = {
        "lacks": members[1:],
        "more": [*members, ("z.py", b"x")],
        "other": [(name, b"x" if name == "_ops.py" else content) for name, content in members],
        "mode": [(executable if name == "_ops.py" else name, content) for name, content in members],
    }[kind]
    lying = written(path, *changed)._replace(digest=tree.digest)
    with pytest.raises(BlobError, match=r"the blob holds other files than its tree: \w+"):
        unpack(path, lying, tmp_path / "out")


def test_a_bomb_is_refused_before_it_is_unpacked(packed, tmp_path):
    path, tree = packed
    bomb = named(path, zstd().compress(bytes(64 << 20)), tree.blob.unpacked)
    with pytest.raises(BlobError, match="cannot be unpacked"):
        unpack(path, bomb, tmp_path / "out")
    lying = written(path, ("x.so", bytes(64 << 20)), unpacked=20_000)
    with pytest.raises(BlobError, match="more than 200000 files or 20000 bytes"):
        unpack(path, lying, tmp_path / "out2")
    assert not os.listdir(tmp_path / "out2")


def test_ten_thousand_files_are_the_most(tmp_path, monkeypatch):
    monkeypatch.setattr(blobs, "MAX_FILES", 3)
    tree = written(tmp_path / "blob", *((f"{number}.py", b"") for number in range(4)))
    with pytest.raises(BlobError, match="it has more than 3 files"):
        unpack(tmp_path / "blob", tree, tmp_path / "out")


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd" + b"\xff" * 100])
def test_what_is_no_archive_is_refused(tmp_path, data):
    with pytest.raises(BlobError):
        unpack(tmp_path / "blob", named(tmp_path / "blob", data, 20_000), tmp_path / "out")


def test_a_frame_that_asks_for_much_memory_is_refused(tmp_path):
    module = zstd()
    options = {module.CompressionParameter.window_log: 27, module.CompressionParameter.enable_long_distance_matching: 1}
    data = module.ZstdCompressor(options=options).compress(os.urandom(1 << 10) * 20_000, mode=2)
    with pytest.raises(BlobError, match="Frame requires too much memory"):
        unpack(tmp_path / "blob", named(tmp_path / "blob", data, 30 << 20), tmp_path / "out")
