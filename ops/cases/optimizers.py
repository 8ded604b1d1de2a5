"""Cases of the optimizers: a step of each rule with its modes, of one large tensor, and of many small ones."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases.case import LARGE, ORDINARY, TIME, Call, Case, MissingError, Place, Prepared, Promise
from opforge.ops.cases.memory import COPY, copied
from opforge.ops.cases.rivals import DEEPSPEED, deepspeed

if TYPE_CHECKING:
    from torch import Tensor

LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.999), 1e-8, 0.1
SMALL = 1000
"""Elements of each of many small tensors."""
LARGE_SIZES = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
TUNED_SIZES = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
"""Below the first a call takes a few microseconds, whatever is set; above the last memory decides."""
COUNTS = (1, 10, 100, 1000)
SHAPES = ((2, 0), (2, 1), (2, 7), (2, 3, 5), (1, 2, 1, 9), (2, 1025))
"""The number of tensors, then the shape of each."""
LARGE_SHAPE = (1, LARGE)
DTYPES = ("float32", "bfloat16", "float16")
FUSED, FOREACH, OPERATORS = "torch fused", "torch foreach", "torch operators"


class Rule(NamedTuple):
    """The differences between the optimizers."""

    ours: str
    """The class in opforge.ops."""
    function: str | Callable[[Any], Callable[..., Any]]
    """That of the op which makes a step."""
    reference: str
    """The function in opforge.ops.reference."""
    options: dict[str, Any]
    """Of the class."""
    keywords: dict[str, Any]
    """Of the function."""
    states: tuple[str, ...]
    modes: Mapping[str, Mapping[str, Any]] = {}
    """Name -> other keywords, by which the step is compared too."""
    is_fused: bool = False
    """Whether a flag comes before the lists, and a list of copies after them."""
    reads_twice: bool = False
    """Whether a second pass reads the parameters and states again, as LAMB's does."""
    torch: str = ""
    """The class in torch.optim, if there is one."""
    rival: str = ""
    """DeepSpeed's class, "module:name"."""
    rival_states: Mapping[str, str] = {}
    """DeepSpeed's names of states, if they differ."""
    goals: Mapping[str, Mapping[int, float]] = {}
    """Of a step of small tensors, by their number."""

    def amount(self, elements: int, itemsize: int) -> int:
        """Returns the bytes that a step moves: parameters and states are read and written, gradients are read."""
        read = itemsize + 4 * len(self.states)
        return elements * (2 * read + itemsize + (read if self.reads_twice else 0))


def _inputs(rule: Rule, place: Place) -> tuple[Any, ...]:
    """Returns lists of parameters, gradients and float32 states; as after some steps, so that no state is 0."""
    count, *shape = place.shape
    lists: list[list[Tensor]] = []
    for number in range(2 + len(rule.states)):
        dtype = None if number < 2 else torch.float32
        lists.append([place.draw(*shape, seed=10 * number + index, dtype=dtype) for index in range(count)])
    lists[-1] = [tensor.square() + 1e-3 for tensor in lists[-1]]
    if not rule.is_fused:
        return tuple(lists)
    return torch.zeros(1, dtype=torch.int32, device=place.device), *lists, []


def _expected(rule: Rule, *arguments: Any, **keywords: Any) -> Any:
    """Returns the new parameters, then the new states: the gradients are left alone."""
    from opforge.ops import reference

    function: Callable[..., Any] = getattr(reference, rule.reference)
    lists = arguments[1:-1] if rule.is_fused else arguments
    updated = [function(*tensors, **keywords) for tensors in zip(*lists, strict=True)]
    return [[values[index] for values in updated] for index in range(len(lists) - 1)]


def _lists(rule: Rule, inputs: Prepared) -> tuple[list[Tensor], Mapping[str, list[Tensor]]]:
    """Returns the parameters, which have their gradients, and the states by name."""
    lists = inputs.arguments[1:-1] if rule.is_fused else inputs.arguments
    for param, grad in zip(lists[0], lists[1], strict=True):
        param.requires_grad_().grad = grad
    return lists[0], dict(zip(rule.states, lists[2:], strict=True))


def _step(
    rule: Rule, inputs: Prepared, make: Callable[[Any], Any], number: Callable[[], object], names: Mapping[str, str]
) -> Call:
    """Makes an optimizer use the states of the inputs. Returns its step."""
    params, states = _lists(rule, inputs)
    optimizer = make(params)
    for index, param in enumerate(params):
        own = {names.get(name, name): tensors[index] for name, tensors in states.items()}
        optimizer.state[param] = {"step": number(), **own}
    step: Call = optimizer.step
    return step


