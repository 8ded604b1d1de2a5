"""Compiled graphs that travel: signed by a key that the policy allows for their name, or not used."""

from __future__ import annotations

import errno
import os
import pickle

import pytest
from support.compiled_graphs import flat, pages
from support.compiled_graphs import put as keep
from support.remote.nodes import Nodes

import opforge
from opforge.cache import current_store
from opforge.graphs import session
from opforge.jits import page, remote
from opforge.jits.kind import JIT
from opforge.remote import (
    blobs,
    claims,
    contents,
    gc,
    mirror,
    publish,
    remembered_answers,
    remotes,
    reverification,
    statements,
    take,
    topics,
    withdrawal_lists,
)
from opforge.remote.signatures import keys, trust_file
from opforge.remote.stores import open_store

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile
GRAPH = "aot_autograd", "a1", b""


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A remote, and a key that may sign graphs named `pair`."""
    made = Nodes(tmp_path / "nodes", monkeypatch)
    made.trust(made.public, scopes=("jit:inductor/pa*",))
    return made


def run_step():
    with opforge.compiled("pair") as graphs:
        got = torch.compile(flat)(torch.ones(6))
    assert torch.equal(got, flat(torch.ones(6)))
    return graphs


def put(nodes, folder, where, signer="ci", **changes):
    """Publishes a page that no graph needs, of a machine of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(folder / f"maker{changes.get('made', 1)}"))
        current_store.reset()
        path = keep(where, **changes)
    current_store.reset()
    publish.push(nodes.store, remotes.parse(nodes.url), JIT, JIT.at(str(path)), keys.signer(signer))


