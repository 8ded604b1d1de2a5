"""Whatever happens to what is remembered, and to the files that it follows from: it is right, or it is not recalled."""

from __future__ import annotations

import os
import pathlib
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import other_user

from opforge.foundation import remembered_values, remembered_values_writer
from opforge.foundation.remembered_values import FlatStamps

LATER = 10 * remembered_values.RACY_NS
NAMES, FILES = ("first", "second"), 3


class World:
    """Files; for each name a value that follows from them; and a second machine's folder, with what it remembers."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.writes = folder, 0
        self.paths = [str(folder / f"file-{number}") for number in range(FILES)]
        self.kept = pathlib.Path(remembered_values.folders()[0], remembered_values.LOOKUPS)

    def value(self, name: str) -> list[object]:
        """Returns what is right now: it says whose it is, and what the files hold."""
        return [name, *(pathlib.Path(path).read_text() if os.path.exists(path) else None for path in self.paths)]

    def file(self, name: str) -> pathlib.Path:
        return self.kept / f"{name}.json"

    def data(self, name: str) -> bytes:
        """Returns the file of a value. Raises OSError if something else is in its place."""
        return remembered_values.read_file(str(self.file(name)), remembered_values.MAX_BYTES)

    def other(self, name: str) -> bytes:
        """Returns the file of the other value."""
        return self.data(NAMES[1 - NAMES.index(name)])

    def change(self, number: int) -> None:
        """Writes a file of another size: no clock is so coarse that its stamp stays the same."""
        self.writes += 1
        pathlib.Path(self.paths[number]).write_text("x" * self.writes)

    def remove(self, number: int) -> None:
        pathlib.Path(self.paths[number]).unlink(missing_ok=True)

    def link(self, number: int) -> None:
        """Puts a link to a new file in a file's place."""
        self.writes += 1
        target = self.folder / f"target-{self.writes}"
        target.write_text("x" * self.writes)
        self.remove(number)
        os.symlink(target, self.paths[number])

    def remember(self, name: str) -> None:
        stamps = FlatStamps(self.paths, remembered_values.stamps_of(self.paths))
        remembered_values_writer.remember(name, stamps, self.value(name), time.time_ns() + LATER)

    def flip(self, name: str, at: float, bit: int) -> None:
        data = bytearray(self.data(name))
        if data:
            data[int(at * (len(data) - 1))] ^= 1 << bit
        self.file(name).write_bytes(data)

    def cut(self, name: str, at: float) -> None:
        data = self.data(name)
        self.file(name).write_bytes(data[: int(at * len(data))])

    def join(self, name: str, at: float) -> None:
        """Leaves the beginning of one file and the end of the other, as two writers in one place would."""
        data, other = self.data(name), self.other(name)
        self.file(name).write_bytes(data[: int(at * len(data))] + other[int(at * len(other)) :])

    def swap(self, name: str) -> None:
        """Gives a value the file of the other one."""
        other = self.other(name)
        self.data(name)
        self.file(name).write_bytes(other)

    def age(self, name: str) -> None:
        """Gives a value its file of some time ago, as a backup would, or the same home on another machine."""
        old = self.folder / f"old-{name}"
        data = self.data(name)
        if old.exists():
            self.file(name).write_bytes(old.read_bytes())
        else:
            old.write_bytes(data)

    def replace(self, name: str, what: str) -> None:
        """Puts something else in the place of a value's file."""
        path, data = self.file(name), self.data(name)
        path.rename(self.folder / f"was-{name}")
        if what == "link":
            path.symlink_to(self.folder / f"was-{name}")
        elif what == "pipe":
            os.mkfifo(path, 0o600)
        elif what == "folder":
            path.mkdir()
        else:
            path.write_bytes(data)
            path.chmod(0o666)
            if what == "another user's" and os.geteuid() == 0:
                path.chmod(0o600)
                os.chown(path, other_user.NOBODY, other_user.NOBODY)