def _ours(rule: Rule, inputs: Prepared) -> Call:
    import opforge.ops

    return _step(rule, inputs, lambda params: getattr(opforge.ops, rule.ours)(params, **rule.options), lambda: 100, {})


def _torch(rule: Rule, inputs: Prepared, **options: bool) -> Call:
    if inputs.place.dtype != "float32":
        raise MissingError(f"it keeps states in {inputs.place.dtype}, not in float32")
    kind = getattr(torch.optim, rule.torch)
    steps = partial(torch.tensor, 100.0, device=inputs.place.device)
    return _step(rule, inputs, lambda params: kind(params, **rule.options, **options), steps, {})


def _deepspeed(rule: Rule, inputs: Prepared) -> Call:
    module, _, name = rule.rival.partition(":")
    kind = getattr(deepspeed(inputs.place, module, f"{rule.ours}Builder"), name)
    with contextlib.redirect_stdout(sys.stderr):
        return _step(rule, inputs, lambda params: kind(params, **rule.options), lambda: 100, rule.rival_states)


def _lion(rule: Rule, inputs: Prepared) -> Call:
    """Returns a step of Lion by torch's operators: torch has no Lion of its own."""
    params, states = _lists(rule, inputs)
    averages, (beta1, beta2) = states["exp_avg"], BETAS

    @torch.no_grad()
    def step() -> None:
        grads: list[Any] = [param.grad for param in params]
        if inputs.place.dtype != "float32":
            grads = [grad.float() for grad in grads]
        updates = torch._foreach_lerp(averages, grads, 1 - beta1)
        torch._foreach_sign_(updates)
        torch._foreach_mul_(params, 1 - LR * DECAY)
        torch._foreach_add_(params, updates, alpha=-LR)
        torch._foreach_lerp_(averages, grads, 1 - beta2)

    return step


def _compared(name: str, rule: Rule, promises: tuple[Promise, ...], changes: Mapping[str, Any], **timed: Any) -> Case:
    """Returns a step that is compared, and perhaps timed."""
    first = 1 if rule.is_fused else 0
    batch = {first + number: 0 for number in range(2 + len(rule.states))} if Promise.BATCH in promises else {}
    return Case(
        name,
        partial(_inputs, rule),
        rule.function,
        {**rule.keywords, **changes},
        partial(_expected, rule),
        DTYPES,
        SHAPES,
        2e-6,
        large_shape=LARGE_SHAPE,
        refused_dtypes=("int64", "float64"),
        strided=False,
        promises=promises,
        batch=batch,
        **timed,
    )


def _cases(rule: Rule, promises: tuple[Promise, ...] = (*ORDINARY, Promise.BATCH)) -> tuple[Case, ...]:
    rivals: dict[str, Callable[[Prepared], Call]] = {}
    if rule.torch:
        rivals |= {FUSED: partial(_torch, rule, fused=True), FOREACH: partial(_torch, rule, foreach=True)}
    if "Lion" in rule.ours:
        rivals[OPERATORS] = partial(_lion, rule)
    if rule.rival:
        rivals[DEEPSPEED] = partial(_deepspeed, rule)
    rivals[COPY] = copied
    timed: dict[str, Any] = {
        "ours": partial(_ours, rule),
        "rivals": rivals,
        "baseline": (COPY,),
        "devices": ("cpu", "cuda") if rule.is_fused else ("cpu",),
    }
    step = _compared(
        "step",
        rule,
        promises,
        {},
        sizes=LARGE_SIZES,
        shape=lambda size: (1, size),
        timed_dtypes=("float32", "bfloat16"),
        amount=rule.amount,
        quick=(1 << 18, 1 << 22),
        tuned={} if rule.is_fused else {"float32": TUNED_SIZES, "bfloat16": TUNED_SIZES},
        **timed,
    )
    small = Case(
        f"step of tensors of {SMALL}",
        partial(_inputs, rule),
        rule.function,
        sizes=COUNTS,
        shape=lambda count: (count, SMALL),
        amount=lambda count, itemsize: rule.amount(count * SMALL, itemsize),
        unit=TIME,
        size_unit="tensors",
        quick=(100,),
        goals=rule.goals,
        **timed,
    )
    return step, small, *(_compared(name, rule, promises, changes) for name, changes in rule.modes.items())


