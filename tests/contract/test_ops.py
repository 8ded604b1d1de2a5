"""The contract of ops, for every case of opforge's own ops that has a reference."""

from __future__ import annotations

import pytest

from opforge.builders.cpu import BUILDERS
from opforge.ops.cases import CASES, load_cases
from opforge.testing import OpContract

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
