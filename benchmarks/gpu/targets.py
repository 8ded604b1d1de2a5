"""The targets of our ops, and whether they are met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .timing import Figure

OURS, COPY = "opforge", "copy"
SHARES = {
    ("adamw", "large"): 0.92,
    ("layer_norm", "forward"): 0.9,
    ("layer_norm", "backward"): 0.75,
    ("rms_norm", "forward"): 0.9,
    ("rms_norm", "backward"): 0.75,
    ("softmax", "forward"): 0.9,
    ("quantize", "forward"): 0.9,
    ("dequantize", "forward"): 0.9,
    ("decode", "forward"): 0.8,
    ("gather", "forward"): 0.8,
}
"""(function, way) -> the share of the copy's bandwidth. Other functions must only be no slower than their rivals."""
SPEEDS = {"evoformer": 1.5, "dense": 0.6, "sparse": 1 / 1.25}
"""Attention -> how many times as fast as its rival it must be: masked SDPA; flash attention; all keys, times the share
of the blocks."""
NOISE = 1.02
"""Medians of one kernel measured twice may differ by this much: a rival is faster only beyond it."""
FIRST_LAUNCH = 10.0
"""How many times as long as a prebuilt kernel's first launch a cold one must take."""


def is_rival(contender: str) -> bool:
    """Returns whether a contender is neither ours, in any of its forms, nor the copy."""
    return contender != COPY and not contender.startswith(OURS)


def judged(figures: Sequence[Figure], share: float | None, repeats: bool | None = None) -> list[Figure]:
    """Returns one task's figures. Ours is compared with its targets.

    Args:
        figures: The figures of all contenders.
        share: The share of the copy's bandwidth that ours must reach. None if there is none.
        repeats: Whether two calls returned the same bits. None if they need not.
    """
    rivals = [figure for figure in figures if is_rival(figure.contender)]
    fastest = min(rivals, key=lambda figure: figure.microseconds, default=None)
    return [_judged(figure, share, fastest, repeats) if figure.contender == OURS else figure for figure in figures]


def _judged(ours: Figure, share: float | None, fastest: Figure | None, repeats: bool | None) -> Figure:
    targets, met, note = [], True, "no rival took part"
    if share is not None:
        targets.append(f"{share} of copy")
        met = ours.share is not None and ours.share >= share
    if fastest is not None:
        targets.append("no slower than its rivals")
        met = met and ours.microseconds <= fastest.microseconds * NOISE
        note = f"{ours.microseconds / fastest.microseconds:.2f} of the time of {fastest.contender}"
    if repeats is not None:
        targets.append("the same bits twice")
        met = met and repeats
        note += "" if repeats else "; TWO CALLS GAVE DIFFERENT BITS"
    return replace(ours, target=", ".join(targets), met=met if targets else None, note=note)


def against(figures: Sequence[Figure], rival: str, goal: str, fewer: float = 1.0) -> list[Figure]:
    """Returns one task's figures. Ours is compared with one rival.

    Args:
        figures: The figures of all contenders.
        rival: The contender whose speed counts.
        goal: The name of the goal in SPEEDS.
        fewer: How many times as much work the rival does.
    """
    times = {figure.contender: figure.microseconds for figure in figures}
    wanted, target = SPEEDS[goal] * fewer, f"{SPEEDS[goal] * fewer:.2f} times as fast as {rival}"
    if rival not in times:
        return [
            replace(figure, note=f"{rival} took no part") if figure.contender == OURS else figure for figure in figures
        ]
    reached = times[rival] / times[OURS]
    met, note = reached >= wanted, f"{reached:.2f} times as fast"
    return [
        replace(figure, target=target, met=met, note=note) if figure.contender == OURS else figure for figure in figures
    ]
