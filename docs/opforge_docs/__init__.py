"""The documentation site's extension of Sphinx and MyST. `docs/conf.py` lists it."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from . import docstrings, names, pages


def setup(app: Sphinx) -> dict[str, Any]:
    """Connects the parts to Sphinx's events."""
    app.connect("source-read", pages.fill_in)
    app.connect("autodoc-process-docstring", docstrings.prepare, priority=400)
    app.connect("missing-reference", names.resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
