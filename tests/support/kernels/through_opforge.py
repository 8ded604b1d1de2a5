"""A plugin of pytest: what a package's tests load by the hub's loader, opforge loads."""

from __future__ import annotations

from opforge.compat import hub_layers

hub_layers.install()
