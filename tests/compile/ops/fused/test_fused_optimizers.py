"""FusedAdam, FusedLion and FusedLamb as torch optimizers, on the CPU."""

import copy
import pickle

import pytest
import torch
from support.gpu import fake_gpu
from support.optimizer_steps import FUSED_OPTIMIZERS, LOW, assert_same, copies, parameters, refresh, steps_beside
from support.paths import CHECKOUT

from opforge.ops import CPUAdam, FusedAdam, FusedLamb, FusedLion, reference

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]


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
    # torch's own sum of so long a row is 1 % too large or too small.
    params = [torch.nn.Parameter(torch.full((1 << 24,), 0.3, dtype=torch.bfloat16))]
    params[0].grad = params[0].detach()
    divisor = FusedLamb._gradient_divisor({"params": params, "max_grad_norm": 1.0}, params[0].device, None)
    assert divisor.item() == pytest.approx(params[0].detach()[0].item() * 2**12, rel=1e-5)


@pytest.mark.parametrize("capturable", [False, True])
def test_lamb_clips_a_group_together_that_takes_several_calls(capturable):
    """Parameters with master weights, and with fewer steps, are updated by calls of their own."""
    params = [*parameters((50,)), *parameters((3, 4), dtype=torch.float16), *parameters((6,), seed=1)]
    others = copies(params)
    ours = FusedLamb(params, capturable=capturable, master_weights=True)
    theirs = [FusedLamb([other], master_weights=True) for other in others]
    for count in (2, 3):
        refresh(params)
        params[2].grad = params[2].grad if count == 3 else None
        norm = torch.cat([param.grad.float().flatten() for param in params[:count]]).norm().item()
        ours.param_groups[0]["max_grad_norm"] = (norm + 1e-6) / 2
        for param, other in zip(params[:count], others, strict=False):
            other.grad = param.grad / 2
        for optimizer in (ours, *theirs[:count]):
            optimizer.step()
    assert_same(params, others)
    assert ours.get_lamb_coeffs() == pytest.approx([other.get_lamb_coeffs()[0] for other in theirs], rel=1e-5)


@pytest.mark.parametrize("optimizer_class", FUSED_OPTIMIZERS)
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


@pytest.mark.parametrize("optimizer_class", FUSED_OPTIMIZERS)
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("options", [{}, {"master_weights": True, "fp32_optimizer_states": False}])
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
            if name == "master":
                assert other.state[twin][name].dtype == torch.float32
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
    for other_class in (torch.optim.AdamW, CPUAdam):
        fourth = copies(third)
        peer = other_class(fourth)
        peer.load_state_dict(copy.deepcopy(ours.state_dict()))
        assert peer.param_groups[0]["weight_decay"] == 0.1
        peer.param_groups[0]["capturable"] = False  # torch supports it on GPUs only
        twin = copies(third)
        again = FusedAdam(twin)
        again.load_state_dict(copy.deepcopy(ours.state_dict()))
        steps_beside(again, peer, twin, fourth, count=2)


@pytest.mark.parametrize("capturable", [False, True])
def test_parameters_without_a_gradient_are_skipped_and_count_their_own_steps(capturable):
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


def test_the_rate_of_a_capturable_step_may_be_a_tensor_that_changes():
    params = parameters((40,), (3, 3))
    others = copies(params)
    rate = torch.tensor(1e-3)
    ours = FusedAdam(params, lr=rate, capturable=True)
    theirs = torch.optim.AdamW(others, lr=1e-3, weight_decay=0.0)
    for value in (1e-3, 5e-3, 1e-4):
        rate.fill_(value)
        theirs.param_groups[0]["lr"] = value
        steps_beside(ours, theirs, params, others, count=2)


@pytest.mark.parametrize("optimizer_class", FUSED_OPTIMIZERS)
def test_a_grad_scaler_needs_no_wait_to_unscale_and_to_skip(optimizer_class):
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
    for count in (torch.tensor(7.0), torch.tensor(3.0)):
        for optimizer in (ours, theirs):
            for state in optimizer.state.values():
                state["step"] = count.clone()
        steps_beside(ours, theirs, params, others, count=1)


