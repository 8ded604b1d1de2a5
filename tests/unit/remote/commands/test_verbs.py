"""Which commands are for which kinds: the cells of the matrix that say no. Those that say yes: test_matrix.py."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from opforge.cli import group, kinds
from opforge.remote.kind_table import KINDS

WORDS = {
    "ls": ["ls"],
    "rm": ["rm"],
    "verify": ["verify"],
    "publish": ["publish", "file:///no/such/folder"],
    "fetch": ["fetch", "--remote", "file:///no/such/folder"],
    "cache pin": ["cache", "pin"],
    "cache explain": ["cache", "explain"],
    "ls URL": ["ls", "file:///tmp"],
    "mirror": ["mirror", "file:///tmp", "file:///tmp"],
    "withdraw": ["withdraw", "file:///tmp", "--key", "ci"],
}
"""Verb -> the words before a name."""
NAMES = {"package": "package:acme/relu"}
CELLS = [(verb, kind) for verb in WORDS for kind in KINDS if kinds.without_meaning(verb, kind)]


@pytest.mark.parametrize(("verb", "kind"), CELLS)
def test_a_command_that_is_not_for_a_kind_says_so(verb, kind, nodes):
    name = NAMES.get(kind, f"{kind}:some")
    result = CliRunner().invoke(group, [*WORDS[verb], name])
    assert result.exit_code == 2, (result.output, result.exception)
    assert (
        f"opforge {verb.removesuffix(' URL')} is not for {name!r}: {kinds.without_meaning(verb, kind)}."
        in result.output
    )


def test_the_others_take_no_names():
    assert kinds.WITHOUT_MEANING.keys() - WORDS.keys() == {"gc", "verify URL", "gc URL", "key trust --for"}


def test_a_package_is_published_from_its_folder():
    result = CliRunner().invoke(group, ["publish", "file:///tmp", "package:acme/relu"])
    assert result.exit_code == 2 and "a package is published from its folder" in result.output


def test_a_kind_before_the_name_of_an_op_or_a_package_is_understood():
    named = kinds.by_kind(["op:relu", "relu", "package:acme/relu", "acme/relu@2", "tuned:relu", "module:Class"], "ls")
    assert named["op"] == ["relu", "relu", "module:Class"] and named["package"] == ["acme/relu", "acme/relu@2"]
    assert named["tuned"] == ["relu"]
