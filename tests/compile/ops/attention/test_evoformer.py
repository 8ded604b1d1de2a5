"""Evoformer attention on the CPU: values and gradients at each level of the CPU, DeepSpeed's functions, errors."""

from __future__ import annotations

import platform

import pytest
import torch
from support import cases
from support.attention.float64_errors import check_errors, randoms
from support.attention.peak_memory import peak_of
from torch.utils._python_dispatch import TorchDispatchMode

from opforge.builders.cpu.evoformer_attn import EvoformerAttnBuilder
from opforge.ops import attention, evoformer_attention, reference

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


ANOTHER_LEVEL = pytest.mark.long("builds the op for one level of the CPU more")
LEVELS = ("x86-64", "x86-64-v3")


@pytest.fixture(scope="module", params=["", *(pytest.param(level, marks=ANOTHER_LEVEL) for level in LEVELS)])
def op(request):
    """The op for each level of the CPU."""
    if request.param and platform.machine() != "x86_64":
        pytest.skip(f"{request.param} is not this machine's architecture")
    builder = EvoformerAttnBuilder(target=f"cpu:{request.param}" if request.param else None)
    compatible = builder.is_compatible()
    if not compatible:
        pytest.skip(f"this CPU does not run {request.param}: {compatible}")
    return builder.load()


@pytest.fixture
def used_op(op, monkeypatch):
    """Makes `evoformer_attention` use the op."""
    monkeypatch.setattr(attention, "host_op", lambda _builder: op)
    return op


def inputs(shape, dtype, keys=None):
    outer, inner, length, heads, size = shape
    keys = length if keys is None else keys
    shapes = [shape, (outer, inner, keys, heads, size), (outer, inner, keys, heads, size)]
    shapes += [(outer, inner, 1, 1, keys), (outer, 1, heads, length, keys)]
    return [tensor.requires_grad_() for tensor in randoms(shapes, dtype)]


def ours(q, k, v, *biases):
    return evoformer_attention(q, k, v, list(biases))


def exact(q, k, v, *biases):
    return reference.attention(q, k, v, biases)[0]


def test_the_cases_hold_on_each_level(op):
    """The contract tries them on this CPU's own level alone."""
    cases.check_results(EvoformerAttnBuilder, op)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_and_gradients_are_as_exact_as_torchs(used_op, dtype):
    check_errors(ours, exact, inputs((1, 2, 128, 4, 32), dtype))


@pytest.mark.parametrize("size", [1, 128])
def test_heads_of_one_and_of_many_numbers(used_op, size):
    check_errors(ours, exact, inputs((1, 1, 70, 1, size), torch.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_that_hides_all_keys_by_the_lowest_number_has_the_mean_of_the_values_and_its_gradients(used_op, dtype):
    mask = torch.zeros(1, 1, 1, 40, 40, dtype=dtype)
    mask[..., :3, :] = mask[..., 5:20] = torch.finfo(dtype).min
    check_errors(
        lambda *tensors: ours(*tensors, mask),
        lambda *tensors: exact(*tensors, mask.to(tensors[0].dtype)),
        inputs((1, 1, 40, 1, 16), dtype)[:3],
    )


def test_a_second_derivative_is_an_error(used_op):
    q = torch.randn(1, 1, 5, 1, 16, requires_grad=True)
    (dq,) = torch.autograd.grad(ours(q, q, q).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match=r"opforge_attention.attention_backward has no gradient: .* use torch's own"):
        dq.sum().backward()


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # of torch's own forward derivatives
def test_a_forward_derivative_is_an_error(used_op):
    """torch would return zeros: what is behind an op's kernel does not see tangents."""
    q, direction = torch.randn(1, 1, 5, 1, 16), torch.ones(1, 1, 5, 1, 16)
    with pytest.raises(RuntimeError, match=r"opforge_attention.attention has no forward derivative \(jvp\): "):
        torch.func.jvp(lambda x: ours(x, q, q), (q,), (direction,))
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(ours(q, q, q), ours(q, q, q))  # without a tangent
        with pytest.raises(RuntimeError, match="no forward derivative"):
            ours(q, q, torch.autograd.forward_ad.make_dual(q, direction))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_keys_may_have_another_length_and_biases_may_be_missing(used_op, count):
    for keys in (1, 40, 131):
        check_errors(ours, exact, inputs((1, 2, 33, 2, 16), torch.float32, keys)[: 3 + count])


@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 1),
        (2, 1, 1, 1),
        (2, 3, 1, 19),
        (1, 3, 2, 19),
        (1, 1, 1, 19),
        (2, 3, 2, 1),
    ],
)
def test_biases_are_broadcast_along_each_dimension(used_op, sizes):
    check_errors(ours, exact, [*inputs((2, 3, 19, 2, 16), torch.float32)[:4], *randoms([(*sizes, 19)], torch.float32)])


@pytest.mark.parametrize("length", [15, 17, 1025])
def test_lengths_around_tiles_and_long_ones(length):
    check_errors(ours, exact, inputs((1, 1, length, 1, 16), torch.float32))