def test_counting_on_the_device_may_begin_and_end_between_steps():
    params = parameters((4,), (5,))
    others = copies(params)
    ours, theirs = FusedAdam(params), torch.optim.AdamW(others, weight_decay=0.0)
    for capturable in (False, True, False):
        ours.param_groups[0]["capturable"] = capturable
        steps_beside(ours, theirs, params, others, count=2)
    assert [ours.state[param]["step"] for param in params] == [6, 6]


def test_a_gradient_in_another_memory_order_is_used():
    params = parameters((8, 6))
    others = copies(params)
    params[0].grad = params[0].grad.t().contiguous().t()
    for optimizer, of in ((FusedAdam(params), params), (FusedAdam(others), others)):
        optimizer.step()
        assert optimizer.state[of[0]]["step"] == 1
    assert torch.equal(params[0], others[0])


@pytest.mark.parametrize("optimizer_class", FUSED_OPTIMIZERS)
def test_zero_grad_does_what_the_constructor_says(optimizer_class):
    for set_grad_none in (True, False):
        params = parameters((4,))
        optimizer = optimizer_class(params, set_grad_none=set_grad_none)
        optimizer.zero_grad()
        assert (params[0].grad is None) is set_grad_none
        refresh(params)
        optimizer.zero_grad(set_to_none=not set_grad_none)
        assert (params[0].grad is None) is not set_grad_none
        assert copy.deepcopy(optimizer).set_grad_none is set_grad_none


@pytest.mark.parametrize(
    ("make", "message"),
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
def test_options_out_of_range_are_rejected(make, message):
    with pytest.raises(ValueError) as caught:
        make(parameters((2,)))
    assert str(caught.value) == message


def test_tensors_without_a_kernel_are_rejected_before_anything_changes():
    params = [torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(4, dtype=torch.float64))]
    for param in params:
        param.grad = torch.ones_like(param)
    with pytest.raises(RuntimeError, match=r"param_groups\[0\]\['params'\]\[1\] is torch.float64, expected"):
        FusedAdam(params).step()
    assert torch.equal(params[0], torch.ones(4))
    away = torch.nn.Parameter(torch.ones(4, device="meta"))
    away.grad = torch.ones_like(away)
    with pytest.raises(RuntimeError, match="the parameters are on meta, and the accelerator in use is 'cpu', for cpu"):
        FusedAdam([params[0], away]).step()
    assert torch.equal(params[0], torch.ones(4))


def test_the_gpu_benchmarks_make_their_calls(monkeypatch):
    """Runs each contender once, with the host's ops and small tensors. Nothing is measured."""
    from types import SimpleNamespace

    from opforge.builders.cpu.fused_adam import FusedAdamBuilder
    from opforge.builders.cpu.fused_lamb import FusedLambBuilder
    from opforge.builders.cpu.fused_lion import FusedLionBuilder
    from opforge.builders.cpu.quantizer import QuantizerBuilder

    monkeypatch.syspath_prepend(CHECKOUT)
    from benchmarks.gpu import optimizers, quantizer

    ours = {"fused_adam_": FusedAdamBuilder, "fused_lion_": FusedLionBuilder, "fused_lamb_": FusedLambBuilder}
    stand_in = {name: getattr(builder().load(), name) for name, builder in ours.items()}
    monkeypatch.setattr(optimizers, "ops", SimpleNamespace(**stand_in))  # the Triton ops have the same arguments
    monkeypatch.setattr(optimizers, "captured", lambda call: call)
    monkeypatch.setattr(optimizers, "SMALL", [1000] * 20)
    gpu = fake_gpu.create()
    gpu.target, gpu.memory = None, 1 << 21
    for name, builder in zip(("FusedAdamBuilder", "FusedLionBuilder", "FusedLambBuilder"), ours.values(), strict=True):
        monkeypatch.setattr(optimizers, name, builder)
    monkeypatch.setattr(quantizer, "QuantizerBuilder", QuantizerBuilder)
    for module, count in ((optimizers, 29), (quantizer, 40)):
        figures = list(module.run(gpu))
        assert len({(figure.task, figure.contender) for figure in figures}) == len(figures) == count
    assert not gpu.left_out
