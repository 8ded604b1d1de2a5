"""The multi-tensor ops against float64 references: the host's kernels, the GPU's own source run on the host, and the
Triton kernels interpreted."""

import itertools
import math

import pytest
import torch
from support.gpu import gpu_on_host, triton_interpreter

from opforge.builders import cpu, cuda, triton
from opforge.ops import reference

# numpy, which interprets Triton, warns of what a GPU does without a word: x / 0, an overflow to infinity.
pytestmark = [pytest.mark.compile, pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")]

LOW = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *LOW)
ADAM = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "step": 3}
LION = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
LAMB = {**ADAM, "max_coeff": 10.0, "min_coeff": 0.01}


def builder_of(package, name):
    table = package.TRITON_BUILDERS if package is triton else package.BUILDERS
    module, _, attribute = table[name].partition(":")
    return getattr(__import__(module, fromlist=[attribute]), attribute)


@pytest.fixture(scope="module", params=["host", "gpu", "triton"])
def ops(request, tmp_path_factory):
    """Adam's, Lion's and LAMB's module."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "triton":
            triton_interpreter.start(patch)
            yield [builder_of(triton, f"Triton{name}Builder")().load() for name in ("Adam", "Lion", "Lamb")]
        else:
            yield load(request.param, tmp_path_factory)


def load(place, tmp_path_factory):
    loaded = []
    for name in ("FusedAdamBuilder", "FusedLionBuilder", "FusedLambBuilder"):
        builder = builder_of(cpu, name)
        if place == "gpu":
            builder = gpu_on_host.on_host(builder_of(cuda, name), tmp_path_factory.mktemp(name))
        loaded.append(builder().load())
    return loaded


@pytest.fixture(scope="module")
def adam(ops):
    return ops[0]


@pytest.fixture(scope="module")
def lion(ops):
    return ops[1]


@pytest.fixture(scope="module")
def lamb(ops):
    return ops[2]


def inputs(shape, params=torch.float32, grads=torch.float32, states=torch.float32, seed=0):
    """A parameter, its gradient, and a first and second moment such as a few steps would leave."""
    torch.manual_seed(seed)
    param, grad, first = torch.randn(shape), torch.randn(shape), 0.3 * torch.randn(shape)
    second = 0.1 * torch.rand(shape) + 1e-3
    return [param.to(params), grad.to(grads), first.to(states), second.to(states)]


def flag(value=0):
    """DeepSpeed's flag is an int, GradScaler's a float."""
    return torch.tensor([value], dtype=torch.float32 if isinstance(value, float) else torch.int32)


def run_adam(op, many, copies=(), noop=0, **numbers):
    numbers = {**ADAM, "adamw_mode": True, "bias_correction": True, "maximize": False, **numbers}
    lists = [[tensors[i] for tensors in many] for i in range(4)]
    op.fused_adam_(flag(noop), *lists, list(copies), **numbers)


def run_lion(op, many, copies=(), noop=0, **numbers):
    lists = [[tensors[i] for tensors in many] for i in range(3)]
    op.fused_lion_(flag(noop), *lists, list(copies), **{**LION, **numbers})


def run_lamb(op, many, copies=(), noop=0, **numbers):
    numbers = {**LAMB, "eps_inside_sqrt": False, "bias_correction": True, "scale": 1.0, **numbers}
    lists = [[tensors[i] for tensors in many] for i in range(4)]
    ratios = torch.ones(len(many))
    op.fused_lamb_(flag(noop), *lists, list(copies), ratios=ratios, **numbers)
    return ratios


def spacing(dtype, value):
    """The distance between neighbours of `dtype` near each of the values."""
    info = torch.finfo(dtype)
    return (value.abs().clamp_min(info.smallest_normal) * info.eps).double()


def assert_rounds_to(actual, exact, units=1.0, scale=None):
    """`actual` is the float64 result, but for some units in the last place of its dtype at the magnitude of `scale`."""
    dtype = actual.dtype
    allowed = units * spacing(dtype, exact if scale is None else scale.maximum(exact.abs()))
    allowed = allowed + 4.0 * spacing(torch.float32, torch.ones_like(exact) if scale is None else scale)
    error = (actual.double() - exact).abs()
    assert bool((error <= allowed).all()), f"off by {(error / allowed).max().item()} of what is allowed"


def exact(tensors):
    return [tensor.double() for tensor in tensors]


@pytest.mark.parametrize(("params", "grads", "states"), list(itertools.product(DTYPES, DTYPES, DTYPES)))
@pytest.mark.parametrize(("adamw_mode", "maximize"), [(True, False), (False, True)])
def test_adam_matches_the_reference_in_every_dtype(adam, params, grads, states, adamw_mode, maximize):
    tensors = inputs(5000, params, grads, states)
    wanted = reference.adam(*exact(tensors), adamw_mode=adamw_mode, maximize=maximize, **ADAM)
    run_adam(adam, [tensors], adamw_mode=adamw_mode, maximize=maximize)
    for actual, result in zip((tensors[0], tensors[2], tensors[3]), wanted, strict=True):
        assert_rounds_to(actual, result)


@pytest.mark.parametrize(("params", "grads", "states"), list(itertools.product(DTYPES, DTYPES, (torch.float32, *LOW))))
def test_lion_matches_the_reference_in_every_dtype(lion, params, grads, states):
    tensors = inputs(5000, params, grads, states)[:3]
    direction = 0.9 * tensors[2].double() + 0.1 * tensors[1].double()
    wanted = reference.lion(*exact(tensors), **LION)
    run_lion(lion, [tensors])
    clear = direction.abs() > 1e-6  # nearer to zero, the sign is a matter of rounding
    assert_rounds_to(tensors[0][clear], wanted[0][clear])
    assert_rounds_to(tensors[2], wanted[1])


@pytest.mark.parametrize(("params", "grads", "states"), list(itertools.product(DTYPES, DTYPES, (torch.float32, *LOW))))
@pytest.mark.parametrize("modes", [{}, {"eps_inside_sqrt": True, "bias_correction": False, "scale": 4.0}])
def test_lamb_matches_the_reference_in_every_dtype(lamb, params, grads, states, modes):
    tensors = inputs(5000, params, grads, states)
    kept = [tensor.clone() for tensor in tensors]
    ratios = run_lamb(lamb, [tensors], **modes)
    wanted = reference.lamb(*exact(kept), **LAMB, **modes)
    # The second pass reads the moments as they were stored.
    stored = (tensors[2].double(), tensors[3].double())
    root = (stored[1] + LAMB["eps"]).sqrt() if modes else stored[1].sqrt() + LAMB["eps"]
    rate = LAMB["lr"] * (1 if modes else math.sqrt(1 - 0.999**3) / (1 - 0.9**3))
    direction = stored[0] / root + LAMB["weight_decay"] * kept[0].double()
    assert ratios.item() == pytest.approx(wanted[3], rel=1e-4)
    assert_rounds_to(tensors[0], kept[0].double() - rate * wanted[3] * direction, 2.0)
    assert_rounds_to(tensors[2], wanted[1])
    assert_rounds_to(tensors[3], wanted[2])


SHAPES = [(), (0,), (1,), (3, 0), (7,), (8,), (255,), (257,), (2047,), (2048,), (2049,), (4096,), (33, 311), (20_001,)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 1])
def test_every_shape_is_updated_to_its_last_element_and_no_further(adam, lion, lamb, dtype, offset):
    """At aligned addresses and at others, all in one call, with poison on both sides."""
    for run, op, count in ((run_adam, adam, 4), (run_lion, lion, 3), (run_lamb, lamb, 4)):
        many, plain, buffers = [], [], []
        for i, shape in enumerate(SHAPES):
            tensors = inputs(shape, dtype, dtype, seed=i)[:count]
            size, views = tensors[0].numel(), []
            for tensor in tensors:
                buffer = torch.full((size + 32,), math.nan, dtype=tensor.dtype)
                start = 16 + offset - (buffer.data_ptr() % 16) // buffer.element_size()
                views.append(buffer[start : start + size].view(shape).copy_(tensor))
                buffers.append((buffer, start, size))
            many.append(views)
            plain.append(tensors)
        run(op, many)
        for tensors in plain:
            run(op, [tensors])
        for views, tensors in zip(many, plain, strict=True):
            for view, tensor in zip(views, tensors, strict=True):
                # A shorter call cuts tensors into other chunks, and so sums norms in another order.
                torch.testing.assert_close(view, tensor, rtol=2e-2 if dtype in LOW else 1e-5, atol=1e-6)
                assert not bool(view.isnan().any())
        for buffer, start, size in buffers:
            assert bool(buffer[:start].isnan().all()) and bool(buffer[start + size :].isnan().all())


def test_hundreds_of_tensors_of_mixed_dtypes_are_one_call(adam, lion, lamb):
    for run, op, count in ((run_adam, adam, 4), (run_lion, lion, 3), (run_lamb, lamb, 4)):
        many = [
            inputs(1 + i * 37 % 400, DTYPES[i % 3], DTYPES[i // 3 % 3], DTYPES[i // 9 % 3], seed=i)[:count]
            # Beyond what one launch takes; the interpreter takes any number as one.
            for i in range(40 if op.__name__.startswith("triton_") else 60 if run is run_lamb else 480)
        ]
        alone = [[tensor.clone() for tensor in tensors] for tensors in many]
        run(op, many)
        for tensors, others in zip(many[::13], alone[::13], strict=True):
            run(op, [others])
            for tensor, other in zip(tensors, others, strict=True):
                torch.testing.assert_close(tensor, other, rtol=2e-2 if tensor.dtype in LOW else 1e-5, atol=1e-6)


def test_a_set_flag_stops_every_update(adam, lion, lamb):
    for run, op, count in ((run_adam, adam, 4), (run_lion, lion, 3), (run_lamb, lamb, 4)):
        tensors = inputs((3000,))[:count]
        kept = [tensor.clone() for tensor in tensors]
        for stop in (1, 2.0):
            run(op, [tensors], noop=stop)
            assert all(torch.equal(tensor, same) for tensor, same in zip(tensors, kept, strict=True))
        for go in (0, 0.0, -0.0):
            before = tensors[0].clone()
            run(op, [tensors], noop=go)
            assert not torch.equal(tensors[0], before)


@pytest.mark.parametrize("dtype", LOW)
def test_copies_are_the_new_parameters_rounded(adam, lion, lamb, dtype):
    for run, op, count in ((run_adam, adam, 4), (run_lion, lion, 3), (run_lamb, lamb, 4)):
        many = [inputs(size, torch.float32, dtype, seed=size)[:count] for size in (5, 2048, 5001)]
        copies = [torch.full_like(tensors[1], math.nan) for tensors in many]
        run(op, many, copies)
        for tensors, copy in zip(many, copies, strict=True):
            assert torch.equal(copy, tensors[0].to(dtype))


def test_numbers_on_the_device_do_what_numbers_in_the_call_do(adam, lion, lamb):
    on_device = {"lr_tensor": torch.tensor(1e-2), "step_tensor": torch.tensor(3.0)}
    for run, op, count, step in (
        (run_adam, adam, 4, {"step": 0}),
        (run_lion, lion, 3, {}),
        (run_lamb, lamb, 4, {"step": 0}),
    ):
        for adamw in (True, False):
            mode = {"adamw_mode": adamw} if run is run_adam else {}
            there, here, scaled = (inputs((3000,))[:count] for _ in range(3))
            run(op, [here], **mode)
            run(op, [there], **on_device, **{**step, "lr": 0.0}, **mode)
            scaled[1] *= 1024.0
            run(op, [scaled], grad_scale=torch.tensor(1024.0), **mode)
            for one, other, third in zip(here, there, scaled, strict=True):
                if one is not here[1]:
                    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
                    torch.testing.assert_close(one, third, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("step", [1, 2, 1000, 1_000_000])
def test_bias_correction_on_the_device_has_no_cancellation(adam, step):
    for betas in ((0.9, 0.999), (0.5, 0.999999), (0.0, 0.0)):
        numbers = {"beta1": betas[0], "beta2": betas[1]}
        tensors = inputs((100,))
        wanted = reference.adam(*exact(tensors), **{**ADAM, **numbers, "step": step})
        run_adam(adam, [tensors], step=0, step_tensor=torch.tensor(float(step)), **numbers)
        torch.testing.assert_close(tensors[0].double(), wanted[0], rtol=1e-5, atol=1e-6)


def test_lambs_sums_are_the_same_each_time_and_its_ratio_has_bounds(lamb):
    results = []
    for _ in range(2):
        many = [inputs((100_003,), seed=1), inputs((17,), seed=2)]
        ratios = run_lamb(lamb, many)
        results.append((ratios, many))
    assert torch.equal(results[0][0], results[1][0])
    for one, other in zip(results[0][1], results[1][1], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    tensors = inputs((50,))
    assert run_lamb(lamb, [tensors], max_coeff=0.02).item() == pytest.approx(0.02)
    tensors = inputs((50,))
    assert run_lamb(lamb, [tensors], min_coeff=7.0).item() == pytest.approx(7.0)
    tensors = inputs((50,))
    tensors[0].zero_()
    assert run_lamb(lamb, [tensors]).item() == 1.0


SPECIAL = [0.0, -0.0, 1.0, -1e-3, 1e-40, 1e18, 3e19, 3.4e38, math.inf, -math.inf, math.nan]


def test_nan_and_inf_pass_through_as_torchs_fused_kernel_passes_them(adam):
    values = torch.tensor(SPECIAL)
    tensors = [t.reshape(-1).clone() for t in torch.meshgrid(values, values, values, values.abs(), indexing="ij")]
    theirs = [[tensor.clone()] for tensor in tensors]
    numbers = dict(ADAM)
    steps = [torch.tensor(float(numbers.pop("step")))]
    torch._fused_adamw_(*theirs, [], steps, amsgrad=False, maximize=False, **numbers)
    run_adam(adam, [tensors])
    for ours, [torchs] in zip(tensors, theirs, strict=True):
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(kind(ours), kind(torchs))


def test_low_precision_results_round_to_nearest_even(adam):
    # With betas of 1, v = 1 and eps = 0 a step of lr = 1 takes a parameter from 0 to exactly -exp_avg.
    torch.manual_seed(1)
    anything = torch.randint(-(2**31), 2**31 - 1, (20_000,)).to(torch.int32).view(torch.float32)
    ties = [(torch.arange(0, 2**31, 1 << shift) + (1 << shift - 1)).to(torch.int32) for shift in (16, 13)]
    subnormal = torch.linspace(-6.2e-5, 6.2e-5, 8193)
    value = torch.cat([anything, ties[0].view(torch.float32), ties[1][::7].view(torch.float32), subnormal])
    numbers = {"lr": 1.0, "beta1": 1.0, "beta2": 1.0, "eps": 0.0, "weight_decay": 0.0, "bias_correction": False}
    for dtype in LOW:
        tensors = [torch.zeros(value.numel(), dtype=dtype), torch.zeros_like(value), value, torch.ones_like(value)]
        run_adam(adam, [[tensor.clone() for tensor in tensors[:3]] + [tensors[3].clone()]], **numbers)
        moved = [tensor.clone() for tensor in tensors]
        run_adam(adam, [moved], **numbers)
        wanted, finite = (-value).to(dtype), value.isfinite()
        assert torch.equal(moved[0][finite], wanted[finite])
        assert bool(moved[0][value.isnan()].isnan().all())


def test_every_value_of_sixteen_bits_survives_a_step_of_zero(adam):
    for dtype in LOW:
        every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
        tensors = [every.clone(), torch.zeros_like(every), torch.zeros(65536), torch.zeros(65536)]
        run_adam(adam, [tensors], lr=0.0, weight_decay=0.0)
        number = ~every.isnan()
        assert torch.equal(tensors[0][number], every[number])
        assert torch.equal(tensors[0][number].signbit(), every[number].signbit())
        assert bool(tensors[0][~number].isnan().all())
