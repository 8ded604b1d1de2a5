"""Cases of the optimizers: a step of one large tensor, and of many small ones."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.ops.cases.form import OURS, TIME, Call, Case, MissingError, Place
from opforge.ops.cases.memory import COPY, copy_of
from opforge.ops.cases.rivals import DEEPSPEED, deepspeed

if TYPE_CHECKING:
    from torch import Tensor

LR, BETAS, EPS, DECAY = 1e-4, (0.9, 0.999), 1e-8, 1e-2
SMALL = 1000
"""Elements of each of many small tensors."""
LARGE_SIZES = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
COUNTS = (1, 10, 100, 1000)
FUSED, FOREACH, OPERATORS = "torch fused", "torch foreach", "torch operators"


class StepMemory(NamedTuple):
    """Parameters with their gradients and float32 states. All contenders share them, so that all use the same pages."""

    place: Place
    params: list[Tensor]
    states: dict[str, list[Tensor]]
    amount: float
    """Bytes that a step moves."""


class Rule(NamedTuple):
    """What differs between the optimizers."""

    ours: str
    """The class in opforge.ops."""
    options: dict[str, Any]
    states: tuple[str, ...]
    reads_twice: bool = False
    """Whether a second pass reads the parameters and states again, as LAMB's does."""
    torch: str = ""
    """The class in torch.optim, if there is one."""
    rival: str = ""
    """DeepSpeed's class, "module:name"."""
    rival_states: Mapping[str, str] = {}
    """DeepSpeed's names of states, if they differ."""
    devices: tuple[str, ...] = ("cpu",)
    goals: Mapping[str, Mapping[int, float]] = {}
    """Of a step of small tensors, by their number."""

    def amount(self, elements: int, itemsize: int) -> int:
        """Returns the bytes that a step moves: parameters and states are read and written, gradients are read."""
        read = itemsize + 4 * len(self.states)
        return elements * (2 * read + itemsize + (read if self.reads_twice else 0))


def _memory(rule: Rule, place: Place, sizes: list[int]) -> StepMemory:
    import torch

    random = torch.Generator(place.device).manual_seed(0)
    params = []
    for size in sizes:
        param = torch.empty(size, device=place.device).normal_(generator=random).to(place.torch_dtype())
        param.requires_grad_().grad = torch.empty_like(param).normal_(generator=random)
        params.append(param)
    # As after some steps. Zeros would be faster to read: they share one page.
    states = {name: [torch.full((size,), 0.1, device=place.device) for size in sizes] for name in rule.states}
    return StepMemory(place, params, states, rule.amount(sum(sizes), params[0].itemsize))


def _step(optimizer: Any, memory: StepMemory, number: Callable[[], object], names: Mapping[str, str]) -> Call:
    """Makes an optimizer use the states of `memory`. Returns its step."""
    for index, param in enumerate(memory.params):
        states = {names.get(name, name): tensors[index] for name, tensors in memory.states.items()}
        optimizer.state[param] = {"step": number(), **states}
    step: Call = optimizer.step
    return step


def _ours(rule: Rule) -> Callable[[StepMemory], Call]:
    def prepare(memory: StepMemory) -> Call:
        import opforge.ops

        optimizer = getattr(opforge.ops, rule.ours)(memory.params, **rule.options)
        return _step(optimizer, memory, lambda: 100, {})

    return prepare


def _torch(rule: Rule, **options: bool) -> Callable[[StepMemory], Call]:
    def prepare(memory: StepMemory) -> Call:
        import torch

        if memory.place.dtype != "float32":
            raise MissingError(f"it keeps states in {memory.place.dtype}, not in float32")
        optimizer = getattr(torch.optim, rule.torch)(memory.params, **rule.options, **options)
        return _step(optimizer, memory, lambda: torch.tensor(100.0, device=memory.place.device), {})

    return prepare


