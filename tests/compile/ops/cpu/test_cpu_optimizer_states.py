"""States of CPUAdam, CPUAdagrad and CPULion: state dicts, also torch's and DeepSpeed's; copies; replaced states."""

import copy
import pickle

import pytest
import torch
from support.optimizer_steps import assert_same, copies, parameters, steps_beside

from opforge.ops import CPUAdagrad, CPUAdam, CPULion

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]

OPTIMIZERS = [CPUAdam, CPUAdagrad, CPULion]


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fp32_optimizer_states", [True, False])
def test_a_state_dict_round_trip_changes_no_bit(optimizer_class, dtype, fp32_optimizer_states):
    params = parameters((4, 5), (7,), dtype=dtype)
    optimizer = optimizer_class(params, fp32_optimizer_states=fp32_optimizer_states)
    optimizer.step()
    others = copies(params)
    other = optimizer_class(others, fp32_optimizer_states=fp32_optimizer_states)
    other.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
    expected = torch.float32 if fp32_optimizer_states or dtype == torch.float32 else torch.bfloat16
    for param, twin in zip(params, others, strict=True):
        for name in optimizer.state_names:
            assert optimizer.state[param][name].dtype == expected
            assert torch.equal(optimizer.state[param][name], other.state[twin][name])
            assert other.state[twin][name].dtype == expected
    for param, twin in zip(params, others, strict=True):
        param.grad = torch.ones_like(param)
        twin.grad = torch.ones_like(twin)
    optimizer.step()
    other.step()
    assert_same(params, others, rtol=0, atol=0)


@pytest.mark.parametrize("torch_class", [torch.optim.AdamW, torch.optim.Adam])
def test_adams_state_goes_to_torch_and_back(torch_class):
    params = parameters((4, 5), (7,))
    others = copies(params)
    theirs = torch_class(others, lr=1e-2, weight_decay=0.1)
    theirs.step()
    third = copies(others)
    ours = CPUAdam(third)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    assert ours.param_groups[0]["lr"] == 1e-2
    assert ours.param_groups[0]["adamw_mode"] is (torch_class is torch.optim.AdamW)
    assert ours.state[third[0]]["step"] == 1
    steps_beside(ours, theirs, third, others)
    fourth = copies(third)
    back = torch_class(fourth)
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


@pytest.mark.parametrize(("of_group", "of_states"), [(0, [0, 3]), (3, [None, None])], ids=["deepspeed", "apex"])
def test_a_count_for_all_parameters_is_loaded_for_each(of_group, of_states):
    params = parameters((4, 5), (7,))
    optimizer = CPUAdam(params)
    optimizer.step()
    loaded = copy.deepcopy(optimizer.state_dict())
    loaded["param_groups"][0]["step"] = of_group
    for state, count in zip(loaded["state"].values(), of_states, strict=True):
        state["step"] = count
        if count is None:
            del state["step"]
    optimizer.load_state_dict(loaded)
    assert [optimizer.state[param]["step"] for param in params] == [3, 3]
    assert "step" not in optimizer.param_groups[0]


def test_states_may_have_strings_as_numbers():
    params = parameters((4, 5), (7,))
    optimizer = CPUAdam(params)
    optimizer.step()
    copied = copy.deepcopy(optimizer.state_dict())
    copied["state"] = {str(number): {**state, "step": 3} for number, state in copied["state"].items()}
    optimizer.load_state_dict(copied)  # as from JSON
    assert [optimizer.state[param]["step"] for param in params] == [3, 3]
    loaded = optimizer.state_dict()
    loaded["state"] |= {"0": {"step": 5}, "1": {"step": 5}}  # as dcp.load leaves it
    optimizer.load_state_dict(loaded)
    assert [optimizer.state[param]["step"] for param in params] == [5, 5]
    assert list(optimizer.state) == params


def test_a_state_dict_that_is_rejected_changes_nothing():
    params = parameters((4, 5), (7,))
    others = copies(params)
    theirs = torch.optim.AdamW(others, amsgrad=True)
    theirs.step()
    ours = CPUAdam(params, lr=0.25)
    ours.step()
    before = copy.deepcopy(ours.state_dict())
    with pytest.raises(ValueError, match="amsgrad is True, expected False"):
        ours.load_state_dict(theirs.state_dict())
    after = ours.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for state, expected in zip(after["state"].values(), before["state"].values(), strict=True):
        assert state.keys() == expected.keys() and torch.equal(state["exp_avg"], expected["exp_avg"])


def test_counts_of_torchs_capturable_optimizers_are_updated_in_one_call():
    params = parameters((4, 5), (7,))
    optimizer = CPUAdam(params)
    optimizer.step()
    loaded = copy.deepcopy(optimizer.state_dict())
    loaded["param_groups"][0]["capturable"] = True
    for state in loaded["state"].values():
        state["step"] = torch.tensor(1000.0)
    optimizer.load_state_dict(loaded)
    assert [launch.step for launch in optimizer._launches()] == [1001]


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


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
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
