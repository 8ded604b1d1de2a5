"""Tuning results travel: published, listed, mirrored, withdrawn, and fetched by a load if the policy allows the key."""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
import types
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from support import tuned_ops
from support.tuned_ops import FLOAT32, row

from opforge.builders.lookup import tuned
from opforge.cache.current_store import current_store
from opforge.cli import gc, rm
from opforge.cli.ls import command as ls
from opforge.cli.publish import command as publish
from opforge.cli.remote.fetch import command as fetch
from opforge.cli.remote.withdraw import command as withdraw
from opforge.fast_path import lookup
from opforge.remote import contents, kinds, mirror, remembered_answers, remotes, reverification, take, tuned_source
from opforge.remote.kinds import of
from opforge.remote.publish import push
from opforge.remote.signatures import keys
from opforge.remote.statements import Statement
from opforge.remote.stores import open_store
from opforge.remote.tuned_statements import TUNED

pytestmark = pytest.mark.compile


@pytest.fixture(scope="module")
def layer_with_op(tmp_path_factory, nothing_of_the_machines):
    return tuned_ops.layer_with_op(tmp_path_factory.mktemp("tuned_op"))


@pytest.fixture
def op_class(layer_with_op, monkeypatch):
    """The builder class of the op, which all nodes have in a layer."""
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", layer_with_op[0])
    return layer_with_op[1]


@pytest.fixture
def published(nodes, op_class, monkeypatch):
    """A result that one node has published; the remote is set on the others."""
    tuned.reset()
    nodes.trust(nodes.public, scopes=("op:*", "tuned:*"))
    nodes.enter("a")
    entry = op_class().load().__entry__
    value = tuned_ops.result(entry, row({"block": 512}))
    done = push(nodes.store, remotes.parse(nodes.url), TUNED, TUNED.of(value), keys.signer("ci"))
    monkeypatch.setenv("OPFORGE_REMOTES", nodes.url)
    nodes.enter("b")
    return done


def block(op_class):
    tuned.reset()
    return op_class().load().block(FLOAT32, 1000)


def run(command, *arguments):
    outcome = CliRunner().invoke(command, list(arguments))
    assert outcome.exit_code == 0, (outcome.output, outcome.exception)
    return outcome.output


def test_a_load_fetches_a_result(published, op_class, nodes):
    assert block(op_class) == 512
    (result,) = [line for line in run(ls, "tuned:" + published.name).splitlines() if line.startswith(published.name)]
    assert "fetched" in result and "1 of 1" in result


def test_without_the_remote_what_was_fetched_is_used(published, op_class, monkeypatch):
    assert block(op_class) == 512
    monkeypatch.delenv("OPFORGE_REMOTES")
    assert block(op_class) == 512


def test_the_users_own_result_is_first(published, op_class, nodes):
    store = nodes.enter("b")
    entry = op_class().load().__entry__
    tuned_ops.store(store.layout.root, tuned_ops.result(entry, row({"block": 128})))
    assert block(op_class) == 128


@pytest.mark.parametrize("later", [lookup.ABSENT_SECONDS + 60, -60], ids=["a day", "when the clock was ahead"])
def test_a_remote_without_a_result_is_asked_once_a_day(nodes, op_class, monkeypatch, later):
    tuned.reset()
    monkeypatch.setenv("OPFORGE_REMOTES", nodes.url)
    nodes.enter("b")
    assert block(op_class) == 256
    tuned_ops.wait_until_remembered()
    assert block(op_class) == 256  # it is remembered from now on
    asked = []
    monkeypatch.setattr(take.ConfiguredRemotes, "_take", lambda _self, remote, _wanted: asked.append(remote) or (0, ()))
    assert op_class().load().block(FLOAT32, 1000) == 256
    now = time.time() + later
    monkeypatch.setattr(time, "time", lambda: now)
    block(op_class)
    assert len(asked) == 1


