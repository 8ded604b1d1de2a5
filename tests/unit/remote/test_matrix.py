"""What happens to an artifact that travels, for every kind alike: kind by what becomes of its key, store and signer."""

from __future__ import annotations

import logging
import time

import pytest
from support.remote.artifacts import ARTIFACTS, NEWER, OLDER, run

from opforge.cli.completion import names as completion
from opforge.cli.verbs import PLAIN
from opforge.remote import contents, mirror, remembered_answers, remotes, topics
from opforge.remote.kind_table import KINDS
from opforge.remote.signatures import keys, trust_file
from opforge.remote.stores import open_store

pytestmark = pytest.mark.compile
EVERYTHING = tuple(f"{kind}:*/*" if kind in ("package", "jit") else f"{kind}:*" for kind in KINDS)


def kinds(but=()):
    """Returns the kinds of artifacts as parameters."""
    chosen = [one for one in ARTIFACTS if (one.name or one.kind) not in but]
    return pytest.mark.parametrize("artifact", chosen, indirect=True, ids=lambda one: one.name or one.kind)


@pytest.fixture
def artifact(request, nodes, tmp_path, monkeypatch):
    """An artifact that a machine has published, and another machine that has nothing yet."""
    pytest.importorskip("torch") if request.param.name == "compiled" else None
    nodes.trust(nodes.public, scopes=EVERYTHING)
    made = request.param(nodes, tmp_path / "artifact", monkeypatch)
    made.publish()
    made.enter("node")
    return made


def trusted(nodes, **fields):
    nodes.trust(nodes.public, **{"scopes": EVERYTHING, **fields})


def trust_a_second_key(nodes):
    public = keys.create("lab")
    nodes.trust(nodes.public, public)
    trust_file.write(
        trust_file.read()._replace(keys=tuple(one._replace(scopes=EVERYTHING) for one in trust_file.read().keys))
    )


def offline(monkeypatch):
    monkeypatch.delenv("OPFORGE_REMOTES")


def test_the_matrix_has_every_kind_that_a_store_holds():
    assert {one.kind for one in ARTIFACTS} == KINDS.keys() - {"program"}


@kinds(but=["package"])  # what is installed stays: docs/remote.md says so
def test_revoked(artifact, nodes, monkeypatch):
    assert artifact.use() == NEWER
    offline(monkeypatch)
    trusted(nodes, revoked="2026-01-01")
    assert artifact.use() == ""
    trusted(nodes)
    assert artifact.use() == NEWER, "it is used again, and no remote is asked"


@kinds(but=["package"])
def test_a_key_that_is_missing_for_a_minute(artifact, nodes, monkeypatch):
    assert artifact.use() == NEWER
    offline(monkeypatch)
    content = nodes.trust_file().read_bytes()
    nodes.trust_file().unlink()
    assert artifact.use() == ""
    nodes.trust_file().write_bytes(content)
    nodes.trust_file().chmod(0o600)
    assert artifact.use() == NEWER


@kinds()
def test_the_trust_file_is_damaged(artifact, nodes, caplog, monkeypatch):
    """What was fetched before is used, and nothing else. No remote is blamed for it."""
    assert artifact.use() == NEWER
    content = nodes.trust_file().read_bytes()
    nodes.trust_file().write_bytes(content.replace(b'"until"', b'"untill"'))
    with caplog.at_level(logging.WARNING, "opforge"):
        assert artifact.use() == NEWER
        artifact.enter("other")
        assert artifact.use() == ""
    assert not remembered_answers.failure(artifact.remote)
    nodes.trust_file().write_bytes(content)
    assert artifact.use() == NEWER, "as soon as it is corrected"


@kinds(but=["package"])  # get_kernel does not read the trust file
def test_others_can_change_the_trust_file(artifact, nodes, monkeypatch):
    assert artifact.use() == NEWER
    offline(monkeypatch)
    nodes.trust_file().chmod(0o666)
    assert artifact.use() == ""
    nodes.trust_file().chmod(0o600)
    assert artifact.use() == NEWER


@kinds()
def test_withdrawn_from_use(artifact, nodes, monkeypatch, caplog):
    title = artifact.title()
    artifact.ring()
    artifact.enter("node")
    assert artifact.use() == NEWER
    name = title.partition(":")[2] if artifact.kind in ("op", "package") else title
    run("withdraw", nodes.url, name, "--reason", "wrong", "--stop-loading", "--key", "ci")
    later = time.time() + remembered_answers.WITHDRAWN_SECONDS + 60
    monkeypatch.setattr(time, "time", lambda: later)
    artifact.ask()
    offline(monkeypatch)
    assert artifact.use() == ""


@kinds()
def test_a_damaged_list_of_one_key_stops_no_other(artifact, nodes):
    """What the other key has signed is used, and the remote is not left alone for a minute."""
    trust_a_second_key(nodes)
    artifact.publish(OLDER, key="lab")
    path = nodes.folder / "remote" / "v1" / "withdrawals" / "ci.json"
    path.write_bytes(b"{}")
    artifact.enter("node")
    assert artifact.use() == OLDER
    assert remembered_answers.failure(remotes.parse(nodes.url)) == ""


