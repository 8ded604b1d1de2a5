"""FusedAdam, FusedLion and FusedLamb as torch optimizers, DeepSpeed's calls, and tracing by torch.compile."""

import copy
import pickle

import gpu_clock
import pytest
import torch

from opforge import get_accelerator
from opforge.ops import CPUAdam, FusedAdam, FusedLamb, FusedLion, reference

pytestmark = pytest.mark.compile

EVERY = [FusedAdam, FusedLion, FusedLamb]
LOW = (torch.bfloat16, torch.float16)


def parameters(*shapes, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    refresh(params)
    return params


def refresh(params, seed=None):
    if seed is not None:
        torch.manual_seed(seed)
    for param in params:
        param.grad = torch.randn(param.shape).to(param.dtype)


def copies(params):
    out = [torch.nn.Parameter(param.detach().clone()) for param in params]
    for new, old in zip(out, params, strict=True):
        new.grad = None if old.grad is None else old.grad.clone()
    return out


def assert_same(a, b, rtol=1e-5, atol=1e-6):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x.detach(), y.detach(), rtol=rtol, atol=atol)


def steps_beside(ours, theirs, params, others, count=5):
    for _ in range(count):
        refresh(params)
        for param, other in zip(params, others, strict=True):
            other.grad = param.grad.clone()
        ours.step()
        theirs.step()
    assert_same(params, others)


@pytest.mark.parametrize("capturable", [False, True])
def test_adam_follows_torchs(capturable):
    for kwargs, peer in (
        ({"weight_decay": 0.1}, torch.optim.AdamW),
        ({"weight_decay": 0.1, "adam_w_mode": False}, torch.optim.Adam),
        ({"maximize": True, "betas": (0.8, 0.95), "eps": 1e-6, "lr": 1e-2}, torch.optim.AdamW),
    ):
        params = parameters((3, 4), (5,), (), (0,), (70, 300))
        others = copies(params)
        numbers = {"weight_decay": 0.0, **{k: v for k, v in kwargs.items() if k != "adam_w_mode"}}
        ours = FusedAdam(params, capturable=capturable, **kwargs)
        steps_beside(ours, peer(others, **numbers), params, others)
        assert [int(ours.state[param]["step"]) for param in params] == [5] * 5


@pytest.mark.parametrize("capturable", [False, True])
def test_lion_and_lamb_follow_the_references(capturable):
    lion, lamb = parameters((50,)), parameters((50,))
    exact = [lion[0].detach().double(), torch.zeros(50).double()]
    exact_lamb = [lamb[0].detach().double(), torch.zeros(50).double(), torch.zeros(50).double()]
    numbers = {"lr": 1e-2, "weight_decay": 0.1}
    ours = FusedLion(lion, betas=(0.9, 0.99), capturable=capturable, **numbers)
    other = FusedLamb(lamb, betas=(0.9, 0.99), capturable=capturable, **numbers)
    for step in range(1, 6):
        refresh(lion, step)
        refresh(lamb, step)
        grad = lion[0].grad.double()
        exact = reference.lion(exact[0], grad, exact[1], beta1=0.9, beta2=0.99, **numbers)
        *exact_lamb, ratio = reference.lamb(
            exact_lamb[0], grad, *exact_lamb[1:], step=step, beta1=0.9, beta2=0.99, eps=1e-8, **numbers
        )
        ours.step()
        other.step()
        assert other.get_lamb_coeffs() == [pytest.approx(ratio, rel=1e-5)]
    assert_same([lion[0].double(), lamb[0].double()], [exact[0], exact_lamb[0]])


def test_lamb_clips_all_gradients_of_a_group_together():
    for capturable in (False, True):
        params = parameters((50,), (3, 4))
        others = copies(params)
        norm = torch.cat([param.grad.flatten() for param in params]).norm()
        for other in others:
            other.grad /= norm + 1e-6
        FusedLamb(params, max_grad_norm=1.0, capturable=capturable).step()
        FusedLamb(others).step()
        assert_same(params, others)


