"""The contracts of accelerators, toolchains, ops and adapters of JITs, as tests for packages that add one.

A contract is a class of tests. A subclass says what is tested::

    from opforge.testing import OpContract

    class TestRelu(OpContract):
        builder = ReluBuilder                       # its `cases` say what is right, and what it promises

pytest runs the tests of a class whose name begins with `Test`. Without pytest, `TestRelu.check()` runs them. Each
assertion states the value, what was expected, and what goes wrong otherwise.
"""

from __future__ import annotations

from .accelerators import AcceleratorContract
from .contract import Contract
from .jits import JitContract
from .ops import OpContract
from .toolchains import ToolchainContract

__all__ = ["AcceleratorContract", "Contract", "JitContract", "OpContract", "ToolchainContract"]
