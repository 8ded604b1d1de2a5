"""CPUAdam, CPUAdagrad and CPULion as torch optimizers."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from support.optimizer_steps import assert_same, copies, parameters, refresh, steps_beside

from opforge.ops import CPUAdagrad, CPUAdam, CPULion, reference

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]

EVERY = [CPUAdam, CPUAdagrad, CPULion]


def test_adam_follows_torchs():
    for kwargs, peer in (
        ({"weight_decay": 0.1}, torch.optim.AdamW),
        ({"weight_decay": 0.1, "adamw_mode": False}, torch.optim.Adam),
        ({"maximize": True, "betas": (0.8, 0.95), "eps": 1e-6, "lr": 1e-2}, torch.optim.AdamW),
    ):
        params = parameters((3, 4), (5,), ())
        others = copies(params)
        numbers = {"weight_decay": 0.0, **{k: v for k, v in kwargs.items() if k != "adamw_mode"}}
        steps_beside(CPUAdam(params, **kwargs), peer(others, **numbers), params, others)


def test_adagrad_follows_torchs():
    for kwargs in ({}, {"weight_decay": 0.1, "lr_decay": 0.5, "initial_accumulator_value": 0.2, "maximize": True}):
        params = parameters((3, 4), (5,), ())
        others = copies(params)
        steps_beside(CPUAdagrad(params, **kwargs), torch.optim.Adagrad(others, **kwargs), params, others)


def test_lion_follows_the_reference():
    [param] = parameters((50,))
    expected, average = param.detach().double(), torch.zeros(50).double()
    optimizer = CPULion([param], lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    for _ in range(5):
        refresh([param])
        expected, average = reference.lion(
            expected, param.grad.double(), average, lr=1e-2, beta1=0.9, beta2=0.99, weight_decay=0.1
        )
        optimizer.step()
    torch.testing.assert_close(param.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_groups_have_their_own_numbers_and_schedulers_change_them():
    params = parameters((4,), (5,), (6,))
    others = copies(params)

    def groups(of):
        return [{"params": of[:1], "lr": 0.1}, {"params": of[1:], "weight_decay": 0.5}]

    ours = CPUAdam(groups(params), lr=1e-3)
    theirs = torch.optim.AdamW(groups(others), lr=1e-3, weight_decay=0.0)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (ours, theirs)]
    for _ in range(4):
        steps_beside(ours, theirs, params, others, count=1)
        for scheduler in schedulers:
            scheduler.step()
    assert ours.param_groups[0]["lr"] == pytest.approx(0.1 / 16)


def test_parameters_without_a_gradient_wait_and_count_their_own_steps():
    params = parameters((4,), (5,), (6,))
    others = copies(params)
    ours, theirs = CPUAdam(params, weight_decay=0.1), torch.optim.AdamW(others, weight_decay=0.1)
    for frozen in (1, None, 0, 2, None):
        refresh(params)
        if frozen is not None:
            params[frozen].grad = None
        for param, other in zip(params, others, strict=True):
            other.grad = None if param.grad is None else param.grad.clone()
        ours.step()
        theirs.step()
    assert_same(params, others, rtol=1e-5, atol=1e-6)
    assert [ours.state[param]["step"] for param in params] == [4, 4, 4]
    ours.zero_grad()
    before = [param.detach().clone() for param in params]
    ours.step()
    assert_same(params, before, rtol=0, atol=0)


def test_a_group_added_later_is_trained():
    params = parameters((4,), (5,))
    optimizer = CPUAdam(params[:1])
    optimizer.step()
    optimizer.add_param_group({"params": params[1:], "lr": 1.0})
    before = params[1].detach().clone()
    optimizer.step()
    assert [optimizer.state[param]["step"] for param in params] == [2, 1]
    assert bool((params[1] != before).all())


def test_a_closure_is_called_with_gradients_on():
    [param] = parameters((4,))
    optimizer = CPUAdam([param], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (param * param).sum()
        loss.backward()
        return loss

    first, second = optimizer.step(closure), optimizer.step(closure)
    assert second < first


@pytest.mark.parametrize("optimizer_class", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fp32_optimizer_states", [True, False])
def test_a_state_dict_round_trip_changes_no_bit(optimizer_class, dtype, fp32_optimizer_states):
    params = parameters((4, 5), (7,), dtype=dtype)
    optimizer = optimizer_class(params, fp32_optimizer_states=fp32_optimizer_states)
    optimizer.step()
    others = copies(params)
    other = optimizer_class(others, fp32_optimizer_states=fp32_optimizer_states)
    other.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
    wanted = torch.float32 if fp32_optimizer_states or dtype == torch.float32 else torch.bfloat16
    for param, twin in zip(params, others, strict=True):
        for name in optimizer.state_names:
            assert optimizer.state[param][name].dtype == wanted
            assert torch.equal(optimizer.state[param][name], other.state[twin][name])
            assert other.state[twin][name].dtype == wanted
    for param, twin in zip(params, others, strict=True):
        param.grad = torch.ones_like(param)
        twin.grad = torch.ones_like(twin)
    optimizer.step()
    other.step()
    assert_same(params, others, rtol=0, atol=0)


@pytest.mark.parametrize("peer", [torch.optim.AdamW, torch.optim.Adam])
def test_adams_state_goes_to_torch_and_back(peer):
    params = parameters((4, 5), (7,))
    others = copies(params)
    theirs = peer(others, lr=1e-2, weight_decay=0.1)
    theirs.step()
    third = copies(others)
    ours = CPUAdam(third)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    assert ours.param_groups[0]["lr"] == 1e-2
    assert ours.param_groups[0]["adamw_mode"] is (peer is torch.optim.AdamW)
    assert ours.state[third[0]]["step"] == 1
    steps_beside(ours, theirs, third, others)
    fourth = copies(third)
    back = peer(fourth)
    back.load_state_dict(copy.deepcopy(ours.state_dict()))
    steps_beside(ours, back, third, fourth)


def test_adagrads_state_comes_from_torch_and_from_deepspeed():
    params = parameters((4, 5))
    theirs = torch.optim.Adagrad(params)
    theirs.step()
    saved = copy.deepcopy(theirs.state_dict())
    others = copies(params)
    ours = CPUAdagrad(others)
    ours.load_state_dict(saved)
    steps_beside(ours, theirs, others, params)
    saved = copy.deepcopy(theirs.state_dict())
    saved["state"][0]["exp_avg_sq"] = saved["state"][0].pop("sum")
    third = copies(params)
    again = CPUAdagrad(third)
    again.load_state_dict(saved)
    steps_beside(again, theirs, third, params)


def test_states_replaced_by_the_user_are_used():
    params = parameters((4,), (5,))
    others = copies(params)
    ours, theirs = CPUAdam(params), torch.optim.AdamW(others, weight_decay=0.0)
    steps_beside(ours, theirs, params, others, count=2)
    for optimizer, of in ((ours, params), (theirs, others)):
        old = optimizer.state[of[0]]
        optimizer.state[of[0]] = {**old, "exp_avg": torch.ones(4)}
        optimizer.state[of[1]]["exp_avg_sq"] = torch.ones(5)
    steps_beside(ours, theirs, params, others, count=2)
    for optimizer in (ours, theirs):
        optimizer.state.clear()
    steps_beside(ours, theirs, params, others, count=2)


@pytest.mark.parametrize("optimizer_class", EVERY)
def test_an_optimizer_can_be_copied_and_pickled(optimizer_class):
    params = parameters((4,), (5,))
    optimizer = optimizer_class(params, fp32_optimizer_states=False)
    optimizer.step()
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        others = twin.param_groups[0]["params"]
        assert others[0] is not params[0]
        for param in others:
            param.grad = torch.ones_like(param)
        twin.step()
        assert twin.state[others[0]]["step"] == 2
        assert optimizer.state[params[0]]["step"] == 1


def test_hooks_see_each_step():
    calls = []
    optimizer = CPUAdam(parameters((4,)))
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.step()
    assert calls == ["before", "after"]


def test_channels_last_parameters_are_trained_in_place():
    weight = torch.nn.Parameter(torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last))
    weight.grad = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    other = torch.nn.Parameter(weight.detach().contiguous())
    other.grad = weight.grad.contiguous()
    CPUAdam([weight]).step()
    CPUAdam([other]).step()
    assert torch.equal(weight.detach(), other.detach())


def test_a_gradient_in_another_order_of_dimensions_is_used():
    weight = torch.nn.Parameter(torch.randn(4, 6))
    weight.grad = torch.randn(6, 4).t()
    other = torch.nn.Parameter(weight.detach().clone())
    other.grad = weight.grad.contiguous()
    CPUAdam([weight]).step()
    CPUAdam([other]).step()
    assert torch.equal(weight.detach(), other.detach())


def test_autograd_notices_a_step_between_forward_and_backward():
    [param] = parameters((4,))
    loss = (param * param).sum()
    CPUAdam([param]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def refused(call, kind):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def test_sparse_gradients_are_refused():
    layer = torch.nn.Embedding(10, 3, sparse=True)
    dense = parameters((2,))
    layer(torch.tensor([1, 2])).sum().backward()
    optimizer = CPUAdam([*dense, *layer.parameters()])
    before = dense[0].detach().clone()
    assert refused(optimizer.step, RuntimeError) == (
        "CPUAdam: the gradient of param_groups[0]['params'][1] is sparse (torch.sparse_coo), expected a dense one: "
        "build the layer with sparse=False, or use torch.optim.SparseAdam for this parameter"
    )
    assert torch.equal(dense[0].detach(), before)


def test_complex_parameters_are_refused():
    assert refused(lambda: CPULion([torch.zeros(2, dtype=torch.complex64)]), ValueError) == (
        "CPULion: param_groups[0]['params'][0] is torch.complex64, expected a real dtype: optimize torch.view_as_real "
        "of it, or use torch.optim, which takes complex numbers"
    )


def test_other_devices_and_dtypes_are_refused_at_the_step():
    meta = torch.nn.Parameter(torch.ones(2, device="meta"))
    meta.grad = torch.ones(2, device="meta")
    assert refused(CPUAdam([{"params": parameters((2,))}, {"params": [meta]}]).step, RuntimeError) == (
        "CPUAdam: param_groups[1]['params'][0] is on meta, expected cpu: move the model with .cpu() before the step, "
        "or use an optimizer made for that device, such as torch.optim.AdamW(fused=True)"
    )
    assert refused(CPUAdagrad(parameters((2,), dtype=torch.float64)).step, RuntimeError) == (
        "CPUAdagrad: param_groups[0]['params'][0] is torch.float64, expected torch.float32, torch.bfloat16 or "
        "torch.float16: convert the model with .float(), or use torch.optim, which takes other dtypes"
    )


@pytest.mark.parametrize(
    ("optimizer_class", "numbers", "text"),
    [
        (CPUAdam, {"lr": -1.0}, "CPUAdam: lr is -1.0, expected at least 0"),
        (CPUAdam, {"lr": float("nan")}, "CPUAdam: lr is nan, expected at least 0"),
        (CPUAdam, {"lr": "0.1"}, "CPUAdam: lr is '0.1', expected one number"),
        (CPUAdam, {"lr": torch.ones(2)}, "CPUAdam: lr is tensor([1., 1.]), expected one number"),
        (CPUAdam, {"eps": -1.0}, "CPUAdam: eps is -1.0, expected at least 0"),
        (CPUAdam, {"weight_decay": -0.5}, "CPUAdam: weight_decay is -0.5, expected at least 0"),
        (CPUAdam, {"betas": (0.9, 1.0)}, "CPUAdam: betas[1] is 1.0, expected in [0, 1)"),
        (
            CPUAdam,
            {"amsgrad": True},
            "CPUAdam: amsgrad is True, expected False: use torch.optim.AdamW for that variant",
        ),
        (CPUAdagrad, {"lr_decay": -1.0}, "CPUAdagrad: lr_decay is -1.0, expected at least 0"),
        (CPUAdagrad, {"amsgrad": True}, "CPUAdagrad: amsgrad is True, expected False: Adagrad has no such variant"),
        (CPULion, {"betas": (-0.1, 0.9)}, "CPULion: betas[0] is -0.1, expected in [0, 1)"),
    ],
)
def test_numbers_out_of_range_are_refused(optimizer_class, numbers, text):
    assert refused(lambda: optimizer_class(parameters((2,)), **numbers), ValueError) == text


def test_a_refused_group_is_not_kept():
    optimizer = CPUAdam(parameters((2,)))
    message = refused(lambda: optimizer.add_param_group({"params": parameters((3,)), "amsgrad": True}), ValueError)
    assert message.startswith("CPUAdam: amsgrad is True")
    assert len(optimizer.param_groups) == 1


def test_importing_opforge_imports_no_front_end():
    code = "import sys, opforge; sys.exit('opforge.ops' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    code = "import sys, opforge.ops; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
