"""Ops and optimizers while a program has set torch's default device and dtype: their own tensors have other ones."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.utils._pytree import tree_leaves

from opforge.ops import FPQuantizer, FusedAdam, FusedLamb, aio, multi_tensor
from opforge.ops.cases import CASES, Place, load_cases
from opforge.ops.host_op import host_op
from opforge.ops.shm import dtypes
from opforge.ops.triton.optimizers import chunks

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]


@contextlib.contextmanager
def other_defaults():
    """Sets a device without memory, where nothing can be computed, and a dtype with few bits."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def outcome(case, op, defaults):
    """Returns the bytes of all tensors of a call: those that it returns, and those that it may have changed."""
    shape = next((shape for shape in case.shapes if all(shape)), case.shapes[0])
    arguments = case.inputs(Place(1, case.dtypes[0], shape=shape))
    torch.manual_seed(0)
    with defaults():
        result = case.bound(op)(*arguments, **case.keywords)
    leaves = [leaf for leaf in tree_leaves((result, arguments)) if isinstance(leaf, torch.Tensor)]
    packed = [leaf.detach().clone(memory_format=torch.contiguous_format) for leaf in leaves]
    return [leaf.flatten().view(torch.uint8) for leaf in packed]


IN_ONE_PROCESS = [name for name in CASES if name not in ("AsyncIOBuilder", "PinMemoryBuilder", "ShareMemCommBuilder")]


@pytest.mark.parametrize("name", IN_ONE_PROCESS)
def test_results_do_not_depend_on_torchs_defaults(name):
    op = host_op(name)
    for case in load_cases(CASES[name]):
        if case.reference is not None:
            pairs = zip(outcome(case, op, contextlib.nullcontext), outcome(case, op, other_defaults), strict=True)
            assert all(torch.equal(*pair) for pair in pairs), case.name


@pytest.mark.parametrize(("kind", "options"), [(FusedLamb, {}), (FusedAdam, {"capturable": True})])
def test_an_optimizers_step_does_not_depend_on_torchs_defaults(kind, options):
    params = []
    for defaults in (contextlib.nullcontext, other_defaults):
        param = torch.nn.Parameter(torch.ones(3))
        param.grad = torch.arange(3.0)
        with defaults():
            kind([param], **options).step()
        params.append(param)
    assert torch.equal(*params)


def test_functions_that_pass_addresses_do_not_depend_on_torchs_defaults(tmp_path):
    values = torch.arange(6.0).view(2, 3)
    generator = torch.Generator().manual_seed(1)
    with other_defaults():
        part = host_op("UtilsBuilder").cast_to_byte_tensor(values.t())
        aio.write(tmp_path / "values", values).result()
        FPQuantizer(2).quantize(values, stochastic=True, generator=generator)
        assert dtypes.result(values.t()).is_cpu
        ratio = multi_tensor.lamb(
            host_op("FusedLambBuilder"), *(torch.ones_like(values[0]) for _ in range(5)), *[0.1] * 7, 1, 1, 1, 0.0
        )
    assert torch.equal(part.view(torch.float32), values.flatten()) and ratio.dtype == torch.float32
    assert (tmp_path / "values").read_bytes() == bytes(values.numpy())


@pytest.mark.parametrize("few", [chunks.FEW_ROWS, 0])
def test_tables_of_tensors_are_the_hosts(few, monkeypatch):
    monkeypatch.setattr(chunks, "FEW_ROWS", few)
    chunks.reset()
    tensors = [torch.zeros(3), torch.zeros(4)]
    with other_defaults():
        (table,) = chunks.tables("op", {"params": tensors, "grads": tensors, "exp_avgs": tensors, "copies": []})
    assert table.rows.is_cpu and table.spans.is_cpu and table.rows[:, 0].tolist() == [t.data_ptr() for t in tensors]
    chunks.reset()