@kinds(but=["tuned", "package"])  # the one has no blob; of the other the newest that can be had is no older one
def test_the_newest_blob_is_lost(artifact, nodes, caplog):
    """The older one is used, one line says so, and the remote is not left alone."""
    (newest,) = nodes.store.list("v1/blobs/")
    trust_a_second_key(nodes)
    artifact.publish(OLDER, key="lab")
    nodes.store.delete(newest.name)
    artifact.enter("node")
    with caplog.at_level(logging.WARNING, "opforge"):
        caplog.clear()
        assert artifact.use() == OLDER
    assert len([text for text in caplog.messages if newest.name in text]) <= 1, "of ops any is tried first"
    assert not remembered_answers.failure(artifact.remote)


@kinds(but=["tuned", "compiled"])  # a package installs nothing of it
def test_all_blobs_are_lost(artifact, nodes):
    for blob in list(nodes.store.list("v1/blobs/")):
        nodes.store.delete(blob.name)
    assert artifact.use() == ""
    assert not remembered_answers.failure(artifact.remote)


@kinds(but=["package"])  # it is published from its folder alone
def test_saved_again(artifact, nodes):
    """What was only fetched is never signed by this machine's key."""
    assert artifact.use() == NEWER
    before = artifact.items()
    keys.create("own")
    artifact.save_again("own")
    assert artifact.items() == before and {item.signers for item in before} == {("ci",)}


@kinds()
def test_mirrored_twice(artifact, nodes, tmp_path):
    """Each copy is complete, the second has nothing to do, and a signature that the target has stays."""
    (tmp_path / "mirror").mkdir()
    target = open_store(f"file://{tmp_path}/mirror")
    first = list(mirror.copy(nodes.store, target))
    assert [(done.kind, done.statements, done.problems) for done in first] == [(artifact.kind, 1, ())]
    trust_a_second_key(nodes)
    own, nodes.url = nodes.url, target.url
    artifact.remote = remotes.parse(target.url)
    artifact.publish(key="lab")
    nodes.url = own
    (topic,) = topics.in_store(target)
    before = [placed.signed for placed in contents.of_topic(target, topic)]
    assert [done.statements for done in mirror.copy(nodes.store, target)] == [0]
    (topic,) = topics.in_store(target)
    assert [placed.signed for placed in contents.of_topic(target, topic)] == before
    assert not [item.problem for item in contents.verify(target, artifact.remote) if item.problem]


@kinds()
def test_each_command(artifact, nodes, tmp_path):
    """The cells of the matrix that say yes: docs/reference/commands.md. The others: commands/test_verbs.py."""
    (item,) = artifact.items()
    assert artifact.use() == NEWER
    name = item.name if artifact.kind in PLAIN else f"{artifact.kind}:{item.name}"
    typed = artifact.title().partition(":")[2] if artifact.kind in PLAIN else artifact.title()
    for folder in ("mirror", "by-glob", "by-label"):
        (tmp_path / folder).mkdir()
    mirrored = f"file://{tmp_path}/mirror"
    glob, labelled = f"{artifact.kind}:{item.name[:-1]}?", f"{artifact.kind}:{item.name}@{item.label}"
    for words in (
        ["ls", glob],
        ["ls", labelled],
        ["ls", nodes.url, glob],
        ["ls", nodes.url, labelled],
        ["ls"],
        ["ls", name],
        ["ls", f"{artifact.kind}:{item.name}"],
        ["ls", "--kind", artifact.kind, item.name],
        ["ls", nodes.url, name],
        ["ls", nodes.url, "--kind", artifact.kind],
    ):
        assert item.name in run(*words), words
    assert item.name not in run("ls", "--kind", "tuned" if artifact.kind == "jit" else "jit")
    run("verify")
    for one in (name, glob, labelled):
        run("verify", one)
    run("verify", nodes.url)
    run("mirror", nodes.url, mirrored, name)
    assert item.name in run("ls", mirrored)
    for words in (["by-glob", glob], ["by-label", labelled]):
        run("mirror", nodes.url, f"file://{tmp_path}/{words[0]}", words[1])
        assert item.name in run("ls", f"file://{tmp_path}/{words[0]}"), words
    run("gc")
    run("gc", mirrored)
    run("verify", mirrored)
    run("withdraw", nodes.url, typed, "--key", "ci")
    assert "not chosen any more, says ci" in run("ls", nodes.url, name)
    run("withdraw", nodes.url, typed, "--undo", "--key", "ci")
    if artifact.kind == "op":
        run("cache", "pin", name)
        run("cache", "unpin", name)
        assert f"miss: {name} for" in run("cache", "explain", name, code=1), "its sources are not here"
    if artifact.kind == "jit":  # the adapter of the other page is none
        is_used = item.name.startswith("inductor/")
        for one in (name, glob, labelled):
            text = run("cache", "explain", one, code=0 if is_used else 1)
            assert "used here" in text if is_used else "no package that is installed here has the adapter" in text
    into = ["--into", artifact.root.path] if artifact.kind == "package" else []
    for one in (name, glob, labelled):
        assert "would remove" in run("rm", one, "--dry-run", *into)
    run("rm", name, *into)
    assert item.name not in run("ls", "--kind", artifact.kind), "it is gone"


@kinds(but=["package"])
def test_what_was_made_here_is_published_by_name(artifact, nodes, tmp_path, monkeypatch):
    (item,) = artifact.items()
    artifact.enter_builder()
    (tmp_path / "other").mkdir()
    name = item.name if artifact.kind in PLAIN else f"{artifact.kind}:{item.name}"
    run("publish", f"file://{tmp_path}/other", name, "--key", "ci")
    assert [one.label for one in contents.items(open_store(f"file://{tmp_path}/other"))] == [item.label]
    assert item.name in str([one.value for one in completion.stored(None, None, name[:-1])])
