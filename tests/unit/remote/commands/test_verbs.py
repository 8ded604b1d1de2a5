"""Which commands are for which kinds: the cells of the matrix that say no. Those that say yes: test_matrix.py."""

from __future__ import annotations

import types

import pytest
from click.testing import CliRunner
from support import note_kind, sample_ops, text_files
from support.jits import pages
from support.remote.artifacts import run

from opforge.cli import group, kinds, verbs
from opforge.cli.completion import names as completion
from opforge.remote import contents
from opforge.remote.kind_table import KINDS
from opforge.remote.stores import open_store

WORDS = {
    "ls": ["ls"],
    "rm": ["rm"],
    "verify": ["verify"],
    "publish": ["publish", "file:///no/such/folder"],
    "fetch": ["fetch", "--remote", "file:///no/such/folder"],
    "cache pin": ["cache", "pin"],
    "cache unpin": ["cache", "unpin"],
    "cache explain": ["cache", "explain"],
    "ls URL": ["ls", "file:///tmp"],
    "mirror": ["mirror", "file:///tmp", "file:///tmp"],
    "withdraw": ["withdraw", "file:///tmp", "--key", "ci"],
}
"""Verb -> the words before a name."""
NAMES = {"package": "package:acme/relu"}
CELLS = [(verb, kind) for verb in WORDS for kind in KINDS if verbs.without_meaning(verb, kind)]


@pytest.mark.parametrize(("verb", "kind"), CELLS)
def test_a_command_that_is_not_for_a_kind_says_so(verb, kind, nodes):
    name = NAMES.get(kind, f"{kind}:some")
    result = CliRunner().invoke(group, [*WORDS[verb], name])
    assert result.exit_code == 2, (result.output, result.exception)
    assert (
        f"opforge {verb.removesuffix(' URL')} is not for {name!r}: {verbs.without_meaning(verb, kind)}."
        in result.output
    )


def test_a_kind_that_is_new_has_no_inputs_that_explain_could_compare(nodes, monkeypatch):
    note_kind.register(monkeypatch)
    assert "is not for 'note:some': it has no inputs to compare." in run("cache", "explain", "note:some", code=2)


def test_the_others_take_no_names():
    assert verbs.WITHOUT_MEANING.keys() - WORDS.keys() == {*verbs.WITHOUT_NAMES, "key trust --for"}
    assert verbs.WITHOUT_NAMES["gc"] in run("gc", "jit:some", code=2)
    assert verbs.WITHOUT_NAMES["verify URL"] in run("verify", "file:///tmp", "jit:some", code=2)


def test_a_package_is_published_from_its_folder():
    result = CliRunner().invoke(group, ["publish", "file:///tmp", "package:acme/relu"])
    assert result.exit_code == 2 and "a package is published from its folder" in result.output


def test_a_kind_before_the_name_of_an_op_or_a_package_is_understood():
    named = kinds.by_kind(["op:relu", "relu", "package:acme/relu", "acme/relu@2", "tuned:relu", "module:Class"], "ls")
    assert named["op"] == ["relu", "relu", "module:Class"] and named["package"] == ["acme/relu", "acme/relu@2"]
    assert named["tuned"] == ["relu"]


@pytest.fixture
def pages_in_store(nodes):
    """The pages of two labels that differ by a dash, made here and published; the labels of the pages in the store."""
    nodes.trust(nodes.public, scopes=("jit:*/*",))
    nodes.enter("builder")
    for label in ("a_b", "ab"):
        pages.keep({label: {"code": label.encode()}}, label)
    run("publish", nodes.url, "jit:*")
    return {item.name: item.label for item in contents.items(nodes.store, "jit")}


def test_a_label_that_differs_by_a_dash_is_another_one(nodes, pages_in_store, tmp_path):
    assert run("ls", nodes.url, "jit:toy/ab", "--json").count('"jit"') == 1
    (tmp_path / "copy").mkdir()
    run("mirror", nodes.url, f"file://{tmp_path}/copy", "jit:toy/ab")
    assert [item.name for item in contents.items(open_store(f"file://{tmp_path}/copy"))] == ["toy/ab"]
    text = run("mirror", nodes.url, f"file://{tmp_path}/copy", "jit:toy/x*", code=1)
    assert "does not offer 'toy/x*'. It offers: toy/a_b, toy/ab" in text


def test_the_beginning_of_a_label_is_withdrawn(nodes, pages_in_store):
    """`opforge publish` prints the beginning alone."""
    digits = pages_in_store["toy/ab"]
    assert f"toy/ab@{digits} is not chosen any more" in run("withdraw", nodes.url, f"jit:toy/ab@{digits[:12]}")
    assert f"toy/ab@{digits} may be chosen again" in run("withdraw", nodes.url, "jit:toy/ab", "--undo")
    text = run("withdraw", nodes.url, "jit:toy/*", code=2)
    both = ", ".join(f"jit:{name}@{pages_in_store[name]}" for name in ("toy/a_b", "toy/ab"))
    assert f"'jit:toy/*': it stands for 2 statements that ci has signed: {both}." in text
    text = run("withdraw", nodes.url, "jit:toy/none", code=2)
    assert "expected jit:ADAPTER/LABEL@DIGITS, as opforge ls URL shows it." in text


def test_an_empty_name_does_not_stand_for_the_only_one_there_is(nodes, tmp_path):
    nodes.push(nodes.built(sample_ops.plain_op(tmp_path / "op")()))
    assert "'op:': " in run("withdraw", nodes.url, "op:", code=2)


def completed(command, typed, names=completion.stored):
    """Returns what a shell completes of a name after a command."""
    context = types.SimpleNamespace(command_path=f"opforge {command}")
    return [item.value for item in names(context, None, typed)]


def test_a_name_is_completed_where_the_command_is_for_its_kind(nodes, pages_in_store, fake_package):
    labels = ["jit:toy/a_b", "jit:toy/ab"]
    for command in ("ls", "rm", "verify", "publish", "mirror", "cache explain"):
        assert sorted(completed(command, "jit:")) == labels, command
    assert completed("cache pin", "jit:") == completed("cache unpin", "jit:") == []
    assert completed("ls", "acme") == completed("rm", "acme") == ["acme/relu"]
    assert completed("ls", "package:") == ["package:acme/relu"] and completed("ls", "op:") == []
    assert completed("publish", "acme") == [], "a package is published from its folder"
    titles = sorted(f"jit:{name}@{label}" for name, label in pages_in_store.items())
    assert sorted(completed("withdraw", "jit:", completion.published)) == titles
    assert sorted(completed("key trust", "jit:", completion.scopes)) == ["jit:*/*", *labels]
    assert completed("key trust", "package:", completion.scopes) == ["package:*/*"]


@pytest.fixture
def fake_package(tmp_path, monkeypatch):
    """A package that is installed, as far as its name goes."""
    monkeypatch.setenv("OPFORGE_KERNEL_PATH", str(tmp_path / "packages"))
    text_files.write(tmp_path / "packages" / "kernels" / "names" / "acme" / "relu", "2.json", "{}")


@pytest.mark.parametrize("name", ["acme/fast_relu", "acme/fast.relu", "acme/*_relu"])
def test_every_name_that_a_package_may_have_is_a_scope(name, nodes):
    assert f"trusted ci for package:{name}" in run("key", "trust", str(nodes.public), "--for", f"package:{name}")
