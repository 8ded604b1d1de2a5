"""The contract of ops, for every op of opforge on the CPU: what its cases say and promise (ops/cases/)."""

from __future__ import annotations

import importlib
import platform

import pytest
from support import tiers

from opforge.builders.cpu import BUILDERS
from opforge.foundation.lazy import cached_property
from opforge.ops.cases import CASES, Promise, load_cases
from opforge.testing import OpContract
from opforge.testing.contract import skip

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]


class OfOwnOps(OpContract):
    """The contract without what another of its tests shows too; the third tier runs all.

    Shapes of work for several threads are tried in each dtype for an op's first case, and in one for each other case.
    """

    def _trace(self, case, function, dynamic):
        # torch.library.opcheck compares the fake kernel for fixed sizes, and one graph serves all of the other shapes.
        if dynamic or tiers.is_long():
            super()._trace(case, function, dynamic)

    def _promising(self, promise, every=False, larger=False):
        if tiers.is_long() or not larger:
            return super()._promising(promise, every, larger)
        tried = [one for one in super()._promising(promise, every, larger) if not self._is_spared(promise, one)]
        return tried or skip("the test of threads repeats each of the calls")

    def _is_spared(self, promise, tried):
        case = tried.case
        number = self._cases.index(case)
        is_another_dtype = number > 0 and tried.dtype != case.dtypes[number % len(case.dtypes)]
        is_repeated_with_threads = promise is Promise.REPEATS and Promise.THREADS in case.promises
        return is_repeated_with_threads or (is_another_dtype and tried.shape in case.many())


def contract_of(name):
    """Returns the class of tests for a builder."""
    module, _, kind = BUILDERS[name].partition(":")
    builder = getattr(importlib.import_module(module), kind)
    return type(f"Test{name.removesuffix('Builder')}", (OfOwnOps,), {"builder": builder, "__module__": __name__})


for _name in CASES:
    _contract = contract_of(_name)
    globals()[_contract.__name__] = _contract
del _contract


@pytest.mark.long("builds the op for one level of the CPU more, and repeats its contract there")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 is not this machine's architecture")
class TestRaggedOpsOfPlainX86(contract_of("RaggedOpsBuilder")):
    """Its errors are the largest where vectors are short, and multiply and add round separately."""

    @cached_property
    def loaded(self):
        return self.builder("cpu:x86-64").load()


def test_each_op_has_a_case_that_says_what_is_right():
    for name, path in CASES.items():
        cases = load_cases(path)
        assert any(case.reference or case.checks for case in cases), f"{name} has nothing to compare with"


def test_what_rows_or_elements_compute_by_themselves_is_invariant_to_the_batch():
    """An op that loses the promise must say so here."""
    others = {
        "AsyncIOBuilder",  # it computes nothing
        "FusedLambBuilder",  # by the norms of whole tensors
        "InferenceBuilder",  # torch's products
        "PinMemoryBuilder",
        "RaggedOpsBuilder",
        "RaggedUtilsBuilder",
        "ShareMemCommBuilder",
        "UtilsBuilder",
    }
    found = {
        name
        for name, path in CASES.items()
        if any(Promise.BATCH in case.promises for case in load_cases(path) if case.reference)
    }
    assert found == set(CASES) - others
