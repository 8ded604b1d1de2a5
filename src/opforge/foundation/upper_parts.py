"""The one table of the upper parts that lower parts use. The contract of imports reads it.

No part imports one above it. What it needs of such a part when it runs is registered here by a line, and asked for by
its name when it is needed. Kinds of artifacts have a table of their own, `remote/kind_table.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

UPPER: Mapping[str, str] = {
    "fetched entries": "opforge.remote.entry_source:RemoteEntries",
    "fetched tuning results": "opforge.remote.tuned_source",
    "words of other tools": "opforge.compat.attributes",
    "texts of loaded ops": "opforge.builders.display.representation",
    "accelerators of DeepSpeed": "opforge.compat.deepspeed.own",
    "adapter of compiled graphs": "opforge.graphs.adapter:INDUCTOR",
    "compile tag": "opforge.builders.registration.compile_tag",
}
"""The requested part, in words -> MODULE, or MODULE:NAME."""


def get(name: str) -> Any:
    """Returns the module of an upper part, or what it names in it."""
    module, _, attribute = UPPER[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found
