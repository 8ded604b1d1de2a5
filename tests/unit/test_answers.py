"""What a look-up came to is remembered: an answer never differs from what the long way would have found."""

from __future__ import annotations

import copy
import json
import os
import shutil

import fakes
import made_up_store
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from opforge.builders import answers, planning, roots
from opforge.builders.base import OpBuilder
from opforge.builders.toolchains import host, identity
from opforge.cache.disk import Disk
from opforge.cache.store import Store


class World:
    """An op with an entry in a store, a compiler that is only pretended, and one look-up after another."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.patch = folder, monkeypatch
        self.op, self.bin, self.early = folder / "op", folder / "bin", folder / "early"
        self.early.mkdir()
        self.compiler = fakes.answering_compiler(self.bin)
        monkeypatch.setenv("PATH", f"{self.early}:{self.bin}:/usr/bin:/bin")
        monkeypatch.setattr(host, "CANDIDATES", ("g++",))
        monkeypatch.setattr(host, "LINKERS", ("ld.fake",))
        self.plans = 0
        self.real_plan = planning.make_plan
        monkeypatch.setattr(planning, "make_plan", self._plan)
        (folder / "mine").mkdir()
        self.mine = roots.KernelRoot("mine", str(folder / "mine"))
        self.first = roots.KernelRoot("first", str(folder / "first"))
        self.attributes = {"kernel_roots": [self.first, self.mine]}
        self.cls = self.declare()

    def declare(self, **attributes):
        self.attributes = {**self.attributes, **attributes}
        return fakes.plain_op(self.op, **self.attributes)

    def _plan(self, *arguments):
        self.plans += 1
        return self.real_plan(*arguments)

    def store(self):
        return Store(os.environ["OPFORGE_CACHE_DIR"], made_up_store.ME, disk=fakes.LaterDisk())

    def publish(self, content="a library"):
        return made_up_store.publish(self.cls(), self.store(), content)

    def find(self):
        """The result that a new process would find, or None, and whether it made a plan for it."""
        identity._asked.clear()
        before = self.plans
        entry = self.cls().find(self.store())
        return entry and entry.result, self.plans > before

    def long_way(self):
        """The same, by a look-up that trusts nothing."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPFORGE_PARANOID", "1")
            return self.find()[0]

    def answers(self):
        folder = self.folder / "store" / "v1" / "answers"
        return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path, monkeypatch)
    made.result = made.publish()
    assert made.find() == (made.result, True), "the first look-up goes the long way"
    return made


def test_the_second_look_up_makes_no_plan_and_asks_no_compiler(world, monkeypatch):
    monkeypatch.setattr(identity, "attempt", lambda *_arguments, **_options: pytest.fail("a compiler was asked"))
    assert world.find() == (world.result, False)
    assert len(world.answers()) == 1


def test_paranoia_neither_takes_nor_leaves_an_answer(world, monkeypatch):
    shutil.rmtree(world.folder / "store" / "v1" / "answers")
    monkeypatch.setenv("OPFORGE_PARANOID", "1")
    assert world.find() == (world.result, True)
    assert world.answers() == []


# -- what sends it the long way ----------------------------------------------------------------------------------------


def edit_header(world):
    header = world.op / "value.h"
    old = header.stat()
    fakes.set_value(world.op, 2)
    os.utime(header, ns=(old.st_atime_ns, old.st_mtime_ns))


def new_compiler_earlier_on_path(world):
    fakes.answering_compiler(world.early, version="13.1")


def compiler_replaced_in_place(world):
    fakes.answering_compiler(world.bin, version="13.1")


def compiler_touched(world):
    os.utime(world.compiler, (1, 1))


def linker_appears(world):
    fakes.compiler(world.early, "ld.fake", "echo a linker")


def assembler_appears_earlier_on_path(world):
    fakes.compiler(world.early, "as", "echo another assembler")


def source_in_an_earlier_root(world):
    (world.folder / "first").mkdir()
    fakes.write(world.folder / "first", "kernel.cpp", "int other;\n")


def include_folder_of_a_root_appears(world):
    (world.folder / "mine" / "include").mkdir()
    fakes.write(world.folder / "mine" / "include", "value.h", "#define VALUE 3\n")


def a_header_shadows(world):
    fakes.write(world.folder / "mine", "value.h", "#define VALUE 3\n")


def source_edited(world):
    fakes.write(world.folder / "mine", "kernel.cpp", "int edited;\n")


def source_gone(world):
    os.unlink(world.folder / "mine" / "kernel.cpp")


