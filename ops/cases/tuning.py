"""What `opforge tune` times of opforge's own ops on the CPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.ops.cases.form import Call, Place, Timed, TuningCase
from opforge.ops.cases.processes import Rank, in_ranks
from opforge.ops.host_op import host_op

if TYPE_CHECKING:
    from torch import Tensor

SIZES = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
"""Elements. Below the first a call takes a few microseconds, whatever is set; above the last memory decides."""
DTYPES = ("float32", "bfloat16")
GROUP = 512
ROUNDING = {"float32": 2e-6, "bfloat16": 1 / 64, "float16": 1 / 512}
"""How far a step may be from the one in float64, by the dtype of the parameters."""


def _random(place: Place, seed: int) -> Tensor:
    import torch

    return torch.randn(place.size, generator=torch.Generator().manual_seed(seed))


class Step(NamedTuple):
    """The tensors of one parameter, and what its op is called with."""

    dtype: str
    tensors: list[Tensor]
    options: Mapping[str, Any]
    expected: list[Tensor]
    """The parameter and the states after a step."""


def _step(rule: str, states: int, options: Mapping[str, Any], place: Place) -> Step:
    from opforge.ops import reference

    values = [_random(place, seed) for seed in range(2 + states)]
    values[-1] = values[-1].square() + 1e-3
    dtype = place.torch_dtype()
    tensors = [value.to(dtype) if number < 2 else value for number, value in enumerate(values)]
    function: Callable[..., Any] = getattr(reference, rule)
    expected = function(*(tensor.double() for tensor in tensors), **options)
    return Step(place.dtype, tensors, options, list(expected))


def _timed_step(builder: str, function: str, step: Step, _config: Mapping[str, int]) -> Timed:
    update = getattr(host_op(builder), function)
    copies = [[tensor.clone()] for tensor in step.tensors]

    def results() -> list[Tensor]:
        fresh = [[tensor.clone()] for tensor in step.tensors]
        update(*fresh, **step.options)
        return [tensors[0] for number, tensors in enumerate(fresh) if number != 1]

    rounding = ROUNDING[step.dtype]
    return Timed(lambda: update(*copies, **step.options), results, step.expected, rounding, rounding)


def _optimizer(builder: str, function: str, rule: str, states: int, **options: Any) -> TuningCase:
    setup, timed = partial(_step, rule, states, options), partial(_timed_step, builder, function)
    return TuningCase(SIZES, setup, timed, DTYPES)


RATE: Mapping[str, Any] = {"lr": 1e-3, "weight_decay": 1e-2, "maximize": False}
BETAS = {"beta1": 0.9, "beta2": 0.999}
CPU_ADAM = _optimizer(
    "CPUAdamBuilder", "multi_adam_", "adam", 2, **RATE, **BETAS, eps=1e-8, step=3, adamw_mode=True, bias_correction=True
)
CPU_ADAGRAD = _optimizer("CPUAdagradBuilder", "multi_adagrad_", "adagrad", 1, **RATE, eps=1e-10)
CPU_LION = _optimizer("CPULionBuilder", "multi_lion_", "lion", 1, **RATE, **BETAS)


def _values(place: Place) -> Tensor:
    return _random(place, 0).to(place.torch_dtype())


def _timed_groups(values: Tensor, _config: Mapping[str, int]) -> Timed:
    """Returns the call that quantizes groups to 8 bits, and back."""
    import torch

    from opforge.ops import reference

    op, groups = host_op("QuantizerBuilder"), values.numel() // GROUP
    codes, params = op.quantize(values, groups, 8, op.Symmetric)
    out = torch.empty_like(values)

    def call() -> list[Tensor]:
        op.quantize_(codes, params, values, groups, 8, True)
        op.dequantize_(out, codes, params, groups, 8, True)
        return [codes, params, out]

    expected, scales, _offsets = reference.quantize(values.double().view(groups, GROUP), 8, True)
    exact = [expected.view(-1), scales.view(groups, 1), values.double()]
    # A value between two codes may become either, and comes back within half a step.
    step = float(scales.max())
    return Timed(call, call, exact, 1 / 128, max(1.0, step))


def _timed_fp_groups(values: Tensor, _config: Mapping[str, int]) -> Timed:
    """Returns the call that quantizes groups to floating-point codes of 8 bits, and back."""
    import torch

    op, groups = host_op("FPQuantizerBuilder"), values.numel() // GROUP
    rows = torch.empty(groups, GROUP + 4, dtype=torch.uint8)
    out = torch.empty_like(values)

    def call() -> list[Tensor]:
        op.fp_quantize_(rows, values, GROUP, 8, 3, False, 0)
        op.fp_dequantize_(out, rows, GROUP, 8, 3)
        return [out]

    # With 3 bits of mantissa a value comes back within a sixteenth, and near zero within half of the smallest code.
    return Timed(call, call, [values.double()], 1 / 15, float(values.abs().max()) / 240 / 256)


RANKS = 2
CONFIG = "TUNED_CONFIG"
"""The variable by which the ranks of an exchange get the config that is timed."""


def exchange(rank: Rank) -> Call:
    """Returns a rank's call of `Group`, made with a config. Raises AssertionError if its result is wrong."""
    import torch

    from opforge.ops.shm.group import Group
    from opforge.warm import library

    torch.set_num_threads(1)
    entry, config = host_op("ShareMemCommBuilder").__entry__, json.loads(os.environ[CONFIG])
    library.held.add(entry.key)
    library.set_tuned(entry, [[-1, 0, 1 << 60, config]] if config else [], is_held=True)
    meeting: Any = torch.distributed
    group = Group(meeting.FileStore(os.path.join(rank.folder, "meeting"), rank.ranks), rank.rank, rank.ranks)
    values = torch.arange(rank.size // 4, dtype=torch.float32) % 1024 * (rank.rank + 1)
    group.all_reduce(values)
    expected = torch.arange(rank.size // 4, dtype=torch.float32) % 1024 * 3
    assert torch.equal(values, expected), "its sum differs from the reference's"
    values.zero_()
    return lambda: group.all_reduce(values)


def _timed_exchange(place: Place, config: Mapping[str, int]) -> Timed:
    """Returns the call of two processes: each config has processes of its own, which compare their first result."""
    settings = {"OMP_NUM_THREADS": "1", CONFIG: json.dumps(dict(config))}
    return Timed(in_ranks(place, RANKS, f"{__name__}:exchange", **settings), list, [])


def _same(place: Place) -> Place:
    return place


SHARE_MEM_COMM = TuningCase((1 << 18, 1 << 20, 1 << 22, 1 << 24), _same, _timed_exchange, ("any",))
"""An all_reduce of so many bytes between two processes."""
QUANTIZER = TuningCase(SIZES, _values, _timed_groups, DTYPES)
FP_QUANTIZER = TuningCase(SIZES, _values, _timed_fp_groups, DTYPES)
