"""What Triton compiled or timed itself travels: published, listed, withdrawn, and fetched if its key may sign it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time

import pytest
from click.testing import CliRunner
from support import triton_cache
from support.triton_cache import KEY, TIMED_KEY

from opforge.cache import current
from opforge.cache.records import triton as records
from opforge.cli import group
from opforge.errors import PublishError
from opforge.remote import answers, kept, maintenance, mirror, publish, remotes, statements, topics, triton_source
from opforge.remote.kinds import of
from opforge.remote.signatures import keys
from opforge.remote.stores import open_store
from opforge.remote.triton_statements import TRITON

SCOPES = ("op:*", "triton:*")
TOPIC = TRITON.topic_file(KEY)


def run(*arguments, code=0):
    outcome = CliRunner().invoke(group, [*map(str, arguments)])
    assert outcome.exit_code == code, (outcome.output, outcome.exception)
    return outcome.output


def only(root):
    (kernel,) = records.stored(str(root))
    return kernel


@pytest.fixture
def machine(nodes, monkeypatch):
    """A machine with a kernel and timings, none of which is published. Its key may sign them."""
    nodes.trust(nodes.public, scopes=SCOPES)
    store = current.writable_store(nodes.enter("a"))
    triton_cache.kernel(store.layout)
    triton_cache.timings(store.layout)
    return store


@pytest.fixture
def published(machine, nodes):
    """Another machine, and a store with what the first one has published."""
    run("publish", nodes.url, "triton:copy", "--key", "ci")
    return nodes.enter("b")


def staged(store):
    """Returns what was left in the staging folder."""
    return os.path.isdir(store.layout.path("staging")) and os.listdir(store.layout.path("staging"))


def bring(store, key=KEY, filename="copy.json"):
    return triton_source.bring(store, key, filename)


class TestCommands:
    def test_what_is_published_is_listed_and_verified(self, machine, nodes):
        first = run("publish", nodes.url, "triton:copy", "--key", "ci").splitlines()
        assert [line.partition("@")[0] for line in first] == ["published triton:copy"] * 2
        again = run("publish", nodes.url, "triton:c*", "--key", "ci").splitlines()
        assert [line.partition("@")[0] for line in again] == ["is there already: triton:copy"] * 2
        lines = run("ls", nodes.url, "triton:copy").splitlines()[1:]
        assert len(lines) == 2 and run("ls", nodes.url, "--kind", "triton").splitlines()[1:] == lines
        assert all(line.split("\t")[:3] == ["triton", "copy", "cuda:90, Triton 3.7.1"] for line in lines)
        checked = maintenance.verify(nodes.store, remotes.parse(nodes.url))
        assert [(item.name, item.problem) for item in checked] == [("copy", ""), ("copy", "")]

    def test_what_is_here_is_listed_and_removed(self, machine):
        (shown,) = [item for item in json.loads(run("ls", "--json"))["triton"] if item["topic"] == KEY]
        assert (shown["name"], shown["target"], shown["triton"], shown["fetched"], shown["problem"]) == (
            *("copy", "cuda:90", "3.7.1", False),
            "",
        )
        assert run("ls", "triton:copy").count("copy\tcuda:90, Triton 3.7.1\t") == 2
        assert "would remove 0 entries, 2 Triton kernels" in run("rm", "triton:copy", "--dry-run")
        assert "removed 0 entries, 2 Triton kernels" in run("rm", "triton:copy")
        assert "triton" not in json.loads(run("ls", "--json"))

    def test_a_record_that_cannot_be_read_is_listed_with_the_reason(self, machine):
        with open(os.path.join(records.folder_of(machine.layout, KEY), records.RECORD), "w") as file:
            file.write("{}")
        assert "('files' is missing)" in run("ls", "--kind", "triton")

    def test_a_name_that_stands_for_nothing(self, machine):
        output = run("ls", "triton:gelu", code=2)
        assert "there is no triton:gelu here. There are: copy. opforge.triton_cache() keeps them." in output

    def test_a_fetched_one_is_not_published_again(self, published, nodes):
        assert bring(published)
        before = nodes.store.get(TOPIC, 1 << 20)
        assert "1 that were not made here are left out (triton:copy)" in run("publish", nodes.url, "triton:*")
        assert nodes.store.get(TOPIC, 1 << 20) == before
        with pytest.raises(PublishError, match="it came from a remote, and was not made here"):
            publish.push(
                nodes.store, remotes.parse(nodes.url), TRITON, TRITON.of(only(published.layout.root)), keys.signer("ci")
            )

    def test_without_a_signature_nothing_is_published(self, machine, tmp_path):
        (tmp_path / "plain").mkdir()
        output = run("publish", f"file://{tmp_path}/plain?unsigned=1", "triton:copy", code=1)
        assert "unsigned=1 is not enough for what Triton compiled, which is machine code" in output

    def test_one_that_is_damaged_is_not_published(self, machine, nodes):
        folder = triton_cache.kernel(machine.layout)
        with open(os.path.join(folder, "copy.cubin"), "wb") as file:
            file.write(b"other")
        kernel = next(kernel for kernel in records.stored(machine.layout.root) if kernel.key == KEY)
        with pytest.raises(PublishError, match="are damaged, or were changed"):
            publish.push(nodes.store, remotes.parse(nodes.url), TRITON, TRITON.of(kernel), keys.signer("ci"))

    def test_a_mirror_has_it_and_a_collection_keeps_it(self, published, nodes, tmp_path):
        (tmp_path / "mirror").mkdir()
        target = open_store(f"file://{tmp_path}/mirror")
        assert [(done.kind, done.statements, done.problems) for done in mirror.copy(nodes.store, target)] == [
            ("triton", 1, ())
        ] * 2
        run("gc", f"file://{tmp_path}/mirror")
        assert not [item.problem for item in maintenance.verify(target, remotes.parse(nodes.url)) if item.problem]

    def test_another_build_of_the_key_takes_the_place_of_the_publishers_own(self, machine, nodes):
        for cubin in (b"first", b"second"):
            triton_cache.kernel(machine.layout, cubin=cubin)
            run("publish", nodes.url, "triton:copy", "--key", "ci")
        assert len([item for item in maintenance.items(nodes.store) if item.topic == KEY]) == 1


def exported_label(machine):
    return records.read(records.folder_of(machine.layout, KEY), machine.owners).label


class TestFetching:
    def test_another_machine_fetches_both(self, published):
        assert bring(published) and bring(published, TIMED_KEY, "copy.autotune.json")
        assert [(kernel.key, kernel.is_fetched) for kernel in records.stored(published.layout.root)] == [
            (KEY, True),
            (TIMED_KEY, True),
        ]
        assert records.read(records.folder_of(published.layout, KEY), published.owners).name == "copy"

    def test_it_takes_the_place_of_what_cannot_be_used(self, published):
        folder = triton_cache.kernel(published.layout)
        os.unlink(os.path.join(folder, "copy.cubin"))
        assert bring(published) and only(published.layout.root).is_fetched
        assert records.read(folder, published.owners).is_fetched

    def test_a_remote_that_has_nothing_says_nothing(self, machine, nodes, caplog):
        assert not bring(nodes.enter("b")) and not caplog.messages

    def test_a_remote_that_fails_is_one_line_and_is_left_alone(self, published, nodes, caplog):
        shutil.rmtree(nodes.folder / "remote")
        (nodes.folder / "remote").write_text("no folder")
        assert not bring(published) and not bring(published)
        (message,) = caplog.messages
        assert message.startswith(f"copy: nothing was fetched from {nodes.url}, which is left alone for a minute: ")
        assert answers.failure(remotes.parse(nodes.url))

    def test_an_unsigned_remote_is_not_asked(self, published, nodes, monkeypatch, caplog):
        monkeypatch.setenv("OPFORGE_REMOTES", f"{nodes.url}?unsigned=1")
        with caplog.at_level(logging.INFO, "opforge"):
            assert not bring(published)
        assert caplog.messages == [f"copy: {nodes.url} is not asked: {TRITON.unsigned}"]

    def test_a_trust_file_that_changed_is_asked_again(self, published, nodes):
        assert bring(published)
        assert triton_source.verify_again(only(published.layout.root)) == ""
        nodes.trust(nodes.public, scopes=("op:*",))
        problem = triton_source.verify_again(only(published.layout.root))
        assert problem == "no key that signed it may sign triton:copy: ci may sign op:*"
        nodes.trust_file().write_text("{")
        assert triton_source.verify_again(only(published.layout.root)) == kept.REFUSED

    def test_a_record_that_says_other_than_what_was_signed(self, published):
        assert bring(published)
        triton_cache.kernel(published.layout, cubin=b"other")
        assert triton_source.verify_again(only(published.layout.root)) == "it is not what was signed"


class TestWhatIsRefused:
    """Each costs one clear line, and nothing of it is in the store."""

    @pytest.fixture
    def refused(self, published, caplog):
        def asked(begin=""):
            assert not bring(published)
            assert not [*records.stored(published.layout.root)] and not staged(published)
            (message,) = caplog.messages
            assert message.startswith(f"copy: {begin}")
            return message

        return asked

    def change(self, nodes, change):
        path = nodes.folder / "remote" / TOPIC
        path.write_bytes(change(path.read_bytes()))

    def state(self, nodes, **changes):
        """Signs another statement in the place of the one that is there."""
        path = nodes.folder / "remote" / TOPIC
        (item,) = topics.read_frame(path.read_bytes())
        stated = statements.parse(item.data)._replace(**changes)
        path.write_bytes(topics.frame([statements.signed(stated, [keys.signer("ci")])]))

    def blob(self, nodes):
        (item,) = topics.read_frame((nodes.folder / "remote" / TOPIC).read_bytes())
        return nodes.folder / "remote" / TRITON.parse(item.data).tree.blob.name

    def test_a_key_that_may_not_sign_it(self, refused, nodes):
        nodes.trust(nodes.public, scopes=("op:*", "triton:gelu"))
        assert "no key that signed it may sign triton:copy" in refused()

    def test_a_key_that_nobody_trusts(self, refused, nodes):
        nodes.trust(nodes.public._replace(name="other"), scopes=SCOPES)
        assert "the key ci is not in the trust file" in refused()

    def test_no_signature(self, refused, nodes):
        self.change(nodes, lambda data: data.partition(b'"signatures":[')[0] + b'"signatures":[]}\n]}\n')
        assert "it has no signature" in refused()

    def test_signed_bytes_that_were_changed(self, refused, nodes):
        self.change(nodes, lambda data: data.replace(b'"cuda:90"', b'"cuda:80"'))
        assert "the signature by ci is not of these bytes" in refused()

    def test_a_blob_that_is_damaged(self, refused, nodes):
        path = self.blob(nodes)
        path.chmod(0o600)
        path.write_bytes(b"x" * path.stat().st_size)
        assert "the blob's digest differs from that in its statement" in refused()

    def test_a_blob_that_is_cut(self, refused, nodes):
        path = self.blob(nodes)
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1])
        assert "failed: it has " in refused()

    def test_too_large(self, refused, nodes):
        (item,) = topics.read_frame((nodes.folder / "remote" / TOPIC).read_bytes())
        (tree,) = statements.parse(item.data).trees
        large = tree._replace(blob=tree.blob._replace(unpacked=records.MAX_BYTES + 1))
        self.state(nodes, trees=(large,))
        assert "and at most 268435456 are read" in refused()

    def test_a_kernel_of_another_name(self, refused, nodes):
        self.state(nodes, facts={"name": "gelu", "triton": "3.7.1", "target": "cuda:90"})
        assert "it is a kernel 'gelu', expected 'copy'" in refused()

    def test_the_statement_of_another_key(self, refused, nodes):
        self.state(nodes, topic=TIMED_KEY)
        assert "it was made for another topic" in refused()

    def test_files_that_are_others_than_triton_looks_for(self, refused, machine, nodes):
        shutil.rmtree(records.folder_of(machine.layout, KEY))
        nodes.enter("a")
        triton_cache.put(machine.layout, KEY, "copy", {"copy.ptx": b"other"})
        (nodes.folder / "remote" / TOPIC).unlink()
        run("publish", nodes.url, "triton:copy", "--key", "ci")
        nodes.enter("b")
        assert "it has no copy.json" in refused()

    def test_withdrawn(self, refused, machine, nodes):
        title = f"triton:copy@{exported_label(machine)}"
        run("withdraw", nodes.url, title, "--reason", "wrong for odd sizes", "--key", "ci")
        assert "the key ci has withdrawn it: wrong for odd sizes" in refused()


def test_what_is_withdrawn_after_it_was_fetched_is_not_used_any_more(published, machine, nodes, monkeypatch, caplog):
    assert bring(published)
    title = f"triton:copy@{exported_label(machine)}"
    run("withdraw", nodes.url, title, "--reason", "wrong", "--stop-loading", "--key", "ci")
    later = time.time() + answers.WITHDRAWN_SECONDS + 60
    monkeypatch.setattr(time, "time", lambda: later)
    assert bring(published, TIMED_KEY, "copy.autotune.json")  # the store is asked for anything
    assert [kernel.key for kernel in records.stored(published.layout.root)] == [TIMED_KEY]
    text = "What was fetched as triton:%s was withdrawn by the key ci and is not used: wrong"
    assert text % title.removeprefix("triton:") in caplog.messages


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"facts": {}}, "in its facts 'name' is missing"),
        ({"topic": "x"}, "its topic is 'x': expected a key of Triton's"),
        ({"trees": ()}, "'trees' is a list of 0 items: expected 1, the kernel's files"),
    ],
)
def test_a_statement_that_is_none_of_a_kernel(published, nodes, change, problem):
    (item,) = topics.read_frame((nodes.folder / "remote" / TOPIC).read_bytes())
    stated = statements.parse(item.data)
    assert of("triton").offer(stated).name == "copy"
    with pytest.raises(ValueError, match=problem):
        of("triton").offer(stated._replace(**change))