def entry_removed(world):
    shutil.rmtree(world.folder / "store" / "v1" / "entries" / world.result)


def library_spoiled(world):
    (library,) = (world.folder / "store" / "v1" / "entries" / world.result).glob("*.so")
    library.chmod(0o700)
    library.write_text("b library")


def planning_code_changes(world):
    edited = [answers.CODE[0] + 1, *answers.CODE[1:]]  # as a process sees it that imports the file after the edit
    world.patch.setattr(answers, "CODE", edited)


def path_is_shorter(world):
    world.patch.setenv("PATH", f"{world.bin}:/usr/bin:/bin")


def cxx_is_named(world):
    world.patch.setenv("CXX", fakes.answering_compiler(world.folder / "named", "c++-14", "14.1"))


def flags_from_the_environment(world):
    world.patch.setenv("CXXFLAGS", "-DX=1")


CHANGES = [
    edit_header,
    new_compiler_earlier_on_path,
    compiler_replaced_in_place,
    compiler_touched,
    linker_appears,
    assembler_appears_earlier_on_path,
    source_in_an_earlier_root,
    include_folder_of_a_root_appears,
    source_edited,
    source_gone,
    entry_removed,
    library_spoiled,
    planning_code_changes,
    path_is_shorter,
    cxx_is_named,
    flags_from_the_environment,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_sends_the_look_up_the_long_way(tmp_path, monkeypatch, change):
    world = World(tmp_path, monkeypatch)
    fakes.write(tmp_path / "mine", "kernel.cpp", "int it;\n")
    world.cls = world.declare(sources=["plain.cpp", "kernel.cpp"])
    world.result = world.publish()
    world.find()
    assert world.find() == (world.result, False)
    change(world)
    if change is source_gone:
        with pytest.raises(FileNotFoundError, match=r"names 'kernel.cpp'"):
            world.find()
        return
    found, planned = world.find()
    assert planned or found is None
    assert found == world.long_way()
    same = change in (compiler_touched, planning_code_changes, path_is_shorter)
    assert (found == world.result) is same, "what it answered"
    again = world.find()
    assert again == (found, found is None), "and is remembered anew"


def test_a_header_that_shadows_sends_the_look_up_the_long_way(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    for name in ("near", "far"):
        (world.op / name).mkdir(parents=True, exist_ok=True)
    fakes.write(world.op / "far", "inner.h", "")
    world.cls = world.declare(include_dirs=["near", "far"])
    world.result = made_up_store.publish(world.cls(), world.store(), headers=("value.h", "far/inner.h"))
    world.find()
    assert world.find() == (world.result, False)
    fakes.write(world.op / "near", "inner.h", "// another\n")
    assert world.find() == (None, True)
    os.unlink(world.op / "near" / "inner.h")
    assert world.find()[0] == world.result


def test_an_include_folder_in_an_earlier_root_sends_the_look_up_the_long_way(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    (tmp_path / "mine" / "extra").mkdir()
    world.cls = world.declare(include_dirs=["extra"])
    world.result = world.publish()
    world.find()
    assert world.find() == (world.result, False)
    (tmp_path / "first" / "extra").mkdir(parents=True)
    assert world.find() == (None, True)


@pytest.mark.parametrize("name", [one for one in host.READ if one not in ("PATH", "CXX")])
def test_a_variable_that_compilers_obey_asks_another_question(world, name):
    asked = answers._file(world.cls(), world.store(), world.cls().places())
    world.patch.setenv(name, "/some/where")
    assert answers._file(world.cls(), world.store(), world.cls().places()) != asked
    assert world.find()[0] == world.long_way()


def test_an_include_folder_that_a_root_gains_sends_the_look_up_the_long_way(world):
    """Nothing was read from that root, so no folder of it is watched."""
    assert world.find() == (world.result, False)
    include_folder_of_a_root_appears(world)
    assert world.find() == (None, True)


def test_a_moved_tree_asks_another_question_and_hits_by_content(world, tmp_path):
    shutil.copytree(world.op, tmp_path / "elsewhere")
    world.op = tmp_path / "elsewhere"
    world.cls = world.declare()
    assert world.find() == (world.result, True)
    assert world.find() == (world.result, False)
    assert len(world.answers()) == 2


@pytest.mark.parametrize("spelling", ["", ".", "tools"])
def test_a_path_that_starts_from_the_working_folder_finds_the_compiler_there(world, tmp_path, spelling):
    world.patch.setenv("PATH", f"{spelling}:{world.bin}:/usr/bin:/bin")
    here, there = tmp_path / "here", tmp_path / "there"
    for place in (here, there):
        (place / "tools").mkdir(parents=True)
    world.patch.chdir(here)
    world.find()
    assert world.find() == (world.result, False)
    fakes.answering_compiler(there / spelling, version="14")
    world.patch.chdir(there)
    assert world.find() == (None, True), "the same PATH leads to another compiler from here"
    world.patch.chdir(here)
    assert world.find()[0] == world.result
    fakes.answering_compiler(here / spelling, version="15")
    assert world.find() == (None, True)


def test_a_cxx_that_starts_from_the_working_folder_is_another_compiler_elsewhere(world, tmp_path):
    world.patch.setenv("CXX", "./my-g++")
    for number, place in enumerate((tmp_path / "here", tmp_path / "there")):
        fakes.answering_compiler(place, "my-g++", f"{number}")
    world.patch.chdir(tmp_path / "here")
    result = world.publish()
    world.find()
    assert world.find() == (result, False)
    world.patch.chdir(tmp_path / "there")
    assert world.find() == (None, True)


@pytest.mark.parametrize("name", ["plan", "toolchain", "places", "search_roots", "target", "_mode_flags"])
def test_a_builder_that_plans_in_its_own_way_is_asked_each_time(world, name):
    if name == "target":
        own = property(lambda self: OpBuilder.target.fget(self))
    else:

        def own(self, *arguments):
            return getattr(OpBuilder, name)(self, *arguments)

    world.cls = type("OwnBuilder", (world.cls,), {name: own, "__module__": world.cls.__module__})
    assert world.find() == (world.result, True)
    assert world.find() == (world.result, True)


def test_a_file_too_young_to_trust_its_stamp_leaves_no_answer(world, monkeypatch):
    """A compiler that is replaced within one tick of a coarse clock keeps its stamp, and so does its folder."""
    shutil.rmtree(world.folder / "store" / "v1" / "answers")
    os.utime(world.early)
    monkeypatch.setattr(fakes.LaterDisk, "now_ns", Disk.now_ns)
    world.find()
    assert world.answers() == []


def test_what_changes_between_the_plan_and_its_answer_is_not_vouched_for(world, monkeypatch):
    shutil.rmtree(world.folder / "store" / "v1" / "answers")
    real = Store.get

    def get(*arguments):
        new_compiler_earlier_on_path(world)
        fakes.write(world.folder, "mine/include", "")
        return real(*arguments)

    monkeypatch.setattr(Store, "get", get)
    world.find()
    monkeypatch.setattr(Store, "get", real)
    assert world.find() == (None, True)


def test_an_answer_that_cannot_be_filed_harms_nothing(world):
    shutil.rmtree(world.folder / "store" / "v1" / "answers")
    fakes.write(world.folder / "store" / "v1", "answers", "a file in the folder's place")
    assert world.find() == (world.result, True)
    assert world.find() == (world.result, True)


def test_an_answer_notes_the_use_at_most_once_an_hour(world):
    (answer,) = world.answers()
    ticket = json.loads(answer.read_text())["filed"]
    for path in (answer, ticket):
        os.utime(path, (1, 1))
    world.find()
    assert os.stat(ticket).st_mtime > 1 and os.stat(answer).st_mtime > 1


# -- garbage -----------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places_in(value, at=()):
    """Every place in a JSON value, as the keys that lead to it."""
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        yield from places_in(part, (*at, key))


def replaced(value, at, new):
    if not at:
        return new
    value = copy.copy(value)
    value[at[0]] = replaced(value[at[0]], at[1:], new)
    return value


@pytest.fixture(scope="module")
def garbled(tmp_path_factory):
    """A world with two entries, an answer for one of them, and a second answer to take parts from."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("garbled")
        patch.setenv("OPFORGE_CACHE_DIR", str(folder / "store"))
        world = World(folder, patch)
        world.result = world.publish()
        world.find()
        (world.answer,) = world.answers()
        world.good = json.loads(world.answer.read_text())
        yield world


@pytest.mark.parametrize("value", [2**70, "\0", [], -1])
def test_a_ticket_that_an_answer_names_wrongly_is_left_alone(garbled, value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(garbled.folder / "store"))
        patch.setenv("PATH", f"{garbled.early}:{garbled.bin}:/usr/bin:/bin")
        garbled.answer.write_text(json.dumps({**garbled.good, "filed": value}))
        assert garbled.find()[0] == garbled.result


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_garbled_answer_is_never_an_exception_and_never_another_library(garbled, data):
    at = data.draw(st.sampled_from(list(places_in(garbled.good))))
    new = data.draw(JSON | st.sampled_from(["", ".", "..", "../entries", "/", 2**70, -1, [], {}, 1e400]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(garbled.folder / "store"))
        patch.setenv("PATH", f"{garbled.early}:{garbled.bin}:/usr/bin:/bin")
        garbled.answer.write_text(json.dumps(replaced(garbled.good, at, new)))
        assert garbled.find()[0] == garbled.result
        assert os.path.isdir(garbled.folder / "store" / "v1" / "entries" / garbled.result)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '"text"', "[" * 100_000, "\0\xff", "1e400"])
def test_an_answer_that_is_no_answer_sends_the_look_up_the_long_way(world, text):
    (answer,) = world.answers()
    answer.write_text(text)
    assert world.find() == (world.result, True)
    assert world.find() == (world.result, False)


def test_an_answer_that_speaks_ill_of_a_sound_entry_is_not_believed(world):
    (path,) = world.answers()
    good = json.loads(path.read_text())
    path.write_text(json.dumps(replaced(good, ("ticket", "binary", "sha256"), "0" * 64)))
    assert world.find() == (world.result, True)
    assert world.find() == (world.result, False), "it was remembered anew"
    assert not (world.folder / "store" / "v1" / "quarantine").exists()


def test_a_ticket_that_speaks_ill_of_a_sound_entry_is_not_believed(world, monkeypatch):
    (answer,) = world.answers()
    ticket = json.loads(answer.read_text())["filed"]
    answer.unlink()
    with open(ticket) as file:
        good = json.load(file)
    with open(ticket, "w") as file:
        json.dump(replaced(good, ("binary", "size"), 3), file)
    assert world.find()[0] == world.result
    assert not (world.folder / "store" / "v1" / "quarantine").exists()
    with open(ticket) as file:
        assert json.load(file)["binary"] == good["binary"], "the ticket is mended"


@given(result=st.sampled_from(["", ".", "..", "/", "../..", "x/../../y"]) | st.text(max_size=5))
@example(result="")
@example(result="..")
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_answer_cannot_lead_out_of_the_entries(garbled, result):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(garbled.folder / "store"))
        patch.setenv("PATH", f"{garbled.early}:{garbled.bin}:/usr/bin:/bin")
        garbled.answer.write_text(json.dumps(replaced(garbled.good, ("ticket", "result"), result)))
        assert garbled.find()[0] == garbled.result


# -- the question ------------------------------------------------------------------------------------------------------

PERTURBED = {
    "name": "other",
    "sources": ["more.cpp"],
    "abi": "torch-stable",
    "version": "2",
    "include_dirs": ["near"],
    "kernel_roots": [roots.KernelRoot("more", "/tmp", "")],
    "defines": {"X": "1"},
    "cxx_flags": ["-DY"],
    "device_flags": {"cpu": ["-Z"]},
    "link_flags": ["-Wl,-z,now"],
    "libraries": ["m"],
    "torch_target": "2.11",
    "folder": "@FOLDER@",
}
NOT_IN_A_PLAN = {"devices", "fakes", "signatures"}


def test_every_attribute_of_a_builder_is_known_here():
    assert set(PERTURBED) | NOT_IN_A_PLAN == {name for name in OpBuilder.__annotations__ if not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(PERTURBED))
def test_an_attribute_that_shapes_a_plan_asks_another_question(world, tmp_path, name):
    value = PERTURBED[name]
    (world.op / "near").mkdir()
    fakes.write(world.op, "more.cpp", "int more;\n")
    if value == "@FOLDER@":
        value = str(shutil.copytree(world.op, tmp_path / "elsewhere"))
    abi = {"abi": "torch-stable"} if name == "torch_target" else {}
    attributes = {"abi": "c", "kernel_roots": [], **abi}
    plain = fakes.builder_class(world.op, "plain", **attributes)
    changed = {"name": "plain", **attributes, name: value}
    other = type("OtherBuilder", (plain,), {**changed, "__module__": plain.__module__})
    store = world.store()
    assert answers._file(plain(), store, plain().places()) != answers._file(other(), store, other().places())


@pytest.mark.parametrize("options", [{"debug": True}, {"sanitize": "address"}, {"target": "cpu:x86-64"}], ids=str)
def test_an_argument_that_shapes_a_plan_asks_another_question(world, options):
    store, places = world.store(), world.cls().places()
    assert answers._file(world.cls(**options), store, places) != answers._file(world.cls(), store, places)


def test_an_attribute_of_the_instance_asks_another_question(world):
    builder = world.cls()
    asked = builder.question()
    builder.defines = {"X": "1"}
    assert builder.question() != asked