@pytest.mark.parametrize("order", [(0, 1, 4, 2, 3), (4, 3, 2, 1, 0), (0, 1, 3, 2, 4)], ids=str)
def test_tensors_may_have_their_dimensions_in_any_order_in_memory(used_op, order):
    given = inputs((1, 2, 5, 2, 8), torch.float32)
    back = [order.index(dimension) for dimension in range(5)]
    moved = [tensor.detach().permute(order).contiguous().permute(back).requires_grad_() for tensor in given[:3]]
    results = [ours(*tensors, *given[3:]) for tensors in (moved, given[:3])]
    assert torch.equal(*results)
    for result in results:
        result.square().sum().backward()
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(moved, given[:3], strict=True))


def test_lengths_of_zero_give_zeros_and_empty_results(used_op):
    empty = ours(*inputs((1, 2, 0, 2, 16), torch.float32))
    assert empty.shape == (1, 2, 0, 2, 16)
    q, k, v, *_ = inputs((1, 2, 3, 2, 16), torch.float32, 0)
    out = ours(q, k, v)
    assert torch.equal(out, torch.zeros_like(q))
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert [tuple(gradient.shape) for gradient in gradients] == [tuple(tensor.shape) for tensor in (q, k, v)]
    assert not gradients[0].any()


def test_gradcheck_accepts_the_gradients():
    tensors = inputs((1, 2, 5, 2, 4), torch.float32)
    with pytest.warns(UserWarning, match="not a double precision"):
        assert torch.autograd.gradcheck(ours, tensors, eps=1e-2, atol=2e-3, rtol=1e-2)


def test_masked_keys_and_queries_without_keys(used_op):
    q, k, v, keys, rows = inputs((1, 2, 21, 2, 16), torch.float32)
    with torch.no_grad():
        keys[0, 0, :, :, 3:] = -torch.inf
        keys[0, 1] = -1e9
        rows[0, 0, 1, 4] = -torch.inf
    out = ours(q, k, v, keys, rows)
    assert not out[0, :, 4, 1].any()
    check_errors(ours, exact, [q, k, v, keys, rows])
    with torch.no_grad():
        q[0, 0, 2, 0, 0] = torch.nan
    out = ours(q, k, v, keys, rows)
    assert out[0, 0, 2, 0].isnan().all() and not out[0, 0, 3:].isnan().any() and not out[0, 1].isnan().any()


def test_deepspeeds_functions_take_its_arguments(op):
    q, k, v, keys, rows = (tensor.detach() for tensor in inputs((1, 3, 33, 2, 16), torch.float16))
    out, none = torch.empty_like(q), q.new_empty(0)
    log_sums = torch.empty(3, 2, 64)
    assert op.attention(q, k, v, keys, rows, out, log_sums) is None
    expected, sums = reference.attention(*(tensor.double() for tensor in (q, k, v)), (keys.double(), rows.double()))
    assert (out - expected).abs().max() < 2e-3
    assert (log_sums[..., :33] - sums[0]).abs().max() < 1e-5
    gradients = [torch.empty_like(tensor) for tensor in (q, k, v)]
    sums = torch.zeros(keys.shape), torch.zeros(rows.shape)
    arguments = (torch.ones_like(q), q, k, v, out, log_sums, torch.empty_like(log_sums))
    assert op.attention_bwd(*arguments, keys, rows, *gradients, *sums) is None
    doubles = [tensor.double().requires_grad_() for tensor in (q, k, v, keys, rows)]
    exacts = torch.autograd.grad(exact(*doubles).sum(), doubles)
    for gradient, double in zip((*gradients, *sums), exacts, strict=True):
        assert (gradient - double).abs().max() < 1e-2
    # Without a gradient of the second bias, and without the first bias.
    op.attention(q, k, v, none, rows, out, log_sums)
    op.attention_bwd(*arguments, none, rows, *gradients, none.float(), none.float())
    doubles = doubles[:3]
    exacts = torch.autograd.grad(exact(*doubles, rows.double()).sum(), doubles)
    for gradient, double in zip(gradients, exacts, strict=True):
        assert (gradient - double).abs().max() < 1e-2


def test_opcheck_and_torch_compile_accept_the_ops():
    op = EvoformerAttnBuilder().load()
    tensors = [tensor.detach() for tensor in inputs((1, 2, 17, 2, 8), torch.float32)]
    q, k, v, *biases = tensors
    out, log_sums = torch.empty_like(q), torch.empty(1, 2, 2, 34)
    utils = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    sums = [torch.empty_like(bias) for bias in biases]
    results = [torch.empty_like(tensor) for tensor in (q, k, v)]
    arguments = (*results, sums, q, q, k, v, out, log_sums, torch.empty_like(log_sums), biases, 0, 0.5)
    torch.library.opcheck(op.evoformer_attention_backward_, arguments, test_utils=utils)

    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    options = (None, None, 0, 0, 0.5, False)
    torch.library.opcheck(torch.ops.opforge_attention.attention.default, (*leaves[:3], leaves[3:], *options))

    def block(q, k, v, keys, rows):
        return evoformer_attention(q * 2, k, v, [keys, rows]).sum(0)

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(block(*leaves).sum(), leaves)
    gradients = torch.autograd.grad(compiled(*leaves).sum(), leaves)
    assert torch.equal(compiled(*tensors), block(*tensors))
    assert all(map(torch.equal, gradients, expected))


