"""Optimizers and the quantizer against float64, over random shapes, strides, dtypes, options and steps.

Each step is compared with the exact step from the state that the optimizer had, so that a bound is one step's rounding.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opforge.ops import CPUAdagrad, CPUAdam, CPULion, FusedAdam, FusedLamb, FusedLion, reference
from opforge.ops.host_op import host_op

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]

run = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
rates = st.sampled_from([0.0, 1e-4, 1e-2, 0.3])
betas = st.sampled_from([0.0, 0.5, 0.9, 0.99])
decays = st.sampled_from([0.0, 1e-3, 0.1])
small = st.sampled_from([1e-8, 1e-3])


@st.composite
def trainings(draw):
    """Draws a parameter of any shape and memory order, and the gradients of some steps, in that order or contiguous."""
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 17, 33]), max_size=3))
    order = draw(st.permutations(range(len(shape))))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 1000)))

    def values(scale, dtype):
        tensor = torch.randn([shape[i] for i in order], generator=random) * scale
        return tensor.to(dtype).permute([order.index(i) for i in range(len(order))])

    first = values(1.0, dtype)
    scale, wide, plain = draw(st.sampled_from([1e-3, 1.0, 30.0])), draw(st.booleans()), draw(st.booleans())
    grads = [values(scale, torch.float32 if wide else dtype) for _ in range(draw(st.integers(1, 3)))]
    return first, [grad.contiguous() for grad in grads] if plain else grads


def check(kind, rule, training, numbers, exact_numbers, sensitive=None):
    """Trains with `kind`, and compares each step with `rule` for the options `exact_numbers(step)`.

    `sensitive` returns the elements that may differ: a small error of their inputs changes the result completely.
    """
    param = torch.nn.Parameter(training[0].clone())
    param.grad_dtype = None  # a gradient may be wider than its parameter
    optimizer = kind([param], **numbers)
    names = kind.state_names
    for step, grad in enumerate(training[1], 1):
        old = optimizer.state.get(param) or dict.fromkeys(names, torch.zeros_like(param, dtype=torch.float32))
        before, states = param.detach().double(), [old[name].double().clone() for name in names]
        param.grad = grad
        optimizer.step()
        exact, *new = rule(before, grad.double(), *states, **exact_numbers(step))
        now, state = param.detach(), optimizer.state[param]
        assert state["step"] == step and now.stride() == training[0].stride()
        rounding = (0.501 * torch.finfo(now.dtype).eps + 3e-7) * exact.abs() + torch.finfo(now.dtype).smallest_normal
        ok = (now.double() - exact).abs() <= rounding + 1e-5 * (exact - before).abs() + 1e-9
        if sensitive is not None:
            ok |= sensitive(before, grad.double(), *states)
        assert bool(ok.all()), (now, exact)
        for name, was, expected in zip(names, states, new, strict=False):
            size = was.abs() + grad.double().abs() + grad.double() ** 2 + before.abs()
            assert bool(((state[name].double() - expected).abs() <= 1e-6 * size + 1e-12).all()), name


@run
@given(trainings(), rates, betas, betas, small, decays, st.tuples(st.booleans(), st.booleans(), st.booleans()))
@pytest.mark.parametrize("kind", [CPUAdam, FusedAdam])
def test_adam(kind, training, lr, beta1, beta2, eps, decay, modes):
    adamw, corrected, maximize = modes
    same = {"lr": lr, "eps": eps, "weight_decay": decay, "bias_correction": corrected, "maximize": maximize}
    numbers = {**same, "betas": (beta1, beta2), "adamw_mode" if kind is CPUAdam else "adam_w_mode": adamw}
    exact = {**same, "beta1": beta1, "beta2": beta2, "adamw_mode": adamw}
    check(kind, reference.adam, training, numbers, lambda step: {**exact, "step": step})


@run
@given(trainings(), rates, small, decays, st.sampled_from([0.0, 0.5]), st.booleans())
def test_adagrad(training, lr, eps, decay, lr_decay, maximize):
    same = {"eps": eps, "weight_decay": decay, "maximize": maximize}
    numbers = {**same, "lr": lr, "lr_decay": lr_decay}
    check(
        CPUAdagrad,
        reference.adagrad,
        training,
        numbers,
        lambda step: {**same, "lr": lr / (1 + (step - 1) * lr_decay)},
    )


@run
@given(trainings(), rates, betas, betas, decays, st.booleans())
@pytest.mark.parametrize("kind", [CPULion, FusedLion])
def test_lion(kind, training, lr, beta1, beta2, decay, maximize):
    same = {"lr": lr, "weight_decay": decay, "maximize": maximize}

    def cancels(_, grad, average):  # the direction's sign, if float32 cannot distinguish it from 0
        direction = beta1 * average + (-1 if maximize else 1) * (1 - beta1) * grad
        return direction.abs() <= 1e-6 * (average.abs() + grad.abs())

    numbers, exact = {**same, "betas": (beta1, beta2)}, {**same, "beta1": beta1, "beta2": beta2}
    check(kind, reference.lion, training, numbers, lambda _: exact, cancels)


@run
@given(trainings(), rates, betas, betas, small, decays, st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_lamb(training, lr, beta1, beta2, eps, decay, modes):
    inside, corrected, maximize = modes
    same = {"lr": lr, "eps": eps, "weight_decay": decay, "bias_correction": corrected, "maximize": maximize}
    numbers = {**same, "betas": (beta1, beta2), "eps_inside_sqrt": inside}
    exact = {**same, "beta1": beta1, "beta2": beta2, "eps_inside_sqrt": inside}
    check(FusedLamb, reference.lamb, training, numbers, lambda step: {**exact, "step": step})


@run
@given(
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.tuples(st.sampled_from([1, 2, 3, 8]), st.sampled_from([1, 2, 5, 64])),
    st.sampled_from([4, 8]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1000),
)
def test_a_dequantized_tensor_agrees_with_the_reference(dtype, sizes, bits, symmetric, transposed, seed):
    op = host_op("QuantizerBuilder")
    groups, size = sizes[0], 2 * sizes[1]
    random = torch.Generator().manual_seed(seed)
    values = (torch.randn(groups, size, generator=random) * 10 ** (seed % 5 - 2)).to(dtype)
    given_values = values.t().contiguous().t() if transposed else values
    kind = op.Symmetric if symmetric else op.Asymmetric
    codes, params = op.quantize(given_values, groups, bits, kind)
    assert codes.shape == (groups, size * bits // 8) and params.shape == (groups, 1 if symmetric else 2)
    scale, offset = reference.group_params(values.double(), bits, symmetric)
    expected, _, _ = reference.quantize(values.double(), bits, symmetric)
    exact = expected * scale + offset
    for back, call in ((torch.float32, op.dequantize_fp32), (torch.bfloat16, op.dequantize_bf16)):
        got = call(codes, params, groups, bits, kind)
        assert got.dtype == back and got.shape == values.shape
        rounding = torch.finfo(back).eps * exact.abs()
        # The code of a value halfway between two codes depends on float32's rounding.
        tie = ((values.double() - offset) / scale % 1 - 0.5).abs() < 1e-3
        assert bool(((got.double() - exact).abs() <= rounding + 1e-5 * exact.abs().max() + tie * scale).all())
