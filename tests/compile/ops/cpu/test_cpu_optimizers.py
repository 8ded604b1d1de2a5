"""Steps of CPUAdam, CPUAdagrad and CPULion, compared with torch's optimizers and the references."""

import pytest
import torch
from support.optimizer_steps import assert_same, copies, parameters, refresh, steps_beside
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from opforge.ops import CPUAdagrad, CPUAdam, CPULion, reference

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]


def test_adam_follows_torchs():
    for kwargs, torch_class in (
        ({"weight_decay": 0.1}, torch.optim.AdamW),
        ({"weight_decay": 0.1, "adamw_mode": False}, torch.optim.Adam),
        ({"maximize": True, "betas": (0.8, 0.95), "eps": 1e-6, "lr": 1e-2}, torch.optim.AdamW),
    ):
        params = parameters((3, 4), (5,), ())
        others = copies(params)
        options = {"weight_decay": 0.0, **{k: v for k, v in kwargs.items() if k != "adamw_mode"}}
        steps_beside(CPUAdam(params, **kwargs), torch_class(others, **options), params, others)


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


def test_groups_have_their_own_options_and_schedulers_change_them():
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


def test_parameters_without_a_gradient_are_skipped_and_count_their_own_steps():
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


def test_a_closure_is_called_with_gradients_enabled():
    [param] = parameters((4,))
    optimizer = CPUAdam([param], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (param * param).sum()
        loss.backward()
        return loss

    first, second = optimizer.step(closure), optimizer.step(closure)
    assert second < first


def test_hooks_see_each_step():
    calls = []
    optimizer = CPUAdam(parameters((4,)))
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.step()
    assert calls == ["before", "after"]


def test_hooks_of_all_optimizers_and_profilers_see_each_step():
    calls = []
    optimizer = CPUAdam(parameters((4,)))
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append("before")),
        register_optimizer_step_post_hook(lambda *_: calls.append("after")),
    ]
    optimizer.step()
    for handle in handles:
        handle.remove()
    with torch.autograd.profiler.profile() as profile:
        optimizer.step()
    optimizer.step()
    assert calls == ["before", "after"]
    assert [event.name for event in profile.function_events].count("Optimizer.step#CPUAdam.step") == 1


def test_hooks_that_are_added_after_compilation_see_each_step():
    calls = []
    optimizer = CPUAdam(parameters((4,)))
    compiled = torch.compile(lambda: optimizer.step(), backend="eager")
    compiled()
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    compiled()
    assert calls == ["after"]


def test_gradients_are_enabled_again_after_a_step():
    optimizer = CPUAdam(parameters((4,)))
    optimizer.step()
    assert torch.is_grad_enabled()
    with torch.no_grad():
        optimizer.step()
        assert not torch.is_grad_enabled()
    optimizer.param_groups[0]["params"][0].grad = torch.ones(4).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    assert torch.is_grad_enabled()


def test_parameters_may_become_channels_last_and_contiguous_between_steps():
    weight, other = (torch.nn.Parameter(torch.ones(4, 3, 5, 5)) for _ in range(2))
    ours, theirs = CPUAdam([weight]), CPUAdam([other])
    for layout in (torch.channels_last, torch.contiguous_format, torch.channels_last):
        weight.data = weight.data.contiguous(memory_format=layout)
        other.grad = torch.randn(4, 3, 5, 5)
        weight.grad = other.grad.contiguous(memory_format=layout)
        ours.step()
        theirs.step()
        assert torch.equal(weight, other) and weight.is_contiguous(memory_format=layout)


def test_a_gradient_in_another_memory_order_is_used():
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
