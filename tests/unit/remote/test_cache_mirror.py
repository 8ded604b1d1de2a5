"""`opforge mirror cache: TO`: what was made here is signed here, and what was fetched keeps its signatures."""

from __future__ import annotations

import json
import os
import shutil
import types
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import sample_ops
from support.remote.nodes import reasons
from support.remote.withdrawing import entries_of, withdraw

from opforge.cache import current_store
from opforge.cli import group
from opforge.remote import cache_mirror, topics, withdrawal_lists
from opforge.remote.signatures import keys, trust_file
from opforge.remote.stores import open_store

OTHER = "0" * 32 + "-" + "0" * 16


def mirror(*words, code=0):
    outcome = CliRunner().invoke(group, ["mirror", "cache:", *words, "--json"], catch_exceptions=False)
    assert outcome.exit_code == code, outcome.output
    return json.loads(outcome.stdout)


@pytest.fixture
def target(nodes, tmp_path):
    """The store of another site, which has no network."""
    (tmp_path / "usb").mkdir()
    return open_store(f"file://{tmp_path}/usb")


@pytest.fixture
def machine(nodes, builder, entry, tmp_path, monkeypatch):
    """A machine with an op that it has fetched and one that it has built; its own key is `lab`. The remote is away."""
    lab = keys.create("lab")
    nodes.trust(nodes.public, lab)
    withdraw(nodes.store, OTHER)
    assert nodes.fetch(builder, "machine")[0]
    own = sample_ops.plain_op(tmp_path / "own", "own")()
    with monkeypatch.context() as patch:
        patch.delenv("OPFORGE_REMOTES")
        own.build()
    shutil.rmtree(nodes.folder / "remote")
    return own


def signers(store):
    """Returns who has signed each op's statements in a store."""
    return {item.topic: [sorted(one.signers) for one in item.items] for item in topics.in_store(store)}


def test_another_site_fetches_all_of_it(nodes, builder, entry, machine, target, monkeypatch):
    done = mirror(target.url, "--key", "lab")
    assert done["problems"] == [] and sum(one["statements"] for one in done["copied"]) == 2
    by_topic = signers(target)
    assert by_topic[entry.record["description"]] == [["ci"]]
    assert sorted(by_topic.values()) == [[["ci"]], [["lab"]]]
    monkeypatch.setenv("OPFORGE_REMOTES", target.url)
    for each in (builder, machine):
        match, rejected = nodes.fetch(each, "elsewhere")
        assert match is not None, reasons(rejected)
    assert sum(one["statements"] for one in mirror(target.url, "--key", "lab")["copied"]) == 0


def test_the_list_of_the_key_that_signed_what_was_fetched_comes_too(machine, target):
    mirror(target.url, "--key", "lab")
    assert entries_of(withdrawal_lists.Unverified(target).of("ci")) == [OTHER]


def test_a_machine_that_only_fetches_needs_no_key(nodes, entry, machine, target):
    for name in keys.names():
        os.unlink(keys.path_of(name))
    outcome = CliRunner().invoke(group, ["mirror", "cache:", target.url])
    assert outcome.exit_code == 1 and "No signing key is configured" in outcome.stderr  # for what it has built
    assert signers(target) == {}
    (fetched,) = mirror(target.url, entry.record["op"])["copied"]
    assert fetched["statements"] == 1 and [*signers(target).values()] == [[["ci"]]]


def test_what_is_not_trusted_any_more_is_not_copied(nodes, machine, target):
    nodes.trust(keys.create("other"))
    done = mirror(target.url, "--key", "lab", code=1)
    assert ["the key ci is not in the trust file" in problem for problem in done["problems"]] == [True]
    assert [*signers(target).values()] == [[["lab"]]]


def test_what_is_packed_to_other_bytes_is_a_problem_and_stops_nothing(machine, target, monkeypatch):
    from opforge.remote import blobs, cache_mirror

    pack = blobs.pack

    def other(folder, paths, file):
        tree, hashes = pack(folder, paths, file)
        return tree._replace(blob=tree.blob._replace(size=tree.blob.size + 1)), hashes

    monkeypatch.setattr(cache_mirror.blobs, "pack", other)
    done = CliRunner().invoke(group, ["mirror", "cache:", target.url, "--key", "lab", "--json"])
    (problem,) = json.loads(done.stdout)["problems"]
    assert "it cannot be packed to the bytes that its key has signed" in problem


def test_what_is_named_is_copied_alone(machine, target):
    done = mirror(target.url, "own", "--key", "lab")
    assert [(one["kind"], one["statements"]) for one in done["copied"]] == [("op", 1)]
    assert [*signers(target).values()] == [[["lab"]]]
    mirror(target.url, "op:pl*", "--key", "lab")
    assert sorted(signers(target).values()) == [[["ci"]], [["lab"]]]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gelu", "there is no op:gelu here. There are: own, plain."),
        ("acme/relu", "acme/relu is a package, and cache: holds none: name the remote that has it."),
        ("program:x", "opforge mirror is not for 'program:x': it is a file of its own."),
    ],
)
def test_a_name_that_the_cache_lacks_is_an_error(machine, target, name, problem):
    outcome = CliRunner().invoke(group, ["mirror", "cache:", target.url, name, "--key", "lab"])
    assert outcome.exit_code == 2 and problem in " ".join(outcome.output.split())
    assert [*target.list("v1/")] == []


def test_without_a_key_nothing_is_written(machine, target):
    shutil.rmtree(keys.folder())
    outcome = CliRunner().invoke(group, ["mirror", "cache:", target.url])
    assert (
        outcome.exit_code == 1
        and "No signing key is configured: expected a key (opforge key new NAME)" in outcome.stderr
    )
    assert [*target.list("v1/")] == []


def test_two_sites_of_one_owner_need_no_key(machine, target, monkeypatch):
    url = f"{target.url}?unsigned=1"
    problems = mirror(url, "own")["problems"]
    assert problems == [] and [*signers(target).values()] == [[[]]]
    monkeypatch.setenv("OPFORGE_REMOTES", url)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(Path(target.url.removeprefix("file://")).parent / "elsewhere"))
    current_store.reset()
    assert machine.build().origin.startswith(target.url)


def test_what_was_fetched_for_another_description_is_copied(nodes, machine, entry, target):
    fetched = nodes.folder / "machine"
    (folder,) = [each for each in fetched.rglob(entry.record["description"]) if each.is_dir()]
    folder.rename(folder.with_name("f" * len(folder.name)))
    done = mirror(target.url, "--key", "lab")
    assert sum(one["statements"] for one in done["copied"]) == 2


def test_of_two_lists_of_a_key_neither_hides_what_the_other_withdraws(nodes, target, monkeypatch):
    nodes.trust(nodes.public)
    there = nodes.folder / "there"
    there.mkdir()
    withdraw(target, OTHER)
    withdraw(other := open_store(f"file://{there}"), "1" * 32 + "-" + "1" * 16)
    signer, name = trust_file.read().keys[0], withdrawal_lists.name_of("ci")
    content = other.get(name, withdrawal_lists.MAX_BYTES).data
    noted = types.SimpleNamespace(listed=withdrawal_lists.verified(content, signer), content=content)
    monkeypatch.setattr(cache_mirror.remembered_answers, "withdrawn", lambda *_: noted)
    with pytest.raises(ValueError, match="differs from another remote's"):
        cache_mirror._put_lists(target, "there", [signer])
    assert entries_of(withdrawal_lists.Unverified(target).of("ci")) == [OTHER]
