"""An answer whose file says anything at all is never an exception and never leads to another library."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.store.fake_lookups import LookedUpOp, replaced

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


@pytest.fixture(scope="module")
def garbled(tmp_path_factory):
    """A world with two entries, an answer for one of them, and a second answer to take parts from."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("garbled")
        patch.setenv("OPFORGE_CACHE_DIR", str(folder / "store"))
        world = LookedUpOp(folder, patch)
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
