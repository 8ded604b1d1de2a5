"""The functions of DeepSpeed's first inference engine: the contract has two of them, and the kernels below most."""

import pytest
import torch
from torch.nn import functional

from opforge.builders.cpu.transformer.inference_core import InferenceBuilder
from opforge.ops.inference import DTYPES, OF_A_DTYPE

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
EPS, NONE = 1e-5, torch.empty(1)
LIMITS = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@pytest.fixture(scope="module")
def op():
    return InferenceBuilder().load()


@pytest.fixture(params=DTYPES)
def kind(request):
    return request.param, DTYPES[request.param]


def draw(*shape, dtype=torch.float32, seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / 2).to(dtype)


def close(got, exact, dtype):
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=LIMITS[dtype], atol=LIMITS[dtype])


def rms(x, gamma):
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * gamma


def norm(x, gamma, beta):
    return functional.layer_norm(x, x.shape[-1:], gamma, beta, EPS)


def test_norms_with_and_without_a_residual(op, kind):
    _, dtype = kind
    x, residual = draw(2, 3, 37, dtype=dtype), draw(2, 3, 37, dtype=dtype, seed=1)
    bias, gamma, beta = (draw(37, dtype=dtype, seed=seed) for seed in (2, 3, 4))
    exact, other, added, scale, shift = (part.double() for part in (x, residual, bias, gamma, beta))
    close(op.layer_norm(x, gamma, beta, EPS), norm(exact, scale, shift), dtype)
    close(op.rms_norm(x, gamma, EPS), rms(exact, scale), dtype)
    close(
        op._layer_norm_residual(x, bias, residual, gamma, beta, EPS), norm(exact + added + other, scale, shift), dtype
    )
    out, total = op.layer_norm_residual_store_pre_ln_res(x, bias, residual, gamma, beta, EPS)
    close(out, norm(exact + added + other, scale, shift), dtype)
    close(total, exact + added + other, dtype)
    out, total = op.pre_rms_norm(x, residual, gamma, EPS)
    close(out, rms(exact + other, scale), dtype)
    close(total, exact + other, dtype)
    strided = draw(2, 37, 3, dtype=dtype).transpose(1, 2)
    close(op.rms_norm(strided, gamma, EPS), rms(strided.double(), scale), dtype)
    apart = torch.stack([gamma, gamma], 1)[:, 0]
    close(op.rms_norm(strided, apart, EPS), rms(strided.double(), scale), dtype)


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("bias_add", lambda x: x),
        ("bias_relu", functional.relu),
        ("bias_gelu", lambda x: functional.gelu(x, approximate="tanh")),
    ],
)
@pytest.mark.parametrize("shape", [(0, 1, 8), (2, 3, 1233)])
def test_activations_are_written_in_place(op, kind, shape, name, activation):
    suffix, dtype = kind
    x, bias = draw(*shape, dtype=dtype), draw(shape[-1], dtype=dtype, seed=1)
    exact = activation(x.double() + bias.double())
    out = getattr(op, f"{name}_{suffix}")(x, bias)
    assert out.data_ptr() == x.data_ptr()
    close(out, exact, dtype)


def test_gates_are_the_second_half_of_the_channels(op, kind):
    _, dtype = kind
    x, bias = draw(2, 3, 34, dtype=dtype), draw(34, dtype=dtype, seed=1)
    values, gate = (x.double() + bias.double()).chunk(2, -1)
    close(op.gated_activation(x, bias, 3), values * functional.gelu(gate), dtype)
    close(op.gated_activation(x, bias, 4), values * functional.silu(gate), dtype)


