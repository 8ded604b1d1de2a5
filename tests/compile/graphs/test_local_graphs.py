"""Compiled graphs in the user's own store: found by another process, and refused when they are not what they were."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import threading

import pytest
from support import child_processes
from support.compiled_graphs import double, flat, pages, put, tall

import opforge
from opforge.cache.current_store import writable_store
from opforge.errors import CompiledScopeError, SettingError
from opforge.fast_path import library
from opforge.graphs import content, session
from opforge.jits import page, store
from opforge.torch_internals import inductor

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile
SECOND = """
import sys, torch, opforge, torch._inductor.config
torch._inductor.config.cpp.simdlen = 1  # as the fixture `machines` has it
def double(x):
    return (x * 2).sin()
with opforge.compiled("pair") as graphs:
    got = torch.compile(double)(torch.ones(6))
print(graphs.found, len(graphs.compiled), torch.equal(got, double(torch.ones(6))), torch.__file__)
"""


def run(function=flat, count=6):
    got = torch.compile(function)(torch.ones(count))
    assert torch.equal(got, function(torch.ones(count)))


class TestFound:
    def test_another_machine_finds_what_was_compiled_and_nothing_is_stored_twice(self, machines):
        own = machines.enter("first")
        with opforge.compiled("views") as graphs:
            run(flat)
        assert len(graphs.compiled) == 1 and graphs.compiled[0].startswith("flat (compiled_graphs.py:")
        assert graphs.compiled[0].endswith(" for float32[6]")
        again = machines.enter("second", own)
        with opforge.compiled("views") as graphs:
            run(flat)
        assert (graphs.found, graphs.compiled) == (1, ()) and graphs.seconds > 0
        assert pages(again) == pages(own) and repr(graphs) == "<Graphs views: 1 pages found, 0 graphs compiled>"

    @pytest.mark.long("imports another torch; tests/spine/test_packages.py has another process without a compiler")
    def test_it_needs_no_compiler_and_not_the_same_torch_or_program(
        self, machines, compiles_cpp, tmp_path, monkeypatch
    ):
        """torch's own names of libraries are digests of a command with the paths of the compiler and of torch."""
        for known in ("defined", "python_fakes"):  # the ops of other tests, which the other process will not have
            monkeypatch.setattr(library, known, {})
        machines.enter("first")
        with opforge.compiled("pair"):
            run(double)
        (tmp_path / "site").mkdir()
        for name in ("torch", "torchgen"):
            package = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), name)
            (tmp_path / "site" / name).symlink_to(package)
        env = {"PATH": str(tmp_path), "PYTHONPATH": f"{tmp_path}/site:{child_processes.environment()['PYTHONPATH']}"}
        env["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "third")
        out = child_processes.run_python(SECOND, timeout=250, env=env)
        assert out.split() == ["1", "0", "True", f"{tmp_path}/site/torch/__init__.py"]

    def test_functions_for_who_cannot_nest(self, machines):
        own = machines.enter("first")
        opforge.load_compiled("views")
        run()
        opforge.save_compiled("views")
        machines.enter("second", own)
        graphs = opforge.load_compiled("views")
        run()
        opforge.save_compiled("views")
        assert (graphs.name, graphs.found, graphs.compiled) == ("views", 1, ())
        with pytest.raises(CompiledScopeError, match=r"save_compiled\('views'\): load_compiled has not begun it"):
            opforge.save_compiled("views")


class TestRecorded:
    def test_a_scope_without_compiles_stores_nothing_and_says_so(self, machines, warnings_of_the_cache):
        own = machines.enter("idle")
        with opforge.compiled("pair") as graphs:
            pass
        assert graphs.found == 0 and not pages(own)
        (warning,) = warnings_of_the_cache()
        assert warning == session.NOTHING % "pair"

    def test_of_the_ranks_on_a_machine_the_first_says_it(self, machines, monkeypatch, warnings_of_the_cache):
        machines.enter("idle")
        monkeypatch.setenv("LOCAL_RANK", "1")
        with opforge.compiled("pair"):
            pass
        assert warnings_of_the_cache() == []

    def test_a_scope_that_ends_by_an_error_says_nothing_of_that(self, machines, warnings_of_the_cache):
        machines.enter("idle")
        with pytest.raises(ZeroDivisionError), opforge.compiled("pair"):
            raise ZeroDivisionError
        assert warnings_of_the_cache() == []

    def test_a_new_shape_makes_a_page_that_replaces_the_smaller_one(self, machines):
        own = machines.enter("first")
        with opforge.compiled("views"):
            run(flat)
        before = pages(own)
        torch.compiler.reset()
        with opforge.compiled("views") as graphs:
            run(flat)
            run(tall)
        assert [name.partition(" for ")[0].partition(" (")[0] for name in graphs.compiled] == ["tall"]
        assert len(pages(own)) == 1 and pages(own) != before

    def test_two_names_record_each_what_is_compiled_in_them(self, machines):
        own = machines.enter("first")
        with opforge.compiled("outer"):
            run(flat)
            with opforge.compiled("inner"):
                run(tall)
        facts = [page.read_record(str(own / "v2" / "jit" / name))["facts"] for name in pages(own)]
        parts = {each["label"]: set(each["parts"]) for each in facts}
        assert parts["inner"] < parts["outer"]

    def test_scopes_of_one_name_share_their_graphs(self, machines):
        own, graphs = machines.enter("first"), []

        def work(function):
            with opforge.compiled("shared") as found:
                barrier.wait()
                run(function)
                graphs.append(found)

        barrier = threading.Barrier(2)
        threads = [threading.Thread(target=work, args=(function,)) for function in (flat, tall)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(pages(own)) == 1 and all(len(each.compiled) == 2 for each in graphs)

    def test_graphs_are_kept_after_an_error(self, machines):
        own = machines.enter("first")
        with pytest.raises(ZeroDivisionError), opforge.compiled("views"):
            run(flat)
            raise ZeroDivisionError
        assert len(pages(own)) == 1

    def test_the_number_of_pages_is_bounded(self, machines, monkeypatch):
        own = machines.enter("first")
        monkeypatch.setattr(session, "MOST_PAGES", 2)
        for count in range(2, 6):
            torch.compiler.reset()
            with opforge.compiled("views"):
                run(flat, count)
        assert len(pages(own)) == 2


class TestOps:
    @pytest.fixture
    def op(self, shared_store, relu_folder, monkeypatch):
        """Returns a function that loads an op with a fake kernel, which it is given."""

        def load(relu=torch.empty_like):
            with monkeypatch.context() as patch:
                patch.setenv("OPFORGE_CACHE_DIR", str(shared_store))
                return opforge.load(relu_folder.name, str(relu_folder / "relu.cpp"), fakes={"relu": relu})

        return load

    def test_one_that_is_loaded_later_and_another_fake_kernel_give_a_miss_and_no_stale_graph(self, machines, op):
        own = machines.enter("before")
        with opforge.compiled("views"):
            run(flat)
        loaded = op()
        first = machines.enter("first", own)
        with opforge.compiled("views") as graphs:
            run(flat)
        assert (graphs.found, len(graphs.compiled)) == (1, 1)

        def function(x):
            return loaded.relu(x).view(1, -1)

        with opforge.compiled("views"):
            run(function)
        second = machines.enter("second", first)
        with opforge.compiled("views") as graphs:
            run(function)
        assert graphs.compiled == ()
        loaded = op(lambda x: x.new_empty(x.shape))
        machines.enter("third", second)
        with opforge.compiled("views") as graphs:
            torch.compile(function)(torch.ones(6))
        assert len(graphs.compiled) == 1


class TestWaiting:
    def test_one_process_compiles_and_the_others_wait(self, machines, where):
        machines.enter("second")
        builder, waiter = session.Session(where), session.Session(where)
        builder.begin()
        thread = threading.Thread(target=waiter.begin)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()  # a second process of the job
        put(where)
        thread.join(30)
        assert len(waiter.pages) == 1
        builder.end()
        waiter.end()

    def test_a_wait_that_is_too_long_ends_in_a_compile(self, machines, where, monkeypatch, warnings_of_the_cache):
        machines.enter("second")
        monkeypatch.setenv("OPFORGE_COMPILED_WAIT", "0.2")
        builder, waiter = session.Session(where), session.Session(where)
        builder.begin()
        waiter.begin()
        assert waiter.pages == [] and waiter.recording is not None
        (warning,) = warnings_of_the_cache()
        assert warning.startswith("the compiled graphs of pair: waited 0.2 s for process")
        assert warning.endswith("They are compiled here too.")
        builder.end()
        waiter.end()

    def test_who_compiles_without_result_lets_the_next_one_go_on(self, machines, where):
        machines.enter("second")
        builder, waiter = session.Session(where), session.Session(where)
        builder.begin()
        thread = threading.Thread(target=waiter.begin)
        thread.start()
        builder.end()
        thread.join(30)
        assert not thread.is_alive() and waiter.pages == []
        waiter.end()


def test_the_artifacts_of_one_page_at_a_time_are_in_memory(machines, where, monkeypatch):
    machines.enter("second")
    for number in range(3):
        put(where, made=number)
    read, held = session.Session._artifacts, []

    def artifacts(self, one):
        assert not any(held)
        held.append(read(self, one))
        assert held[-1]
        return held[-1]

    monkeypatch.setattr(session.Session, "_artifacts", artifacts)
    begun = session.Session(where)
    begun.begin()
    assert len(begun.pages) == len(held) == 3 and not any(held)
    begun.end()


def test_a_name_keeps_all_its_functions_though_few_of_its_pages_stay(machines, where, tmp_path, monkeypatch):
    """Each function is compiled in a scope of its own, which writes a page with its library, and with the others."""
    machines.enter("second")
    monkeypatch.setattr(session, "MOST_FUNCTIONS", 3)
    keys = [f"f{number}" for number in range(session.MOST_PAGES + 3)]

    def in_scope(number, key):
        (tmp_path / "library.so").write_bytes(f"library of {number}".encode())
        begun = session.enter("pair")
        begun.recording.library(f"o{number}", str(tmp_path / "library.so"))
        begun.keep_function(key, b'{"libraries": ["o%d"]}\npickle' % number)
        session.leave(begun)

    for number, key in enumerate([*keys, *keys[:1] * 9]):
        in_scope(number, key)
    begun = session.enter("pair")
    numbers = {key: len(begun.functions[key]) for key in keys}
    assert {*map(numbers.get, keys[1:])} == {1}
    assert numbers[keys[0]] <= session.MOST_FUNCTIONS + session.MOST_PAGES  # of one key no more are taken over
    for function in (each for of_key in begun.functions.values() for each in of_key):
        (key,) = json.loads(function.partition(b"\n")[0])["libraries"]
        path = begun.recording.library_path(key)
        assert pathlib.Path(path).read_text() == f"library of {key.removeprefix('o')}"
    session.leave(begun)


class TestRefused:
    """One line, then a compile: what is missing here is only looked for, as the compile is the same everywhere."""

    @pytest.fixture(autouse=True)
    def own(self, machines, where):
        machines.enter("second")
        self.folder = put(where)

    def test_what_is_not_changed_is_found(self, warnings_of_the_cache):
        """What the tests below change is all that is wrong."""
        with opforge.compiled("pair") as graphs:
            pass
        assert graphs.found == 1 and not warnings_of_the_cache()

    def refused(self, warnings_of_the_cache):
        with opforge.compiled("pair") as graphs:
            pass
        assert graphs.found == 0 and not self.folder.exists()
        (warning,) = warnings_of_the_cache()
        before, _, reason = warning.partition(" is not used: ")
        assert before == f"inductor/pair: the content of {self.folder}"
        assert reason.endswith(". Missing code is compiled.")
        return reason.removesuffix(". Missing code is compiled.")

    def object(self, name):
        """Returns the file of the page that an entry has under this name."""
        index = json.loads((self.folder / "tree" / "index.json").read_bytes())
        (found,) = [files[name][0] for files in index.values() if name in files]
        return self.folder / "tree" / "objects" / found

    def test_a_flipped_bit_of_an_artifact(self, warnings_of_the_cache):
        flip(self.object("artifact"))
        assert self.refused(warnings_of_the_cache).endswith(" is damaged, or was changed")

    def test_a_flipped_bit_of_a_library_which_is_noticed_when_it_is_needed(self, where, warnings_of_the_cache):
        flip(self.object("okey.so"))
        begun = session.Session(where)
        begun.begin()
        assert begun.recording.library_path("okey") == "" and not self.folder.exists()
        begun.end()
        (warning,) = warnings_of_the_cache()
        assert "okey.so of library/okey is damaged, or was changed. Missing code is compiled." in warning

    def test_what_is_compiled_again_in_the_place_of_a_damaged_library_is_kept(self, where, tmp_path):
        flip(self.object("okey.so"))
        again = tmp_path / "again.so"
        again.write_bytes(b"compiled again")
        begun = session.Session(where)
        begun.begin()
        for one in begun.pages:
            for kind, key, data in begun._artifacts(one):
                begun.recording.artifact(kind, key, data)  # torch has found it
        assert begun.recording.library_path("okey") == ""
        begun.recording.library("okey", str(again))
        begun.end()
        (kept,) = page.folders(writable_store().layout)
        read = page.read(kept, where, {os.getuid()})
        assert read.entry("library/okey") == {"okey.so": b"compiled again"} and len(read.entries) == 2

    def test_a_flipped_bit_of_its_list(self, warnings_of_the_cache):
        flip(self.folder / "tree" / "index.json", 2)
        assert self.refused(warnings_of_the_cache).startswith("its list is not the one that its digest names")

    def test_a_file_less(self, warnings_of_the_cache):
        self.object("artifact").unlink()
        assert self.refused(warnings_of_the_cache) == "one of its files is missing"

    def test_a_file_that_others_can_write(self, warnings_of_the_cache):
        self.object("artifact").chmod(0o666)
        assert self.refused(warnings_of_the_cache).startswith("others can write objects/")

    def test_a_link(self, warnings_of_the_cache, tmp_path):
        artifact = self.object("artifact")
        artifact.rename(tmp_path / "artifact")
        artifact.symlink_to(tmp_path / "artifact")
        assert self.refused(warnings_of_the_cache).startswith("it cannot be read (Too many levels of symbolic links")

    def test_a_record_of_another_format(self, warnings_of_the_cache):
        (self.folder / "page.json").write_bytes(b'{"format":2}')
        reason = self.refused(warnings_of_the_cache)
        assert reason.startswith("its page.json cannot be used: ") and "'format' is 2" in reason

    def test_a_record_of_another_torch(self, warnings_of_the_cache, where):
        record = page.read_record(str(self.folder))
        other = {**record["facts"], "fingerprint": {**where.fingerprint, "torch": "2.12.0"}}
        page.write_record(str(self.folder), record["tree"], other)
        assert self.refused(warnings_of_the_cache) == "it is of another topic"

    def test_files_that_no_graph_has(self, warnings_of_the_cache, where):
        self.folder.rename(self.folder.with_name("gone"))
        entry = {"inductor/0": {"more.py": b""}}
        facts = {"holds": content.HOLDS, "features": [], "made": 1}
        self.folder = pathlib.Path(store.write(writable_store(), where, entry, facts))
        assert self.refused(warnings_of_the_cache) == "'more.py' is not a file of the adapter inductor"


def flip(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_artifacts_that_torch_cannot_read(machines, where, warnings_of_the_cache, monkeypatch):
    machines.enter("second")
    monkeypatch.setattr(content, "of_artifact", lambda artifact: {"artifact": b"nonsense"})
    put(where)
    monkeypatch.setattr(logging.getLogger("torch.compiler._cache"), "disabled", True)
    with opforge.compiled("pair") as graphs:
        pass
    assert graphs.found == 0
    assert "is not used: torch cannot read its artifacts." in warnings_of_the_cache()[0]


def test_what_is_compiled_beside_a_page_that_torch_cannot_read_is_kept(machines, monkeypatch):
    own = machines.enter("first")
    with monkeypatch.context() as patch:
        patch.setattr(content, "of_artifact", lambda artifact: {"artifact": b"nonsense"})
        with opforge.compiled("views"):
            run(flat)
    monkeypatch.setattr(logging.getLogger("torch.compiler._cache"), "disabled", True)
    again = machines.enter("second", own)
    with opforge.compiled("views") as graphs:
        run(flat)
    assert len(graphs.compiled) == 1
    machines.enter("third", again)
    with opforge.compiled("views") as graphs:
        run(flat)
    assert graphs.compiled == ()


@pytest.mark.parametrize("files", [{}, {"okey.so": b""}, {"artifact": b"", "okey.so": b""}])
def test_an_entry_of_a_graph_has_an_artifact_and_nothing_else(files):
    with pytest.raises(ValueError, match=r"its entry inductor/0 has .*, expected artifact"):
        [*content.artifacts_in({"inductor/0": files})]


def test_a_page_of_a_better_processor_stays_and_is_not_used(machines, where, warnings_of_the_cache):
    own = machines.enter("second")
    folder = put(where, features=["avx4096"])
    with opforge.compiled("pair") as graphs:
        pass
    assert graphs.found == 0 and pages(own) == [folder.name] and not warnings_of_the_cache()


def test_graphs_that_are_too_large_are_not_kept(machines, monkeypatch, warnings_of_the_cache):
    own = machines.enter("first")
    monkeypatch.setattr(page, "MAX_ENTRY_BYTES", 10)
    with opforge.compiled("views"):
        run(flat)
    assert not pages(own)
    assert all("views: inductor/" in text or "views: aot_autograd/" in text for text in warnings_of_the_cache())
    assert warnings_of_the_cache()[0].endswith(" bytes in 1 files, and an entry has at most 10 in 256")


def test_what_is_too_large_for_a_page_is_kept_in_two(machines, monkeypatch):
    own = machines.enter("first")
    monkeypatch.setattr(page, "MAX_ENTRIES", 1)
    with opforge.compiled("views"):
        run(flat)
    assert len(pages(own)) == 2
    machines.enter("second", own)
    with opforge.compiled("views") as graphs:
        run(flat)
    assert (graphs.found, graphs.compiled) == (2, ())


def test_another_torch_is_said_once_and_nothing_is_kept(machines, monkeypatch, warnings_of_the_cache):
    own = machines.enter("first")
    monkeypatch.setattr(inductor, "TORCH", ("2.99",))
    with opforge.compiled("views") as graphs:
        run(flat)
    assert not pages(own) and graphs.problem.endswith(" or another that has passed `opforge check compiled`")
    (warning,) = warnings_of_the_cache()
    assert warning.startswith("views: compiled graphs are neither found nor kept: torch 2.")


def test_a_store_that_cannot_be_written_is_said_once(machines, monkeypatch, warnings_of_the_cache, tmp_path):
    machines.enter("first")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "file"))
    with opforge.compiled("views"):
        run(flat)
    (warning,) = warnings_of_the_cache()
    assert warning.startswith("views: compiled graphs are not kept: The cache folder")


class TestWarmed:
    """`opforge.warm` with the adapter `inductor` begins a scope of compiled graphs."""

    def test_it_says_once_what_was_compiled_and_counts_what_was_found(self, machines):
        own = machines.enter("first")
        with opforge.warm("views", ["inductor"]) as outer, opforge.warm("views", ["inductor"]) as inner:
            run(flat)
            assert len(inner.compiled["inductor"]) == 1
        assert outer.compiled == inner.compiled and len(pages(own)) == 1
        machines.enter("second", own)
        with opforge.warm("views", ["inductor"]) as again:
            run(flat)
        assert again.compiled == {"inductor": ()} and again.hits["inductor"] > 0

    def test_one_whose_store_cannot_be_used_leaves_nothing_open(self, machines, monkeypatch, tmp_path):
        machines.enter("first")
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "file"))
        before = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        with opforge.warm("views", ["inductor"]):
            pass
        assert not session._sessions and not inductor.observers
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == before


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "x" * 101, "é"])
def test_a_name_that_is_none(name):
    with pytest.raises(SettingError, match="up to 100 letters, digits, '_' and '-'"), opforge.compiled(name):
        pass


def test_entering_without_a_page_imports_neither_torch_nor_remotes():
    code = (
        "import sys, opforge\n"
        "with opforge.compiled('x'): pass\n"
        "print([name for name in ('torch', 'triton', 'opforge.remote', 'cryptography') if name in sys.modules])"
    )
    assert child_processes.run_python(code).strip() == "[]"
