"""Configs that `opforge tune` tries beside the defaults of opforge's own Triton kernels.

Each config is a kernel more to compile, so a library has them only where its op is tuned, or a tuning result takes one.
None may change a result. No config has been timed on a GPU yet: they are the sizes next to what was chosen by reading
machine code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from opforge.builders.triton_op_builder.kernel import Kernel

Config = Mapping[str, int]
MOST_WARPS = 16
"""1,024 threads, the most of a block, on the GPUs of AMD whose warps have 64."""


def by_warps(warps: int) -> list[dict[str, int]]:
    """Returns configs with half and with twice as many warps."""
    return [{"warps": count} for count in (warps // 2, 2 * warps) if 1 <= count <= MOST_WARPS]


def by_constant(name: str, value: int, warps: int) -> list[dict[str, int]]:
    """Returns configs with twice the value of a constant, with as many warps for an element and with half as many."""
    twice = [{name: 2 * value}]
    return twice if 2 * warps > MOST_WARPS else [*twice, {name: 2 * value, "warps": 2 * warps}]


def with_warps(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Returns kernels with configs by warps: those of which the launch knows all constants."""
    return [with_configs(kernel, by_warps(kernel.warps)) for kernel in kernels]


def with_configs(kernel: Kernel, configs: Sequence[Config]) -> Kernel:
    """Returns a kernel with these configs, without what is its default."""
    usual = {**kernel.constants, "warps": kernel.warps, "stages": kernel.stages}
    others = [{name: value for name, value in config.items() if value != usual[name]} for config in configs]
    return kernel._replace(configs=tuple(dict(pairs) for pairs in dict.fromkeys(tuple(c.items()) for c in others if c)))
