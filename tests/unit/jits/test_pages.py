"""Pages of entries: united by key, compared at each use, bounded, and refused where they are not what was signed."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import signal
import threading
import tracemalloc

import pytest
from click.testing import CliRunner
from support import child_processes
from support.jits import pages

from opforge.builders.no_builds import no_builds
from opforge.cache.current_store import current_store, writable_store
from opforge.cache.keys import bytes_digest, canonical
from opforge.cli import group
from opforge.errors import CacheDirError, CompileForbiddenError, TrustFileError
from opforge.jits import entries as entries_module
from opforge.jits import features, page, private_folder, scope, store
from opforge.jits.kind import JIT
from opforge.jits.page import PageTopic
from opforge.remote import contents, remembered_answers, statements, topics, withdrawal_lists
from opforge.remote.signatures import keys, trust_file

CODE = {"code": b"machine code"}


def run(*arguments, code=0):
    outcome = CliRunner().invoke(group, [*map(str, arguments)])
    assert outcome.exit_code == code, (outcome.output, outcome.exception)
    return outcome.output


def stored():
    return [*JIT.stored(current_store().layout)]


def object_of(content):
    """Returns the file of a page that has these bytes."""
    (one,) = stored()
    return os.path.join(one.path, "tree", "objects", bytes_digest(content))


@pytest.fixture
def kept(own_store):
    return pages.keep({"key": CODE})


class TestEntries:
    def test_what_one_process_has_kept_another_finds(self, kept):
        found = pages.entries()
        assert found.get("key") == CODE and found.get("other") is None and found.hits == 1

    def test_the_entries_of_all_pages_are_united_by_key(self, kept):
        pages.keep({"second": {"code": b"more"}})
        assert [one.details for one in stored()] == ["1 entry", "1 entry"]
        assert pages.entries().all_keys() == ["key", "second"]

    def test_a_scope_leaves_one_page(self, own_store):
        pages.keep({f"key-{number}": CODE for number in range(5)})
        assert [one.details for one in stored()] == ["5 entries"]

    def test_many_pages_of_this_machine_become_one(self, own_store):
        for number in range(store.MAX_OWN + 1):
            pages.keep({f"key-{number}": CODE})
        assert len(stored()) == 1 and len(pages.entries().all_keys()) == store.MAX_OWN + 1

    def test_what_a_scope_makes_is_there_for_others_before_its_end(self, own_store):
        making, waiting = pages.entries(), pages.entries()
        assert waiting.get("key") is None
        making.put("key", "key", CODE)
        assert waiting.get("key") == CODE

    def test_pages_that_are_united_meanwhile_are_found_again(self, own_store):
        reader, writer = pages.entries(), pages.entries()
        for number in range(2):
            writer.put(f"key-{number}", "key", CODE)
        assert reader.get("key-0")
        writer.close()
        assert reader.get("key-0") == reader.get("key-1") == CODE

    def test_another_fingerprint_is_another_topic(self, kept):
        assert pages.entries(toy="2").get("key") is None

    def test_one_makes_it_and_says_so(self, own_store):
        entries = pages.entries()
        assert entries.made_once("key", "the kernel", lambda: CODE) == entries.made_once("key", "x", dict) == CODE
        assert (entries.made, entries.hits) == (["the kernel"], 1)

    def test_a_small_tree_is_laid_out_for_this_user_alone(self, own_store):
        files = {"folder/a.so": b"a", "b": b"b"}
        made = page.entry_problem("key", files)
        paths = pages.entries().lay("key", files)
        assert made == "" and [os.path.relpath(paths["b"], os.path.dirname(paths["folder/a.so"]))] == ["../b"]
        folder = os.path.dirname(paths["b"])
        assert os.stat(folder).st_mode & 0o077 == 0 and os.stat(paths["b"]).st_mode & 0o077 == 0

    def test_a_forked_child_keeps_nothing(self, own_store):
        entries = pages.entries()
        child = os.fork()
        if not child:
            entries.put("key", "key", CODE)
            os._exit(len(stored()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_a_child_that_is_forked_while_another_thread_uses_the_entries_does_not_hang(self, kept):
        """The thread that holds the locks is not in the child."""
        entries, is_held, may_end = pages.entries(), threading.Event(), threading.Event()

        def hold():
            with entries._lock, scope._lock:
                is_held.set()
                may_end.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        is_held.wait()
        child = os.fork()
        if not child:
            signal.alarm(20)  # ends a child that hangs
            with scope._lock:
                os._exit(0 if entries.get("key") == CODE else 1)
        status = os.waitpid(child, 0)[1]
        may_end.set()
        thread.join()
        assert os.waitstatus_to_exitcode(status) == 0

    def test_nothing_is_compiled_where_that_is_forbidden(self, own_store):
        entries = pages.entries("solver")
        with no_builds(), pytest.raises(CompileForbiddenError) as failed:
            entries.made_once("key", "the kernel copy", dict)
        assert str(failed.value) == (
            "the kernel copy: nothing that was warmed as 'solver' fits, and opforge.no_builds() forbids compiling."
            "\nCompile it before, for these shapes, inside opforge.warm('solver')."
        )


class TestBounds:
    @pytest.mark.parametrize(
        ("key", "files", "problem"),
        [
            ("key", {"../x": b""}, "'../x' does not stay inside the package"),
            ("key", {"/x": b""}, "'/x' does not stay inside the package"),
            ("a key", {"x": b""}, "(a name in it)"),
            ("k" * 301, {"x": b""}, "(a name in it)"),
            ("key", {f"{number}": b"" for number in range(page.MAX_FILES + 1)}, "and an entry has at most"),
        ],
    )
    def test_an_entry_that_cannot_be_kept(self, key, files, problem):
        assert problem in page.entry_problem(key, files)

    def test_one_that_is_too_large_is_used_and_not_kept(self, own_store, monkeypatch, caplog):
        monkeypatch.setattr(page, "MAX_ENTRY_BYTES", 4)
        entries = pages.entries()
        with caplog.at_level(logging.WARNING, "opforge"):
            assert entries.made_once("key", "the kernel", lambda: CODE) == CODE
        assert caplog.messages == [
            "toy/copy: the kernel is not kept: it has 12 bytes in 1 files, and an entry has at most 4 in 256"
        ]
        assert not stored()

    def test_pages_are_not_united_beyond_their_limit(self, own_store, monkeypatch):
        monkeypatch.setattr(page, "MAX_BYTES", 30)
        pages.keep({f"key-{number}": {"code": b"%12d" % number} for number in range(5)})
        assert sorted(one.details for one in stored()) == ["1 entry", "2 entries", "2 entries"]

    def test_pages_are_united_with_one_entry_at_a_time_in_memory(self, own_store):
        made = pages.entries()
        for number in range(20):
            made.put(f"key-{number}", "a kernel", {"code": bytes([number]) * 1_000_000})
        tracemalloc.start()
        try:
            made.close()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert [one.details for one in stored()] == ["20 entries"] and peak < 6_000_000

    def test_files_that_an_adapter_does_not_carry_are_not_kept(self, own_store, caplog):
        with caplog.at_level(logging.WARNING, "opforge"):
            pages.keep({"key": {"build.ninja.py.x": b""}})
        assert "'build.ninja.py.x' is not a file of the adapter toy" in caplog.text and not stored()


class TestDamage:
    def test_an_entry_with_a_file_that_its_adapter_does_not_carry_is_not_read(self, own_store, monkeypatch, caplog):
        with monkeypatch.context() as patched:
            patched.setattr(entries_module.Entries, "_carries_problem", lambda *_arguments: "")
            pages.keep({"key": {"build.ninja.py.x": b""}})
        assert len(stored()) == 1
        with caplog.at_level(logging.WARNING, "opforge"):
            assert pages.entries().get("key") is None
        assert "'build.ninja.py.x' is not a file of the adapter toy" in caplog.text and not stored()

    def test_a_flipped_byte_is_a_miss_and_the_page_is_set_aside(self, kept, caplog):
        path = object_of(CODE["code"])
        entries = pages.entries()
        with open(path, "r+b") as file:
            file.write(b"M")
        with caplog.at_level(logging.WARNING, "opforge"):
            assert entries.get("key") is None
        assert "code of key is damaged, or was changed" in caplog.text and not stored()
        assert entries.made_once("key", "key", lambda: CODE) == pages.entries().get("key") == CODE

    def test_an_object_that_is_a_link_is_not_read(self, kept, tmp_path):
        path = object_of(CODE["code"])
        (tmp_path / "same").write_bytes(CODE["code"])
        os.unlink(path)
        os.symlink(tmp_path / "same", path)
        assert pages.entries().get("key") is None

    @pytest.mark.parametrize("name", ["page.json", "tree/index.json"])
    def test_a_list_that_was_changed_is_set_aside(self, kept, name, caplog):
        (one,) = stored()
        path = os.path.join(one.path, name)
        with open(path, "rb") as file:
            content = file.read()
        with open(path, "wb") as file:
            file.write(content.replace(b'"key"', b'"kez"') if b'"key"' in content else content.replace(b'"1"', b'"2"'))
        with caplog.at_level(logging.WARNING, "opforge"):
            assert pages.entries().get("key") is None
        assert not stored() and "is not used" in caplog.text

    def test_a_folder_that_others_can_write_is_not_used(self, kept):
        (one,) = stored()
        os.chmod(one.path, 0o777)
        assert pages.entries().get("key") is None

    def test_host_code_of_another_processor_stays_and_is_not_used(self, own_store, monkeypatch, caplog):
        pages.keep({"key": CODE}, holds="host", features=("avx512f",))
        monkeypatch.setattr(features, "features", lambda: ("avx2",))
        with caplog.at_level(logging.INFO, "opforge"):
            assert pages.entries(holds="host").get("key") is None
        assert "is for another machine: the processor lacks avx512f" in caplog.text and len(stored()) == 1


@pytest.mark.parametrize("name", ["page.json", os.path.join("tree", "index.json")])
def test_a_page_without_one_of_its_files_is_set_aside(kept, caplog, name):
    os.unlink(os.path.join(stored()[0].path, name))
    with caplog.at_level(logging.WARNING, "opforge"):
        assert pages.entries().get("key") is None
    assert "is not used: one of its files is missing." in caplog.text and not stored()


def test_a_page_is_not_used_while_it_is_not_known_whether_it_was_fetched(kept, monkeypatch, caplog):
    """Otherwise it would pass for one that was made here, whose signature nobody asks for."""
    lstat = os.lstat

    def stale(path, *arguments, **more):
        if str(path).endswith("/signed"):
            raise OSError(errno.ESTALE, "Stale file handle", path)
        return lstat(path, *arguments, **more)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "opforge"):
        patch.setattr(os, "lstat", stale)
        assert pages.entries().get("key") is None
    assert "it cannot be read (Stale file handle)" in caplog.text and pages.entries().get("key") == CODE


def test_a_store_that_can_only_be_read_is_used_and_what_is_new_is_not_kept(kept, own_store, monkeypatch, caplog):
    def refused():
        raise CacheDirError(str(own_store), "it cannot be written", "Choose another")

    monkeypatch.setattr(entries_module, "writable_store", refused)
    monkeypatch.setattr(private_folder, "writable_store", refused)
    entries = pages.entries()
    assert entries.get("key") == CODE and entries.lay("key", CODE)
    with caplog.at_level(logging.WARNING, "opforge"):
        assert entries.made_once("new", "new", lambda: CODE) == CODE
    assert caplog.text.count("toy/copy: compiled code is not kept") == 1 and len(stored()) == 1


RACE = """
import os, random, sys, time
from support.jits import pages
entries = pages.entries()
for number in range(int(os.environ["ENTRIES"])):
    key = f"key-{number}"
    entries.made_once(key, key, lambda: {"code": key.encode() * 100, "more": os.urandom(9)})
    print(number, flush=True)
