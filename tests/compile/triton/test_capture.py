"""First calls of the ops for GPUs while a graph is captured: launches alone, or one error before any.

A kernel's own first launch is in test_launch.py, the optimizers' tables in test_optimizers.py.
"""

from __future__ import annotations

import pytest
import torch
from support.gpu.triton_cases import INTERPRETED, builder_of
from torch.utils._python_dispatch import TorchDispatchMode

from opforge.ops import attention as core
from opforge.ops import evoformer_attention, host_op, random_ltd
from opforge.ops import triton as ops
from opforge.ops.sparse_attention import FixedSparsityConfig, MatMul, SparseSelfAttention, sparse_attention
from opforge.ops.sparse_attention.layouts import BlockLists, block_lists
from opforge.ops.triton import devices, paged_attention, registry

pytestmark = INTERPRETED
FP16, INT32 = torch.float16, torch.int32
aten = torch.ops.aten
READS = {
    aten._local_scalar_dense,
    aten._to_copy,
    aten.bincount,
    aten.equal,
    aten.is_nonzero,
    aten.masked_select,
    aten.nonzero,
}
"""What reads numbers on the host, or may copy between it and the device."""


class Launches:
    """Records the kernels that an op launches, in place of running them, as a graph does while it is captured."""

    def __init__(self, kernels):
        self.op, self.names = kernels.op, []
        registry.bind(self)

    def launch(self, name, grid, *arguments):
        self.names.append(name)


class CaptureRules(TorchDispatchMode):
    """Fails on what a capture forbids. Conversions of the dtype alone are permitted."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        converts = function.overloadpacket is aten._to_copy and kwargs.get("device") in (None, args[0].device)
        assert converts or function.overloadpacket not in READS, function
        return function(*args, **kwargs)


@pytest.fixture(autouse=True)
def on_device(monkeypatch):
    """Makes tensors of the host those of a GPU whose stream captures a graph."""
    for module in (core, host_op, random_ltd):
        monkeypatch.setattr(module, "on_host", lambda tensor: False)
    monkeypatch.setattr(devices, "is_capturing", lambda device: True)


def rows(*shape):
    return torch.randn(shape).to(FP16).requires_grad_()


def core_of_inference(op):
    x, y, out, row = (torch.zeros(*shape, dtype=FP16) for shape in ((4, 64), (4, 64), (4, 64), (64,)))
    op.layer_norm(out, x, row, row, 1e-5)
    op.pre_layer_norm(out, y, x, x, row, row, 1e-5)
    op.post_layer_norm(out, x, y, row, row, 1e-5)
    op.rms_norm(out, x, row, 1e-5)
    op.rms_pre_norm(out, y, x, x, row, 1e-5)
    op.bias_activation(out, row, 0)
    op.gated_activation(out[:, :32].contiguous(), x, row, 5)


def tokens(op):
    whole, numbers = torch.zeros(2, 8, 64, dtype=FP16), torch.zeros(2, 3, dtype=INT32)
    op.token_sort_(numbers, 8)
    op.token_scatter_(whole, op.token_gather(whole, numbers, True), numbers, True)
    op.mask_gather_bert(torch.zeros(2, 1, 8, 8, dtype=FP16), numbers[None])


def images(op):
    image, bias = (
        torch.zeros(2, 16, 3, 3, dtype=FP16).to(memory_format=torch.channels_last),
        torch.zeros(16, dtype=FP16),
    )
    op.nhwc_bias_add(image, bias)
    op.nhwc_bias_add_add(image, bias, image)
    op.nhwc_bias_add_bias_add(image, bias, image, bias)


def evoformer(op):
    q, bias = rows(1, 2, 32, 2, 16), rows(1, 1, 2, 32, 32)
    evoformer_attention(q, rows(1, 2, 32, 2, 16), rows(1, 2, 32, 2, 16), [bias]).sum().backward()


def sparse(op):
    layout = torch.ones(2, 2, 2, dtype=torch.int64)
    lists = BlockLists(torch.tensor([0, 2, 4, 6, 8], dtype=INT32), torch.tensor([0, 1] * 4, dtype=INT32))
    q, k, v = (rows(1, 2, 32, 16) for _ in range(3))
    sparse_attention(q, k, v, layout, 16, lists=lists).sum().backward()


def pages(op):
    cache, q = torch.zeros(4, 16, 2, 16, dtype=FP16), torch.zeros(5, 32, dtype=FP16)
    atoms = torch.zeros(1, 8, dtype=INT32)
    paged_attention.flash_attn_by_atoms(torch.empty_like(q), q, cache, cache, atoms, 1.0, True)


def quantizer(op):
    ops.dequantize(*ops.quantize(torch.zeros(4, 64, dtype=FP16), 8), 8)


CALLS = {
    "InferenceCoreBuilder": (core_of_inference, 7),
    "RandomLTDBuilder": (tokens, 3),
    "SpatialInferenceBuilder": (images, 3),
    "EvoformerAttnBuilder": (evoformer, 4),
    "SparseAttnBuilder": (sparse, 3),
    "RaggedOpsBuilder": (pages, 1),
    "TritonQuantizerBuilder": (quantizer, 2),
    "TritonLayerNormBuilder": (lambda op: ops.layer_norm(rows(4, 64), rows(64), rows(64)).sum().backward(), 2),
    "TritonRMSNormBuilder": (lambda op: ops.rms_norm(rows(4, 64), rows(64)).sum().backward(), 2),
    "TritonSoftmaxBuilder": (lambda op: ops.softmax(rows(4, 64)).sum().backward(), 2),
    "TritonGeluBuilder": (lambda op: ops.gelu(rows(4, 64)).sum().backward(), 2),
    "TritonSwigluBuilder": (lambda op: ops.swiglu(rows(4, 64), rows(4, 64)).sum().backward(), 2),
}
"""Builder -> calls of its functions, and how many kernels these launch."""


@pytest.mark.parametrize("builder", CALLS)
def test_a_first_call_can_be_captured(builder):
    call, launches = CALLS[builder]
    op = builder_of(builder)("cuda:sm_90").load()
    recorded = Launches(op.kernels)
    with CaptureRules():
        call(op)
    assert len(recorded.names) == launches, recorded.names


def test_every_op_is_here_or_among_the_optimizers():
    from opforge.builders.triton import TRITON_BUILDERS

    assert set(TRITON_BUILDERS) - set(CALLS) == {"TritonAdamBuilder", "TritonLionBuilder", "TritonLambBuilder"}


def on_meta(*shape):
    return torch.empty(shape, dtype=FP16, device="meta")


LAYOUT = torch.ones(2, 2, 2, dtype=torch.int64)
COPIES = {
    "sparse_attention": lambda q: sparse_attention(q, q, q, LAYOUT, 16),
    "lists of the host": lambda q: sparse_attention(q, q, q, LAYOUT, 16, lists=block_lists(LAYOUT)),
    "SparseSelfAttention": lambda q: SparseSelfAttention(FixedSparsityConfig(2, 16), max_seq_length=32)(q, q, q),
    "MatMul": lambda q: MatMul(LAYOUT, 16, "sdd").blocks(q.device),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_layout_that_is_not_on_the_device_yet_is_an_error_before_any_launch(name):
    recorded = Launches(builder_of("SparseAttnBuilder")("cuda:sm_90").load().kernels)
    expected = (
        "blocks of this layout are not on the device yet, and nothing can be copied there while a graph is captured"
    )
    with pytest.raises(RuntimeError, match=expected):
        COPIES[name](on_meta(1, 2, 32, 16))
    assert not recorded.names
