"""Whose a program's parts are: a key signs nothing that others have made."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography", reason="needs cryptography: pip install opforge[sign]")

from opforge.programs import origins
from opforge.programs.origins import Origin
from opforge.remote import op_statements
from opforge.remote.signatures import signing


def key_of(name):
    """Returns a public key and the signer of its secret key."""
    secret = signing.new_secret(name)
    return signing.public_of(secret), lambda data: signing.sign(data, secret)


class Program:
    """A program, which weak references can name."""


@pytest.fixture
def none_known(monkeypatch):
    """No entry has come from a file, and none was fetched."""
    monkeypatch.setattr(origins, "_entries", {})
    monkeypatch.setattr(op_statements, "came_from", lambda folder: "")


@pytest.fixture
def entry():
    """An entry of an op."""
    return SimpleNamespace(key="k1", folder="/store/k1", record={"op": "relu"})


def test_what_was_made_here_is_signed(none_known, entry):
    for program in (Program(), "block.pt2"):
        assert origins.problem(program, [entry], key_of("ci")[1]) == ""


@pytest.mark.parametrize("by", ["ci", "lab", "nobody"])
def test_what_came_from_a_file_is_signed_by_a_key_that_has_signed_it(none_known, entry, by):
    (own, signer), (others, _) = key_of("ci"), key_of("lab")
    origin = Origin("/got/block.pt2", {"ci": (others, own), "lab": (others,), "nobody": ()}[by])
    origins.note_entry("k1", origin)
    why = "" if by == "ci" else "its op 'relu' came from /got/block.pt2, which this key has not signed"
    assert origins.problem(Program(), [entry], signer) == why
    program = Program()
    origins.note_program(program, origin)
    why = "" if by == "ci" else "the program came from /got/block.pt2, which this key has not signed"
    assert origins.problem(program, [], signer) == why
    assert origins.problem(Program(), [], signer) == ""


def test_a_signer_that_has_no_key_signs_nothing_of_others(none_known, entry):
    origins.note_entry("k1", Origin("/got/block.pt2", (key_of("ci")[0],)))
    assert origins.problem(Program(), [entry], lambda data: None)


def test_what_was_fetched_from_a_remote_is_not_signed(none_known, entry, monkeypatch):
    public, signer = key_of("ci")
    asked = []
    monkeypatch.setattr(op_statements, "came_from", lambda folder: asked.append(folder) or "https://store")
    why = "its op 'relu' came from https://store, and was not made here"
    assert origins.problem(Program(), [entry], signer) == why
    assert asked == ["/store/k1"]
    origins.note_entry("k1", Origin("/got/block.pt2", (public,)))  # of a file that this key has signed
    assert origins.problem(Program(), [entry], signer) == ""
    assert asked == ["/store/k1"]
    second = SimpleNamespace(key="k2", folder="/store/k2", record={"op": "gelu"})
    assert "'gelu'" in origins.problem(Program(), [entry, second], signer)
