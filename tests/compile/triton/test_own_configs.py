"""What `opforge tune` tries of opforge's own Triton kernels, and the cases that it times them by. No GPU is needed."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from support.gpu.triton_cases import INTERPRETED, builder_of

from opforge.builders.lookup import tuning_results as records
from opforge.builders.triton import TRITON_BUILDERS
from opforge.builders.triton_op_builder.kernel import check_kernels, with_variants
from opforge.ops import attention as core
from opforge.ops import host_op
from opforge.ops.cases import OURS, Place, cases_of
from opforge.ops.triton import attention, registry
from opforge.testing import OpContract, comparison
from opforge.tuning import subjects

pytestmark = INTERPRETED
ROWS, LARGE, MOST = 2, 8192, 1 << 15
"""Rows of the small calls that stand for those that are timed, one if they are large; the most elements in a call."""
HALVES = ("EvoformerAttnBuilder", "SparseAttnBuilder", "RaggedOpsBuilder")
"""Their products of bfloat16 are none that Triton's interpreter knows."""


@pytest.fixture
def load(interpreted, monkeypatch):
    """A function that loads an op for GPUs by its builder's name; it takes tensors of the host."""
    for module in (core, host_op):
        monkeypatch.setattr(module, "on_host", lambda tensor: False)
    return lambda name: builder_of(name)("cuda:sm_90").load()


def small(case):
    """Returns a case for few rows, or few tokens, of as many columns."""
    shape = case.shape(max(case.tuned[next(iter(case.tuned))]))
    few = (min(shape[0], ROWS if shape[-1] < LARGE else 1), *shape[1:])
    return few if len(shape) == 2 and math.prod(few) <= 2 * MOST else case.shapes[-1]


@pytest.mark.parametrize("name", TRITON_BUILDERS)
def test_every_kernel_has_configs_and_no_usual_library_holds_them(name):
    builder = builder_of(name)
    assert [kernel.name for kernel in builder.kernels if not kernel.configs] == []
    check_kernels(name, with_variants(builder.kernels))
    for kernel in builder.kernels:
        usual = {**kernel.constants, "warps": kernel.warps, "stages": kernel.stages}
        assert all(any(usual[key] != value for key, value in config.items()) for config in kernel.configs)
        assert all(kernel.variant(config).warps <= 16 for config in kernel.configs), "1,024 threads of AMD's warps"
    assert len(builder("cuda:sm_90").spec().kernels) == len(builder.kernels)


@pytest.mark.parametrize("name", TRITON_BUILDERS)
def test_the_cases_are_tuned_and_their_results_fit_a_file(name):
    builder = builder_of(name)
    cases = [case for case in cases_of(builder) if case.tuned]
    assert cases and all(case.devices == ("cuda",) and case.reference for case in cases)
    most = max(len(kernel.configs) for kernel in builder.kernels)
    numbers = {"ratio": 0.1234, "low": 0.1234, "high": 0.1234}
    other = {"config": {"BLOCK": 1024, "warps": 16}, **numbers, "why": "x" * 90}
    row = {"what": "x" * 50, "dtype": "bfloat16", "size": 1 << 24, **other, "rounds": 15, "others": [other] * most}
    launches = {"EvoformerAttnBuilder": 3, "TritonLambBuilder": 3}.get(name, 1)
    count = launches * sum(len(sizes) for case in cases for sizes in case.tuned.values())
    assert len(json.dumps([row] * count, separators=(",", ":"))) < records.MAX_BYTES


@pytest.mark.parametrize("name", TRITON_BUILDERS)
def test_the_cases_name_functions_that_the_op_for_gpus_has(load, name):
    op = load(name)
    assert all(callable(case.bound(op)) for case in cases_of(builder_of(name)) if case.reference)