@pytest.mark.parametrize("optimizer_class", EVERY)
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("capturable", [False, True])
def test_master_weights_train_as_float32_does(optimizer_class, dtype, capturable):
    params = [*parameters((70, 30), (7,), dtype=dtype), *parameters((5,), seed=3)]
    wide = [torch.nn.Parameter(param.detach().float()) for param in params]
    ours = optimizer_class(params, lr=1e-3, master_weights=True, capturable=capturable)
    theirs = optimizer_class(wide, lr=1e-3)
    for seed in range(20):
        refresh(params, seed)
        for param, other in zip(params, wide, strict=True):
            other.grad = param.grad.float()
        ours.step()
        theirs.step()
    masters = [ours.state[param].get("master", param) for param in params]
    assert_same(masters, wide)
    assert [master.dtype for master in masters] == [torch.float32] * 3
    for param, master in zip(params, masters, strict=True):
        assert torch.equal(param.detach(), master.detach().to(param.dtype))


@pytest.mark.parametrize("optimizer_class", EVERY)
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("options", [{}, {"master_weights": True}, {"fp32_optimizer_states": False}])
def test_a_state_dict_round_trip_changes_no_bit(optimizer_class, capturable, options):
    params = [*parameters((4, 5), (7,), dtype=torch.bfloat16), *parameters((6,), seed=1)]
    optimizer = optimizer_class(params, capturable=capturable, **options)
    optimizer.step()
    others = copies(params)
    other = optimizer_class(others, capturable=capturable, **options)
    other.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
    for _ in range(2):
        refresh(params, 5)
        refresh(others, 5)
        optimizer.step()
        other.step()
    for param, twin in zip(params, others, strict=True):
        assert torch.equal(param, twin)
        assert optimizer.state[param].keys() == other.state[twin].keys()
        for name, value in optimizer.state[param].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other.state[twin][name]))
            if name in ("exp_avg", "exp_avg_sq"):
                low = "fp32_optimizer_states" in options and param.dtype in LOW
                assert value.dtype == (torch.bfloat16 if low else torch.float32)
        assert int(other.state[twin]["step"]) == 3


@pytest.mark.parametrize("capturable", [False, True])
def test_adams_state_goes_to_torch_and_to_cpu_adam_and_back(capturable):
    params = parameters((4, 5), (7,))
    others = copies(params)
    theirs = torch.optim.AdamW(others, lr=1e-2, weight_decay=0.1)
    theirs.step()
    third = copies(others)
    ours = FusedAdam(third, capturable=capturable)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    ours.param_groups[0]["capturable"] = capturable
    steps_beside(ours, theirs, third, others)
    for back in (torch.optim.AdamW, CPUAdam):
        fourth = copies(third)
        peer = back(fourth)
        peer.load_state_dict(copy.deepcopy(ours.state_dict()))
        assert peer.param_groups[0]["weight_decay"] == 0.1
        peer.param_groups[0]["capturable"] = False  # torch has that on a GPU only
        twin = copies(third)
        again = FusedAdam(twin)
        again.load_state_dict(copy.deepcopy(ours.state_dict()))
        steps_beside(again, peer, twin, fourth, count=2)


@pytest.mark.parametrize("capturable", [False, True])
def test_parameters_without_a_gradient_wait_and_count_their_own_steps(capturable):
    params = parameters((4,), (5,), (6,))
    others = copies(params)
    ours = FusedAdam(params, weight_decay=0.1, capturable=capturable)
    theirs = torch.optim.AdamW(others, weight_decay=0.1)
    for frozen in (1, None, 0, 2, None, None):
        refresh(params)
        if frozen is not None:
            params[frozen].grad = None
        for param, other in zip(params, others, strict=True):
            other.grad = None if param.grad is None else param.grad.clone()
        ours.step()
        theirs.step()
    assert_same(params, others)
    assert [int(ours.state[param]["step"]) for param in params] == [5, 5, 5]


def test_steps_of_a_group_are_counted_once_whatever_its_dtypes():
    params = [*parameters((4,)), *parameters((4,), dtype=torch.bfloat16), *parameters((4,), dtype=torch.float16)]
    for capturable in (False, True):
        optimizer = FusedAdam(params, capturable=capturable)
        for count in (1, 2, 3):
            refresh(params)
            optimizer.step()
            assert [int(optimizer.state[param]["step"]) for param in params] == [count] * 3


