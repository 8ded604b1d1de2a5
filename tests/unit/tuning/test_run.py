"""A run of `opforge tune`: what is timed, refused, written, and left for the next run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner
from support import tuned_ops
from support.owners import STRANGER, as_root
from support.text_files import write

from opforge.builders.lookup import tuned
from opforge.builders.lookup import tuning_results as records
from opforge.cache.current_store import own_store
from opforge.cli.tune import command
from opforge.errors import TuningError
from opforge.tuning import run, shapes, subjects

pytestmark = pytest.mark.compile
SOURCE = f"""\
#include <opforge/tunable.h>
static opforge::Tunables<2> tunables({{{{"block", 256}}, {{"wrong", 0}}}});
OPFORGE_TUNABLES(tunables)
{tuned_ops.sample_ops.EXPORT} void fill(float* out, long size) {{
    const auto [block, wrong] = tunables.of(6, size);
    for (long i = 0; i < size; ++i) out[i] = wrong && i == size - 1 ? 7 : static_cast<float>(i);
    out[0] = static_cast<float>(block) * 0;
}}
"""
MODULE = """\
from ctypes import c_long, c_void_p

from opforge import OpBuilder
from opforge.ops.cases import Case


class FillBuilder(OpBuilder):
    name, abi, sources = "tuned_fill", "c", ["tuned_fill.cpp"]
    signatures = {"fill": (None, [c_void_p, c_long])}
    tunable = {"block": (128, 256), "wrong": (0, 1)}
    cases = "tuned_fill_builder:FILL"


class OtherBuilder(OpBuilder):
    name, abi, sources = "other", "c", ["tuned_fill.cpp"]


def inputs(place):
    import torch

    return (torch.empty(place.size),)


def filled(op):
    def fill(out):
        op.fill(out.data_ptr(), out.numel())
        return out

    return fill


def expected(out):
    import torch

    return torch.arange(out.numel(), dtype=torch.float64)


