"""DeepSpeed's smaller ops for transformers on a GPU, by Triton's interpreter, with DeepSpeed's argument order."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from support.gpu.triton_cases import DTYPES, INTERPRETED, builder_of

from opforge.ops import random_ltd

pytestmark = INTERPRETED
LIMIT = {torch.float32: 2e-6, torch.float16: 2e-3}


def load(name):
    return builder_of(name)("cuda:sm_90").load()


def close(actual, expected):
    limit = LIMIT[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 17, 64, 320])
def test_biases_of_channels_are_torchs_sums_bit_for_bit(channels, dtype):
    op = load("SpatialInferenceBuilder")
    x, other = (torch.randn(2, channels, 3, 5).to(dtype).to(memory_format=torch.channels_last) for _ in range(2))
    bias, other_bias = torch.randn(channels).to(dtype), torch.randn(channels).to(dtype)
    wide, second = bias.view(1, -1, 1, 1), other_bias.view(1, -1, 1, 1)
    out = op.nhwc_bias_add(x, bias)
    assert torch.equal(out, x + wide) and out.stride() == x.stride()
    assert torch.equal(op.nhwc_bias_add_add(x, bias, other), (x + wide) + other)
    assert torch.equal(op.nhwc_bias_add_bias_add(x, bias, other, other_bias), (x + wide) + (other + second))
    assert op.nhwc_bias_add(x[:0], bias).shape == (0, channels, 3, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("channels", [1, 33, 64, 1100])
def test_tokens_are_gathered_and_put_back(channels, batch_first, dtype):
    op = load("RandomLTDBuilder")
    batch, tokens, retained = 2, 19, 7
    whole = (torch.randn(batch, tokens, channels) * 3).to(dtype)
    numbers = torch.stack([torch.randperm(tokens)[:retained] for _ in range(batch)]).to(torch.int32)
    assert op.token_sort_(numbers, tokens) is numbers and torch.equal(numbers, numbers.sort(-1).values)
    expected = torch.stack([whole[i, numbers[i].long()] for i in range(batch)])
    order = (lambda x: x) if batch_first else (lambda x: x.transpose(0, 1).contiguous())
    assert torch.equal(op.token_gather(order(whole), numbers, batch_first), order(expected))
    empty = order(torch.zeros_like(whole))
    assert op.token_scatter_(empty, order(expected), numbers, batch_first) is empty
    back = torch.zeros_like(whole)
    for i in range(batch):
        back[i, numbers[i].long()] = expected[i]
    assert torch.equal(empty, order(back))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_of_equal_numbers_the_last_one_counts_in_whatever_order_programs_run(is_reversed, monkeypatch):
    from triton.runtime import interpreter

    set_program = interpreter.InterpreterBuilder.set_grid_idx

    def set_reversed(builder, *numbers):
        set_program(builder, *(size - 1 - number for size, number in zip(builder.grid_dim, numbers, strict=True)))

    if is_reversed:
        monkeypatch.setattr(interpreter.InterpreterBuilder, "set_grid_idx", set_reversed)
    op, numbers = load("RandomLTDBuilder"), torch.tensor([[1, 3, 3]], dtype=torch.int32)
    whole, part = torch.zeros(1, 5, 3000), torch.randn(1, 3, 3000)  # three blocks of a token
    op.token_scatter_(whole, part, numbers, True)
    assert torch.equal(whole[0, 3], part[0, 2]) and torch.equal(whole[0, 1], part[0, 0])
    assert not whole[0, [0, 2, 4]].any()


def test_numbers_out_of_range_read_and_write_nothing():
    op = load("RandomLTDBuilder")
    whole, numbers = torch.ones(1, 4, 16), torch.tensor([[-1, 2, 4]], dtype=torch.int32)
    part = op.token_gather(whole, numbers, True)
    assert part[0, [0, 2]].isnan().all() and torch.equal(part[0, 1], whole[0, 2])
    op.token_scatter_(whole, torch.full_like(part, 7.0), numbers, True)
    assert torch.equal(whole[0, :, 0], torch.tensor([1.0, 1.0, 7.0, 1.0]))
    mask = op.mask_gather_bert(torch.zeros(1, 1, 4, 4), numbers[None])
    assert mask[0, 0, 0, 1, 1] == 0 and int(mask.isnan().sum()) == 8


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.float32, torch.float64])
def test_masks_are_gathered(dtype):
    op = load("RandomLTDBuilder")
    layers, batch, tokens, retained = 3, 2, 21, 5
    mask = (torch.randn(batch, 1, tokens, tokens) > 0).to(dtype)
    numbers = torch.randint(0, tokens, (layers, batch, retained), dtype=torch.int32)
    out = op.mask_gather_bert(mask, numbers)
    for layer in range(layers):
        for i in range(batch):
            at = numbers[layer, i].long()
            assert torch.equal(out[layer, i, 0], mask[i, 0][at][:, at])
    assert torch.equal(op.mask_gather_gpt(mask, 4), mask[:, :, :4, :4])


def test_gathers_have_gradients(monkeypatch):
    load("RandomLTDBuilder")
    monkeypatch.setattr(random_ltd, "on_host", lambda tensor: False)
    whole, numbers = torch.randn(1, 6, 16, requires_grad=True), torch.tensor([[1, 4]], dtype=torch.int32)
    part = random_ltd.gather_tokens(whole, numbers)
    random_ltd.scatter_tokens(whole, 3 * part, numbers).sum().backward()
    expected = torch.ones(6)
    expected[[1, 4]] = 3.0
    assert torch.equal(whole.grad[0, :, 0], expected)


def normal(x, gamma, beta, eps, centred):
    if centred:
        return F.layer_norm(x, x.shape[-1:], gamma, beta, eps)
    return F.rms_norm(x, x.shape[-1:], gamma, eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 77, 96, 4112, 9008])
def test_norms_with_and_without_a_residual(columns, dtype):
    op = load("InferenceCoreBuilder")
    x, residual = ((torch.randn(3, columns) + 2).to(dtype) for _ in range(2))
    gamma, beta = torch.randn(columns).to(dtype), torch.randn(columns).to(dtype)
    wide, doubles = x.double() + residual.double(), (gamma.double(), beta.double(), 1e-3)
    out, total = torch.empty_like(x), torch.empty_like(x)
    op.layer_norm(out, x, gamma, beta, 1e-3)
    expected = normal(x.double(), *doubles, True)
    torch.testing.assert_close(out.double(), expected, rtol=4 * LIMIT[dtype], atol=4 * LIMIT[dtype])
    op.rms_norm(out, x, gamma, 1e-3)
    torch.testing.assert_close(out.double(), normal(x.double(), *doubles, False), rtol=LIMIT[dtype], atol=LIMIT[dtype])
    op.post_layer_norm(out, x, residual, gamma, beta, 1e-3)
    centred = normal(wide, *doubles, True)
    torch.testing.assert_close(out.double(), centred, rtol=4 * LIMIT[dtype], atol=4 * LIMIT[dtype])
    op.rms_pre_norm(out, total, x, residual, gamma, 1e-3)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(out.double(), normal(wide, *doubles, False), rtol=LIMIT[dtype], atol=LIMIT[dtype])
    op.pre_layer_norm(residual, out, x, residual, gamma, beta, 1e-3)  # the sum takes the memory of the residual
    assert torch.equal(residual, total)
    torch.testing.assert_close(out.double(), centred, rtol=4 * LIMIT[dtype], atol=4 * LIMIT[dtype])


FUNCTIONS = {0: lambda x: F.gelu(x, approximate="tanh"), 1: F.relu, 2: F.silu, 6: lambda x: x}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [2, 34, 64, 2000])
@pytest.mark.parametrize("biased", [True, False])
def test_activations(columns, biased, dtype):
    op = load("InferenceCoreBuilder")
    bias = torch.randn(columns).to(dtype) if biased else None
    for kind, function in FUNCTIONS.items():
        x = (3 * torch.randn(3, columns)).to(dtype)
        wide = x.double() + (bias.double() if biased else 0.0)
        op.bias_activation(x, bias, kind)
        close(x, function(wide))
        if kind < 3:
            x, out = (3 * torch.randn(3, columns)).to(dtype), torch.empty(3, columns // 2, dtype=dtype)
            wide = x.double() + (bias.double() if biased else 0.0)
            op.gated_activation(out, x, bias, kind + 3)
            torch.testing.assert_close(
                out.double(), function(wide[:, ::2]) * wide[:, 1::2], rtol=4 * LIMIT[dtype], atol=4 * LIMIT[dtype]
            )


def test_products_are_torchs():
    op = load("InferenceCoreBuilder")
    hidden, weights, out = torch.randn(2, 3, 5), torch.randn(7, 5), torch.empty(2, 3, 7)
    op.blas_linear(out, hidden, weights)
    torch.testing.assert_close(out, hidden @ weights.T)
    op.create_handle()


ROW, HALF = torch.ones(2, 4), torch.ones(2, 4).half()


@pytest.mark.parametrize(
    ("builder", "call", "error", "message"),
    [
        (
            "InferenceCoreBuilder",
            lambda op: op.bias_activation(ROW, None, 3),
            ValueError,
            "act_type is 3, expected one",
        ),
        (
            "InferenceCoreBuilder",
            lambda op: op.gated_activation(ROW, ROW, None, 3),
            ValueError,
            "half as many channels",
        ),
        ("InferenceCoreBuilder", lambda op: op.rms_norm(ROW, HALF, HALF[0], 1.0), TypeError, "norm_output is torch.fl"),
        ("InferenceCoreBuilder", lambda op: op.rms_norm(ROW, ROW, ROW, 1.0), ValueError, r"gamma has shape \(2, 4\)"),
        (
            "InferenceCoreBuilder",
            lambda op: op.rms_norm(ROW.T, ROW.T, ROW[:, 0].clone(), 1.0),
            ValueError,
            "contiguous",
        ),
        (
            "SpatialInferenceBuilder",
            lambda op: op.nhwc_bias_add(ROW[None], ROW),
            ValueError,
            r"bias has shape \(2, 4\)",
        ),
        ("RandomLTDBuilder", lambda op: op.token_gather(ROW[None], ROW, True), TypeError, "sorted_indices is torch.fl"),
        (
            "RandomLTDBuilder",
            lambda op: op.token_gather(ROW[None], torch.zeros(2, 1, dtype=torch.int32), True),
            ValueError,
            "expected one batch and one number of channels",
        ),
        (
            "RandomLTDBuilder",
            lambda op: op.mask_gather_bert(ROW[None, None], torch.zeros(1, 1, 1, dtype=torch.int32)),
            ValueError,
            r"dense_mask has shape \(1, 1, 2, 4\), expected \(1, 1, tokens, tokens\)",
        ),
    ],
)
def test_errors_name_what_does_not_fit(builder, call, error, message):
    with pytest.raises(error, match=message):
        call(load(builder))


def test_create_op_builder_of_a_gpu_returns_them():
    from opforge.accelerator.registry import make_accelerator

    for name in ("SpatialInferenceBuilder", "RandomLTDBuilder", "InferenceCoreBuilder"):
        kind = make_accelerator("cuda", "a test").get_op_builder(name)
        assert kind is builder_of(name) and kind.devices == ("cuda", "hip")


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3), (1, 4, 5)])
def test_tokens_that_do_not_fit_are_refused_before_anything_is_written(shape):
    whole, ids = torch.full(shape, 7.0), torch.tensor([[0, 3]], dtype=torch.int32)
    with pytest.raises(ValueError, match=f"have shapes {re.escape(str(shape))}, .*expected one batch and one number"):
        load("RandomLTDBuilder").token_scatter_(whole, torch.ones(1, 2, 3), ids, True)
    assert (whole == 7).all()