def test_a_capturable_steps_rate_is_a_tensor_that_may_change():
    params = parameters((40,), (3, 3))
    others = copies(params)
    rate = torch.tensor(1e-3)
    ours = FusedAdam(params, lr=rate, capturable=True)
    theirs = torch.optim.AdamW(others, lr=1e-3, weight_decay=0.0)
    for value in (1e-3, 5e-3, 1e-4):
        rate.fill_(value)
        theirs.param_groups[0]["lr"] = value
        steps_beside(ours, theirs, params, others, count=2)


@pytest.mark.parametrize("optimizer_class", EVERY)
def test_a_grad_scaler_unscales_and_skips_without_a_wait(optimizer_class):
    assert not optimizer_class(parameters((2,)))._step_supports_amp_scaling
    params = parameters((40,), (3, 3))
    others = copies(params)
    ours, plain = optimizer_class(params, capturable=True), optimizer_class(others)
    assert ours._step_supports_amp_scaling
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    scaler.scale(torch.ones(1))
    for overflow in (False, True, False):
        refresh(params, 3)
        for param, other in zip(params, others, strict=True):
            other.grad = param.grad.clone()
            param.grad *= scaler.get_scale()
        if overflow:
            params[0].grad[3] = float("inf")
        else:
            plain.step()
        scaler.step(ours)
        scaler.update()
        assert_same(params, others)
    assert [int(ours.state[param]["step"]) for param in params] == [2, 2]


def test_states_replaced_by_the_user_are_used():
    params = parameters((4,), (5,))
    others = copies(params)
    ours, theirs = FusedAdam(params), torch.optim.AdamW(others, weight_decay=0.0)
    steps_beside(ours, theirs, params, others, count=2)
    for optimizer, of in ((ours, params), (theirs, others)):
        optimizer.state[of[0]]["exp_avg"] = torch.ones(4)
        optimizer.state[of[1]] = {**optimizer.state[of[1]], "exp_avg": torch.ones(5)}
    steps_beside(ours, theirs, params, others, count=2)


def test_gradients_in_another_order_of_dimensions_are_taken():
    params = parameters((8, 6))
    others = copies(params)
    params[0].grad = params[0].grad.t().contiguous().t()
    for optimizer, of in ((FusedAdam(params), params), (FusedAdam(others), others)):
        optimizer.step()
        assert optimizer.state[of[0]]["step"] == 1
    assert torch.equal(params[0], others[0])


@pytest.mark.parametrize("optimizer_class", EVERY)
def test_zero_grad_does_what_the_constructor_says(optimizer_class):
    for set_grad_none in (True, False):
        params = parameters((4,))
        optimizer = optimizer_class(params, set_grad_none=set_grad_none)
        optimizer.zero_grad()
        assert (params[0].grad is None) is set_grad_none
        refresh(params)
        optimizer.zero_grad(set_to_none=not set_grad_none)
        assert (params[0].grad is None) is not set_grad_none


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: FusedAdam(p, lr=-1.0), "FusedAdam: lr is -1.0, expected at least 0"),
        (lambda p: FusedAdam(p, betas=(0.9, 1.0)), "FusedAdam: betas[1] is 1.0, expected in [0, 1)"),
        (
            lambda p: FusedAdam(p, amsgrad=True),
            "FusedAdam: amsgrad is True, expected False: use torch.optim.AdamW for that variant",
        ),
        (lambda p: FusedLion(p, weight_decay=-1.0), "FusedLion: weight_decay is -1.0, expected at least 0"),
        (lambda p: FusedLamb(p, max_coeff=0.001), "FusedLamb: max_coeff is 0.001, expected at least 0.01"),
    ],
)
def test_numbers_out_of_range_are_refused(make, text):
    with pytest.raises(ValueError) as caught:
        make(parameters((2,)))
    assert str(caught.value) == text


def test_what_no_kernel_takes_is_refused_before_anything_changes():
    params = [torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(4, dtype=torch.float64))]
    for param in params:
        param.grad = torch.ones_like(param)
    with pytest.raises(RuntimeError, match=r"param_groups\[0\]\['params'\]\[1\] is torch.float64, expected"):
        FusedAdam(params).step()
    assert torch.equal(params[0], torch.ones(4))
    away = torch.nn.Parameter(torch.ones(4, device="meta"))
    away.grad = torch.ones_like(away)
    with pytest.raises(RuntimeError, match="the parameters are on meta, and the accelerator in use is 'cpu', for cpu"):
        FusedAdam([away]).step()


