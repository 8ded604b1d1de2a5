"""metadata.json: read strictly, written in one form, and the digests of the files beside it."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os

import pytest
from hypothesis import given, settings, strategies

from opforge.errors import KernelFormatError
from opforge.packages.form import digests, metadata
from opforge.packages.form.version import Version

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DIGEST = "uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek="
NOT_CANONICAL = DIGEST[:-2] + chr(ord(DIGEST[-2]) + 1) + "="
"""The same bytes: its last digit has bits that belong to no byte."""
VALUE = {
    "name": "fast-relu",
    "id": "_fast_relu_cpu_0a1b2c3",
    "version": 2,
    "license": "Apache-2.0",
    "upstream": "https://example.org/relu",
    "kernels-minver": "0.17.0",
    "python-depends": ["einops"],
    "kernel-depends": [{"repo-id": "acme/base", "version": 1}, {"repo-id": "acme/other", "revision": "main"}],
    "backend": {"type": "cuda", "archs": ["8.0", "9.0a", "10.0f", "9.0+PTX"]},
    "digest": {"algorithm": "sha256", "files": {"__init__.py": DIGEST, "sub/x.abi3.so": DIGEST}},
    "provenance": {
        "kernel-builder": {"version": "0.10.0", "commit": COMMIT, "dirty": False},
        "kernel": {"commit": COMMIT, "dirty": True},
    },
    "x-opforge": {"format": 1, "release": "2.3"},
    "x-other": {"kept": [1, 2]},
}


def encoded(value=VALUE, **changes):
    return json.dumps({**value, **changes}).encode()


def test_every_field_is_read():
    stated = metadata.parse(encoded())
    assert (stated.name, stated.id, stated.version) == ("fast-relu", "_fast_relu_cpu_0a1b2c3", 2)
    assert stated.release == Version(2, 3)
    assert (stated.backend, stated.archs) == ("cuda", ("8.0", "9.0a", "10.0f", "9.0+PTX"))
    assert [(needed.name, str(needed.versions), needed.revision) for needed in stated.kernel_depends] == [
        ("acme/base", "1", ""),
        ("acme/other", "any", "main"),
    ]
    assert stated.kernel == (COMMIT, True)
    assert stated.files == VALUE["digest"]["files"]


def test_it_is_written_as_it_was_read_with_the_fields_that_are_not_known():
    assert metadata.parse(encoded()).to_json() == VALUE
    assert metadata.parse(metadata.parse(encoded()).text()).text() == metadata.parse(encoded()).text()


def test_a_package_of_the_hub_without_digests_and_version_is_read():
    value = {"name": "relu", "id": "_relu_1", "license": "MIT", "python-depends": [], "backend": {"type": "cpu"}}
    stated = metadata.parse(encoded(value))
    assert stated.files is None and stated.release is None and stated.to_json() == {**value, "kernel-depends": []}


def test_the_older_name_of_the_commit_is_read():
    stated = metadata.parse(encoded(provenance={"kernel": {"sha": COMMIT, "dirty": False}}))
    assert stated.kernel == (COMMIT, False)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": "../x"}, "'../x' is not a name that can be used"),
        ({"name": "CON"}, "'CON' is not a name that can be used"),
        ({"id": "a b"}, "'id' is 'a b': expected an identifier"),
        ({"id": None}, "'id' is missing"),
        ({"version": -1}, "'version' is -1: expected a whole number"),
        ({"version": True}, "'version' is True: expected a whole number"),
        ({"version": "2"}, "'version' is '2': expected a whole number"),
        ({"kernels-minver": "0.17"}, "'kernels-minver' is '0.17', and not three numbers such as 0.17.0"),
        ({"python-depends": None}, "'python-depends' is missing"),
        ({"python-depends": [1]}, "'python-depends[0]' is 1: expected a text"),
        ({"backend": {"type": "opencl"}}, "'type' is 'opencl': expected one of cann, cpu, cuda"),
        ({"backend": "cpu"}, "'backend' is 'cpu': expected an object"),
        ({"kernel-depends": [{"repo-id": "x"}]}, "'x' is not two parts with one '/'"),
        ({"kernel-depends": [{"repo-id": "a/bc", "version": "~2"}]}, "'~2' cannot be used"),
        ({"digest": {"algorithm": "md5", "files": {}}}, "'algorithm' is 'md5': expected one of sha256, sha512"),
        ({"digest": {"algorithm": "sha256", "files": {"../x": DIGEST}}}, "'../x' does not stay inside the package"),
        ({"digest": {"algorithm": "sha256", "files": {"/x": DIGEST}}}, "'/x' does not stay inside the package"),
        ({"digest": {"algorithm": "sha256", "files": {"a\\b": DIGEST}}}, "cannot be in a package: expected up to"),
        ({"digest": {"algorithm": "sha256", "files": {"x": "abc"}}}, "'abc': expected sha256 in base64"),
        ({"digest": {"algorithm": "sha512", "files": {"x": DIGEST}}}, ": expected sha512 in base64"),
        ({"digest": {"algorithm": "sha256", "files": {"x": NOT_CANONICAL}}}, ": expected sha256 in base64"),
        ({"provenance": {"kernel": {"commit": "12", "dirty": False}}}, "'commit' is '12', and not 40 or 64 hex digits"),
        ({"provenance": {"kernel": {"commit": COMMIT}}}, "'dirty' is missing"),
        ({"x-opforge": {"format": 2}}, "in 'x-opforge' 'format' is 2, and this opforge reads 1: update opforge"),
        ({"x-opforge": {"format": 1, "properties": {"framework": "torch"}}}, "'properties.arch' is missing"),
        ({"x-opforge": {"format": 1, "properties": 3}}, "'properties' is 3: expected an object"),
        ({"x-opforge": {"format": 1, "depend": {}}}, "'depend' is not a field that is read; did you mean 'depends'?"),
        ({"x-opforge": {"format": 1, "release": "x"}}, "'x' cannot be used"),
    ],
)
def test_a_wrong_field_is_refused_with_its_reason(changes, text):
    with pytest.raises(KernelFormatError) as error:
        metadata.parse(encoded(**changes), "build/v/metadata.json")
    assert text in str(error.value) and str(error.value).startswith("build/v/metadata.json")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "it is not valid JSON"),
        (b"[]", "it is a list of 0 items: expected an object"),
        (b"\xff{}", "it is not valid JSON"),
        (b'{"name": "a", "name": "b"}', "'name' is in it twice"),
        (b'{"version": NaN}', "NaN is not a JSON value"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b" " * (metadata.MAX_BYTES + 1), "it has 4194305 bytes, and at most 4194304 are read"),
    ],
)
def test_what_is_no_object_is_refused(data, text):
    with pytest.raises(KernelFormatError) as error:
        metadata.parse(data)
    assert text in str(error.value)


def test_a_pipe_in_the_place_of_the_file_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "metadata.json")
    with pytest.raises(KernelFormatError, match="it is not a regular file of at most 4194304 bytes"):
        metadata.read(str(tmp_path))


JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(max_size=8),
    lambda inner: (
        strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(
    strategies.sampled_from([*VALUE, "digest/files", "backend/type", "provenance/kernel", "x-opforge/release"]), JSON
)
def test_any_value_in_any_field_is_read_or_refused(path, replacement):
    value = copy.deepcopy(VALUE)
    *parents, last = path.split("/")
    holder = value
    for parent in parents:
        holder = holder[parent]
    holder[last] = replacement
    try:
        stated = metadata.parse(json.dumps(value).encode())
    except KernelFormatError:
        return
    assert metadata.parse(stated.text()).to_json() == stated.to_json()


class TestDigests:
    def test_they_are_the_hubs(self, tmp_path):
        (tmp_path / "a").write_text("hello world")
        assert digests.digest_of(str(tmp_path / "a")) == DIGEST
        assert digests.digest_of(str(tmp_path / "a"), "sha512").startswith("MJ7MSJwS1utMxA9QyQLytNDtd+5RGnx6m808")

    def test_metadata_and_bytecode_have_none(self, tmp_path):
        (tmp_path / "sub" / "__pycache__").mkdir(parents=True)
        for name in (
            "__init__.py",
            "metadata.json",
            "metadata.json.sigstore",
            "x.pyc",
            "sub/__pycache__/x",
            "sub/y.py",
        ):
            (tmp_path / name).write_text(name)
        assert digests.files_of(str(tmp_path)) == ["__init__.py", "sub/y.py"]

    def test_every_difference_is_named_in_the_hubs_words(self, tmp_path):
        for name in ("kept", "changed", "added"):
            (tmp_path / name).write_text(name)
        expected = digests.of_folder(str(tmp_path))
        (tmp_path / "changed").write_text("other")
        expected["gone"] = expected.pop("added")
        actual = base64.b64encode(hashlib.sha256(b"other").digest()).decode()
        assert digests.problems(str(tmp_path), expected) == [
            f"File hash mismatch for changed: expected: {expected['changed']}, got: {actual}",
            "Missing file: gone",
            "Unknown file: added",
        ]

    def test_a_loop_of_links_ends(self, tmp_path):
        (tmp_path / "loop").symlink_to(tmp_path)
        with pytest.raises((ValueError, OSError)):
            digests.files_of(str(tmp_path))

    def test_a_pipe_is_refused(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ValueError, match="is neither a file nor a folder"):
            digests.files_of(str(tmp_path))

    def test_the_name_of_a_tree_changes_with_every_path_and_content(self):
        one, two = DIGEST, digests.of_bytes(b"two")
        trees = [{"a": one}, {"a": two}, {"b": one}, {"a": one, "b": one}, {}]
        assert len({digests.tree_digest(files, b"") for files in trees} | {digests.tree_digest({}, b"x")}) == 6