class BiasesOfCalls(TorchDispatchMode):
    """Records how many biases the op gets."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        if call is torch.ops.opforge_attention.attention.default:
            self.counts.append(len(args[3]))
        return call(*args, **kwargs or {})


def test_the_list_of_biases_is_never_empty_since_aotinductor_passes_none_for_such_a_list():
    with BiasesOfCalls() as calls:
        evoformer_attention(*(torch.zeros(1, 1, 2, 1, 4, device="meta") for _ in range(3)))
    assert calls.counts == [1]


def test_memory_of_a_long_forward_is_its_results_and_64_mib_at_most():
    """With all scores in memory this length would take 1.6 GB."""
    q = torch.randn(1, 1, 20_000, 1, 16)
    evoformer_attention(q[:, :, :64], q[:, :, :64], q[:, :, :64])
    assert peak_of(lambda: evoformer_attention(q, q, q)) < q.nbytes + (64 << 20)


Q, META = torch.ones(1, 2, 3, 2, 8), torch.ones(1, 2, 3, 2, 8, device="meta")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: evoformer_attention(Q[0], Q[0], Q[0]),
            "q has shape (2, 3, 2, 8), expected [outer, inner, length, heads, size]",
        ),
        (
            lambda: evoformer_attention(*[torch.ones(1, 1, 2, 1, 257)] * 3),
            "q has heads of size 257, expected 1 to 256",
        ),
        (
            lambda: evoformer_attention(Q.double(), Q.double(), Q.double()),
            "q is float64, expected float32, bfloat16 or float16: convert it with .to(torch.float32)",
        ),
        (
            lambda: evoformer_attention(Q, Q.half(), Q),
            "k is float16, expected the dtype of q, float32: convert it with .to(q.dtype)",
        ),
        (
            lambda: evoformer_attention(Q, Q[:, :, :2], Q),
            "v has shape (1, 2, 3, 2, 8), expected (1, 2, 2, 2, 8): [outer, inner, length, heads, size], as that of q",
        ),
        (
            lambda: evoformer_attention(Q, Q[:, :1], Q),
            "k has shape (1, 1, 3, 2, 8), expected (1, 2, any length, 2, 8): [outer, inner, length, heads, size], as "
            "that of q",
        ),
        (
            lambda: evoformer_attention(Q, Q, Q, [torch.ones(1, 2, 3, 1, 3)]),
            "biases[0] has shape (1, 2, 3, 1, 3), which does not broadcast to the scores, (1, 2, 2, 3, 3): each size "
            "but the last must be that one or 1",
        ),
        (
            lambda: evoformer_attention(Q, Q, Q, [None, torch.ones(3, 3)]),
            "biases[0] has shape (3, 3), which does not broadcast to the scores, (1, 2, 2, 3, 3): each size but the "
            "last must be that one or 1",
        ),
        (
            lambda: evoformer_attention(Q, Q, Q, [torch.ones(1, 1, 1, 1, 3)] * 3),
            "biases has 3 tensors, expected at most 2: add some of them up before",
        ),
        (
            lambda: evoformer_attention(Q, META, Q),
            "k is on meta, expected cpu, where q is: move it with .to()",
        ),
    ],
)
def test_wrong_arguments_are_rejected(call, message):
    with pytest.raises(RuntimeError) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"log_sums": torch.empty(2, 2, 2)},
            "log_sums is float32 of shape (2, 2, 2), expected contiguous float32 of shape (1, 2, 2, 3 or more)",
        ),
        (
            {"out": Q.transpose(3, 4)},
            "out has shape (1, 2, 3, 8, 2), expected (1, 2, 3, 2, 8): [outer, inner, length, "
            "heads, size], as that of q",
        ),
        (
            {"q": Q.repeat_interleave(2, -1)[..., ::2]},
            "q has a stride of 2 in its last dimension, expected 1: pass .contiguous() of it",
        ),
        ({"biases": [torch.ones(1, 1, 1, 3, 6)[..., :3]]}, "biases[0] is not contiguous: pass .contiguous() of it"),
        (
            {"biases": [torch.ones(1, 1, 1, 1, 3)] * 4},
            "biases has 4 tensors, expected at most 3: add some of them up before",
        ),
    ],
)
def test_wrong_arguments_of_the_op_are_rejected_before_anything_is_written(change, message):
    op = EvoformerAttnBuilder().load()
    arguments = {"out": torch.full_like(Q, 7.0), "log_sums": torch.full((1, 2, 2, 3), 7.0), "q": Q, "k": Q, "v": Q}
    arguments |= {"biases": [], "multiplied": 0, "scale": 1.0} | change
    before = arguments["out"].clone()
    with pytest.raises(RuntimeError) as caught:
        op.evoformer_attention_(*arguments.values())
    assert str(caught.value) == message
    assert torch.equal(arguments["out"], before)
