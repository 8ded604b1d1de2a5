"""The farm: units of work that go to an executor's machines, and whose results go over a remote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.foundation import lazy

if TYPE_CHECKING:
    from .api import build_on as build_on
    from .unit import Outcome as Outcome

__getattr__, __dir__ = lazy.names(__name__, {"build_on": "api", "Outcome": "unit"})
