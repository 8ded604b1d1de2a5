"""What the benchmarks measure with: made-up stores, bare commands, the switch for long runs. Nothing is timed."""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
from types import SimpleNamespace

import pytest
from support.paths import CHECKOUT


@pytest.fixture(autouse=True)
def part(monkeypatch):
    """Gives a module of the benchmarks by its name."""
    monkeypatch.syspath_prepend(CHECKOUT)
    monkeypatch.delenv("OPFORGE_BENCH_LONG", raising=False)
    yield lambda name: importlib.import_module(f"benchmarks.{name}")
    for name in [name for name in sys.modules if name == "benchmarks" or name.startswith("benchmarks.")]:
        monkeypatch.delitem(sys.modules, name)


def store_of_one(root):
    for area, key, name, text in [
        ("plans", "plan0", "entry0-place.json", "a ticket"),
        ("entries", "entry0", "manifest.json", "a manifest"),
        ("entries", "entry0", "op.so", "a library"),
        ("descriptions", "described0", "entry0", ""),
    ]:
        folder = root / area / key
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_a_made_up_store_holds_as_many_entries_each_with_a_ticket_and_a_description(part, tmp_path):
    store_of_one(tmp_path)
    part("made_up").fill(str(tmp_path), 5)
    assert [len(list((tmp_path / area).iterdir())) for area in ("plans", "entries", "descriptions")] == [5, 5, 5]
    key = f"{3:032x}"
    assert (tmp_path / "plans" / key / f"{key}-place.json").read_text() == "a ticket"
    assert (tmp_path / "entries" / key / "manifest.json").read_text() == "a manifest"
    assert (tmp_path / "descriptions" / key / key).exists()


def test_a_file_that_can_bear_no_more_links_is_copied_once_and_linked_again(part, tmp_path, monkeypatch):
    library = tmp_path / "op.so"
    library.write_text("a library")
    link = os.link

    def at_most_three(source, target):
        if os.stat(source).st_nlink == 3:
            raise OSError(errno.EMLINK, "too many links")
        link(source, target)

    monkeypatch.setattr(os, "link", at_most_three)
    made = part("made_up").Link(str(library))
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        made.make(str(tmp_path / str(number)))
    copies = [tmp_path / str(number) / "op.so" for number in range(4)]
    assert [one.read_text() for one in copies] == ["a library"] * 4
    assert len({one.stat().st_ino for one in copies}) == 2


def test_another_failure_to_link_is_not_hidden(part, tmp_path):
    with pytest.raises(FileNotFoundError):
        part("made_up").Link(str(tmp_path / "absent.so")).make(str(tmp_path))


def test_the_units_of_an_op_share_no_name(part, tmp_path):
    commands = part("commands")
    names = [commands.write_unit("plain_relu.cpp", str(tmp_path), number) for number in (1, 2)]
    assert names == ["unit1.cpp", "unit2.cpp"]
    assert "void bench_relu1(" in (tmp_path / "unit1.cpp").read_text()
    assert "* 0.5f" in (tmp_path / "unit1.cpp").read_text()
    commands.write_unit("plain_relu.cpp", str(tmp_path), 2, "7.0f")
    assert "void bench_relu2(" in (tmp_path / "unit2.cpp").read_text()
    assert "* 7.0f" in (tmp_path / "unit2.cpp").read_text()


def test_a_command_that_fails_says_why(part, tmp_path):
    commands, scratch = part("commands"), part("scratch")
    step = SimpleNamespace(argv=(sys.executable, "-c", "import sys; sys.exit('no such header')"))
    with pytest.raises(scratch.ChildError, match=r"gave 1: no such header"):
        commands.one_by_one(str(tmp_path), [step])


def test_commands_run_in_their_folder_one_after_another(part, tmp_path):
    commands = part("commands")
    code = "open('order', 'a').write('{}')"
    steps = [SimpleNamespace(argv=(sys.executable, "-c", code.format(one))) for one in "abc"]
    spent = commands.one_by_one(str(tmp_path), steps)
    assert (tmp_path / "order").read_text() == "abc"
    assert spent.wall > 0
    assert spent.cpu >= 0


def test_each_unit_waits_for_the_precompiled_header_and_names_it_before_its_source(part):
    from opforge.builders.spec.build_plan import Step
    from opforge.cache.records.inputs import RootedPath

    def compiling(number):
        argv = ("g++", "-O3", "-MD", "-MF", f"{number}.o.d", "-c", f"/op/{number}.cpp", "-o", f"{number}.o")
        title, unit = f"compile {number}.cpp", RootedPath("own", f"{number}.cpp")
        return Step(f"{number}.o", (f"/op/{number}.cpp",), argv, title, f"{number}.o.d", unit)

    making, using = part("precompiled_header").precompiled([compiling(0), compiling(1)], "/op/all.h")
    assert making.argv == ("g++", "-O3", "-x", "c++-header", "/op/all.h", "-o", "used.h.gch")
    assert using[1].inputs == ("/op/1.cpp", "used.h.gch")
    assert using[1].argv[:5] == ("g++", "-O3", "-Winvalid-pch", "-include", "used.h")
    assert using[1].argv[5:] == compiling(1).argv[2:]


@pytest.mark.parametrize(
    ("including", "first"),
    [((9, 9, 9), None), ((9, 9, 3), 4), ((9, 1, 3), 2), ((0, 0, 0), 1), ((0, 9, 3), 4), ((0, 0, 4), None)],
)
def test_a_header_pays_from_where_it_stays_ahead(part, including, first):
    counts = (1, 2, 4)
    without = dict(zip(counts, (1, 2, 4), strict=True))
    found = part("precompiled_header").pays_from(counts, without, dict(zip(counts, including, strict=True)))
    assert found == first


@pytest.fixture
def asked(part, monkeypatch, tmp_path):
    """Runs the command line with one question that notes the scratch it is given."""
    seen = []
    main = part("__main__")

    def run(scratch):
        seen.append(scratch.long)
        return part("harness").Report("a question", "a ceiling")

    monkeypatch.setitem(sys.modules, "benchmarks.gc_scaling", SimpleNamespace(run=run))
    monkeypatch.setattr(main.machine, "describe", lambda: {"load_average": [0.0]})
    monkeypatch.setattr(main.show, "machine", lambda facts, console: None)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path))

    def ask(*arguments):
        assert main.main(["gc_scaling", "--json", str(tmp_path / "found.json"), *arguments]) == 0
        answer = json.loads((tmp_path / "found.json").read_text())
        return seen[-1], answer["long"]

    return ask


def test_a_run_is_long_where_that_is_asked_for(asked, monkeypatch):
    assert asked() == (False, False)
    assert asked("--long") == (True, True)
    monkeypatch.setenv("OPFORGE_BENCH_LONG", "0")
    assert asked() == (False, False)
    monkeypatch.setenv("OPFORGE_BENCH_LONG", "1")
    assert asked() == (True, True)


def test_what_takes_long_is_named_with_the_way_to_ask_for_it(part):
    assert part("scratch").too_long("64 processes") == "64 processes: only with --long, or OPFORGE_BENCH_LONG=1"


def test_help_names_every_question(part, capsys):
    with pytest.raises(SystemExit) as ended:
        part("__main__").main(["--help"])
    assert ended.value.code == 0
    said = "".join(capsys.readouterr().out.split())
    assert all(name in said for name in importlib.import_module("benchmarks").QUESTIONS)
    assert "--long" in said
