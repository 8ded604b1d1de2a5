"""How long a build that a program waits for will take."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any

from opforge.builders.declaration.build_plan import BuildPlan
from opforge.cache.layout import Layout
from opforge.cache.maintenance import listing

log = logging.getLogger("opforge")
UNIT_SECONDS = 3.0
"""How long one source takes for one architecture, if there was no earlier build."""
TORCH_UNIT_SECONDS = 24.0
"""The same for a source with torch's whole C++ interface, for pybind or ATen: it compiles 5,400 headers."""


def weights(plans: Iterable[BuildPlan], layout: Layout) -> list[float]:
    """Returns the expected seconds of each plan's build: what the last one took, or by how much there is to compile."""
    took: dict[tuple[str, str], float] = {}
    for entry in listing.entries(layout):  # newest first: the one before may have made a precompiled header
        took.setdefault((entry.op, entry.target), entry.seconds)
    expected = []
    for plan in plans:
        parts = len(plan.sources) * len(plan.target.partition(":")[2].split("+"))
        seconds = TORCH_UNIT_SECONDS if plan.abi == "torch" else UNIT_SECONDS
        expected.append(took.get((plan.op, plan.target)) or seconds * parts)
    return expected


def warn_if_ranks_wait(op: str, seconds: float) -> None:
    """Logs a warning if torch.distributed is initialised: the other ranks wait in a collective for this build."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        text = (
            "%s: a build of about %.0f s begins while torch.distributed is initialised. The other ranks wait for this"
            " one in their next collective, and may time out. Build it before, with opforge.prepare or build-ops"
        )
        log.warning(text, op, seconds)