NUMBER, NAME = st.integers(0, FILES - 1), st.sampled_from(NAMES)
PART, BIT = st.floats(0, 1), st.integers(0, 7)
THINGS = st.sampled_from(["link", "pipe", "folder", "anybody's", "another user's"])
STEPS = st.one_of(
    st.tuples(st.just("remember"), NAME),
    st.tuples(st.sampled_from(["change", "remove", "link"]), NUMBER),
    st.tuples(st.sampled_from(["swap", "age"]), NAME),
    st.tuples(st.sampled_from(["cut", "join"]), NAME, PART),
    st.tuples(st.just("flip"), NAME, PART, BIT),
    st.tuples(st.just("replace"), NAME, THINGS),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=1, max_size=25))
def test_what_is_recalled_is_right_whatever_has_happened(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "caches"))
        patch.setenv("XDG_RUNTIME_DIR", "")
        world = World(folder)
        for step, *arguments in [("remember", NAMES[0]), ("remember", NAMES[1]), *steps]:
            try:
                getattr(world, step)(*arguments)
            except (OSError, ValueError):
                continue  # what is to be damaged is not there, or is no file by now
            for name in NAMES:
                found = remembered_values.recall(name)
                assert found is None or found[0] == world.value(name)
        for name in NAMES:
            if world.file(name).is_dir():
                continue  # opforge removes no folder that it has not made
            world.remember(name)
            found = remembered_values.recall(name)
            assert found is not None and found[0] == world.value(name), "it is remembered again"


def test_an_undamaged_value_is_recalled(tmp_path):
    """Without this, the other tests would hold of one that forgets all."""
    world = World(tmp_path)
    world.change(0)
    world.remember("first")
    found = remembered_values.recall("first")
    assert found is not None and found[0] == ["first", "x", None, None]
    assert found[1].paths == world.paths


@pytest.mark.parametrize("links", [0, 1])
def test_a_number_of_links_that_has_changed_is_noticed(tmp_path, links):
    """A link that is compared itself, and not what it leads to, would hide a change of that."""
    path = tmp_path / "file"
    path.write_text("")
    stamps = FlatStamps([str(path)], remembered_values.stamps_of([str(path)], links))
    assert remembered_values_writer.remember("name", stamps, 7, time.time_ns() + LATER, links)
    (file,) = pathlib.Path(remembered_values.folders()[0], remembered_values.LOOKUPS).iterdir()
    assert remembered_values.recall("name")
    file.write_bytes(file.read_bytes().replace(b'"],%d,7' % links, b'"],%d,7' % (1 - links)))
    assert remembered_values.recall("name") is None


CHILD_SECONDS = 1.5


def _use(world: World, seed: int) -> int:
    """Changes the file, remembers and recalls for some time. Returns how often a wrong value was recalled."""
    path, wrong, until, turn = world.paths[0], 0, time.monotonic() + CHILD_SECONDS, 0
    while time.monotonic() < until:
        turn += 1
        if turn % 5 == 0:
            fresh = f"{path}.{seed}"
            pathlib.Path(fresh).write_text(f"{seed} {turn}" + "." * (10_000 * seed + turn))
            os.replace(fresh, path)
        stamps = FlatStamps([path], remembered_values.stamps_of([path]))
        held = pathlib.Path(path).read_text()
        remembered_values_writer.remember("shared", stamps, held, time.time_ns() + LATER)
        before = pathlib.Path(path).read_text()
        found = remembered_values.recall("shared")
        if found and pathlib.Path(path).read_text() == before:
            wrong += found[0] != before
    return wrong


def test_processes_that_share_a_memory_recall_nothing_wrong(tmp_path):
    world = World(tmp_path)
    pathlib.Path(world.paths[0]).write_text("begun")
    children = []
    for seed in range(3):
        child = os.fork()
        if child == 0:
            code = 99
            try:
                code = min(98, _use(world, seed))
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
