"""Archives of packages that lead elsewhere, hold more than they say, or hold what no digest covers."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile

import pytest
from support.text_files import write

from opforge.cache.transfer.tar_reader import zstd
from opforge.errors import KernelInstallError
from opforge.packages.form import digests
from opforge.packages.installed import add
from opforge.packages.registry import release, tree_blob

LINK = ("", "/etc/passwd")


def blob_of(tmp_path, members):
    """Returns a packed archive with these (name, content, kind) and what a release says of it."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content, kind in members:
            header = tarfile.TarInfo(name)
            header.type, header.size, header.linkname = (
                kind,
                len(content),
                LINK[kind != tarfile.REGTYPE],
            )
            archive.addfile(header, io.BytesIO(content))
    path = tmp_path / "blob"
    path.write_bytes(zstd().compress(raw.getvalue()))
    data = path.read_bytes()
    return path, release.Blob(hashlib.sha256(data).hexdigest(), len(data), len(raw.getvalue()))


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([("../x", b"a", tarfile.REGTYPE)], "'../x' does not stay inside the package"),
        ([("/etc/x", b"a", tarfile.REGTYPE)], "'/etc/x' does not stay inside the package"),
        ([("a/../../x", b"a", tarfile.REGTYPE)], "does not stay inside the package"),
        ([("x", b"", tarfile.SYMTYPE)], "'x' is not a file"),
        ([("x", b"", tarfile.LNKTYPE)], "'x' is not a file"),
        ([("x", b"", tarfile.FIFOTYPE)], "'x' is not a file"),
        ([("x", b"a", tarfile.REGTYPE), ("x", b"b", tarfile.REGTYPE)], "'x' is in it twice"),
        ([("x", b"a", tarfile.REGTYPE), ("x/y", b"b", tarfile.REGTYPE)], None),
        ([("caf\u00e9.py", b"a", tarfile.REGTYPE)], "is no path of a file in a package"),
    ],
)
def test_an_archive_that_leads_elsewhere_is_refused(tmp_path, members, text):
    path, blob = blob_of(tmp_path, members)
    with open(path, "rb") as file, pytest.raises((KernelInstallError, OSError)) as error:
        tree_blob.unpack(file, blob, str(tmp_path / "out"), "acme/x")
    assert text is None or text in str(error.value)
    assert not os.path.exists(tmp_path / "x")


def test_an_archive_that_unpacks_to_more_than_its_release_says_is_refused(tmp_path):
    path, blob = blob_of(tmp_path, [("x", b"0" * 10_000_000, tarfile.REGTYPE)])
    with open(path, "rb") as file, pytest.raises(KernelInstallError, match="it holds more than"):
        tree_blob.unpack(file, blob._replace(unpacked=20_000), str(tmp_path / "out"), "acme/x")


@pytest.mark.parametrize("name", ["evil.pyc", "__pycache__/__init__.cpython-311.pyc"])
def test_bytecode_in_a_package_is_refused(registry, name):
    folder = os.path.join(registry.packed(), "build", "torch-universal")
    staged = os.path.join(registry.scratch, "staged")
    os.makedirs(staged)
    for path in (*digests.files_of(folder), "metadata.json"):
        with open(os.path.join(folder, path)) as file:
            write(staged, path, file.read())
    write(staged, name, "x")
    with pytest.raises(KernelInstallError, match="is bytecode, which no digest covers"):
        add.add_tree(registry.root, staged, "torch-universal")
