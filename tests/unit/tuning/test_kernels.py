"""The kernels of a Triton op are tuned by a stand-in timer: there is no GPU. They are compiled in test_configs.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.tuned_ops import row

from opforge.accelerator.target import Target
from opforge.builders.lookup import tuning_results as records
from opforge.builders.lookup.tuned import WantedResult
from opforge.builders.triton_op_builder import tuned as kernels_tuned
from opforge.builders.triton_op_builder.kernel import Kernel
from opforge.errors import TuningError
from opforge.ops.cases import Case
from opforge.tuning import run, subjects

CONFIGS = [{"BLOCK": 2048, "warps": 8}, {"warps": 1}]
KERNEL = Kernel("scale", "kernels.py", "scale", {"x": "*fp32"}, {"BLOCK": 1024}, configs=CONFIGS)
SECONDS = {"scale": 1e-3, "scale[BLOCK=2048,warps=8]": 8e-4, "scale[warps=1]": 2e-3}
TIMES = 2
WANTED = WantedResult("scale", "0" * 32, "cuda:sm_90a", 0)


class FakeKernels:
    """Launches nothing: it notes which kernel a launch would take."""

    def __init__(self):
        self.choices, self.last = {}, ""

    def launch(self):
        chosen = self.choices.get("scale") or [(0, 0, "scale")]
        self.last = chosen[0][2]
        return torch.full((4,), TIMES if self.last != "scale[warps=1]" or not self.breaks else 0)

    breaks = False


@pytest.fixture
def subject():
    """A Triton op whose launches are noted, and what is timed of it."""
    launched = FakeKernels()
    entry = SimpleNamespace(record={"description": "0" * 32, "target": "cuda:sm_90a"})
    op = SimpleNamespace(kernels=launched, library=SimpleNamespace(__entry__=entry))
    spec = SimpleNamespace(name="scale", target=Target("cuda", ("sm_90a",)))
    case = Case(
        "scale",
        lambda place: (),
        lambda _loaded: launched.launch,
        reference=lambda: torch.full((4,), TIMES),
        tuned={"any": (1 << 10, 1 << 20)},
        kernel="scale",
    )
    made = subjects._of_kernels(SimpleNamespace(kernels=[KERNEL]), spec, op, (case,), WANTED)
    return made, launched


def tune(subject, launched, folder):
    rows = []
    places = subjects.places(subject, None)

    def timer(candidate, inner):
        candidate()
        return SECONDS[launched.last]

    run.run(subject, places, str(folder), run.Budget(None), False, lambda step: None, rows.append, timer)
    return [done.row for done in rows]


def test_the_config_that_is_faster_on_this_device_is_launched(subject, tmp_path):
    made, launched = subject
    rows = tune(made, launched, tmp_path)
    assert [(row["what"], row["size"], row["config"], row["ratio"]) for row in rows] == [
        ("scale", size, CONFIGS[0], 0.8) for size in (1 << 10, 1 << 20)
    ]
    assert launched.choices == {}, "what was there before is restored"
    (stored,) = records.stored(str(tmp_path))
    assert (stored.value["target"], stored.value["cores"]) == ("cuda:sm_90a", 0)
    chosen, problem = kernels_tuned.choices(stored.value["rows"], [KERNEL])
    assert problem == "" and [name for _low, _high, name in chosen["scale"]] == ["scale[BLOCK=2048,warps=8]"] * 2


def test_a_kernel_that_computes_something_else_is_refused(subject, tmp_path):
    made, launched = subject
    launched.breaks = True
    (first, _second) = tune(made, launched, tmp_path)
    (refused,) = [other for other in first["others"] if other["config"] == CONFIGS[1]]
    assert refused["why"].startswith("refused, because result 0 differs from the reference in float64: 4 of 4 elements")


def test_a_refused_config_is_not_launched_by_what_is_timed_next(subject, tmp_path):
    made, launched = subject
    only = made._replace(configs=lambda _case: [CONFIGS[1]])
    launched.breaks = True
    rows = tune(only, launched, tmp_path)
    assert [row["config"] for row in rows] == [{}, {}]
    seen = []
    ends = made._replace(restore=lambda: seen.append(dict(launched.choices)))
    run.run(
        ends._replace(configs=only.configs),
        subjects.places(made, None)[:1],
        str(tmp_path / "other"),
        run.Budget(None),
        False,
        lambda step: None,
        lambda done: None,
        lambda candidate, inner: 1e-3,
    )
    assert seen == [{"scale": []}]


def test_a_result_that_takes_what_could_not_be_compiled_for_this_device():
    taken = {"scale": [(0, 9, "scale[warps=1]")]}
    both = [{"kernel": name, "arch": "sm_80"} for name in ("scale", "scale[warps=1]")]
    fat = [*both, {"kernel": "scale", "arch": "sm_90a"}]
    problem = "it takes the kernel 'scale[warps=1]', which could not be compiled for "
    assert kernels_tuned.absent(taken, both, "cuda:sm_80") == ""
    assert kernels_tuned.absent(taken, both[:1], "cuda:sm_80") == f"{problem}sm_80"
    assert kernels_tuned.absent(taken, fat, "cuda:sm_90") == f"{problem}sm_90"
    assert kernels_tuned.absent(taken, fat, "cuda:sm_86") == "", "the device takes the images of another architecture"
    assert kernels_tuned.absent(taken, [{"kernel": "scale", "arch": "gfx942"}], "hip:gfx942") == f"{problem}gfx942"


def test_kernels_that_triton_itself_launches_are_not_tuned():
    class ScaleBuilder:
        kernels, compiles_configs = (KERNEL,), True
        cases = "opforge.ops.cases.triton_ops:SOFTMAX"

        def spec(self):
            return SimpleNamespace(kernels=("text",))

        def load(self):
            return SimpleNamespace(kernels=FakeKernels(), library=None)

    with pytest.raises(TuningError, match=r"launched through Triton itself.*Unset OPFORGE_TRITON_JIT and TRITON_INT"):
        subjects.load(ScaleBuilder())


def test_explain_says_that_a_config_is_none_that_the_op_has(tmp_path, monkeypatch):
    from opforge.cli import tuned as explanation

    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path))
    builder = SimpleNamespace(kernels=[KERNEL._replace(configs=CONFIGS[1:])])
    spec = SimpleNamespace(name="scale", package="", target=Target("cuda", ("sm_90a",)), kernels=("text",), tunable=())
    entry = SimpleNamespace(record={"description": "0" * 32})
    value = {"format": 1, "op": "scale", "kernel": "0" * 32, "target": "cuda:sm_90a", "cores": 0}
    rows = [row(config, 1000, "any", what="scale") for config in CONFIGS]
    path = records.write(str(tmp_path), {**value, "rows": rows[1:]})
    assert explanation.explained(builder, spec, entry)["tuned"]["problem"] == ""
    records.write(str(tmp_path), {**value, "rows": rows[:1]})
    found = explanation.explained(builder, spec, entry)["tuned"]
    problem = f"it has the config {CONFIGS[0]} of the kernel 'scale', which the op does not have"
    assert (found["path"], found["problem"]) == (path, problem)


def test_a_case_for_a_kernel_without_configs(subject):
    _made, launched = subject
    bare = SimpleNamespace(kernels=[KERNEL, KERNEL._replace(name="other", configs=())])
    spec = SimpleNamespace(name="scale", target=Target("cuda", ("sm_90a",)))
    case = Case("other", print, tuned={"any": (1,)}, kernel="other")
    with pytest.raises(TuningError, match=r"it has no kernel 'other' with configs\. Set `kernel`"):
        subjects._of_kernels(bare, spec, SimpleNamespace(kernels=launched), (case,), WANTED)


def test_a_case_without_a_kernel_is_timed_for_each_kernel_with_configs_that_its_call_launches():
    class Launches:
        choices = dict[str, object]()

        def launch(self, name, grid, *arguments):
            """Launches nothing."""

    launches = Launches()

    def call(x):
        launches.launch("scale", (1, 1, 1), x)
        launches.launch("other", (1, 1, 1), x)
        launches.launch("scale", (1, 1, 1), x[:1])

    kernels = [KERNEL, KERNEL._replace(name="other", configs=())]
    case = Case("call", lambda place: (torch.zeros(2 * place.size),), lambda _op: call, tuned={"float32": (4, 8)})
    spec = SimpleNamespace(name="scale", target=Target("cuda", ("sm_90a",)))
    op = SimpleNamespace(kernels=launches)
    made = subjects._of_kernels(SimpleNamespace(kernels=kernels), spec, op, (case, case), WANTED)
    places = subjects.places(made, None)
    assert [(timing.case.kernel, timing.dtype, timing.size, timing.counted) for timing in places] == [
        ("scale", "float32", 4, 8),
        ("scale", "float32", 8, 16),
    ]
    assert "launch" not in vars(launches), "what notes the launches is removed"