def _deepspeed(rule: Rule) -> Callable[[StepMemory], Call]:
    def prepare(memory: StepMemory) -> Call:
        module, _, name = rule.rival.partition(":")
        kind = getattr(deepspeed(memory.place, module, f"{rule.ours}Builder"), name)
        with contextlib.redirect_stdout(sys.stderr):
            return _step(kind(memory.params, **rule.options), memory, lambda: 100, rule.rival_states)

    return prepare


def _lion(memory: StepMemory) -> Call:
    """Returns a step of Lion by torch's operators: torch has no Lion of its own."""
    import torch

    averages, (beta1, beta2) = memory.states["exp_avg"], BETAS

    @torch.no_grad()
    def step() -> None:
        grads: list[Any] = [param.grad for param in memory.params]
        if memory.place.dtype != "float32":
            grads = [grad.float() for grad in grads]
        updates = torch._foreach_lerp(averages, grads, 1 - beta1)
        torch._foreach_sign_(updates)
        torch._foreach_mul_(memory.params, 1 - LR * DECAY)
        torch._foreach_add_(memory.params, updates, alpha=-LR)
        torch._foreach_lerp_(averages, grads, 1 - beta2)

    return step


def _copy(memory: StepMemory) -> Call:
    return copy_of(memory.amount, memory.place.device)


def _cases(rule: Rule) -> tuple[Case, ...]:
    contenders: dict[str, Callable[[StepMemory], Call]] = {OURS: _ours(rule)}
    if rule.torch:
        contenders |= {FUSED: _torch(rule, fused=True), FOREACH: _torch(rule, foreach=True)}
    if "Lion" in rule.ours:
        contenders[OPERATORS] = _lion
    if rule.rival:
        contenders[DEEPSPEED] = _deepspeed(rule)
    contenders[COPY] = _copy
    step = Case(
        "step",
        LARGE_SIZES,
        lambda place: _memory(rule, place, [place.size]),
        contenders,
        (COPY,),
        rule.amount,
        dtypes=("float32", "bfloat16"),
        quick=(1 << 18, 1 << 22),
        devices=rule.devices,
    )
    small = Case(
        f"step of tensors of {SMALL}",
        COUNTS,
        lambda place: _memory(rule, place, [SMALL] * place.size),
        contenders,
        (COPY,),
        lambda count, itemsize: rule.amount(count * SMALL, itemsize),
        TIME,
        "tensors",
        quick=(100,),
        goals=rule.goals,
        devices=rule.devices,
    )
    return step, small


ADAM = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY}
LION = {"lr": LR, "betas": BETAS, "weight_decay": DECAY}
ADAGRAD = {"lr": LR, "eps": 1e-10, "weight_decay": DECAY}
MOMENTS, BOTH = ("exp_avg", "exp_avg_sq"), ("cpu", "cuda")
CPU_ADAM = _cases(
    Rule(
        "CPUAdam",
        ADAM,
        MOMENTS,
        torch="AdamW",
        rival="deepspeed.ops.adam:DeepSpeedCPUAdam",
        goals={FUSED: {1: 1.0, 1000: 2.0}},
    )
)
CPU_ADAGRAD = _cases(
    Rule(
        "CPUAdagrad",
        ADAGRAD,
        ("sum",),
        torch="Adagrad",
        rival="deepspeed.ops.adagrad:DeepSpeedCPUAdagrad",
        rival_states={"sum": "exp_avg_sq"},
    )
)
CPU_LION = _cases(Rule("CPULion", LION, ("exp_avg",), rival="deepspeed.ops.lion:DeepSpeedCPULion"))
FUSED_ADAM = _cases(Rule("FusedAdam", ADAM, MOMENTS, torch="AdamW", devices=BOTH))
FUSED_LION = _cases(Rule("FusedLion", LION, ("exp_avg",), devices=BOTH))
FUSED_LAMB = _cases(Rule("FusedLamb", ADAM, MOMENTS, reads_twice=True, devices=BOTH))