class TestPublished:
    @pytest.fixture
    def pushing(self, nodes, monkeypatch):
        monkeypatch.setenv("OPFORGE_REMOTES", f"{nodes.url}?push=1")

    def test_what_is_compiled_is_published_and_another_machine_takes_it(
        self, machines, nodes, pushing, where, monkeypatch
    ):
        own = machines.enter("first")
        assert len(run_step().compiled) == 1
        (item,) = contents.items(nodes.store)
        assert (item.kind, item.name, item.signers, item.problem) == ("jit", "inductor/pair", ("ci",), "")
        assert item.label == pages(own)[0].partition(".")[2] and f"torch {where.fingerprint['torch']}" in item.target
        assert not [each.problem for each in contents.verify(nodes.store, remotes.parse(nodes.url)) if each.problem]
        assert not list(nodes.store.list("v1/claims/"))
        second = machines.enter("second")
        graphs = run_step()
        assert (graphs.found, graphs.compiled) == (1, ()) and pages(second) == pages(own)
        monkeypatch.setenv("OPFORGE_REMOTES", "file:///missing/folder")
        machines.enter("third", second)
        assert run_step().compiled == ()

    def test_nobody_waits_for_a_scope_that_compiled_nothing(self, machines, nodes, pushing):
        machines.enter("first")
        with opforge.compiled("pair"):
            (claim,) = nodes.store.list("v1/claims/")
        assert b'"failed"' in nodes.store.get(claim.name, 4096).data

    def test_a_forked_child_that_leaves_the_scope_ends_neither_the_claim_nor_the_wait(self, machines, nodes, pushing):
        machines.enter("first")
        with opforge.compiled("pair") as graphs:
            child = os.fork()
            if not child:
                try:
                    session.leave(graphs._session)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            (claim,) = nodes.store.list("v1/claims/")
            assert b'"failed"' not in nodes.store.get(claim.name, 4096).data

    def test_a_failure_is_one_line(self, machines, nodes, pushing, warnings_of_the_cache, monkeypatch):
        machines.enter("first")
        (nodes.folder / "remote").chmod(0o500)
        monkeypatch.setattr(remote, "push", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        run_step()
        (warning,) = warnings_of_the_cache()
        assert warning.startswith(f"inductor/pair: compiled code was not published to {nodes.url}: ")
        assert "No space left on device" in warning


class TestRefused:
    """No graph is needed to see what is refused: these bundles hold no artifact that torch would look for."""

    @pytest.fixture(autouse=True)
    def own(self, machines):
        self.own = machines.enter("second")

    def entered(self):
        with opforge.compiled("pair") as graphs:
            pass
        return graphs.found

    def test_a_signed_one_is_found(self, nodes, tmp_path, where, warnings_of_the_cache):
        """What the tests below change is all that is wrong."""
        put(nodes, tmp_path, where)
        assert self.entered() == 1 and not warnings_of_the_cache()

    def test_of_a_key_that_is_not_trusted(self, nodes, tmp_path, where, warnings_of_the_cache):
        keys.create("other")
        put(nodes, tmp_path, where, signer="other")
        assert self.entered() == 0 and not pages(self.own)
        (warning,) = warnings_of_the_cache()
        assert "is rejected: the key other is not in the trust file" in warning

    def test_of_a_key_for_other_names(self, nodes, tmp_path, where, warnings_of_the_cache):
        nodes.trust(nodes.public, scopes=("op:*", "jit:inductor/other"))
        put(nodes, tmp_path, where)
        assert self.entered() == 0 and not pages(self.own)
        (warning,) = warnings_of_the_cache()
        assert "no key that signed it may sign jit:inductor/pair: ci may sign op:*, jit:inductor/other" in warning

    def test_of_a_remote_that_needs_no_signature(self, nodes, tmp_path, where, monkeypatch):
        put(nodes, tmp_path, where)
        monkeypatch.setenv("OPFORGE_REMOTES", f"{nodes.url}?unsigned=1")
        assert self.entered() == 0 and not pages(self.own)

    def test_for_another_processor(self, nodes, tmp_path, where):
        put(nodes, tmp_path, where, features=["avx4096"])
        assert self.entered() == 0 and not pages(self.own)

    def test_of_another_blob(self, nodes, tmp_path, where, warnings_of_the_cache):
        put(nodes, tmp_path, where)
        (blob,) = (nodes.folder / "remote" / "v1" / "blobs").rglob("sha256/*/*")
        data = bytearray(blob.read_bytes())
        data[-1] ^= 1
        blob.chmod(0o600)
        blob.write_bytes(data)
        assert self.entered() == 0 and not pages(self.own)
        assert "the blob's digest differs from that in its statement" in warnings_of_the_cache()[0]

    def test_facts_of_another_topic(self, where):
        other = where._replace(fingerprint={**where.fingerprint, "torch": "2.12.0"})
        facts = {**other._asdict(), "holds": "pickle", "features": [], "parts": ["0" * 24], "made": 1}
        tree = blobs.Tree("0" * 64, blobs.Blob("0" * 64, 1, 1))
        stated = statements.Statement(JIT.name, str(where), (tree,), facts)
        with pytest.raises(statements.UnreadableStatement, match=r"its topic is 'inductor/pair/[0-9a-f]+', and its"):
            JIT.parse(stated.data())

    def test_one_that_its_signer_withdraws(self, nodes, tmp_path, where, warnings_of_the_cache, machines):
        put(nodes, tmp_path, where)
        (item,) = contents.items(nodes.store)
        said = withdrawal_lists.Withdrawal(withdrawal_lists.LOADING, "it is wrong")
        signer = keys.signer("ci")
        withdrawal_lists.publish(nodes.store, signer, "ci", {f"jit:inductor/pair@{item.label}": said})
        assert self.entered() == 0
        assert "the key ci has withdrawn it: it is wrong" in warnings_of_the_cache()[0]

    @pytest.mark.parametrize("stops", [withdrawal_lists.LOADING, withdrawal_lists.CHOOSING])
    def test_one_that_was_fetched_and_is_withdrawn_from_use(
        self, nodes, tmp_path, where, warnings_of_the_cache, monkeypatch, stops
    ):
        """This machine has all that it needs: it asks for the list of withdrawals, once in an hour."""
        put(nodes, tmp_path, where)
        assert self.entered() == 1
        (item,) = contents.items(nodes.store)
        said = withdrawal_lists.Withdrawal(stops, "it is wrong")
        withdrawal_lists.publish(nodes.store, keys.signer("ci"), "ci", {f"jit:inductor/pair@{item.label}": said})
        assert self.entered() == 1  # the list was read just now
        monkeypatch.setattr(remembered_answers, "WITHDRAWN_SECONDS", -1.0)
        is_used = stops == withdrawal_lists.CHOOSING
        assert self.entered() == is_used and bool(pages(self.own)) == is_used
        expected = "was withdrawn by the key ci and is not used: it is wrong"
        assert any(expected in text for text in warnings_of_the_cache()) != is_used

    def test_one_that_is_withdrawn_from_use_while_the_list_of_another_key_is_damaged(
        self, nodes, tmp_path, where, warnings_of_the_cache, monkeypatch
    ):
        public, lab = keys.create("lab"), keys.signer("lab")
        trusted = tuple(trust_file.TrustedKey(one, ("jit:inductor/pa*",)) for one in (nodes.public, public))
        trust_file.write(trust_file.read()._replace(keys=trusted))
        withdrawal_lists.publish(nodes.store, keys.signer("ci"), "ci")
        put(nodes, tmp_path, where, signer="lab")
        assert self.entered() == 1
        (item,) = contents.items(nodes.store)
        said = withdrawal_lists.Withdrawal(withdrawal_lists.LOADING, "it is wrong")
        withdrawal_lists.publish(nodes.store, lab, "lab", {f"jit:inductor/pair@{item.label}": said})
        (nodes.folder / "remote" / withdrawal_lists.name_of("ci")).write_bytes(b"{}")
        monkeypatch.setattr(remembered_answers, "WITHDRAWN_SECONDS", -1.0)
        assert self.entered() == 0 and not pages(self.own)
        texts = warnings_of_the_cache()
        assert f"what {nodes.url} may have withdrawn is not known: reading v1/withdrawals/ci.json" in texts[0]
        assert any("was withdrawn by the key lab and is not used: it is wrong" in text for text in texts)
        assert remembered_answers.failure(remotes.parse(nodes.url)) == ""

    def test_one_that_was_fetched_is_used_while_its_remote_fails(
        self, nodes, tmp_path, where, warnings_of_the_cache, monkeypatch
    ):
        put(nodes, tmp_path, where)
        assert self.entered() == 1
        monkeypatch.setattr(remembered_answers, "WITHDRAWN_SECONDS", -1.0)
        monkeypatch.setenv("OPFORGE_REMOTES", f"file://{tmp_path}/missing")
        assert self.entered() == 1
        assert (
            f"inductor/pair: what file://{tmp_path}/missing may have withdrawn is not known"
            in warnings_of_the_cache()[0]
        )

    def test_one_that_was_fetched_and_whose_key_is_revoked(self, nodes, tmp_path, where, warnings_of_the_cache):
        put(nodes, tmp_path, where)
        assert self.entered() == 1
        nodes.trust(nodes.public, scopes=("jit:inductor/pa*",), revoked="2020-01-01")
        assert self.entered() == 0
        assert "is not used: the key ci was revoked on 2020-01-01." in warnings_of_the_cache()[0]
        nodes.trust_file().write_text("{")
        assert self.entered() == 0
        assert any(f"is not used: {reverification.REFUSED}." in text for text in warnings_of_the_cache())
        nodes.trust_file().unlink()
        nodes.trust(nodes.public, scopes=("jit:inductor/pa*",))
        assert self.entered() == 1

    def test_one_that_was_fetched_is_used_from_a_store_that_cannot_be_written(
        self, nodes, tmp_path, where, warnings_of_the_cache, monkeypatch
    ):
        put(nodes, tmp_path, where)
        assert self.entered() == 1
        nodes.trust(nodes.public, keys.create("lab"), scopes=("jit:inductor/pa*",))

        def fails(path, *_content):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

        monkeypatch.setattr(reverification, "write_file", fails)
        assert self.entered() == 1 and not warnings_of_the_cache()

    def test_one_of_which_a_key_that_was_not_asked_for_withdraws_its_signature(
        self, nodes, tmp_path, where, warnings_of_the_cache, monkeypatch
    ):
        """The signature of `ci` was accepted, and counts: it would be removed, and fetched at each start."""
        public, lab = keys.create("lab"), keys.signer("lab")
        nodes.trust(nodes.public, scopes=("jit:inductor/pa*",))
        put(nodes, tmp_path, where)
        name = topics.name_of("jit", str(where))
        (item,) = topics.read_items(nodes.store, name, nodes.url)
        nodes.store.delete(name)
        both = item._replace(signatures=(*item.signatures, lab(item.data)))
        nodes.store.put_if_absent(name, topics.frame([both]))
        assert self.entered() == 1
        (folder,) = (self.own / "v2" / "jit").iterdir()
        before = folder.stat().st_ino
        (listed,) = contents.items(nodes.store)
        said = withdrawal_lists.Withdrawal(withdrawal_lists.LOADING, "it is wrong")
        withdrawal_lists.publish(nodes.store, lab, "lab", {f"jit:inductor/pair@{listed.label}": said})
        trusted = tuple(trust_file.TrustedKey(one, ("jit:inductor/pa*",)) for one in (nodes.public, public))
        trust_file.write(trust_file.read()._replace(keys=trusted))
        assert self.entered() == 1 and folder.stat().st_ino == before and not warnings_of_the_cache()

    def test_one_that_was_fetched_and_is_damaged_is_fetched_again(self, nodes, tmp_path, where, warnings_of_the_cache):
        put(nodes, tmp_path, where)
        assert self.entered() == 1
        for path in (self.own / "v2" / "jit").glob("*/tree/objects/*"):
            path.write_bytes(b"changed")
        assert self.entered() == 1
        assert " is damaged, or was changed" in warnings_of_the_cache()[0]

    def test_one_that_was_fetched_and_changed(self, nodes, tmp_path, where, warnings_of_the_cache):
        put(nodes, tmp_path, where)
        assert self.entered() == 1
        folder = self.own / "v2" / "jit" / pages(self.own)[0]
        record = page.read_record(str(folder))
        page.write_record(str(folder), record["tree"], {**record["facts"], "made": 2})
        assert self.entered() == 1  # it is fetched again
        assert "is not used: page.json differs from the signed one." in warnings_of_the_cache()[0]


class Evil:
    """A pickle that makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "x")


@pytest.mark.filterwarnings("ignore:unclosed file")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("scopes", [("op:*",), ("jit:inductor/pair",)])
def test_a_pickle_runs_only_if_a_trusted_key_signed_it(nodes, machines, tmp_path, where, scopes):
    """The second case shows that the pickle is alive: only the policy keeps it from running in the first one."""
    from torch._inductor.codecache import FxGraphCache

    machines.enter("second")
    nodes.trust(nodes.public, scopes=scopes)
    path = tmp_path / "created"
    put(nodes, tmp_path, where, artifacts=[("inductor", "fkey", pickle.dumps(Evil(str(path))))])
    with opforge.compiled("pair") as graphs:
        for _found in FxGraphCache.iterate_over_candidates(local=True, remote_cache=None, key="fkey"):
            pass  # as torch looks for a graph with this key
    is_trusted = scopes == ("jit:inductor/pair",)
    assert path.exists() == is_trusted
    assert is_trusted or graphs.found == 0


def test_they_are_mirrored_and_collected(nodes, tmp_path, where):
    put(nodes, tmp_path, where, artifacts=[GRAPH], made=1)
    put(nodes, tmp_path, where, artifacts=[GRAPH, ("aot_autograd", "a2", b"")], made=2)  # has all parts of the first
    (tmp_path / "mirror").mkdir()
    target = open_store(f"file://{tmp_path}/mirror")
    (copied,) = mirror.copy(nodes.store, target)
    assert (copied.kind, copied.topic, copied.statements, copied.problems) == ("jit", str(where), 1, ())
    assert len(list(gc.unused(nodes.store, 4e9))) == 1  # the blob of the first


def test_a_topic_keeps_what_other_keys_have_signed_and_a_bounded_number_of_ones_own(nodes, tmp_path, where):
    keys.create("other")
    put(nodes, tmp_path, where, made=1, signer="other")
    for time in range(2, 12):
        put(nodes, tmp_path, where, made=time)
    stored = nodes.store.get(topics.name_of("jit", str(where)), topics.MAX_FRAME_BYTES)
    times = [JIT.parse(item.data).facts["made"] for item in topics.read_frame(stored.data)]
    assert sorted(times) == [1, *range(4, 12)]


def test_with_a_damaged_trust_file_nothing_is_claimed_and_nobody_is_waited_for(nodes, where, monkeypatch):
    nodes.trust_file().write_text("{")
    claimed = []
    monkeypatch.setattr(take.ConfiguredRemotes, "claim", lambda *words: claimed.append(words))
    made = remote.PageRemotes(where, current_store.writable_store().layout, "pickle")
    assert not made.fetch(()) and not made.claim(300.0) and claimed == []


def test_another_machine_that_compiles_is_waited_for(nodes, machines, tmp_path, where, monkeypatch):
    """The claim is another machine's; it publishes while this one waits."""
    import threading

    monkeypatch.setenv("OPFORGE_REMOTES", f"{nodes.url}?push=1")
    machines.enter("second")
    claim = claims.Claim(nodes.store, claims.name_of("jit", str(where)))
    assert claim.take(None)

    def end():
        put(nodes, tmp_path, where)
        claim.end(True)

    timer = threading.Timer(1.0, end)
    timer.start()
    with opforge.compiled("pair") as graphs:
        pass
    timer.join()
    assert graphs.found == 1
