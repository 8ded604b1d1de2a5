"""The store: found, published, quarantined, explained. Entries here are made by hand; nothing is compiled."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import re
import shutil
import threading
import time
import types

import fakes
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opforge.cache import entry as entries
from opforge.cache import failures, layout, lock, publishing, staging, tickets
from opforge.cache.disk import Disk
from opforge.cache.inputs import Dependency, Inputs, Located
from opforge.cache.keys import place_of
from opforge.cache.publishing import Product, SharedFailure
from opforge.cache.store import Store
from opforge.errors import CacheDirError, LockTimeoutError

ME = frozenset({os.geteuid()})
LIBRARY = b"not really a library" * 10


class World:
    """A store, one source and a producer for it."""

    def __init__(self, folder, library=LIBRARY):
        self.folder, self.library, self.built = folder, library, 0
        (folder / "src").mkdir()
        self.roots = {"own": str(folder / "src")}
        fakes.write(folder / "src", "a.cpp", "int a;")
        layout.prepare(str(folder / "store"), ME)
        self.store = Store(str(folder / "store"), ME)

    def inputs(self):
        digest = Disk().digest(str(self.folder / "src" / "a.cpp"))
        return Inputs((Dependency("own", "a.cpp", digest),))

    def produce(self, folder):
        self.built += 1
        inputs = self.inputs()
        result = hashlib.sha256(inputs.files[0].digest.encode()).hexdigest()[:32]
        finished = os.path.join(folder, "entry")
        os.mkdir(finished)
        path = os.path.join(finished, "a.so")
        with open(path, "wb") as file:
            file.write(self.library)
        os.chmod(path, 0o500)
        digest = hashlib.sha256(self.library).hexdigest()
        binary = {"file": "a.so", "size": len(self.library), "sha256": digest, "abi": "c"}
        return Product(result, finished, binary, inputs, {}, {"op": "a"})

    def build(self, **options):
        arguments = {
            "plan_key": "plan",
            "description": "description",
            "label": "a",
            "roots": self.roots,
            "produce": self.produce,
            "look_again": lambda: None,
            "state": "s",
            **options,
        }
        return publishing.build(self.store, **arguments)

    def get(self, paranoid=False):
        self.trace = []
        return self.store.get("plan", self.roots, self.trace, paranoid)

    def reasons(self):
        return [one.reason for one in self.trace]

    def tickets(self):
        folder = self.store.layout.plan("plan")
        return [os.path.join(folder, name) for name in os.listdir(folder)]

    def staged(self):
        return os.listdir(self.store.layout.path("staging"))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_an_empty_store_says_that_nothing_was_built(world):
    assert world.get() is None
    assert world.reasons() == ["nothing was built from this plan yet"]


def test_what_was_built_is_found(world):
    built = world.build()
    found = world.get()
    assert built.origin == "built" and found.origin == "cache"
    assert found.library == built.library and os.path.isfile(found.library)
    assert found.manifest()["op"] == "a" and found.manifest()["plan"] == "plan"
    assert world.reasons() == []


def test_nothing_is_left_in_staging(world):
    world.build()
    assert world.staged() == []


def test_an_edit_is_a_miss_that_names_the_file_and_going_back_is_a_hit(world):
    first = world.build()
    fakes.write(world.folder / "src", "a.cpp", "int b;")
    assert world.get() is None
    assert world.reasons() == [f"{world.folder}/src/a.cpp has changed"]
    second = world.build()
    assert second.result != first.result
    fakes.write(world.folder / "src", "a.cpp", "int a;")
    assert world.get().result == first.result
    assert world.built == 2


def test_a_source_that_is_gone_is_a_reason(world):
    world.build()
    os.unlink(world.folder / "src" / "a.cpp")
    assert world.get() is None
    assert world.reasons() == [f"{world.folder}/src/a.cpp is gone"]


def test_a_moved_tree_is_a_hit_and_gets_a_ticket_of_its_own(world):
    world.build()
    os.rename(world.folder / "src", world.folder / "moved")
    world.roots = {"own": str(world.folder / "moved")}
    assert world.get() is not None
    assert len(world.tickets()) == 2
    assert any(path.endswith(place_of(world.roots) + ".json") for path in world.tickets())


def test_paranoia_sees_an_edit_that_left_every_stamp(world):
    class Blind(Disk):
        """Every stamp is an old one that never changes."""

        def stamp(self, path):
            return None if super().stamp(path) is None else layout_stamp

    from opforge.cache.disk import Stamp

    layout_stamp = Stamp(6, 1, 1, 1)
    world.store.disk = Blind()
    world.build()
    fakes.write(world.folder / "src", "a.cpp", "int b;")
    assert world.get() is not None
    assert world.get(paranoid=True) is None


def test_tickets_of_a_place_are_bounded(world):
    from opforge.cache import store

    for number in range(store.TICKETS_KEPT + 4):
        fakes.write(world.folder / "src", "a.cpp", f"int a{number};")
        world.build()
    assert len(world.tickets()) == store.TICKETS_KEPT
    assert world.get() is not None


def test_an_entry_that_was_removed_is_a_miss(world):
    built = world.build()
    shutil.rmtree(built.folder)
    assert world.get() is None
    assert world.reasons()
    assert world.build().origin == "built"
    assert world.get() is not None


def test_the_first_publisher_wins(world):
    first = world.build()
    inode = os.stat(first.library).st_ino
    second = world.build()
    assert second.origin == "cache" and second.result == first.result
    assert os.stat(second.library).st_ino == inode


def test_what_another_has_built_while_we_waited_is_taken(world):
    first = world.build()
    assert world.build(look_again=lambda: first) is first
    assert world.built == 1


def test_a_disk_that_returns_other_bytes_is_an_error_that_says_so(world, monkeypatch, warnings_of_the_cache):
    monkeypatch.setattr("opforge.cache.publishing.damage", lambda *_arguments, **_options: "the digest differs")
    with pytest.raises(
        CacheDirError, match=r"reads back wrong \(the digest differs\). Check the disk, or set OPFORGE_CACHE"
    ):
        world.build()
    assert world.staged() == []
    assert warnings_of_the_cache()


# -- damage ------------------------------------------------------------------------------------------------------------


def truncate(path):
    with open(path, "r+b") as file:
        file.truncate(7)


def zero(path):
    with open(path, "r+b") as file:
        file.write(bytes(len(LIBRARY)))


def flip(path):
    with open(path, "r+b") as file:
        file.seek(11)
        byte = file.read(1)[0]
        file.seek(11)
        file.write(bytes([byte ^ 1]))


def empty(path):
    truncate(path)
    os.truncate(path, 0)


def folder(path):
    os.unlink(path)
    os.mkdir(path)


def link(path):
    os.rename(path, path + ".real")
    os.symlink(path + ".real", path)


def pipe(path):
    os.unlink(path)
    os.mkfifo(path, 0o500)


def missing(path):
    os.unlink(path)


def group_writable(path):
    os.chmod(path, 0o570)


def others_writable(path):
    os.chmod(path, 0o507)


DAMAGES = {
    truncate: "the library has 7 bytes instead of 200",
    zero: "the library's digest differs from its manifest's",
    flip: "the library's digest differs from its manifest's",
    empty: "the library has 0 bytes instead of 200",
    folder: "the library is no regular file",
    link: "the library cannot be opened (Too many levels of symbolic links)",
    pipe: "the library is no regular file",
    missing: "the library cannot be opened (No such file or directory)",
    group_writable: "the library can be written by others (mode 570)",
    others_writable: "the library can be written by others (mode 507)",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("harm", DAMAGES, ids=lambda harm: harm.__name__)
def test_a_damaged_entry_is_named_set_aside_and_built_again(world, harm, warnings_of_the_cache):
    built = world.build()
    os.chmod(built.library, 0o700)
    harm(built.library)
    assert world.get() is None
    assert world.reasons()[0] == DAMAGES[harm]
    (warning,) = warnings_of_the_cache()
    assert f"The cache entry {built.folder} is damaged: {DAMAGES[harm]}. It was set aside in " in warning
    assert len(os.listdir(world.store.layout.path("quarantine"))) == 1
    assert world.build().origin == "built"
    assert world.get() is not None


def as_file(path):
    shutil.rmtree(path)
    fakes.write(os.path.dirname(path), os.path.basename(path), "a file")


def as_empty_folder(path):
    shutil.rmtree(path)
    os.mkdir(path)


def as_dangling_link(path):
    os.rename(path, path + "-away")
    os.symlink("nowhere", path)


def without_manifest(path):
    os.unlink(os.path.join(path, entries.MANIFEST))


def with_garbled_manifest(path):
    fakes.write(path, entries.MANIFEST, "{")


@pytest.mark.parametrize(
    "harm",
    [as_file, as_empty_folder, as_dangling_link, without_manifest, with_garbled_manifest],
    ids=lambda f: f.__name__,
)
def test_an_entry_that_is_no_entry_is_replaced(world, harm):
    built = world.build()
    harm(built.folder)
    assert world.get(paranoid=True) is None
    again = world.build()
    assert again.origin == "built" and again.result == built.result
    assert world.get() is not None
    assert world.staged() == []


def test_another_ops_library_is_a_damage(world):
    built = world.build()
    os.chmod(built.library, 0o700)
    with open(built.library, "wb") as file:
        file.write(LIBRARY[::-1])
    assert world.get() is None
    assert world.reasons()[0] == "the library's digest differs from its manifest's"


def entry_of(folder, size, **binary):
    content = bytes(size)
    path = folder / "big.so"
    path.write_bytes(content)
    path.chmod(0o500)
    facts = {"file": "big.so", "size": size, "sha256": hashlib.sha256(content).hexdigest(), **binary}
    return entries.Entry("r", str(folder), facts, "cache")


def test_a_large_library_is_trusted_by_its_receipt_and_hashed_in_full_on_demand(tmp_path):
    size = entries.FULL_CHECK_BYTES + 1
    entry = entry_of(tmp_path, size, sha256="00")
    entry.binary["stamp"] = list(Disk().stamp(entry.library))
    assert entries.damage(entry, ME) is None
    assert entries.damage(entry, ME, full=True) == "the library's digest differs from its manifest's"
    entry.binary["stamp"][1] += 1
    assert entries.damage(entry, ME) == "the library's digest differs from its manifest's"


def test_a_small_library_is_hashed_whatever_its_receipt_says(tmp_path):
    entry = entry_of(tmp_path, entries.FULL_CHECK_BYTES, sha256="00")
    entry.binary["stamp"] = list(Disk().stamp(entry.library))
    assert entries.damage(entry, ME) is not None


def test_a_renewed_ticket_keeps_the_receipt_of_a_large_library(tmp_path):
    world = World(tmp_path, bytes(entries.FULL_CHECK_BYTES + 1))
    world.build()
    (before,) = map(read_json, world.tickets())
    os.utime(world.folder / "src" / "a.cpp")
    assert world.get() is not None
    (after,) = map(read_json, world.tickets())
    assert after["at"] > before["at"]
    assert after["binary"].get("stamp") == before["binary"]["stamp"]


def test_a_library_of_a_stranger_is_refused(tmp_path):
    entry = entry_of(tmp_path, 10)
    problem = entries.damage(entry, frozenset({os.geteuid() + 1}))
    assert problem == "its folder is a link, a file, or somebody else's"


# -- garbage -----------------------------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def mutations(value):
    """Every path into a JSON value, as a list of steps."""
    yield ()
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        for path in mutations(inner):
            yield (name, *path)


def mutated(value, path, new):
    """A copy of `value` with what `path` leads to replaced, or removed where `new` is Ellipsis."""
    if not path:
        return None if new is ... else new
    value = copy.deepcopy(value)
    at = value
    for step in path[:-1]:
        at = at[step]
    if new is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = new
    return value


def spoil(data, path):
    """Replace part of a JSON file, or cut it off."""
    whole = read_json(path)
    where = data.draw(st.sampled_from(list(mutations(whole))))
    spoiled = json.dumps(mutated(whole, where, data.draw(anything | st.just(...))))
    if data.draw(st.integers(0, 9)) == 0:
        spoiled = spoiled[: data.draw(st.integers(0, len(spoiled)))]
    fakes.write(os.path.dirname(path), os.path.basename(path), spoiled)


@pytest.fixture(scope="module")
def built_world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("garbage"))
    world.entry = world.build()
    world.ticket = world.tickets()[0]
    world.backup = str(world.folder / "backup")
    shutil.copytree(world.store.layout.path(), world.backup)
    return world


@pytest.mark.parametrize("which", ["ticket", "manifest"])
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), paranoid=st.booleans())
def test_a_spoiled_ticket_or_manifest_is_a_hit_or_a_miss_never_an_exception(built_world, which, data, paranoid):
    world = built_world
    logging.getLogger("opforge.cache").setLevel(logging.CRITICAL)
    shutil.rmtree(world.store.layout.path())
    shutil.copytree(world.backup, world.store.layout.path())
    spoil(data, world.ticket if which == "ticket" else os.path.join(world.entry.folder, entries.MANIFEST))
    try:
        found = world.get(paranoid)
        match = world.store.match("description", unfit_like_builders, world.roots, (), [], own=True)
    finally:
        logging.getLogger("opforge.cache").setLevel(logging.NOTSET)
    for one in (found, match):
        if one is not None:
            with open(one.library, "rb") as file:
                assert hashlib.sha256(file.read()).hexdigest() == one.binary["sha256"]


def unfit_like_builders(binary):
    from opforge.builders.requirements import unfit

    return unfit(binary)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "7",
        '"x"',
        '{"format": 0}',
        '{"format": 1}',
        '{"format": 1, "binary": {}, "result": ""}',
        "[" * 5000,
    ],
)
@pytest.mark.parametrize("which", ["ticket", "manifest"])
def test_a_file_of_another_kind_is_a_miss(world, text, which):
    built = world.build()
    path = world.tickets()[0] if which == "ticket" else os.path.join(built.folder, entries.MANIFEST)
    fakes.write(os.path.dirname(path), os.path.basename(path), text)
    if which == "ticket":
        assert world.get() is None
    else:
        world.get(paranoid=True)
    assert world.build().result == built.result


def test_a_ticket_of_binary_noise_is_a_miss(world):
    world.build()
    with open(world.tickets()[0], "wb") as file:
        file.write(b"\xff\x00\xfe" * 9)
    assert world.get() is None


def test_a_ticket_cannot_lead_out_of_the_store(world, tmp_path):
    built = world.build()
    outside = tmp_path / "outside"
    os.rename(built.folder, outside)
    path = world.tickets()[0]
    with open(path) as file:
        ticket = json.load(file)
    ticket["result"] = os.path.relpath(outside, world.store.layout.path("entries"))
    fakes.write(os.path.dirname(path), os.path.basename(path), json.dumps(ticket))
    assert world.get() is None


def test_a_ticket_of_an_older_format_is_not_read(world, monkeypatch):
    world.build()
    monkeypatch.setattr(tickets, "FORMAT", tickets.FORMAT + 1)
    assert world.get() is None


# -- layers ------------------------------------------------------------------------------------------------------------


def layered(world, tmp_path):
    """A store of the user's before which `world`'s store is a layer."""
    layout.prepare(str(tmp_path / "mine"), ME)
    return Store(str(tmp_path / "mine"), ME, (str(world.folder / "store"),))


def test_a_layer_answers_a_description(world, tmp_path):
    built = world.build()
    trace = []
    found = layered(world, tmp_path).match("description", lambda _binary: None, world.roots, (), trace)
    assert (found.library, found.origin, trace) == (built.library, str(world.folder / "store"), [])


def test_a_layers_no_has_its_reason(world, tmp_path):
    built = world.build()
    trace = []
    store = layered(world, tmp_path)
    assert store.match("description", lambda _binary: "it needs torch 9", world.roots, (), trace) is None
    assert store.match("another", lambda _binary: None, world.roots, (), trace) is None
    assert [tuple(one) for one in trace] == [
        (built.folder, "it needs torch 9"),
        (str(world.folder / "store"), "holds no entry for this description"),
    ]


def test_a_damaged_entry_of_a_layer_is_passed_over_and_left_where_it_is(world, tmp_path):
    built = world.build()
    os.chmod(built.library, 0o700)
    flip(built.library)
    trace = []
    assert layered(world, tmp_path).match("description", lambda _binary: None, world.roots, (), trace) is None
    assert trace[0].reason == "the library's digest differs from its manifest's"
    assert os.path.exists(built.library)


def test_the_users_own_store_is_matched_only_on_demand(world):
    world.build()
    assert world.store.match("description", lambda _binary: None, world.roots, (), []) is None
    assert world.store.match("description", lambda _binary: None, world.roots, (), [], own=True) is not None


# -- staging, failures and the lock ------------------------------------------------------------------------------------


class BuildFailed(Exception):
    kind = "compile"


def failing(_folder):
    raise BuildFailed("a.cpp:1: error")


def test_a_failed_build_leaves_nothing_but_its_message(world):
    with pytest.raises(BuildFailed):
        world.build(produce=failing)
    assert world.staged() == []
    left = failures.since(world.store.layout, "plan", 0, "s")
    assert left == failures.Failure("compile", "a.cpp:1: error", "s")
    world.build()
    assert failures.since(world.store.layout, "plan", 0, "s") is None


def test_a_failure_is_for_those_who_were_waiting_and_meant_the_same_sources(world):
    place = world.store.layout
    failures.note(place, "plan", failures.Failure("compile", "text", "state"))
    now = read_json(place.path("failures", "plan.json"))["at"]
    assert failures.since(place, "plan", now, "state").message == "text"
    assert failures.since(place, "plan", now + 1, "state") is None
    assert failures.since(place, "plan", now, "another state") is None
    fakes.write(place.path("failures"), "plan.json", '{"at": "x"}')
    assert failures.since(place, "plan", 0, "state") is None


def read_json(path):
    with open(path) as file:
        return json.load(file)


def in_thread(action):
    """Run `action` beside the test; gives a function that waits and gives back its result or its exception."""
    outcome = []

    def run():
        try:
            outcome.append(action())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result():
        thread.join(20)
        return outcome[0]

    return result


def test_a_waiter_gets_the_builders_failure(world):
    entered, go_on = threading.Event(), threading.Event()

    def slow_failing(folder):
        entered.set()
        assert go_on.wait(20)
        failing(folder)

    first = in_thread(lambda: world.build(produce=slow_failing))
    assert entered.wait(20)
    second = in_thread(world.build)
    fakes.wait_for(lambda: threading.active_count() >= 3)
    threading.Event().wait(0.2)
    go_on.set()
    assert isinstance(first(), BuildFailed)
    shared = second()
    assert isinstance(shared, SharedFailure)
    assert shared.failure == ("compile", "a.cpp:1: error", "s") and str(shared) == "a.cpp:1: error"
    assert world.built == 0


def test_what_dead_builders_of_this_host_left_is_swept(world, monkeypatch):
    dead = fakes.start("pass")
    dead.communicate()
    for host in ("box", "box.site.example"):
        monkeypatch.setattr("os.uname", lambda host=host: types.SimpleNamespace(nodename=host))
        mine = staging.begin(world.store.layout, "plan" * 8)
        monkeypatch.setattr("os.getpid", lambda: dead.pid)
        theirs = staging.begin(world.store.layout, "plan" * 8)
        monkeypatch.undo()
        monkeypatch.setattr("os.uname", lambda host=host: types.SimpleNamespace(nodename=host))
        assert staging.sweep(world.store.layout) == 1
        assert os.path.isdir(mine) and not os.path.exists(theirs)
        os.rmdir(mine)


def test_what_another_host_left_is_swept_after_a_day(world):
    place = world.store.layout.path("staging", f"plan.another-host.{os.getpid()}.00")
    os.mkdir(place)
    assert staging.sweep(world.store.layout) == 0
    os.utime(place, (0, 0))
    assert staging.sweep(world.store.layout) == 1


def test_an_owner_that_cannot_be_read_is_still_spoken_of(tmp_path):
    path = str(tmp_path / "lock")
    assert lock.owner(path) == "another process that is building it"
    for text in ("", "{}", "[]", '{"pid": 1, "host": "h", "since": "x"}'):
        fakes.write(tmp_path, "lock.owner", text)
        assert lock.owner(path) == "another process that is building it"


def test_a_wait_says_for_whom_since_when_and_how_far_and_ends_at_its_timeout(tmp_path, monkeypatch):
    path = str(tmp_path / "lock")
    monkeypatch.setattr(lock, "FIRST_NOTICE", 0.1)
    heard = []

    def wait():
        with lock.held(path, "relu", 0.5, heard.append):
            pass

    with lock.held(path, "relu", None) as turn:
        assert turn is lock.Turn.FIRST
        lock.progress(path, "3 of 5, log /x")
        error = in_thread(wait)()
    assert isinstance(error, LockTimeoutError)
    pattern = rf"process {os.getpid()} on \S+, which has been building since \d\d:\d\d:\d\d, 3 of 5, log /x"
    assert len(heard) == 1
    assert re.fullmatch(f"relu: waiting for {pattern}", heard[0])
    assert re.fullmatch(
        f"relu: waited 0.5 s for {pattern}. Raise OPFORGE_LOCK_TIMEOUT to wait longer, or end that process.", str(error)
    )


def test_who_waits_for_a_thing_goes_on_without_the_lock_once_it_is_there(tmp_path):
    path, there, turns = str(tmp_path / "lock"), threading.Event(), []

    def wait():
        with lock.held(path, "relu", 30, ready=there.is_set) as turn:
            turns.append(turn)

    with lock.held(path, "relu", None):
        threads = [threading.Thread(target=wait) for _ in range(3)]
        for one in threads:
            one.start()
        there.set()
        for one in threads:
            one.join()
        assert turns == [lock.Turn.READY] * 3
        with pytest.raises(LockTimeoutError), lock.held(path, "relu", 0.05):
            pass  # it was held all the while


def test_who_waits_for_a_thing_that_does_not_come_gets_the_lock(tmp_path):
    path, turns = str(tmp_path / "lock"), []

    def wait():
        with lock.held(path, "relu", 30, ready=lambda: False) as turn:
            turns.append(turn)

    with lock.held(path, "relu", None):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2)
    thread.join()
    assert turns == [lock.Turn.WAITED]


def test_a_free_lock_is_taken_whatever_the_timeout(tmp_path):
    with lock.held(str(tmp_path / "lock"), "relu", 0) as turn:
        assert turn is lock.Turn.FIRST
    with lock.held(str(tmp_path / "lock"), "relu", 0):
        pass


def test_locations_are_below_a_root_that_can_move():
    assert Located("own", "a").below("../b") == Located("own", "b")


def test_a_description_folder_that_is_evicted_meanwhile_is_made_again(world, monkeypatch):
    real, folders = publishing.make_folder, []

    def evicted(path):
        real(path)
        if "descriptions" in path and not folders:
            folders.append(path)
            os.rmdir(path)

    monkeypatch.setattr(publishing, "make_folder", evicted)
    entry = world.build()
    assert os.listdir(folders[0]) == [entry.result]