@pytest.mark.parametrize("transposed", [True, False])
def test_products_with_norms_and_activations(op, kind, transposed):
    suffix, dtype = kind
    x, residual = draw(2, 3, 16, dtype=dtype), draw(2, 3, 16, dtype=dtype, seed=1)
    wide, back = draw(16, 24, dtype=dtype, seed=2), draw(24, 16, dtype=dtype, seed=3)
    gamma, beta, added = (draw(16, dtype=dtype, seed=seed) for seed in (4, 5, 6))
    bias = draw(24, dtype=dtype, seed=7)

    def of(name):
        return getattr(op, f"{name}_{suffix}")

    def stored(weight):
        return weight.t().contiguous() if transposed else weight

    exact, other, first, second = x.double(), residual.double(), wide.double(), back.double()
    scale, shift, before, between = gamma.double(), beta.double(), added.double(), bias.double()

    def gelu(values):
        return functional.gelu(values, approximate="tanh")

    close(of("vector_matmul")(x, stored(wide), False, NONE, False, transposed), exact @ first, dtype)
    inner = gelu(exact @ first + between) @ second
    close(of("fused_gemm_gelu")(x, stored(wide), NONE, bias, stored(back), NONE, False, transposed), inner, dtype)

    normed = norm(exact, scale, shift)
    for add in (True, False):
        got = of("qkv_gemm")(x, stored(wide), NONE, bias, gamma, beta, EPS, add, False, transposed)
        close(got[0], normed @ first + (between if add else 0), dtype)
        close(got[1], normed, dtype)
    got = of("rms_qkv_gemm")(x, stored(wide), NONE, gamma, EPS, False, transposed)
    close(got[0], rms(exact, scale) @ first, dtype)
    close(got[1], rms(exact, scale), dtype)

    tail = (bias, gamma, beta, EPS, True)
    for after, total in ((True, exact + other + before), (False, other)):  # GPT-J's MLP: on what came into the layer
        for number, activation in ((1, gelu), (2, functional.relu)):
            ends = (after, NONE, NONE, False, number, transposed)
            got = of("mlp_gemm")(x, residual, added, stored(wide), stored(back), *tail, *ends)
            close(got[0], activation(norm(total, scale, shift) @ first + between) @ second, dtype)
            close(got[1], norm(total, scale, shift), dtype)

    narrow = draw(12, 16, dtype=dtype, seed=8)
    got = of("rms_mlp_gemm")(x, residual, stored(wide), stored(narrow), gamma, EPS, NONE, NONE, False, 4, transposed)
    values, gate = (rms(exact + other, scale) @ first).chunk(2, -1)
    close(got[0], (values * functional.silu(gate)) @ narrow.double(), dtype)
    close(got[1], exact + other, dtype)
    for number, activation in ((1, gelu), (2, functional.relu)):
        ends = (gamma, EPS, NONE, NONE, False, number, transposed)
        got = of("rms_mlp_gemm")(x, residual, stored(wide), stored(back), *ends)
        close(got[0], activation(rms(exact + other, scale) @ first) @ second, dtype)
        close(got[1], exact + other, dtype)
    torch.testing.assert_close(residual.double(), other)  # DeepSpeed's layer adds the attention to it afterwards


@pytest.mark.parametrize(
    ("after", "pre", "add"), [(True, True, True), (True, False, True), (False, True, True), (False, True, False)]
)
def test_the_sum_of_a_layer_is_written_to_the_residual(op, kind, after, pre, add):
    suffix, dtype = kind
    hidden, residual, attention = (draw(2, 3, 17, dtype=dtype, seed=seed) for seed in range(3))
    attention_bias, final_bias = (draw(17, dtype=dtype, seed=seed) for seed in (3, 4))
    h, r, a, b, f = (part.double() for part in (hidden, residual, attention, attention_bias, final_bias))
    exact = h + r + f
    if after and pre:
        exact = h + (r + f + a + b) / 2
    elif not after:
        exact = h + a + (r + f + (b if add else 0)) / 2
    arguments = (hidden, residual, attention, attention_bias, final_bias, 2, after, add, pre)
    out = getattr(op, f"residual_add_bias_{suffix}")(*arguments)
    assert out is residual
    close(out, exact, dtype)


def test_sums_and_products_of_experts(op, kind):
    suffix, dtype = kind
    a, b = draw(2, 5, 8, dtype=dtype), draw(2, 5, 8, dtype=dtype, seed=1)
    exact = 0.5 * a.double() + b.double()
    assert op._vector_add(a, b, 0.5) is a
    close(a, exact, dtype)
    coefficients = draw(1, 1, 16, dtype=dtype, seed=2)
    first, second = coefficients.double().chunk(2, -1)
    exact = a.double() * first + b.double() * second
    assert op.moe_res_matmul(a, coefficients.transpose(-1, -2).contiguous(), b) is b
    close(b, exact, dtype)
    mask, tokens = draw(4, 3, 2, dtype=dtype), draw(4, 8, dtype=dtype, seed=3)
    exact = torch.einsum("sec,sm->ecm", mask.double(), tokens.double())
    close(getattr(op, f"einsum_sec_sm_ecm_{suffix}")(mask, tokens), exact, dtype)


