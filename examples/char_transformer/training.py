"""Trains two equal models on the same batches: one with opforge's CPUAdam, one with torch's AdamW."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from corpus import Corpus
from model import LENGTH, CharTransformer

from opforge.ops import CPUAdam

BATCH, SEED, DECAY, RATE, WARMUP = 16, 0, 0.01, 3e-3, 20


class Curves(NamedTuple):
    """The losses and the times of both optimizers at every step."""

    ours: list[float]  # nats a character
    torch: list[float]
    ours_seconds: list[float]  # of the optimizer's step alone
    torch_seconds: list[float]
    model: CharTransformer

    def largest_difference(self) -> tuple[float, int]:
        """Returns the largest difference of the losses, and its step, counted from 1."""
        return max((abs(a - b), step) for step, (a, b) in enumerate(zip(self.ours, self.torch, strict=True), 1))


def train(corpus: Corpus, steps: int, on_step: Callable[[int, float, float], None]) -> Curves:
    """Trains both models. Calls `on_step(step, loss, other loss)` after each step."""
    torch.manual_seed(SEED)
    model = CharTransformer(corpus.alphabet)
    other = copy.deepcopy(model)
    pairs = (
        (model, CPUAdam(model.parameters(), lr=RATE, weight_decay=DECAY)),
        (other, torch.optim.AdamW(other.parameters(), lr=RATE, weight_decay=DECAY)),
    )
    random = torch.Generator().manual_seed(SEED)
    losses: tuple[list[float], list[float]] = ([], [])
    seconds: tuple[list[float], list[float]] = ([], [])
    for step in range(1, steps + 1):
        batch = corpus.batch(BATCH, LENGTH, random)
        rate = RATE * min(step / WARMUP, 0.55 + 0.45 * math.cos(math.pi * step / steps))
        for (network, optimizer), loss_of, seconds_of in zip(pairs, losses, seconds, strict=True):
            optimizer.param_groups[0]["lr"] = rate
            loss = network.loss(*batch)
            optimizer.zero_grad()
            loss.backward()
            began = time.perf_counter()
            optimizer.step()
            seconds_of.append(time.perf_counter() - began)
            loss_of.append(loss.item())
        on_step(step, losses[0][-1], losses[1][-1])
    return Curves(*losses, *seconds, model)
