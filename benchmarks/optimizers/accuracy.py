"""How far is CPUAdam from the exact rule, beside torch's own implementations?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.scratch import Scratch
from opforge.bench.harness import Report

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STEPS, SEEDS, ELEMENTS = 100, (0, 1, 2, 3), 1 << 15
LR = 1e-3
OURS, FUSED, FOREACH = "opforge CPUAdam", "torch AdamW(fused)", "torch AdamW(foreach)"
IDEAL = "float64 steps, each rounded once to float32"


def run(scratch: Scratch) -> Report:
    """Returns figures of several seeds. Nothing is timed."""
    import torch

    report = Report(
        f"the distance of {ELEMENTS} parameters from torch's float64 AdamW after {STEPS} steps of the same gradients",
        f"{IDEAL}: no arithmetic can do better with a float32 parameter, except by chance",
    )
    for decay in (0.0, 1e-2):
        largest = report.table(f"fp32, weight decay {decay}: largest distance", "1e-9", statistics=("median", "worst"))
        mean = report.table(f"fp32, weight decay {decay}: mean distance", "1e-9", statistics=("median", "worst"))
        distances = [_distances(seed, decay) for seed in SEEDS]
        for name in distances[0]:
            role = "ceiling" * (name == IDEAL)
            largest.add(name, [by_name[name][0] * 1e9 for by_name in distances], role)
            mean.add(name, [by_name[name][1] * 1e9 for by_name in distances], role)
        for index, what in enumerate(("largest", "mean")):
            worst = max(by_name[OURS][index] / by_name[FUSED][index] for by_name in distances)
            report.figure(f"weight decay {decay}: {what} distance, worst seed", worst, "of torch fused's", 1.0)
            ideal = max(by_name[IDEAL][index] / by_name[FUSED][index] for by_name in distances)
            report.figure(f"weight decay {decay}: {what} distance, worst seed, ceiling", ideal, "of torch fused's")
    for dtype in (torch.bfloat16, torch.float16):
        title = f"{dtype}, fp32 states: distance of each step from its rounded fp32 result"
        table = report.table(title, "ULP", statistics=("median", "worst", "mean"))
        table.add(OURS, [_ulps(seed, dtype) for seed in SEEDS], f"largest of {STEPS} steps, by seed")
        report.figure(f"{dtype}: largest distance", max(table.rows[0].samples), "ULP", 1)
    return report


def _distances(seed: int, decay: float) -> dict[str, tuple[float, float]]:
    """Returns the (largest, mean) distance of each contender."""
    import torch

    from opforge.ops import CPUAdam

    random = torch.Generator().manual_seed(seed)
    start = torch.randn(ELEMENTS, generator=random)
    constructors: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
        OURS: lambda params: CPUAdam(params, lr=LR, weight_decay=decay),
        FUSED: lambda params: torch.optim.AdamW(params, lr=LR, weight_decay=decay, fused=True),
        FOREACH: lambda params: torch.optim.AdamW(params, lr=LR, weight_decay=decay, foreach=True),
        IDEAL: lambda params: torch.optim.AdamW(params, lr=LR, weight_decay=decay, foreach=False),
    }
    exact = start.double().requires_grad_()
    reference = torch.optim.AdamW([exact], lr=LR, weight_decay=decay, foreach=False)
    params = {name: (start.double() if name == IDEAL else start.clone()).requires_grad_() for name in constructors}
    optimizers = {name: construct([params[name]]) for name, construct in constructors.items()}
    for _ in range(STEPS):
        grad = torch.randn(ELEMENTS, generator=random)
        exact.grad = grad.double()
        reference.step()
        for name, optimizer in optimizers.items():
            params[name].grad = grad.to(params[name].dtype)
            optimizer.step()
        with torch.no_grad():
            params[IDEAL].copy_(params[IDEAL].float())
    distances = {}
    for name, param in params.items():
        distance = (param.detach().double() - exact.detach()).abs()
        distances[name] = (float(distance.max()), float(distance.mean()))
    return distances


def _ulps(seed: int, dtype: torch.dtype) -> int:
    """Returns the largest distance of any step in `dtype` from the rounded result of the same step in fp32."""
    import torch

    from opforge.ops import CPUAdam

    random = torch.Generator().manual_seed(seed)
    low = torch.randn(ELEMENTS, generator=random).to(dtype).requires_grad_()
    full = low.detach().float().requires_grad_()
    optimizer = CPUAdam([low], lr=LR, weight_decay=1e-2)
    # torch's own fp32 step is the reference. Each of its steps starts from the same parameter and the same states.
    reference = torch.optim.AdamW([full], lr=LR, weight_decay=1e-2, foreach=False)
    worst = 0
    for step in range(STEPS):
        low.grad = torch.randn(ELEMENTS, generator=random).to(dtype)
        full.grad = low.grad.float()
        with torch.no_grad():
            full.copy_(low)
        if step:
            for name in ("exp_avg", "exp_avg_sq"):
                reference.state[full][name].copy_(optimizer.state[low][name])
        optimizer.step()
        reference.step()
        distance = (_ordered(low.detach()) - _ordered(full.detach().to(dtype))).abs()
        worst = max(worst, int(distance.max()))
    return worst


def _ordered(values: Tensor) -> Tensor:
    """Returns 16-bit floats as integers in the same order. Neighbours differ by 1."""
    import torch

    bits = values.view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -32768 - bits, bits)