entries.close()
"""


@pytest.mark.long("eight processes, three of which are killed")
def test_of_eight_processes_three_are_killed_and_nothing_half_is_there(own_store):
    """Each makes the same entries; what was finished is whole, and the rest is made by the others."""
    env = {"ENTRIES": "40", "OPFORGE_COMPILED_WAIT": "20"}
    processes = [child_processes.start_python(RACE, env=env) for _ in range(8)]
    for process in processes[:3]:
        process.stdout.readline()
        process.kill()
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [-9] * 3 + [0] * 5, outputs
    entries = pages.entries()
    assert entries.all_keys() == sorted(f"key-{number}" for number in range(40))
    for key in map("key-{}".format, range(40)):
        assert entries.get(key)["code"] == key.encode() * 100
    assert "0 damaged" in run("verify")


# -- what travels ------------------------------------------------------------------------------------------------------


class TestFetched:
    @pytest.fixture
    def published(self, nodes, monkeypatch):
        """Another machine, and a store with what the first one has published."""
        nodes.trust(nodes.public, scopes=("jit:toy/*",))
        nodes.enter("a")
        with monkeypatch.context() as patch:
            patch.delenv("OPFORGE_REMOTES")
            self.made = pages.keep({"key": CODE})
        run("publish", nodes.url, "jit:toy/copy", "--key", "ci")
        return nodes.enter("b")

    def state(self, nodes, **changes):
        """Signs another statement in the place of the one that is there."""
        (path,) = (nodes.folder / "remote" / "v1" / "topics" / "jit").rglob("*.json")
        (item,) = topics.read_frame(path.read_bytes())
        stated = statements.parse(item.data)
        facts = {**stated.facts, **changes.pop("facts", {})}
        changed = stated._replace(facts=facts, **changes)
        path.write_bytes(topics.frame([statements.signed(changed, [keys.signer("ci")])]))

    def refused(self, caplog):
        with caplog.at_level(logging.INFO, "opforge"):
            assert pages.entries().get("key") is None
        assert not stored()
        return caplog.text

    def test_it_is_used_without_the_remote_afterwards(self, published, monkeypatch):
        assert pages.entries().get("key") == CODE
        monkeypatch.delenv("OPFORGE_REMOTES")
        assert pages.entries().get("key") == CODE and stored()[0].is_fetched

    def test_what_was_made_here_takes_the_place_of_an_equal_one_whose_key_is_not_accepted(
        self, published, nodes, monkeypatch
    ):
        assert pages.entries().get("key") == CODE
        nodes.trust(nodes.public, scopes=("jit:toy/other",))
        monkeypatch.delenv("OPFORGE_REMOTES")
        pages.keep({"key": CODE})
        assert [one.is_fetched for one in stored()] == [False]
        assert pages.entries().get("key") == CODE

    def test_a_page_that_is_not_accepted_is_warned_of_once(self, published, nodes, monkeypatch, caplog):
        """Each miss looks at it again: its key may be accepted meanwhile."""
        assert pages.entries().get("key") == CODE
        monkeypatch.delenv("OPFORGE_REMOTES")
        nodes.trust(nodes.public, scopes=("jit:toy/other",))
        found = pages.entries()
        for key in ("key", "a", "b"):
            assert found.get(key) is None
        assert caplog.text.count("is not used: no key that signed it may sign jit:toy/copy") == 1
        nodes.trust(nodes.public, scopes=("jit:toy/*",))
        assert found.get("key") == CODE

    def test_one_that_is_withdrawn_from_use_is_removed_though_nothing_is_missing(self, published, nodes, monkeypatch):
        assert pages.entries().get("key") == CODE
        (item,) = contents.items(nodes.store)
        said = withdrawal_lists.Withdrawal(withdrawal_lists.LOADING, "it is wrong")
        withdrawal_lists.publish(nodes.store, keys.signer("ci"), "ci", {f"jit:toy/copy@{item.label}": said})
        monkeypatch.setattr(remembered_answers, "WITHDRAWN_SECONDS", -1.0)  # the list was read just now
        assert pages.entries().get("key") is None and not stored()

    def test_it_is_fetched_once(self, published, monkeypatch):
        assert pages.entries().get("key") == CODE
        before = os.stat(stored()[0].path).st_ino
        assert pages.entries().get("key") == CODE
        assert os.stat(stored()[0].path).st_ino == before and len(stored()) == 1

    def test_what_is_made_is_published_where_the_settings_say_so(self, published, nodes, monkeypatch):
        monkeypatch.setenv("OPFORGE_REMOTES", f"{nodes.url}?push=1")
        pages.keep({"second": CODE})
        nodes.enter("c")
        assert pages.entries().all_keys() == ["key", "second"]

    def test_a_key_for_another_adapter_or_label_brings_nothing(self, published, nodes, caplog):
        nodes.trust(nodes.public, scopes=("jit:toy/other", "jit:toy-host/*", "op:*"))
        assert "no key that signed it may sign jit:toy/copy" in self.refused(caplog)

    def test_a_key_for_code_of_the_gpu_cannot_bring_code_of_the_host(self, published, nodes, caplog):
        self.state(nodes, facts={"holds": "host"})
        assert "it holds code for 'host', expected 'gpu'" in self.refused(caplog)

    def test_host_code_that_this_processor_cannot_run_is_not_fetched(self, published, nodes, caplog):
        self.state(nodes, facts={"features": ["avx4096"]})
        assert "the processor lacks avx4096" in self.refused(caplog)

    def test_a_statement_whose_facts_are_of_another_topic(self, published, nodes, caplog):
        self.state(nodes, facts={"label": "other"})
        assert "and its facts are of toy/other/" in self.refused(caplog)

    def test_a_page_with_other_parts_than_its_list(self, published, nodes, caplog):
        self.state(nodes, facts={"parts": ["0" * 24]})
        with caplog.at_level(logging.WARNING, "opforge"):
            assert pages.entries().get("key") is None
        assert "its page.json names other entries than its index.json" in caplog.text

    def test_a_signature_that_was_removed(self, published, nodes, caplog):
        (path,) = (nodes.folder / "remote" / "v1" / "topics" / "jit").rglob("*.json")
        path.write_bytes(path.read_bytes().partition(b'"signatures":[')[0] + b'"signatures":[]}\n]}\n')
        assert "it has no signature" in self.refused(caplog)

    def test_a_blob_with_another_byte(self, published, nodes, caplog):
        (path,) = [path for path in (nodes.folder / "remote" / "v1" / "blobs").rglob("*") if path.is_file()]
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.chmod(0o600)
        path.write_bytes(bytes(content))
        assert "the blob's digest differs from that in its statement" in self.refused(caplog)

    def test_an_unsigned_remote_is_not_asked(self, published, nodes, monkeypatch, caplog):
        monkeypatch.setenv("OPFORGE_REMOTES", f"{nodes.url}?unsigned=1")
        assert "which is machine code: sign it" in self.refused(caplog)

    def test_what_was_fetched_is_no_part_of_a_page_of_this_machine(self, published, monkeypatch):
        entries = pages.entries()
        assert entries.get("key") == CODE
        for number in range(store.MAX_OWN + 1):
            entries.put(f"key-{number}", "key", {"code": b"%d" % number})
        entries.close()
        assert sorted((one.is_fetched, one.details) for one in stored()) == [
            (False, f"{store.MAX_OWN + 1} entries"),
            (True, "1 entry"),
        ]

    def test_a_page_that_was_changed_after_it_was_fetched(self, published, caplog):
        """Its list has its digest in the name, but other facts than were signed."""
        pages.entries()
        (one,) = stored()
        path = os.path.join(one.path, "page.json")
        with open(path) as file:
            value = json.load(file)
        value["facts"]["made"] += 1
        with open(path, "wb") as file:
            file.write(canonical(value))
        with caplog.at_level(logging.WARNING, "opforge"):
            assert pages.entries().get("key") == CODE, "fetched again"
        assert "page.json differs from the signed one" in caplog.text


def test_a_page_whose_list_names_a_path_outside(own_store):
    """As a signer could write it: nothing of it is laid out."""
    where = PageTopic(pages.ADAPTER, "copy", {"toy": "1"})
    folder = writable_store().layout.path("jit", "made")
    os.makedirs(os.path.join(folder, "tree", "objects"), mode=0o700)
    index = canonical({"key": {"../../x": [bytes_digest(b""), 0]}})
    with open(os.path.join(folder, "tree", "index.json"), "wb") as file:
        file.write(index)
    digest = page._digest(index, json.loads(index))
    facts = {"fingerprint": dict(where.fingerprint), "features": [], "holds": "gpu", "made": 1}
    page.write_record(
        folder, digest, {"adapter": where.adapter, "label": "copy", "parts": [page.part_of("key")], **facts}
    )
    with pytest.raises(page.PageError, match="does not stay inside"):
        page.read_index(os.path.join(folder, "tree"), digest)
    os.rename(folder, os.path.join(os.path.dirname(folder), page.name_of(where, digest)))
    assert pages.entries().get("key") is None and not page.folders(current_store().layout)


def test_a_scope_of_the_kind_that_is_gone_names_the_new_one(nodes):
    instead = re.escape("in place of triton:NAME jit:triton/LABEL for kernels, and")
    with pytest.raises(ValueError, match=rf"'triton:\*' is not a scope: expected .*{instead}"):
        trust_file.scope("triton:*")
    nodes.trust(nodes.public, scopes=("op:*",))
    path = nodes.trust_file()
    path.write_text(path.read_text().replace('"op:*"', '"triton:*"'))
    with pytest.raises(TrustFileError, match=instead):
        trust_file.read()
