"""What happens to an artifact that travels, for every kind alike: kind by what becomes of its key, store and signer."""

from __future__ import annotations

import logging
import time

import pytest
from support.remote.artifacts import ARTIFACTS, NEWER

from opforge.remote import answers
from opforge.remote.kind_table import KINDS

pytestmark = pytest.mark.compile
EVERYTHING = tuple(f"{kind}:*/*" if kind == "package" else f"{kind}:*" for kind in KINDS)


def kinds(but=()):
    """Returns the kinds of artifacts as parameters."""
    return pytest.mark.parametrize("artifact", [one for one in ARTIFACTS if one.kind not in but], indirect=True,
                                   ids=lambda one: one.kind)  # fmt: skip


@pytest.fixture
def artifact(request, nodes, tmp_path, monkeypatch):
    """An artifact that a machine has published, and another machine that has nothing yet."""
    pytest.importorskip("torch") if request.param.kind == "compiled" else None
    nodes.trust(nodes.public, scopes=EVERYTHING)
    made = request.param(nodes, tmp_path / "artifact", monkeypatch)
    made.publish()
    made.enter("node")
    return made


def trust(nodes, **fields):
    nodes.trust(nodes.public, **{"scopes": EVERYTHING, **fields})


def offline(monkeypatch):
    monkeypatch.delenv("OPFORGE_REMOTES")


def test_the_matrix_has_every_kind_that_a_store_holds():
    assert {one.kind for one in ARTIFACTS} == KINDS.keys() - {"program"}


@kinds(but=["package"])  # what is installed stays: docs/remote.md says so
def test_revoked(artifact, nodes, monkeypatch):
    assert artifact.use() == NEWER
    offline(monkeypatch)
    trust(nodes, revoked="2026-01-01")
    assert artifact.use() == ""
    trust(nodes)
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
    assert not answers.failure(artifact.remote)
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
    from support.remote.artifacts import run

    title = artifact.title()
    artifact.ring()
    artifact.enter("node")
    assert artifact.use() == NEWER
    name = title.partition(":")[2] if artifact.kind in ("op", "package") else title
    run("withdraw", nodes.url, name, "--reason", "wrong", "--stop-loading", "--key", "ci")
    later = time.time() + answers.WITHDRAWN_SECONDS + 60
    monkeypatch.setattr(time, "time", lambda: later)
    artifact.ask()
    offline(monkeypatch)
    assert artifact.use() == ""
