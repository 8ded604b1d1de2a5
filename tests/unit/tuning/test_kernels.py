"""The kernels of a Triton op are tuned by a stand-in timer: there is no GPU. They are compiled in test_configs.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from opforge.accelerator.target import Target
from opforge.builders.lookup import tuning_results as records
from opforge.builders.triton_op_builder import tuned as kernels_tuned
from opforge.builders.triton_op_builder.kernel import Kernel
from opforge.errors import TuningError
from opforge.ops.cases import Case
from opforge.tuning import run, subjects

CONFIGS = [{"BLOCK": 2048, "warps": 8}, {"warps": 1}]
KERNEL = Kernel("scale", "kernels.py", "scale", {"x": "*fp32"}, {"BLOCK": 1024}, configs=CONFIGS)
SECONDS = {"scale": 1e-3, "scale[BLOCK=2048,warps=8]": 8e-4, "scale[warps=1]": 2e-3}
TIMES = 2


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
    made = subjects._of_kernels(SimpleNamespace(kernels=[KERNEL]), spec, op, (case,))
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


def test_a_case_for_a_kernel_without_configs(subject):
    _made, launched = subject
    bare = SimpleNamespace(kernels=[KERNEL, KERNEL._replace(name="other", configs=())])
    spec = SimpleNamespace(name="scale", target=Target("cuda", ("sm_90a",)))
    case = Case("other", print, tuned={"any": (1,)}, kernel="other")
    with pytest.raises(TuningError, match=r"it has no kernel 'other' with configs\. Set `kernel`"):
        subjects._of_kernels(bare, spec, SimpleNamespace(kernels=launched), (case,))
