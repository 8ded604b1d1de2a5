"""`opforge ls --kind`: each kind is listed, alone and by name; a name that is not there is an error with a near one."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner
from support import compiled_graphs

from opforge.cache import current_store
from opforge.cli import kinds, ls, rm
from opforge.jits import page, store


def listed(*words):
    return CliRunner().invoke(ls.command, [*words])


@pytest.fixture
def graphs(monkeypatch, tmp_path):
    """A store with a page of the compiled graphs `pair`, and one that is damaged."""
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "store"))
    current_store.reset()
    where = page.PageTopic("inductor", "pair", {"capability": "", "device": "cpu", "torch": "2.13.0"})
    facts = {"holds": "pickle", "features": [], "made": 1}
    store.write(current_store.writable_store(), where, {"inductor/0": {"artifact": b"artifact"}}, facts)
    area = compiled_graphs.area_of(tmp_path / "store")
    (area / f"{where.key}.{'0' * page.DIGITS}").mkdir()
    return area


NAME = "inductor/pair"


@pytest.mark.parametrize("words", [(), ("--kind", "jit"), ("--kind", "jit", NAME), (f"jit:{NAME}",)])
def test_compiled_graphs_are_listed_with_what_they_are_for(graphs, words):
    result = listed(*words)
    assert result.exit_code == 0 and "JIT" in result.output
    assert NAME in result.output and "\tdevice cpu, torch 2.13.0\t" in result.output
    assert ("page.json" in result.output) == ("pair" not in str(words)), "a damaged one has no name"
    (one,) = [row for row in json.loads(listed(*words, "--json").output)["jit"] if not row["problem"]]
    assert (one["name"], one["fingerprint"]["device"], one["fetched"]) == (NAME, "cpu", False) and one["size"] > 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("--kind", "jit", "inductor/pari"),
            "there is no jit:inductor/pari here. There are: inductor/pair. Did you mean jit:inductor/pair?",
        ),
        (("--kind", "tuned", "adam"), "there is no tuned:adam here"),
        (("--kind", "jit", "toy/norm"), "there is no jit:toy/norm here"),
        (("--kind", "package", "relu"), "relu is not installed: opforge ls shows installed packages."),
        (
            ("triton:solver",),
            "'triton:solver' names a kind that is gone. Expected jit:triton/LABEL for kernels, and",
        ),
        (("compiled:pair",), "'compiled:pair' names a kind that is gone. Expected jit:inductor/pair."),
        (("--kind", "op", "adam"), "'adam' is neither an op nor a key in the cache"),
    ],
)
def test_a_name_of_a_kind_that_is_not_there_is_an_error(graphs, words, text):
    result = listed(*words)
    assert result.exit_code == 2 and text in result.output


def test_a_kind_without_anything_is_an_empty_table_of_that_kind(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path))
    for kind, heading in (("tuned", "TUNED"), ("jit", "JIT"), ("package", "PACKAGE")):
        result = listed("--kind", kind)
        assert result.output.startswith(heading) and "empty" not in result.output
    monkeypatch.setattr(ls, "is_terminal", lambda: True)
    assert listed("--kind", "jit").output == "there is nothing of the kind jit on this machine\n"


@pytest.mark.parametrize(("name", "left"), [("jit:inductor/pair", 1), ("jit:*", 0)])
def test_what_is_listed_of_compiled_graphs_is_removed_by_its_name(graphs, name, left):
    number = "1 page of a JIT" if left else "2 pages of a JIT"
    for words, verb in ((["--dry-run"], "would remove"), ([], "removed")):
        result = CliRunner().invoke(rm.command, [name, *words])
        assert f"{verb} 0 entries, {number}, " in result.output, (result.output, result.exception)
    assert len([*graphs.iterdir()]) == left
    result = CliRunner().invoke(rm.command, ["jit:inductor/pair"])
    assert (
        result.exit_code == 2 and "there is no jit:inductor/pair here. Nothing of this kind is here." in result.output
    )


def test_the_text_about_a_kind_that_names_no_maker_ends_with_its_last_sentence(graphs):
    kind = kinds.of("op")
    assert kind.maker == ""
    with pytest.raises(click.UsageError, match=r"there is no op:adam here\. Nothing of this kind is here\.$"):
        kinds.stored(kind, ["adam"])