class TestWhatIsRefused:
    """Each costs one clear line, and the defaults are used."""

    @pytest.fixture
    def refused(self, op_class, caplog):
        def load():
            with caplog.at_level(logging.WARNING, "opforge"):
                assert block(op_class) == 256
            (message,) = [text for text in caplog.messages if "tuning result" in text]
            return message

        return load

    def test_a_key_that_the_policy_does_not_allow(self, published, refused, nodes):
        nodes.trust(nodes.public, scopes=("op:*",))
        assert f"no key that signed it may sign tuned:{published.name}: ci may sign op:*" in refused()

    def test_a_key_that_nobody_trusts(self, published, refused, nodes):
        nodes.trust(nodes.public._replace(name="other"), scopes=("tuned:*",))
        assert "is rejected: the key ci is not in the trust file" in refused()

    def test_without_a_signature(self, published, refused, nodes):
        name = TUNED.topic_file(self.kernel(nodes))
        stored = nodes.store.get(name, 1 << 20)
        nodes.store.put_if_unchanged(name, unsigned(stored.data), stored.version)
        assert "is rejected: it has no signature" in refused()

    def test_a_result_that_was_changed(self, published, refused, nodes):
        name = TUNED.topic_file(self.kernel(nodes))
        stored = nodes.store.get(name, 1 << 20)
        nodes.store.put_if_unchanged(name, stored.data.replace(b'"block":512', b'"block":128'), stored.version)
        assert "is rejected: the signature by ci is not of these bytes" in refused()

    def test_a_topic_that_is_damaged(self, published, refused, nodes):
        name = TUNED.topic_file(self.kernel(nodes))
        stored = nodes.store.get(name, 1 << 20)
        nodes.store.put_if_unchanged(name, stored.data[:50], stored.version)
        text = refused()
        assert f"reading {name} failed: it is cut short" in text and "nothing was fetched from" in text

    def test_withdrawn(self, published, refused, nodes):
        run(withdraw, nodes.url, f"tuned:{published.label}", "--reason", "of a busy machine", "--key", "ci")
        assert "cannot be used: the key ci has withdrawn it: of a busy machine" in refused()

    def test_withdrawn_for_loading(self, published, refused, nodes):
        stop_loading(nodes, published)
        assert "is rejected: the key ci has withdrawn it: wrong" in refused()

    def test_a_key_that_is_revoked_after_it_was_fetched(self, published, op_class, refused, nodes, caplog):
        assert block(op_class) == 512
        nodes.trust(nodes.public, scopes=("op:*",))
        nodes.store.delete(TUNED.topic_file(self.kernel(nodes)))
        assert "that was fetched before is not used any more: no key that signed it may sign" in refused()
        nodes.trust_file().write_text("{")
        assert block(op_class) != 512 and reverification.REFUSED in caplog.text

    @staticmethod
    def kernel(nodes):
        (item,) = [item for item in contents.items(nodes.store) if item.kind == "tuned"]
        return item.topic


def unsigned(frame):
    head, _middle, _rest = frame.partition(b'"signatures":[')
    return head + b'"signatures":[]}\n]}\n'


def stop_loading(nodes, published):
    run(withdraw, nodes.url, f"tuned:{published.label}", "--reason", "wrong", "--stop-loading", "--key", "ci")


def test_what_is_withdrawn_after_it_was_fetched_is_not_used_any_more(published, op_class, nodes, monkeypatch, caplog):
    assert block(op_class) == 512
    stop_loading(nodes, published)
    assert block(op_class) == 512  # nothing was asked yet
    later = time.time() + remembered_answers.WITHDRAWN_SECONDS + 60
    monkeypatch.setattr(time, "time", lambda: later)
    what = tuned.wanted(published.name, op_class().load().__entry__)
    path = what.path(current_store().layout.root, ".fetched")
    other = what._replace(cores=what.cores + 1)
    value = {**tuned_ops.result(op_class().load().__entry__, row({"block": 512})), "cores": other.cores}
    push(nodes.store, remotes.parse(nodes.url), TUNED, TUNED.of(value), keys.signer("ci"))
    what = f"The fetched tuned:{published.label} was withdrawn by the key ci and"
    read_only = OSError(errno.EROFS, "Read-only file system")
    with monkeypatch.context() as patch:
        patch.setattr(kinds, "discard", Mock(side_effect=read_only))
        assert tuned_source.bring(other.path(current_store().layout.root, ".fetched"), other)
    problem = f"must not be used, and cannot be removed (Read-only file system); remove {path}: wrong"
    assert f"{what} {problem}" in caplog.messages and os.path.exists(path)
    take.drop_withdrawn("the op", f"tuned:{published.name}", current_store().layout)
    assert f"{what} is not used: wrong" in caplog.messages and not os.path.exists(path)
    assert block(op_class) == 256


