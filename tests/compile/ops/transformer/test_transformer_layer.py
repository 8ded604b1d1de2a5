"""The transformer layer against a reference in float64: the module, and DeepSpeed's functions with its arguments."""

import copy
import itertools
from functools import partial

import pytest
import torch
from torch.nn import functional

from opforge.builders.cpu.transformer.transformer import StochasticTransformerBuilder, TransformerBuilder
from opforge.ops import TransformerConfig, TransformerLayer
from opforge.ops.transformer import reference
from opforge.ops.transformer.steps import Weights

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
WIDTH, HEADS, INNER, EPS = 16, 2, 24, 1e-5
MODES = list(itertools.product((True, False), repeat=3))
"""pre_layer_norm, normalize_invertible, gelu_checkpoint."""


@pytest.fixture(scope="module", params=[TransformerBuilder, StochasticTransformerBuilder])
def op(request):
    return request.param().load()


def config(pre_norm=True, invertible=False, checkpoint=False, **others):
    modes = {"pre_layer_norm": pre_norm, "normalize_invertible": invertible, "gelu_checkpoint": checkpoint}
    return TransformerConfig(WIDTH, HEADS, INNER, layer_norm_eps=EPS, **{**modes, **others})


def filled(layer, seed=0):
    """Gives all parameters values, none of a norm's weights near 0."""
    random = torch.Generator().manual_seed(seed)
    for name, parameter in layer.named_parameters():
        drawn = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
        is_norm = name in ("norm_w", "attn_nw")
        parameter.data = (1.0 + 0.1 * drawn if is_norm else 0.3 * drawn).to(parameter.dtype)
    return layer


def inputs(batch, tokens, dtype, seed=1):
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(batch, tokens, WIDTH, generator=random, dtype=torch.float64)
    mask = -10.0 * (torch.rand(batch, 1, 1, tokens, generator=random) < 0.2)
    return rows.to(dtype).requires_grad_(), mask.to(dtype)


def weights_of(layer):
    return [getattr(layer, name) for name in Weights._fields]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("batch", "tokens"), [(0, 3), (1, 0), (1, 1), (2, 15), (3, 17)])
def test_the_layer_is_the_references(mode, batch, tokens):
    layer = filled(TransformerLayer(config(*mode)).double())
    rows, mask = inputs(batch, tokens, torch.float64)
    for mask_or_none in (mask, None):
        out = layer(rows, mask_or_none)
        expected = reference.transformer_layer(rows, mask_or_none, weights_of(layer), HEADS, EPS, mode[0])
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("with_mask", [True, False])
def test_gradients(mode, with_mask):
    layer = filled(TransformerLayer(config(*mode)).double())
    rows, mask = inputs(2, 5, torch.float64)

    def call(rows, *weights):
        named = dict(zip(Weights._fields, weights, strict=True))
        return torch.func.functional_call(layer, named, (rows, mask if with_mask else None))

    assert torch.autograd.gradcheck(call, (rows, *weights_of(layer)), fast_mode=True)


def torchs(pre_norm, rows, mask, *weights):
    """Returns the layer by torch's own functions."""
    w, norm = Weights(*weights), functional.layer_norm
    source = norm(rows, (WIDTH,), w.norm_w, w.norm_b, EPS) if pre_norm else rows
    qkv = functional.linear(source, w.attn_qkvw, w.attn_qkvb).view(*rows.shape[:2], 3, HEADS, -1)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    attended = functional.scaled_dot_product_attention(q, k, v, mask.expand(-1, -1, rows.shape[1], -1))
    attended = attended.transpose(1, 2).reshape(rows.shape)
    total = functional.linear(attended, w.attn_ow, w.attn_ob) + rows
    normed = norm(total, (WIDTH,), w.attn_nw, w.attn_nb, EPS)
    inner = functional.gelu(functional.linear(normed, w.inter_w, w.inter_b), approximate="tanh")
    out = functional.linear(inner, w.output_w, w.output_b) + (total if pre_norm else normed)
    return out if pre_norm else norm(out, (WIDTH,), w.norm_w, w.norm_b, EPS)


@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (2, 5)])
def test_infinities_and_nan_go_where_torch_puts_them(pre_norm, value, batch, tokens):
    layer = filled(TransformerLayer(config(pre_norm)))
    rows, mask = inputs(batch, tokens, torch.float32)
    start = [tensor.detach() for tensor in (rows, mask, *weights_of(layer), torch.randn(rows.shape))]
    for number, place in itertools.product(range(len(start)), (0, 7)):
        *tensors, probe = [tensor.clone() for tensor in start]
        target = [*tensors, probe][number].view(-1)
        target[place % target.numel()] = value
        results = []
        for call in (
            lambda rows, mask, *weights: torch.func.functional_call(
                layer, dict(zip(Weights._fields, weights, strict=True)), (rows, mask)
            ),
            partial(torchs, pre_norm),
        ):
            leaves = [tensor.requires_grad_(index != 1) for index, tensor in enumerate(tensors)]
            out = call(*leaves)
            results.append([out, *torch.autograd.grad(out, leaves[:1] + leaves[2:], probe)])
        for index, (actual, expected) in enumerate(zip(*results, strict=True)):
            for kind in (torch.isnan, torch.isposinf, torch.isneginf):
                assert torch.equal(kind(actual), kind(expected)), (number, place, index, kind)