FILL = Case("fill", inputs, filled, reference=expected, tuned={"float32": (100, 1000)})
NOTHING = 7
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the op and its module, and a store in which it is built."""
    folder = tmp_path_factory.mktemp("tune")
    write(folder, "tuned_fill.cpp", SOURCE)
    write(folder, "tuned_fill_builder.py", MODULE)
    return folder


@pytest.fixture
def module(folder, monkeypatch):
    """The module, with a store that has no result."""
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(folder / "store"))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    shutil.rmtree(folder / "store" / "v2" / "tuned", ignore_errors=True)
    tuned.reset()
    import tuned_fill_builder

    return tuned_fill_builder


@pytest.fixture
def timed_run(module, monkeypatch):
    """A function that runs with a stand-in timer, by which block=128 takes half of the time; returns what was done."""

    monkeypatch.setattr(run, "SECONDS", 0.2)  # as few rounds as may decide

    def start(sizes=None, seconds=None, again=False, stop_after=99):
        subject = subjects.load(module.FillBuilder())
        setting, done = {}, []

        def use(case, config):
            setting.update({"block": config.get("block", 256)})
            subject.use(case, config)

        def timer(candidate, inner):
            return 1e-3 if setting["block"] == 256 else 5e-4

        def ends(step):
            done.append(step)
            if len(done) == stop_after:
                raise KeyboardInterrupt

        watched = subject._replace(use=use)
        places, root = subjects.places(subject, sizes), own_store().layout.root
        try:
            run.run(watched, places, root, run.Budget(seconds), again, lambda step: None, ends, timer)
        except KeyboardInterrupt:
            pass
        return done

    return start


def stored():
    (result,) = records.stored(own_store().layout.root)
    return result


@as_root
def test_a_result_of_an_owner_that_the_user_trusts_counts_and_is_listed(timed_run, monkeypatch):
    """As a load takes it."""
    timed_run()
    os.chown(stored().path, STRANGER, STRANGER)
    assert stored().problem == f"it belongs to user {STRANGER}, who is not trusted here"
    monkeypatch.setenv("OPFORGE_TRUSTED_OWNERS", str(STRANGER))
    assert not stored().problem
    assert [done.is_new for done in timed_run()] == [False, False]


def test_a_config_that_is_faster_is_written_and_used(timed_run, module):
    first, second = timed_run()
    assert (first.row["config"], first.row["ratio"], first.row["size"]) == ({"block": 128, "wrong": 0}, 0.5, 100)
    assert stored().value["rows"] == [first.row, second.row]
    (row, _other) = tuned.resolve(module.FillBuilder().spec(), module.FillBuilder().load().__entry__).rows
    assert row == [6, 13, 316, {"block": 128, "wrong": 0}]


def test_a_config_that_changes_the_result_is_refused(timed_run):
    first, _second = timed_run()
    refused = [other for other in first.row["others"] if other["config"]["wrong"] == 1]
    assert [other["config"]["block"] for other in refused] == [128, 256]
    text = "refused, because result 0 differs from the reference in float64: 1 of 100 elements differ; [99] is 7.0"
    assert [other["why"].startswith(text) for other in refused] == [True, True]
    assert run._line("ein großer Fehler") == r"ein gro\xdfer Fehler"  # the page is ASCII


def test_a_run_that_was_stopped_goes_on(timed_run):
    assert [done.step.size for done in timed_run(stop_after=1)] == [100]
    assert [row["size"] for row in stored().value["rows"]] == [100]
    first, second = timed_run()
    assert (first.is_new, second.is_new) == (False, True)
    assert [row["size"] for row in stored().value["rows"]] == [100, 1000]
    assert all(done.is_new for done in timed_run(again=True))


def test_what_a_busy_machine_has_timed_is_timed_again(timed_run):
    (first,) = timed_run(stop_after=1)
    row = {**first.row, "config": {}, "why": f"{run.search.BUSY}: the default took 0.80 to 1.20 of its own time"}
    records.write(own_store().layout.root, {**stored().value, "rows": [row]})
    (again,) = timed_run(stop_after=1)
    assert again.is_new and again.row == first.row


@pytest.mark.test_all("builds and times for 5 s")
def test_a_result_of_fewer_configs_is_timed_again(timed_run, module, monkeypatch):
    timed_run()
    monkeypatch.setattr(module.FillBuilder, "tunable", {"block": (64, 128, 256), "wrong": (0,)})
    assert all(done.is_new for done in timed_run())


def test_a_damaged_result_is_begun_anew(timed_run):
    timed_run()
    path = stored().path
    with open(path, "wb") as file:
        file.write(b'{"format":1')
    assert all(done.is_new for done in timed_run()) and not stored().problem


def test_a_budget_that_is_spent(timed_run):
    done = timed_run(seconds=0.1)
    assert [step.problem for step in done] == ["the budget is spent"] * 2


def test_a_budget_is_shared_among_what_is_left():
    now = [0.0]
    budget = run.Budget(6.0, lambda: now[0])
    assert (budget.share(4), budget.share(1)) == (1.5, run.SECONDS)
    now[0] = 5.9
    assert budget.share(1) == 0.0


@pytest.mark.test_all("builds and times for 5 s")
def test_a_killed_run_leaves_what_it_has_timed(module, folder):
    """Killed at any moment: between two sizes a row is there, or it is not."""
    env = {**os.environ, "PYTHONPATH": str(folder)}
    process = subprocess.Popen(
        [sys.executable, "-m", "opforge", "tune", "tuned_fill_builder:FillBuilder"],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    path = folder / "store" / "v2" / "tuned"
    import time

    while not [*path.glob("*/*.json")] and process.poll() is None:  # on a busy machine its start alone takes a minute
        time.sleep(0.01)
    process.kill()
    process.wait()
    result = stored()
    assert not result.problem and [row["size"] for row in result.value["rows"]] in ([100], [100, 1000])


class TestTheCommand:
    def run(self, *arguments):
        return CliRunner().invoke(command, list(arguments))

    @pytest.mark.test_all("builds and times for 5 s")
    def test_a_module_stands_for_what_can_be_tuned_in_it(self, module, monkeypatch):
        monkeypatch.setattr(run, "SECONDS", 0.1)
        monkeypatch.setattr(run.search, "QUIET", 1e9)  # what a busy machine has timed is timed again
        write(".", "shapes.json", '{"float32": [50]}')
        outcome = self.run("tuned_fill_builder:FillBuilder", "--shapes", "shapes.json", "--json")
        assert outcome.exit_code == 0, outcome.output
        (result,) = json.loads(outcome.stdout)["results"]
        assert result["op"] == "tuned_fill" and [row["size"] for row in result["rows"]] == [50]
        outcome = self.run("tuned_fill_builder:FillBuilder", "--shapes", "shapes.json")
        assert "float32 of 50" in outcome.output and "timed before" in outcome.output
        assert "of 1 size take another config than the default: " in outcome.output

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("nonsense", "it is not valid JSON (Expecting value"),
            ("[1]", "it is a list of 1 item: expected an object"),
            ("{}", "it names no dtype"),
            ('{"float31": [1]}', "' (a name in it)' is 'float31': expected one of 'any'"),
            ('{"float32": [0]}', "'float32[0]' is 0: expected a whole number from 1 to"),
            ('{"float32": "1"}', "'float32' is '1': expected a list"),
            ('{"float32": []}', "'float32' is a list of 0 items: expected a list of 1 to 64 items"),
        ],
    )
    def test_a_shapes_file_with_nonsense(self, tmp_path, text, problem):
        write(tmp_path, "shapes.json", text)
        with pytest.raises(TuningError) as error:
            shapes.read(str(tmp_path / "shapes.json"))
        assert f"shapes.json cannot be used for tuning: {problem}" in str(error.value)
        assert str(error.value).endswith(
            'Write sizes by dtype, such as {"float32": [4096, 1000000], "bfloat16": [65536]}.'
        )

    def test_a_shapes_file_that_is_not_there(self, tmp_path):
        with pytest.raises(TuningError, match=r"it cannot be read \(No such file or directory\)"):
            shapes.read(str(tmp_path / "none.json"))

    def test_a_shapes_file_for_other_dtypes(self, module):
        subject = subjects.load(module.FillBuilder())
        with pytest.raises(TuningError, match=r"the shapes are for bfloat16\. Name dtypes .*: float32"):
            subjects.places(subject, {"bfloat16": [1]})

    def test_an_op_with_nothing_to_tune(self, module):
        with pytest.raises(TuningError, match="OtherBuilder cannot be used for tuning: it declares nothing to tune"):
            subjects.load(module.OtherBuilder())

    @pytest.mark.parametrize(
        ("where", "problem"),
        [
            ("", "it names no cases, so there is nothing to time"),
            ("tuned_fill_builder:NONE", "cannot be used: module 'tuned_fill_builder' has no attribute 'NONE'"),
            ("tuned_fill_builder:NOTHING", "'tuned_fill_builder:NOTHING' is not a Case, or a tuple of them"),
            ("opforge.ops.cases.spatial:SPATIAL", "no case of opforge.ops.cases.spatial:SPATIAL is `tuned`"),
        ],
    )
    def test_a_builder_without_a_case(self, module, monkeypatch, where, problem):
        monkeypatch.setattr(module.FillBuilder, "cases", where)
        with pytest.raises(TuningError, match=problem):
            subjects.load(module.FillBuilder())

    def test_a_name_that_the_library_lacks(self, module, monkeypatch):
        monkeypatch.setattr(module.FillBuilder, "tunable", {"blok": (1,)})
        with pytest.raises(TuningError, match=r"its library has no 'blok'\. It has: block, wrong\. Correct `tunable`"):
            subjects.load(module.FillBuilder())

    def test_a_default_that_is_wrong(self, module, monkeypatch):
        subject = subjects.load(module.FillBuilder())
        case = subject.cases[0]
        from dataclasses import replace

        bad = replace(case, reference=lambda out: case.reference(out) + 1)
        with pytest.raises(
            TuningError, match=r"float32 of 100: its default is wrong: result 0 differs .*: 100 of 100 elements"
        ):
            timing = subjects.Timing(bad, "float32", 100, 100)
            run.run(subject, [timing], own_store().layout.root, run.Budget(None), False, print, print)


def test_explain_says_which_config_is_taken_and_why_the_others_are_not(timed_run, module):
    from opforge.cli.cache.explain import command as explain

    def lines():
        return CliRunner().invoke(explain, ["tuned_fill_builder:FillBuilder"]).output.splitlines()

    module.FillBuilder().load()
    assert lines()[1].startswith("  its defaults: there is no ") and lines()[1].endswith(
        ". To make it: opforge tune tuned_fill_builder:FillBuilder"
    )
    timed_run({"float32": [100]})
    _hit, path, taken, *others = lines()
    assert path == f"  tuned by {stored().path}"
    assert taken == "    float32 of 100: block=128 wrong=0 (0.500, 0.500 to 0.500 of the default's time)"
    assert others[0].startswith("      not block=128 wrong=1: refused, because result 0 differs from the reference")
    with open(stored().path, "w") as file:
        file.write("nonsense")
    assert " is not used: it is not valid JSON (" in lines()[1]


@pytest.mark.parametrize("is_new", [True, False], ids=["new memory", "an output"])
def test_a_config_that_writes_half_of_its_result_is_wrong(is_new):
    """The memory may hold what another config has left there, which is right."""
    import torch

    from opforge.ops.cases import Case, Place

    def double(out, x):
        result = torch.empty_like(x) if is_new else out
        result[: x.numel() // 2] = 2 * x[: x.numel() // 2]
        return result

    case = Case(
        "double",
        lambda place: (2 * place.draw(*place.shape), place.draw(*place.shape)),
        lambda _loaded: double,
        reference=lambda _out, x: 2 * x,
        outputs=() if is_new else (0,),
    )
    inputs = case.prepare(Place(100))
    assert "is nan, expected" in run.wrong(inputs)
