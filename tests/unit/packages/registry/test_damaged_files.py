"""Releases and indexes with any damage are read or refused, and never raise anything else."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings, strategies

from opforge.cache.keys import canonical
from opforge.errors import KernelFormatError, OpforgeError
from opforge.packages.choose.candidate import VariantCandidate
from opforge.packages.form import variant
from opforge.packages.form.version import Version
from opforge.packages.registry import index, release
from opforge.packages.registry.release import Release, Variant
from opforge.remote import topics
from opforge.remote.blobs import Blob, Tree
from opforge.remote.statements import Signed

LABEL = "torch-stable-abi210-cpu-x86_64-linux"
RECORD = {
    "abi": "torch-stable",
    "machine": "x86_64",
    "target": "cpu:x86-64",
    "torch_target": "2.10",
    "floors": {"GLIBC": "2.28"},
    "requires": {},
    "needs": ["libc.so.6"],
    "shims": [],
}
CANDIDATE = VariantCandidate(LABEL, variant.parse(LABEL), RECORD, ("einops",), {"acme/base": ">=1"}, own=True)
TREE = Tree("a" * 64, Blob("b" * 64, 10, 20))
RELEASE = Release("acme/relu", Version(2, 3), (Variant(CANDIDATE, TREE, {"import": "passed"}),), "MIT")
DATA = RELEASE.statement().data()
VALUE = json.loads(DATA)
JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(max_size=6),
    lambda part: strategies.lists(part, max_size=2) | strategies.dictionaries(strategies.text(max_size=6), part),
    max_leaves=4,
)


def paths(value, prefix=()):
    """Yields the path of each value in a document."""
    if prefix:
        yield prefix
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths(value[key], (*prefix, key))


def test_a_release_is_read_as_it_is_written():
    assert release.parse(DATA, "here", "acme/relu", Version(2, 3)) == RELEASE
    signed = Signed(DATA)
    assert release.split(signed.file(), signed.digest, "here") == signed


def test_a_version_that_nothing_could_judge_is_named_with_its_field_and_what_is_expected():
    changed = copy.deepcopy(VALUE)
    changed["facts"]["variants"][0]["candidate"]["record"]["requires"] = {"cuda": "12.x"}
    with pytest.raises(
        OpforgeError, match=r"'requires\.cuda' of its record is '12\.x': expected a version such as 12\.8"
    ):
        release.parse(canonical(changed), "here")


@settings(max_examples=300, deadline=None)
@given(strategies.sampled_from(list(paths(VALUE))), JSON)
def test_any_value_anywhere_in_a_release_is_read_or_refused(path, replacement):
    value = copy.deepcopy(VALUE)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = replacement
    try:
        parsed = release.parse(canonical(value), "here")
    except OpforgeError:
        return
    assert release.parse(parsed.statement().data(), "here") == parsed


@settings(max_examples=150, deadline=None)
@given(strategies.binary(max_size=80), strategies.booleans())
def test_any_bytes_in_the_place_of_a_release_are_refused(data, with_newline):
    content = data + b"\n[]\n" if with_newline else data
    with pytest.raises(KernelFormatError):
        release.split(content, "c" * 64, "here")


@settings(max_examples=200, deadline=None)
@given(
    strategies.sampled_from(["format", "topic", "sequence", "statements", "statements/2.3", "statements/2.3/digest"]),
    JSON,
)
def test_any_value_anywhere_in_an_index_is_read_or_refused(path, replacement):
    value = json.loads(index.Index("acme/relu", 3, {Version(2, 3): topics.ListedStatement("a" * 64)}).listing().data())
    *parents, last = path.split("/")
    holder = value
    for parent in parents:
        holder = holder[parent]
    holder[last] = replacement
    try:
        parsed = index.parse(json.dumps(value).encode(), "acme/relu", "here")
    except OpforgeError:
        return
    assert index.parse(parsed.listing().data(), "acme/relu", "here") == parsed