RATE: Mapping[str, Any] = {"lr": LR, "weight_decay": DECAY}
TWO = {"beta1": BETAS[0], "beta2": BETAS[1]}
ADAM = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY}
ADAM_STEP = {**RATE, **TWO, "eps": EPS, "step": 3, "adamw_mode": True, "bias_correction": True, "maximize": False}
ADAM_MODES: Mapping[str, Mapping[str, Any]] = {
    "step of Adam, decay in the gradient": {"adamw_mode": False},
    "step without a correction of the bias": {"bias_correction": False},
    "first step that maximizes, without decay": {"maximize": True, "weight_decay": 0.0, "step": 1},
}
LION, LION_STEP = {"lr": LR, "betas": BETAS, "weight_decay": DECAY}, {**RATE, **TWO, "maximize": False}
LION_MODES = {"step that maximizes, without decay": {"maximize": True, "weight_decay": 0.0}}
ADAGRAD = {"lr": LR, "eps": 1e-10, "weight_decay": DECAY}
MOMENTS = ("exp_avg", "exp_avg_sq")
CPU_ADAM = _cases(
    Rule(
        "CPUAdam",
        "multi_adam_",
        "adam",
        ADAM,
        ADAM_STEP,
        MOMENTS,
        ADAM_MODES,
        torch="AdamW",
        rival="deepspeed.ops.adam:DeepSpeedCPUAdam",
        goals={FUSED: {1: 1.0, 1000: 2.0}},
    )
)
CPU_ADAGRAD = _cases(
    Rule(
        "CPUAdagrad",
        "multi_adagrad_",
        "adagrad",
        ADAGRAD,
        {**ADAGRAD, "maximize": False},
        ("sum",),
        {"step that maximizes, without decay": {"maximize": True, "weight_decay": 0.0}},
        torch="Adagrad",
        rival="deepspeed.ops.adagrad:DeepSpeedCPUAdagrad",
        rival_states={"sum": "exp_avg_sq"},
    )
)
CPU_LION = _cases(
    Rule(
        "CPULion",
        "multi_lion_",
        "lion",
        LION,
        LION_STEP,
        ("exp_avg",),
        LION_MODES,
        rival="deepspeed.ops.lion:DeepSpeedCPULion",
    )
)
FUSED_ADAM = _cases(
    Rule("FusedAdam", "fused_adam_", "adam", ADAM, ADAM_STEP, MOMENTS, ADAM_MODES, is_fused=True, torch="AdamW")
)
FUSED_LION = _cases(Rule("FusedLion", "fused_lion_", "lion", LION, LION_STEP, ("exp_avg",), LION_MODES, is_fused=True))


def _lamb(loaded: Any) -> Callable[..., Any]:
    """Returns a step of LAMB, which returns the ratios of norms too: its schema has these by a keyword."""

    def step(noop: Tensor, *lists: Any, **keywords: Any) -> Any:
        ratios = noop.new_ones(len(lists[0]), dtype=lists[2][0].dtype)
        loaded.fused_lamb_(noop, *lists, ratios=ratios, **keywords)
        return lists[0], lists[2], lists[3], ratios

    return step


def _lamb_expected(_noop: Tensor, *lists: Any, **keywords: Any) -> Any:
    from opforge.ops import reference

    updated = [reference.lamb(*tensors, **keywords) for tensors in zip(*lists[:-1], strict=True)]
    ratios = lists[0][0].new_tensor([values[-1] for values in updated])
    return [*([values[index] for values in updated] for index in range(3)), ratios]


LAMB_STEP = {
    **{name: value for name, value in ADAM_STEP.items() if name not in ("adamw_mode", "maximize")},
    "max_coeff": 10.0,
    "min_coeff": 0.01,
    "eps_inside_sqrt": False,
    "scale": 1.0,
}
LAMB_MODES: Mapping[str, Mapping[str, Any]] = {
    "step without a correction of the bias, of gradients to be divided by 4": {
        "eps_inside_sqrt": True,
        "bias_correction": False,
        "scale": 4.0,
    },
}
FUSED_LAMB = tuple(
    replace(case, reference=_lamb_expected, tolerance=1e-5, changed=(1, 3, 4)) if case.reference else case
    for case in _cases(
        Rule("FusedLamb", _lamb, "lamb", ADAM, LAMB_STEP, MOMENTS, LAMB_MODES, is_fused=True, reads_twice=True),
        ORDINARY,
    )
)