@pytest.mark.parametrize("mode", [MODES[0], MODES[5]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_errors_of_an_inverted_norm_are_at_most_eight_times_torchs(mode, dtype):
    """The cases promise twice torch's errors of a layer that keeps a norm's inputs."""
    layer = filled(TransformerLayer(config(*mode)).to(dtype))
    rows, mask = inputs(2, 33, dtype)
    probe = torch.randn(rows.shape, generator=torch.Generator().manual_seed(5)).to(dtype)

    def results(call, tensors):
        out = call(*tensors)
        return [out, *torch.autograd.grad(out, tensors[:1] + tensors[2:], probe.to(out.dtype))]

    def ours(rows, mask, *weights):
        return torch.func.functional_call(layer, dict(zip(Weights._fields, weights, strict=True)), (rows, mask))

    tensors = [rows, mask, *weights_of(layer)]
    exact = [tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in tensors]
    expected = results(
        lambda rows, mask, *weights: reference.transformer_layer(rows, mask, weights, HEADS, EPS, mode[0]), exact
    )
    for number, (actual, others, right) in enumerate(
        zip(results(ours, tensors), results(partial(torchs, mode[0]), tensors), expected, strict=True)
    ):
        # Roots of mean squares: the largest error of one call is the chance of a few numbers, and of the processor.
        error, limit = ((result.double() - right).square().mean().sqrt() for result in (actual, others))
        allowed = max(2 * limit, right.square().mean().sqrt() * torch.finfo(dtype).eps)
        # It loses what the norm's result has rounded away.
        assert error <= 8 * allowed, f"result {number}: {error} beside {limit}"


@pytest.mark.parametrize("value", [1e15, 1e30, torch.inf, torch.nan])
def test_the_slope_of_gelu_far_from_zero_is_torchs(op, value):
    """Where a square is infinite it is NaN, of what is in the row beside it nothing changes."""
    rows = torch.tensor([[value, -value, 0.5] * 7])
    gradient, leaf = torch.full_like(rows, 2.0), rows.clone().requires_grad_()
    expected = torch.autograd.grad(functional.gelu(leaf, approximate="tanh"), leaf, gradient)[0]
    op.bias_gelu_grad_(gradient, rows, torch.zeros(rows.shape[-1]))
    torch.testing.assert_close(gradient, expected, equal_nan=True)


def test_a_second_derivative_is_an_error():
    rows, mask = inputs(1, 5, torch.float32)
    result = filled(TransformerLayer(config()))(rows, mask)
    (gradient,) = torch.autograd.grad(result.square().sum(), rows, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()


@pytest.mark.parametrize("mode", [(True, True), (True, False), (False, False)])
def test_a_result_may_be_changed_in_place(mode):
    layer = filled(TransformerLayer(config(*mode)).double())
    rows, _ = inputs(2, 5, torch.float64)
    layer(rows).square_().sum().backward()
    (expected,) = torch.autograd.grad(layer(rows).square().sum(), rows)
    torch.testing.assert_close(rows.grad, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_sequence_that_a_mask_of_a_wider_dtype_hides_is_finite(dtype, dropout):
    layer = filled(TransformerLayer(config(attn_dropout_ratio=dropout)).to(dtype))
    rows, _ = inputs(2, 5, dtype)
    mask = torch.zeros(2, 1, 1, 5)
    mask[1] = torch.finfo(mask.dtype).min
    layer(rows, mask).sum().backward()
    assert bool(rows.grad.isfinite().all())


@pytest.mark.parametrize(("dtype", "of_mask"), [(torch.float32, torch.float16), (torch.float64, torch.float32)])
def test_a_mask_of_a_narrower_dtype_is_that_mask(dtype, of_mask):
    layer = filled(TransformerLayer(config()).to(dtype))
    rows, mask = inputs(2, 5, dtype)
    mask[0, ..., 0] = torch.finfo(of_mask).min
    assert torch.equal(layer(rows, mask.to(of_mask)), layer(rows, mask))


def test_long_sequences_have_no_matrix_of_tokens_by_tokens():
    layer = filled(TransformerLayer(config()))
    rows, _ = inputs(1, 4097, torch.float32)
    expected = reference.transformer_layer(
        rows.double(), None, [w.double() for w in weights_of(layer)], HEADS, EPS, True
    )
    torch.testing.assert_close(layer(rows).double(), expected, rtol=1e-4, atol=1e-4)
    op = TransformerBuilder().load()
    created(op, 3, config())
    assert max(tensor.numel() for tensor in forward(op, 3, layer, rows.detach(), rows.new_empty(0))) <= 4097 * 3 * WIDTH


def created(op, number, form, kind="fp32"):
    create = getattr(op, f"create_transformer_layer_{kind}")
    modes = (form.attn_dropout_checkpoint, form.normalize_invertible, form.gelu_checkpoint, False)
    ratios = (form.attn_dropout_ratio, form.hidden_dropout_ratio)
    return create(number, 2, WIDTH, HEADS, INNER, *ratios, EPS, 7, form.pre_layer_norm, False, *modes)


def forward(op, number, layer, rows, mask, kind="fp32", training=True):
    form = layer.config
    modes = (form.pre_layer_norm, form.attn_dropout_checkpoint, form.normalize_invertible, form.gelu_checkpoint)
    with torch.no_grad():
        return getattr(op, f"forward_{kind}")(number, rows, mask, *weights_of(layer), training, *modes)


def saved_as_deepspeed_does(form, rows, results):
    """Returns the arguments 3 to 20 of the backward function, as DeepSpeedTransformerFunction passes them."""
    output, inp_norm, qkv, soft, kept, attn_o, add_res, ff1, gelu_inp, ff2, *rest = results
    both = form.pre_layer_norm and form.normalize_invertible
    return (
        inp_norm if both else output,
        inp_norm if form.pre_layer_norm or not form.normalize_invertible else rows,
        qkv,
        soft,
        soft if form.attn_dropout_checkpoint else kept,
        attn_o,
        ff1 if form.normalize_invertible else add_res,
        ff1,
        ff2 if form.gelu_checkpoint else gelu_inp,
        ff2,
        *rest,
        inp_norm if both else rows,
    )


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mode", MODES)
def test_deepspeeds_functions_with_its_arguments(op, mode, dropout):
    form = config(*mode, attn_dropout_ratio=dropout, hidden_dropout_ratio=dropout, attn_dropout_checkpoint=mode[2])
    layer = filled(TransformerLayer(form).double())
    assert created(op, 11, form) == 0
    rows, mask = inputs(2, 16, torch.float64)
    results = forward(op, 11, layer, rows.detach(), mask)
    assert len(results) == 17
    kept = None
    if dropout:
        masks = results[10:13]
        assert all(0.5 < part.double().mean() < 0.9 for part in masks)
        kept = [part.double() / (1 - dropout) for part in masks]
        kept[1], kept[2] = kept[1].view(2, 16, WIDTH), kept[2].view(2, 16, WIDTH)
    expected = reference.transformer_layer(rows, mask, weights_of(layer), HEADS, EPS, mode[0], kept)
    torch.testing.assert_close(results[0], expected, rtol=1e-10, atol=1e-10)
    probe = torch.randn(rows.shape, dtype=torch.float64)
    saved = saved_as_deepspeed_does(form, rows.detach(), results)
    parameters = [weight.detach() for weight in weights_of(layer)]
    actual = op.backward_fp32(11, probe, *saved, mask, *parameters)
    gradients = torch.autograd.grad(expected, [rows, *weights_of(layer)], probe)
    assert len(actual) == 13
    for ours, right in zip(actual, gradients, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-9, atol=1e-9)


def test_half_precision_and_evaluation(op):
    form = config(attn_dropout_ratio=0.5, hidden_dropout_ratio=0.5)
    layer = filled(TransformerLayer(form).half())
    created(op, 12, form, "fp16")
    rows, mask = inputs(2, 16, torch.float16)
    out = forward(op, 12, layer, rows.detach(), mask, "fp16", training=False)[0]
    doubles = [weight.double() for weight in weights_of(layer)]
    expected = reference.transformer_layer(rows.double(), mask.double(), doubles, HEADS, EPS, True)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)
    assert torch.equal(layer.eval()(rows, mask), out)


def test_dropout_follows_torchs_generator_and_checkpointing():
    layer = filled(TransformerLayer(config(attn_dropout_ratio=0.4, hidden_dropout_ratio=0.4)))
    rows, mask = inputs(2, 8, torch.float32)
    torch.manual_seed(3)
    first = layer(rows, mask)
    torch.manual_seed(3)
    again = torch.utils.checkpoint.checkpoint(layer, rows, mask, use_reentrant=False)
    assert torch.equal(first, again) and not torch.equal(first, layer(rows, mask))
    ours, others = (torch.autograd.grad(out.sum(), list(layer.parameters())) for out in (first, again))
    assert all(map(torch.equal, ours, others))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch's own tracing
def test_torch_compile_traces_the_layer_as_a_whole():
    layer = filled(TransformerLayer(config()))
    rows, mask = inputs(2, 8, torch.float32)
    traced = torch.compile(layer, fullgraph=True, backend="aot_eager")
    out, expected = traced(rows, mask), layer(rows, mask)
    torch.testing.assert_close(out, expected)
    ours, right = (torch.autograd.grad(result.square().sum(), list(layer.parameters())) for result in (out, expected))
    for actual, exact in zip(ours, right, strict=True):
        torch.testing.assert_close(actual, exact)


def test_an_exported_layer_takes_any_number_of_tokens():
    """Rows that are a view of the attention's result would have a guard on that number, by torch's fake strides."""
    layer, tokens = TransformerLayer(TransformerConfig(16, 2)).eval(), torch.export.Dim("tokens")
    program = torch.export.export(
        layer, (torch.ones(2, 8, 16), torch.zeros(2, 1, 1, 8)), dynamic_shapes=({1: tokens}, {3: tokens})
    )
    x, mask = torch.randn(2, 5, 16), torch.zeros(2, 1, 1, 5)
    assert torch.equal(program.module()(x, mask), layer(x, mask))


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_under_autocast_the_layer_is_the_one_in_bfloat16(given, dropout):
    layer = filled(TransformerLayer(config(attn_dropout_ratio=dropout, hidden_dropout_ratio=dropout)))
    small = copy.deepcopy(layer).bfloat16()
    rows, mask = inputs(2, 5, given)
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(rows, mask)
        out.sum().backward()  # also within autocast
    torch.manual_seed(3)
    expected = small(rows.detach().bfloat16(), mask)
    expected.sum().backward()
    assert torch.equal(out, expected) and out.dtype == torch.bfloat16 and rows.grad.dtype == given
    for ours, exact in zip(layer.parameters(), small.parameters(), strict=True):
        assert ours.grad.dtype == torch.float32 and torch.equal(ours.grad, exact.grad.float())


def test_new_weights_are_deepspeeds():
    layer = TransformerLayer(TransformerConfig(512, 8, num_hidden_layers=8, return_tuple=True))
    assert layer.inter_w.shape == (2048, 512)
    assert abs(layer.attn_qkvw.std() - 0.02) < 1e-3 and abs(layer.output_w.std() - 0.005) < 5e-4
    assert bool((layer.norm_w == 1).all()) and not layer.attn_qkvb.any()
    assert isinstance(layer(torch.zeros(1, 1, 512)), tuple)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda op, rows, w: op.forward_fp32(404, rows, rows, *w, True, True, False, False, False),
            "layer_id is 404, expected one that create_transformer_layer_fp32 or _fp16 has got: call it first",
        ),
        (
            lambda op, rows, w: op.forward_fp32(13, rows, rows[:, :0], *w[1:], w[0], True, True, False, False, False),
            r"attn_qkvw has shape \(48,\), expected \(48, 16\), by the shape of input",
        ),
        (
            lambda op, rows, w: op.forward_fp32(13, rows, torch.ones(3, 1, 1, 4), *w, True, True, False, False, False),
            r"input_mask is torch.float32 of shape \(3, 1, 1, 4\), expected numbers that are added to scores of shape",
        ),
        (
            lambda op, rows, w: op.forward_fp32(13, rows.half(), rows[:, :0], *w, True, True, False, False, False),
            "attn_qkvw is torch.float32 on cpu, expected torch.float16 on cpu, as input is",
        ),
        (
            lambda op, rows, w: op.forward_fp32(13, rows[0], rows[:, :0], *w, True, True, False, False, False),
            r"input has shape \(4, 16\), expected \[batch, tokens, channels\]",
        ),
        (
            lambda op, rows, w: op.forward_fp32(13, rows.to("meta"), rows[:, :0], *w, True, True, False, False, False),
            "input is on meta, expected a tensor on the CPU: TransformerBuilder's op is the host's on every",
        ),
        (lambda op, rows, w: op.forward_fp32(13, rows, rows), "forward has 3 arguments, expected 20"),
        (lambda op, rows, w: op.backward_fp32(13, rows), "backward has 2 arguments, expected 33"),
        (
            lambda op, rows, w: TransformerLayer(TransformerConfig(16, 3)),
            "num_heads is 3, expected a number that divides hidden_dim, 16",
        ),
        (
            lambda op, rows, w: TransformerLayer(TransformerConfig(16, 2, attn_dropout_ratio=1.0)),
            "attn_dropout_ratio is 1.0, expected a number from 0 to less than 1",
        ),
    ],
)
def test_errors_state_what_was_expected(op, call, message):
    layer = TransformerLayer(config())
    created(op, 13, config())
    with pytest.raises((ValueError, TypeError), match=message):
        call(op, torch.zeros(2, 4, WIDTH), weights_of(layer))