class TestCommands:
    def test_publish_and_list(self, nodes, op_class):
        nodes.trust(nodes.public, scopes=("op:*", "tuned:*"))
        store = nodes.enter("a")
        entry = op_class().load().__entry__
        tuned_ops.store(store.layout.root, tuned_ops.result(entry, row({"block": 512}), row({}, 4000)))
        name = entry.record["op"]
        assert run(publish, nodes.url, f"tuned:{name}", "--key", "ci").startswith(f"published tuned:{name}@")
        assert run(publish, nodes.url, f"tuned:{name}", "--key", "ci").startswith("is there already: ")
        (line,) = run(ls, nodes.url, f"tuned:{name}").splitlines()[1:]
        assert line.split("\t")[:2] == ["tuned", name] and "\tci\t" in line
        assert run(ls, nodes.url, "--kind", "tuned").splitlines()[1:] == [line]
        assert "1 of 2" in run(ls, "--kind", "tuned")
        (item,) = [item for item in contents.verify(nodes.store, remotes.parse(nodes.url)) if item.kind == "tuned"]
        assert item.problem == ""
        assert f"would remove the tuning result {name}, " in run(rm.command, f"tuned:{name}", "--dry-run")
        assert f"removed the tuning result {name}, " in run(rm.command, f"tuned:{name}")
        assert name not in run(ls, "--kind", "tuned")

    def test_what_was_tuned_is_published_listed_and_removed_by_its_builders_class(self, nodes, op_class, monkeypatch):
        module = types.ModuleType("tuned_builders")
        module.SumBuilder = op_class
        monkeypatch.setitem(sys.modules, "tuned_builders", module)
        nodes.trust(nodes.public, scopes=("op:*", "tuned:*"))
        store = nodes.enter("a")
        entry = op_class().load().__entry__
        tuned_ops.store(store.layout.root, tuned_ops.result(entry, row({"block": 512})))
        name, by_class = entry.record["op"], "tuned:tuned_builders:SumBuilder"
        assert run(publish, nodes.url, by_class, "--key", "ci").startswith(f"published tuned:{name}@")
        assert name in run(ls, by_class)
        assert f"removed the tuning result {name}, " in run(rm.command, by_class)
        outcome = CliRunner().invoke(publish, [nodes.url, "tuned:tuned_builders:Other", "--key", "ci"])
        assert outcome.exit_code == 2 and "tuned_builders" in outcome.output

    def test_a_newer_result_takes_the_place_of_the_keys_own(self, published, nodes, op_class):
        nodes.enter("a")
        entry = op_class().load().__entry__
        for config in ({"block": 128}, {"block": 512}):
            value = tuned_ops.result(entry, row(config, 2000))
            push(nodes.store, remotes.parse(nodes.url), TUNED, TUNED.of(value), keys.signer("ci"))
        other = tuned_ops.result(entry, row({"block": 128}), cores=tuned.cores() + 1)
        push(nodes.store, remotes.parse(nodes.url), TUNED, TUNED.of(other), keys.signer("ci"))
        items = [item for item in contents.items(nodes.store) if item.kind == "tuned"]
        assert len(items) == 2 and published.label not in [item.label for item in items]

    def test_a_mirror_has_it_and_a_collection_keeps_it(self, published, nodes, tmp_path):
        (tmp_path / "mirror").mkdir()
        target = open_store(f"file://{tmp_path}/mirror")
        (copied,) = mirror.copy(nodes.store, target, kind="tuned")
        assert (copied.kind, copied.statements, copied.problems) == ("tuned", 1, ())
        run(gc.command, f"file://{tmp_path}/mirror")
        (item,) = [item for item in contents.items(target) if item.kind == "tuned"]
        assert (item.name, item.label, item.size, item.withdrawn) == (published.name, published.label, 0, "")

    def test_a_collection_of_the_cache_keeps_results(self, published, op_class):
        assert block(op_class) == 512
        run(gc.command, "--max-size", "0", "--max-age", "0s")
        run(rm.command, "--all", "--yes")
        assert "fetched" in run(ls, "tuned:" + published.name)

    def test_fetch_brings_ops_alone(self, published, op_class, monkeypatch):
        monkeypatch.setattr(sys.modules[op_class.__module__], "Tuned", op_class, raising=False)
        assert run(fetch, f"{op_class.__module__}:Tuned").startswith("present ")
        assert published.name not in run(ls, "--kind", "tuned")
        assert block(op_class) == 512

    def test_nothing_of_that_name(self, nodes):
        nodes.enter("a")
        outcome = CliRunner().invoke(publish, [nodes.url, "tuned:none", "--key", "ci"])
        assert outcome.exit_code == 2
        assert "there is no tuned:none here. Nothing of this kind is here. See opforge tune." in outcome.output

    def test_an_unsigned_remote(self, nodes, op_class, monkeypatch, tmp_path):
        tuned.reset()
        nodes.enter("a")
        url = f"file://{tmp_path}/plain?unsigned=1"
        (tmp_path / "plain").mkdir()
        entry = op_class().load().__entry__
        value, plain = tuned_ops.result(entry, row({"block": 512})), open_store(f"file://{tmp_path}/plain")
        push(plain, remotes.parse(url), TUNED, TUNED.of(value), None)
        monkeypatch.setenv("OPFORGE_REMOTES", url)
        nodes.enter("b")
        assert block(op_class) == 512


def test_facts_that_are_no_result(op_class, nodes):
    nodes.enter("a")
    entry = op_class().load().__entry__
    result = TUNED.of(tuned_ops.result(entry, row({"block": 512})))
    stated = Statement(TUNED.name, result.topic, (), result.facts)
    kind = of("tuned")
    assert kind.offer(stated).name == entry.record["op"]
    for facts, problem in (
        ({}, "in its facts 'cores' is missing"),
        ({**stated.facts, "kernel": "0" * 32}, "'facts.kernel' is '00000000000000000000000000000000', and its topic"),
        (
            {**stated.facts, "rows": [row({"block": 1}, high=1.0)]},
            "whose interval ends at 1.0: expected one below",
        ),
    ):
        with pytest.raises(ValueError, match=problem):
            kind.offer(stated._replace(facts=facts))
