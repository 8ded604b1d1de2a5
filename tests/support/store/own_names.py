"""A name that opforge makes in each area of a store. A sweep takes no other ones."""

from __future__ import annotations

KEY, ENTRY = "0" * 32, "0" * 32 + "-" + "0" * 8
EXAMPLES = {
    "descriptions": KEY,
    "entries": ENTRY,
    "failures": f"{KEY}.json",
    "fetched": KEY,
    "graphs": f"{KEY}.{'0' * 16}",
    "locks": KEY,
    "logs": f"{KEY}.log",
    "objects": KEY,
    "peaks": KEY,
    "pins": "a-project",
    "plans": KEY,
    "quarantine": f"{ENTRY}.1.{'0' * 8}",
    "sources": KEY,
    "staging": f"plan.another-host.1-1.{'0' * 8}",
    "toolchains": f"{KEY}.json",
    "jit": f"{'a' * 32}.{'b' * 16}",
    "tuned": "0" * 32,
}