@pytest.fixture(scope="module")
def modules():
    accelerator = get_accelerator()
    return [accelerator.load_op(f"{name}Builder") for name in ("FusedAdam", "FusedLion", "FusedLamb")]


def test_deepspeeds_calls_do_a_step(modules):
    adam, lion, lamb = modules
    torch.manual_seed(0)
    noop = torch.tensor([0], dtype=torch.int32)
    g, p, m, v = lists = [[torch.rand(5), torch.rand(70, 40)] for _ in range(4)]
    numbers = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
    wanted = [
        reference.adam(*(t.double() for t in (p[i], g[i], m[i], v[i])), step=2, eps=1e-6, adamw_mode=False, **numbers)
        for i in range(2)
    ]
    adam.multi_tensor_adam(2048 * 32, noop, lists, 1e-2, 0.9, 0.99, 1e-6, 2, 0, 1, 0.1)
    for i in range(2):
        assert_same([p[i].double(), m[i].double(), v[i].double()], wanted[i])
    wanted_lion = reference.lion(p[0].double(), g[0].double(), m[0].double(), **numbers)
    lion.multi_tensor_lion(2048 * 32, noop, [g, p, m], 1e-2, 0.9, 0.99, 2, 0.1)
    assert_same([p[0].double(), m[0].double()], wanted_lion)
    kept = [t[0].clone() for t in (p, g, m, v)]
    *wanted_lamb, ratio = reference.lamb(
        *(t.double() for t in kept), step=2, eps=1e-6, max_coeff=5.0, min_coeff=0.1, scale=2.0, **numbers
    )
    copy_of = torch.empty(5, dtype=torch.float16)
    found = lamb.lamb(p[0], copy_of, m[0], v[0], g[0], 1e-2, 0.9, 0.99, 5.0, 0.1, 1e-6, 2.0, 2, 1, 1, 0.1)
    assert found.item() == pytest.approx(ratio, rel=1e-5)
    assert_same([p[0].double(), m[0].double(), v[0].double()], wanted_lamb)
    assert torch.equal(copy_of, p[0].half())
    with pytest.raises(ValueError) as caught:
        adam.multi_tensor_adam(1, noop, [g, p, m], 1e-2, 0.9, 0.99, 1e-6, 2, 0, 1, 0.1)
    assert str(caught.value) == (
        "multi_tensor_adam: tensor_lists has 3 lists, expected 4 or 5: [grads, params, exp_avg, exp_avg_sq], and where "
        "each new parameter is also to be written in a dtype of its own"
    )


def arguments_of(count, lists=1):
    many = [[torch.rand(3, 5) for _ in range(lists)] for _ in range(count)]
    return (torch.zeros(1, dtype=torch.int32), *many, [])