@pytest.mark.parametrize("name", ["TritonSoftmaxBuilder", "TritonGeluBuilder", "TritonQuantizerBuilder"])
def test_a_config_has_the_result_of_the_default(load, name, monkeypatch):
    builder = builder_of(name)
    declared = builder.kernels
    cases = [case for case in cases_of(builder) if case.tuned]
    for number in range(max(len(kernel.configs) for kernel in declared)):
        others = [
            kernel.variant(kernel.configs[number])._replace(name=kernel.name)
            for kernel in declared
            if number < len(kernel.configs)
        ]
        missing = [kernel for kernel in declared if kernel.name not in {other.name for other in others}]
        monkeypatch.setattr(builder, "kernels", [*others, *missing])
        registry.reset()
        op = load(name)
        for case in [case for case in cases if math.prod(small(case)) <= MOST][number::6]:
            arguments = comparison.make_arguments(case, case.bound(op), small(case), "float32", "cpu")
            problem = comparison.problem(case, comparison.results(case.bound(op), arguments, case.keywords), arguments)
            assert not problem, (case.name, number, problem)


NUMBERS = {
    "RaggedOpsBuilder": (0, 8),
    "TritonRMSNormBuilder": (5, 11),
    "TritonLayerNormBuilder": (11,),
    "TritonQuantizerBuilder": (1, 10),
}
"""Builder -> numbers of the cases that are tried, of small rows; the first of others."""


@pytest.mark.long("interprets kernels for minutes; the ops' other tests interpret the same kernels")
@pytest.mark.parametrize("name", TRITON_BUILDERS)
def test_the_cases_hold_for_the_kernels_of_gpus(load, name, monkeypatch):
    """As `opforge check` and `opforge tune` compare them on a GPU."""
    monkeypatch.setattr(attention, "DTYPES", (torch.float16, torch.bfloat16))
    every, op = cases_of(builder_of(name)), load(name)
    for case in [every[number] for number in NUMBERS.get(name, (0,))]:
        checks = {} if name in HALVES else case.checks  # they are of bfloat16 too
        dtypes = ("float16",) if name in HALVES else case.dtypes[:1]
        own = replace(case, dtypes=dtypes, sizes=(), tuned={}, checks=checks, shapes=case.shapes[-1:])
        if own.reference:
            OpContract.of([own], op, "cpu").check()


def test_a_call_that_is_timed_launches_kernels_with_configs(load):
    for name in ("TritonRMSNormBuilder", "TritonAdamBuilder"):
        op, builder = load(name), builder_of(name)
        launched, launch = [], op.kernels.launch
        op.kernels.launch = lambda name, *rest, launched=launched, launch=launch: (
            launched.append(name),
            launch(name, *rest),
        )
        for case in [case for case in cases_of(builder) if case.tuned][:1]:
            inputs = replace(case, shape=lambda size, case=case: small(case)).prepare(Place(1, "float32"), op)
            case.contenders[OURS](inputs)()
        assert launched and all(kernel.configs for kernel in builder.kernels if kernel.name in launched)


@pytest.mark.long("builds the host's op, which makes the atoms of a batch")
def test_each_size_of_decoding_is_timed(load, monkeypatch):
    """What a launch counts must differ between two sizes: the second one of a count is left out."""
    builder, op = builder_of("RaggedOpsBuilder"), load("RaggedOpsBuilder")
    monkeypatch.setattr(attention, "DTYPES", (torch.float16, torch.bfloat16))
    monkeypatch.setattr(type(op.kernels), "launch", lambda *_arguments: None)
    (case,) = (case for case in cases_of(builder) if case.tuned and case.name == "attention over pages")
    few = replace(case, shape=lambda size: (size, 1, 0, *case.shape(size)[3:]), devices=("cpu",))
    counts = [subjects._launches(op, few, "float16", size, "cpu") for size in case.tuned["float16"]]
    kernels = [kernel for count in counts for kernel in count.items()]
    assert len(counts) == len(set(kernels)) == 2
