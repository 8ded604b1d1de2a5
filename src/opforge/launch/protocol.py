"""The lines that the launcher, its agents and the ranks exchange.

The launcher writes to an agent's control pipe: a request (JSON), then GO, then perhaps END or KILL. The agent writes
one line back: AGENT_MARK and its response (JSON). With `--report` a rank prints RANK_MARK and its row (JSON).
"""

from __future__ import annotations

GO = b"go"
"""Start the engine."""
END = b"end"
"""Let the engine end the ranks; kill what is left after the grace period."""
KILL = b"kill"
"""Kill all descendants of the agent now."""
AGENT_MARK = b"opforge-agent: "
"""Begins the line of the response: login shells may print other lines before it."""
RANK_MARK = "opforge-rank: "
