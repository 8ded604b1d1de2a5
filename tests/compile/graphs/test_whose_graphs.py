"""Whose a compiled graph is: what another key has signed is used, and neither saved nor published as one's own."""

from __future__ import annotations

import os
import shutil
import threading

import pytest
from support.compiled_graphs import flat, pages, put, tall
from support.remote.nodes import Nodes

import opforge
from opforge.cache.current_store import writable_store
from opforge.errors import PublishError
from opforge.graphs import content, recording, topic
from opforge.jits import page, store
from opforge.jits.entries import Entries
from opforge.jits.kind import JIT
from opforge.remote import contents, publish, remotes
from opforge.remote.signatures import keys
from opforge.torch_internals import inductor

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """This process plays several machines: none knows what another one has taken."""
    for name in ("_signed_by_others", "_made_here", "_paths_of_others"):
        monkeypatch.setattr(recording, name, set())
    return lambda: [getattr(recording, name).clear() for name in ("_signed_by_others", "_made_here")]


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A remote, and a key `ci` that may sign graphs named `pair`."""
    made = Nodes(tmp_path / "nodes", monkeypatch)
    made.trust(made.public, scopes=("jit:inductor/pair",))
    return made


def run(*functions, name="pair"):
    """Compiles functions in a scope; returns its graphs."""
    with opforge.compiled(name) as graphs:
        for function in functions:
            got = torch.compile(function)(torch.ones(6))
            assert torch.equal(got, function(torch.ones(6)))
    return graphs


def names(graphs):
    return [name.partition(" ")[0] for name in graphs.compiled]


def fetched(own):
    folders = [own / "v2" / "jit" / name for name in pages(own)]
    return [path.name for path in folders if page.is_fetched(str(path))]


class TestFetched:
    @pytest.fixture
    def second(self, machines, nodes, new_process, monkeypatch):
        """A machine that has fetched what `ci` has signed, and compiled one graph more."""
        monkeypatch.setenv("OPFORGE_REMOTES", f"{nodes.url}?push=1")
        machines.enter("first")
        assert names(run(flat)) == ["flat"]
        new_process()
        keys.create("mine")
        secret = (nodes.folder / "config" / "opforge" / "keys" / "mine.secret").read_text()
        monkeypatch.setenv("OPFORGE_SIGNING_KEY", secret.strip())
        self.nodes = nodes
        own = machines.enter("second")
        graphs = run(flat, tall)
        assert (graphs.found, names(graphs)) == (1, ["tall"])
        return own

    def test_it_stays_beside_what_was_compiled_here_and_is_not_in_it(self, second, machines, new_process):
        assert len(pages(second)) == 2 and len(fetched(second)) == 1
        parts = {name: set(record_of(second, name)["facts"]["parts"]) for name in pages(second)}
        (own,) = parts.keys() - {*fetched(second)}
        assert parts[own].isdisjoint(parts[fetched(second)[0]])
        new_process()
        machines.enter("third", second)
        graphs = run(flat, tall)
        assert (graphs.found, graphs.compiled) == (2, ())

    def test_what_is_published_under_ones_own_key_is_what_was_compiled_here(self, second):
        items = {item.signers: item.label for item in contents.items(self.nodes.store)}
        assert items.keys() == {("ci",), ("mine",)}
        assert [name.partition(".")[2] for name in fetched(second)] == [items["ci",]]
        folder = str(second / "v2" / "jit" / fetched(second)[0])
        with pytest.raises(PublishError, match="it came from a remote, and was not made here"):
            publish.push(self.nodes.store, remotes.parse(self.nodes.url), JIT, JIT.at(folder), keys.signer("mine"))

    def test_it_serves_another_name_while_its_own_scope_is_open_alone(self, second, machines, new_process):
        new_process()
        own = machines.enter("third", second)
        with opforge.compiled("pair"), opforge.compiled("other") as other:
            torch.compile(flat)(torch.ones(6))
        assert other.compiled == () and {name.partition(".")[0] for name in pages(own)} == {topic.of("pair").key}
        new_process()
        machines.enter("third")
        run(name="pair")
        assert names(run(flat, name="other")) == ["flat"]

    def test_after_a_revocation_nothing_of_it_runs(self, second, machines, new_process, monkeypatch):
        self.nodes.trust(self.nodes.public, scopes=("jit:inductor/pair",), revoked="2020-01-01")
        monkeypatch.delenv("OPFORGE_REMOTES")
        new_process()
        machines.enter("third", second)
        graphs = run(flat, tall)
        assert (graphs.found, names(graphs)) == (1, ["flat"])


def record_of(own, name):
    return page.read_record(str(own / "v2" / "jit" / name))


class TestFoldersOfTorch:
    def test_nothing_of_a_scope_stays_in_torchs_own_folder(self, machines, tmp_path):
        own = machines.enter("first")
        run(flat)
        inductor_folder = tmp_path / "machines" / "first" / "inductor"
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(inductor_folder) and not inductor_folder.exists()
        torch.compiler.reset()
        assert names(run(flat, name="other")) == ["flat"]  # another name, the same machine
        assert len(pages(own)) == 2

    def test_what_torch_has_from_before_is_not_taken(self, machines):
        own = machines.enter("first")
        torch.compile(flat)(torch.ones(6))
        torch.compiler.reset()
        assert names(run(flat)) == ["flat"] and len(pages(own)) == 1

    def test_the_folder_is_private_and_each_scope_has_another(self, machines):
        machines.enter("first")
        seen = []
        with opforge.compiled("outer"):
            seen.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            with opforge.compiled("inner"):
                seen.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
                assert os.environ["TRITON_CACHE_DIR"] == f"{seen[-1]}/triton"
            assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == seen[0]
        assert len({*seen}) == 2 and "TRITON_CACHE_DIR" not in os.environ
        assert all(os.stat(path).st_mode & 0o077 == 0 for path in seen)

    def test_threads_with_scopes_of_two_names_find_each_their_own(self, machines):
        own = machines.enter("first")
        run(flat, name="one")
        torch.compiler.reset()
        run(tall, name="two")
        machines.enter("second", own)
        with opforge.compiled("one") as first, opforge.compiled("two") as second:
            torch.compile(flat)(torch.ones(6))
            torch.compile(tall)(torch.ones(6))
        assert first.compiled == second.compiled == ()

    def test_artifacts_that_the_program_gives_to_torch_are_not_kept_as_ones_own(self, machines, new_process):
        own = machines.enter("first")
        run(flat)
        folder = str(own / "v2" / "jit" / pages(own)[0])
        read = page.read(folder, topic.of("pair"), {os.getuid()})
        artifacts = inductor.packed(content.artifacts_in({key: read.entry(key) for key in read.entries}))
        new_process()
        own = machines.enter("second")
        with opforge.compiled("pair") as graphs:
            torch.compiler.load_cache_artifacts(artifacts)
            torch.compile(flat)(torch.ones(6))
        assert graphs.compiled == () and not pages(own)

    def test_it_is_removed_when_the_process_ends(self, machines, tmp_path):
        from support import child_processes

        code = "import os, opforge\nwith opforge.compiled('x'): print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
        folder = child_processes.run_python(code, env={"OPFORGE_CACHE_DIR": str(tmp_path / "store")}).strip()
        assert folder.startswith(str(tmp_path / "store")) and not os.path.exists(folder)


@pytest.fixture
def found(machines, where, monkeypatch):
    """Entries of two pages with one library: one was made here, and the other one was fetched."""
    machines.enter("first")
    own, other = put(where, made=2), put(where, made=1)
    other.joinpath("signed").write_bytes(b"")
    monkeypatch.setattr(Entries, "_judge", lambda *_: "")
    entries = Entries(where, content.HOLDS, (), content.CARRIES, asks_remotes=False)
    assert {one.folder for one in entries.pages} == {str(own), str(other)}
    return entries


def test_of_two_pages_with_one_library_that_of_this_machine_is_offered_and_kept(found):
    made_here = recording.Recording()
    made_here.offer(found, found.pages)
    path = made_here.library_path("okey")
    made_here.library("okey", path)
    assert made_here.keys == {"library/okey"} and made_here.library_path("okey") == path, "it is laid once"


def test_a_library_of_a_fetched_page_is_used_and_not_kept(found, tmp_path):
    (own,) = [one.folder for one in found.pages if not one.is_fetched]
    del found._pages[own]
    made_here = recording.Recording()
    made_here.offer(found, found.pages)
    made_here.library("okey", made_here.library_path("okey"))
    made_here.library("own", f"{tmp_path}/others/own.so")
    assert made_here.keys == {"library/own"}


def test_what_was_fetched_stays_anothers_once_its_page_is_removed(found):
    """It may be withdrawn, or give way to a newer page, by another process after this one has read it."""
    (other,) = [one for one in found.pages if one.is_fetched]
    artifacts = [*content.artifacts_in({key: other.entry(key) for key in other.entries})]
    own = [one.folder for one in found.pages if not one.is_fetched]
    shutil.rmtree(other.folder)
    recording.note_whose(other.is_fetched, artifacts)
    made_here = recording.Recording()
    made_here.artifact(*artifacts[0])
    assert made_here.keys == frozenset()
    assert [one.folder for one in found.pages if not one.is_fetched] == own


def test_a_library_is_found_in_another_page_once_its_own_is_removed(found, tmp_path):
    """Another process has written a page that replaces it, while this scope is open."""
    made_here = recording.Recording()
    made_here.offer(found, found.pages)
    shutil.rmtree(found.pages[0].folder)
    path = made_here.library_path("okey")
    made_here.library("okey", path)
    assert path and made_here.keys == frozenset(), "the page that is left was fetched"


def test_a_fetched_page_is_not_needless_because_one_of_this_machine_has_its_parts(machines, where):
    machines.enter("first")
    graphs = [("aot_autograd", "a1", b""), ("aot_autograd", "a2", b"")]
    folders = [put(where, graphs[:1]), put(where, graphs[1:]), put(where, graphs)]
    (folders[1] / "signed").write_bytes(b"")
    keys_here = [*(content.key_of(*one) for one in graphs), "library/okey"]
    store.bound(writable_store(), where, [str(folders[2])], keys_here, 4)
    assert [folder.exists() for folder in folders] == [False, True, True]


def test_seconds_are_those_of_each_thread_since_the_scope_began(machines):
    made_here = recording.Recording()
    began = made_here._began
    made_here.traced(began - 100, began + 1)  # another thread had begun before
    made_here.traced(began, began + 2)
    assert made_here.seconds == 3
    assert inductor.PATCHES["torch._dynamo.callback"]


def test_an_op_may_be_loaded_while_the_loaded_ones_are_listed():
    """`loaded_ops` is read by a thread while others load."""
    from opforge.fast_path import library

    class Loaded:
        __name__ = "an op"

    keys_here = [f"key{number}" for number in range(2000)]
    thread = threading.Thread(target=lambda: [add(key) for key in keys_here])

    def add(key):
        with library.lock:
            library.by_entry[key] = (Loaded(), {})

    try:
        thread.start()
        while thread.is_alive():
            library.loaded_ops()
    finally:
        thread.join()
        for key in keys_here:
            library.by_entry.pop(key, None)
