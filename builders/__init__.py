"""From an op's description to a loaded module: base, plan, run, load. One package an accelerator holds its builders."""

from __future__ import annotations