@pytest.mark.parametrize("queries", [1, 4, 6])
@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("masked", [True, False])
def test_softmax_hides_later_tokens_and_those_before_the_window(op, kind, queries, window, masked):
    suffix, dtype = kind
    processes = 2
    scores, alibi = draw(2, 3, queries, 6, dtype=dtype), draw(6, 1, 6, dtype=dtype, seed=1)
    mask = draw(2, 6, dtype=dtype, seed=2) if masked else NONE
    exact = scores.double() * 0.5 + alibi.double()[2:5]
    exact = exact + (mask.double()[:, None, None] if masked else 0)
    for query in range(queries):
        position = query + 6 - queries
        hidden = [key for key in range(6) if key > position or (window and key <= position - window)]
        exact[:, :, query, hidden] = -torch.inf
    out = getattr(op, f"softmax_{suffix}")(
        scores, mask, alibi, True, True, window > 0, window, False, 0.5, 2, processes
    )
    assert out is scores
    close(out, exact.softmax(-1), dtype)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("of_each_sequence", [True, False])
def test_softmax_takes_the_alibi_of_its_own_heads(op, processes, of_each_sequence):
    batch, heads = 3, 4
    offset, every = heads * (processes - 1), heads * processes
    scores, alibi = draw(batch, heads, 2, 5), draw((batch if of_each_sequence else 1) * every, 1, 5, seed=1)
    blocks = alibi.view(-1, every, 1, 5).expand(batch, -1, -1, -1)
    exact = (scores + blocks[:, offset : offset + heads]).softmax(-1)
    out = op.softmax_fp32(scores, NONE, alibi, False, True, False, 0, False, 1.0, offset, processes)
    torch.testing.assert_close(out, exact)


def test_a_query_that_sees_nothing_gets_zeros_from_softmax(op):
    mask = torch.zeros(2, 1, 1, 3)
    mask[0] = -torch.inf
    out = op.softmax_fp32(torch.zeros(2, 1, 2, 3), mask, NONE, False, True, False, 0, False, 1.0, 0, 1)
    torch.testing.assert_close(out[0], torch.zeros(1, 2, 3))
    torch.testing.assert_close(out[1], torch.full((1, 2, 3), 1 / 3))


def test_wrong_arguments_are_rejected(op):
    x = torch.zeros(1, 2, 4)
    with pytest.raises(
        ValueError, match=r"bias_add_fp16 got torch.float32, expected torch.float16: call the function of"
    ):
        op.bias_add_fp16(x, torch.zeros(4))
    with pytest.raises(
        ValueError, match="q_int8 is True, expected False: the host has no products of int8; dequantize"
    ):
        op.vector_matmul_fp32(x, torch.zeros(4, 4), False, NONE, True, False)
    with pytest.raises(
        ValueError,
        match="alibi has 4 rows for a sequence, and head_offset is 2, expected a row for each of the 4 heads",
    ):
        alibi = torch.zeros(8, 1, 3)
        op.softmax_fp32(torch.zeros(2, 4, 1, 3), NONE, alibi, False, True, False, 0, False, 1.0, 2, 1)
    with pytest.raises(ValueError, match=r"actFun is 1, expected 3 \(gated GELU\) or 4 \(gated SiLU\)"):
        op.gated_activation(x, torch.zeros(4), 1)
    with pytest.raises(ValueError, match=r"activation_type is 3, expected 1 \(GELU\) or 2 \(ReLU\)"):
        op.mlp_gemm_fp32(x, x, *([NONE] * 6), EPS, True, True, NONE, NONE, False, 3, False)
    with pytest.raises(ValueError, match=r"activation_type is 0, expected 1 to 4 \(ActivationFuncType\)"):
        op.rms_mlp_gemm_fp32(x, x, NONE, NONE, NONE, EPS, NONE, NONE, False, 0, False)


def test_there_is_a_function_of_each_dtype(op):
    assert all(callable(getattr(op, f"{name}_{suffix}")) for name in OF_A_DTYPE for suffix in DTYPES)
    assert not hasattr(op, "softmax_context_fp32")  # DeepSpeed then uses its own, with a workspace of its own