def test_opcheck_accepts_the_ops(modules):
    adam, lion, lamb = modules
    numbers = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
    modes = {"eps": 1e-8, "step": 1, "bias_correction": True}
    utils = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for op, count, more in (
        (adam.fused_adam_, 4, {**modes, "adamw_mode": True}),
        (lion.fused_lion_, 3, {}),
        (
            lamb.fused_lamb_,
            4,
            {
                **modes,
                "max_coeff": 1.0,
                "min_coeff": 0.1,
                "scale": 1.0,
                "eps_inside_sqrt": False,
                "ratios": torch.ones(2),
            },
        ),
    ):
        given = arguments_of(count, 2)
        on_device = {"lr_tensor": torch.tensor(1e-2), "step_tensor": torch.tensor(1.0), "grad_scale": None}
        torch.library.opcheck(op, given, {**numbers, **more}, test_utils=utils)
        torch.library.opcheck(op, given, {**numbers, **more, **on_device}, test_utils=utils)
        copied = (*given[:-1], [torch.empty(3, 5, dtype=torch.bfloat16) for _ in range(2)])
        torch.library.opcheck(op, copied, {**numbers, **more}, test_utils=utils)


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_traces_a_step_without_a_break(modules, dynamic):
    adam = modules[0]

    def train(noop, grads, params, exp_avg, exp_avg_sq):
        lists = [[grads * 2], [params], [exp_avg], [exp_avg_sq]]
        adam.multi_tensor_adam(1024, noop, lists, 1e-2, 0.9, 0.99, 1e-6, 2, 1, 1, 0.1)
        return params.sum()

    compiled = torch.compile(train, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for size in (4, 9):
        torch.manual_seed(size)
        plain = [torch.zeros(1, dtype=torch.int32), *(torch.rand(size) for _ in range(4))]
        traced = [tensor.clone() for tensor in plain]
        assert torch.equal(train(*plain), compiled(*traced))
        for a, b in zip(plain, traced, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {0: torch.zeros(2)},
            "noop_flag has 2 elements and is float32, expected one of int32 or float32: make it with torch.tensor",
        ),
        (
            {1: [torch.ones(3, 5, dtype=torch.float64)]},
            "params[0] is float64, expected float32, bfloat16 or float16: convert it with .to(torch.float32), or use "
            "torch.optim, which takes other dtypes",
        ),
        (
            {2: [torch.ones(5, 3)]},
            "grads[0] has shape (5, 3), expected that of params[0], (3, 5): pass a gradient and states that belong to "
            "the parameter",
        ),
        (
            {3: [torch.ones(3, 10)[:, ::2]]},
            "exp_avgs[0] has strides (10, 2), expected those of params[0], (5, 1): copy it into "
            "torch.empty_like(params[0])",
        ),
        ({4: []}, "exp_avg_sqs has 0 tensors, expected 1: pass one for each parameter"),
        (
            {5: [torch.ones(3, 4)]},
            "copies[0] has shape (3, 4), expected that of params[0], (3, 5): pass a gradient and states that belong to "
            "the parameter",
        ),
        (
            {2: [torch.ones(3, 5, device="meta")]},
            "params[0] is on cpu, expected meta: move it with .to(), or use an optimizer made for its device",
        ),
        ({"step": 0}, "step is 0, expected 1 at the first step: count it before the call"),
        (
            {"lr_tensor": torch.ones(2)},
            "lr_tensor has 2 elements and is float32, expected one of float32: make it with torch.tensor",
        ),
    ],
)
def test_a_refused_tensor_is_named_and_nothing_is_changed(modules, change, text):
    adam = modules[0]
    given = list(arguments_of(4))
    numbers = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "step": 1}
    numbers.update({"adamw_mode": True, "bias_correction": True})
    kept = [tensors[0].clone() for tensors in given[1:5]]
    original = [tensors[0] for tensors in given[1:5]]
    for key, value in change.items():
        if isinstance(key, int):
            given[key] = value
        else:
            numbers[key] = value
    with pytest.raises(RuntimeError) as caught:
        adam.fused_adam_(*given, **numbers)
    if "meta" not in text:
        assert str(caught.value) == text
    for now, then in zip(original, kept, strict=True):
        assert torch.equal(now, then)


def test_the_gpu_benchmarks_make_their_calls(monkeypatch):
    """With the host's ops and small tensors: nothing is measured, but each contender runs."""
    import os
    from types import SimpleNamespace

    from opforge.builders.cpu.fused_adam import FusedAdamBuilder
    from opforge.builders.cpu.fused_lamb import FusedLambBuilder
    from opforge.builders.cpu.fused_lion import FusedLionBuilder
    from opforge.builders.cpu.quantizer import QuantizerBuilder

    monkeypatch.syspath_prepend(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from benchmarks.gpu import optimizers, quantizer

    ours = {"fused_adam_": FusedAdamBuilder, "fused_lion_": FusedLionBuilder, "fused_lamb_": FusedLambBuilder}
    stand_in = {name: getattr(builder().load(), name) for name, builder in ours.items()}
    monkeypatch.setattr(optimizers, "ops", SimpleNamespace(**stand_in))  # Triton's has the same arguments
    monkeypatch.setattr(optimizers, "captured", lambda call: call)
    monkeypatch.setattr(optimizers, "SMALL", [1000] * 20)
    gpu = gpu_clock.clock()
    gpu.target, gpu.memory = None, 1 << 21
    for name, builder in zip(("FusedAdamBuilder", "FusedLionBuilder", "FusedLambBuilder"), ours.values(), strict=True):
        monkeypatch.setattr(optimizers, name, builder)
    monkeypatch.setattr(quantizer, "QuantizerBuilder", QuantizerBuilder)
    for module, count in ((optimizers, 29), (quantizer, 40)):
        figures = list(module.run(gpu))
        assert len({(one.task, one.contender) for one in figures}) == len(figures) == count
    assert not gpu.left_out
