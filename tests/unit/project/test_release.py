"""What `make dist` writes beside the wheels, and that the version is stated once."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest
from support import scripts
from support.paths import CHECKOUT

import opforge

METADATA = """\
Metadata-Version: 2.4
Name: mine
Version: 1.5
License-Expression: MIT
Requires-Dist: torch>=2.10
Requires-Dist: click >= 8 ; extra == "cli"
"""


@pytest.fixture(scope="module")
def dist():
    """The module .ci/dist.py."""
    folder = os.path.join(CHECKOUT, ".ci")
    sys.path.insert(0, folder)
    try:
        yield scripts.load(".ci/dist.py")
    finally:
        sys.path.remove(folder)


def wheel_of(folder, libraries):
    """Writes a wheel with these libraries, and returns its path."""
    path = os.path.join(folder, "mine-1.5-py3-none-any.whl")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mine-1.5.dist-info/METADATA", METADATA)
        for name, content in libraries.items():
            archive.writestr(name, content)
    return path


def test_the_metadata_has_the_package_s_version_and_the_changelog_lists_it():
    with open(os.path.join(CHECKOUT, "CHANGELOG.md"), encoding="utf-8") as file:
        listed = re.search(r"^## (\S+)", file.read(), re.MULTILINE)[1]
    command = [sys.executable, "setup.py", "--version"]
    built = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    assert opforge.__version__ == built.split()[-1] == listed


@pytest.mark.test_all("needs build and ziglang")
def test_an_sbom_names_requirements_libraries_and_what_is_linked_into_them(dist, tmp_path):
    path = wheel_of(tmp_path, {"mine/_opforge_ops/a.so": b"code"})
    value = json.loads(dist.sbom(path))
    with open(path, "rb") as file:
        whole = hashlib.sha256(file.read()).hexdigest()
    assert value["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": whole}]
    assert [component["name"] for component in value["components"]] == ["torch", "mine/_opforge_ops/a.so", "libc++"]
    assert value["components"][1]["hashes"][0]["content"] == hashlib.sha256(b"code").hexdigest()
    assert dist.sbom(path) == dist.sbom(path)


def test_a_pure_wheel_s_sbom_has_requirements_alone(dist, tmp_path):
    assert [part["name"] for part in json.loads(dist.sbom(wheel_of(tmp_path, {})))["components"]] == ["torch"]


@pytest.mark.test_all("needs build and ziglang")
def test_the_provenance_states_the_commit_the_tools_and_every_digest(dist):
    value = json.loads(dist.provenance({"b.whl": "22", "a.tar.gz": "11"}, "c0ffee", 12345))
    assert value["subject"] == [
        {"name": "a.tar.gz", "digest": {"sha256": "11"}},
        {"name": "b.whl", "digest": {"sha256": "22"}},
    ]
    build = value["predicate"]["buildDefinition"]
    assert build["externalParameters"] == {"commit": "c0ffee", "SOURCE_DATE_EPOCH": 12345}
    assert build["resolvedDependencies"][0] == {"digest": {"gitCommit": "c0ffee"}}
    assert any(part.get("uri", "").startswith("pkg:pypi/setuptools@") for part in build["resolvedDependencies"])


def test_an_sdist_has_the_same_bytes_whenever_and_by_whomever_it_was_made(dist, tmp_path):
    written = []
    for files, when, owner in ((["x/a", "x/b"], 7, 0), (["x/b", "x/a"], 99, 1000)):
        path = str(tmp_path / "x.tar.gz")
        with tarfile.open(path, "w:gz") as archive:
            for file in files:
                entry = tarfile.TarInfo(file)
                entry.size, entry.mtime, entry.uid, entry.mode = 4, when, owner, 0o664
                archive.addfile(entry, io.BytesIO(file.encode() + b"!"))
        dist.repack(path, 1000)
        with open(path, "rb") as packed:
            written.append(packed.read())
    assert written[0] == written[1]
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(written[0]))) as archive:
        assert [(part.name, part.mtime, part.uid, part.mode) for part in archive] == [
            ("x/a", 1000, 0, 0o644),
            ("x/b", 1000, 0, 0o644),
        ]
        assert archive.extractfile("x/b").read() == b"x/b!"


def test_a_second_release_that_differs_is_refused_with_the_name_of_the_file(dist, tmp_path):
    for folder, text in (("one", "1"), ("two", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same").write_text("same")
        (tmp_path / folder / "other").write_text(text)
    with pytest.raises(SystemExit, match="differs from the first: other"):
        dist.compare(str(tmp_path / "one"), str(tmp_path / "two"))
