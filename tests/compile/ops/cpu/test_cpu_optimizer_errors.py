"""What CPUAdam, CPUAdagrad and CPULion reject, and their messages; what importing opforge.ops does not import."""

import subprocess
import sys

import pytest
import torch
from support.optimizer_steps import parameters

from opforge.ops import CPUAdagrad, CPUAdam, CPULion, FusedAdam

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]


def error_message(call, error):
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def test_sparse_gradients_are_rejected():
    layer = torch.nn.Embedding(10, 3, sparse=True)
    dense = parameters((2,))
    layer(torch.tensor([1, 2])).sum().backward()
    optimizer = CPUAdam([*dense, *layer.parameters()])
    before = dense[0].detach().clone()
    assert error_message(optimizer.step, RuntimeError) == (
        "CPUAdam: the gradient of param_groups[0]['params'][1] is sparse (torch.sparse_coo), expected a dense one: "
        "build the layer with sparse=False, or use torch.optim.SparseAdam for this parameter"
    )
    assert torch.equal(dense[0].detach(), before)


def test_complex_parameters_are_rejected():
    assert error_message(lambda: CPULion([torch.zeros(2, dtype=torch.complex64)]), ValueError) == (
        "CPULion: param_groups[0]['params'][0] is torch.complex64, expected a real dtype: optimize torch.view_as_real "
        "of it, or use torch.optim, which takes complex numbers"
    )


def test_other_devices_and_dtypes_are_rejected_by_the_step():
    meta = torch.nn.Parameter(torch.ones(2, device="meta"))
    meta.grad = torch.ones(2, device="meta")
    assert error_message(CPUAdam([{"params": parameters((2,))}, {"params": [meta]}]).step, RuntimeError) == (
        "CPUAdam: param_groups[1]['params'][0] is on meta, expected cpu: move the model with .cpu() before the step, "
        "or use an optimizer for that device, such as torch.optim.AdamW(fused=True)"
    )
    assert error_message(CPUAdagrad(parameters((2,), dtype=torch.float64)).step, RuntimeError) == (
        "CPUAdagrad: param_groups[0]['params'][0] is torch.float64, expected torch.float32, torch.bfloat16 or "
        "torch.float16: convert the model with .float(), or use torch.optim, which takes other dtypes"
    )


def with_gaps(optimizer, param):
    param.data = torch.ones(3, 4)[:, :2]
    param.grad = torch.ones(3, 2)


def with_a_wide_gradient(optimizer, param):
    param.grad_dtype = None
    param.grad = param.detach().double()


def with_a_wrong_state(optimizer, param):
    optimizer.state[param][optimizer.state_names[0]] = torch.zeros(2)


@pytest.mark.parametrize("optimizer_class", [CPUAdam, CPUAdagrad, CPULion, FusedAdam])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (with_gaps, "param_groups[1]['params'][0] has strides (4, 1) for shape (3, 2), expected elements without gaps"),
        (with_a_wide_gradient, "the gradient of param_groups[1]['params'][0] is torch.float64, expected torch.float32"),
        (with_a_wrong_state, " of param_groups[1]['params'][0] has shape (2,), expected that of the parameter, (3,)"),
    ],
)
def test_an_error_in_a_later_group_leaves_the_groups_before_it_alone(optimizer_class, spoil, message):
    first, second = parameters((2,), (3,))
    optimizer = optimizer_class([{"params": [first]}, {"params": [second]}])
    spoil(optimizer, second)
    before = first.detach().clone()
    assert message in error_message(optimizer.step, RuntimeError)
    assert torch.equal(first.detach(), before)
    assert optimizer.state[first].get("step", 0) == 0


@pytest.mark.parametrize(
    ("optimizer_class", "options", "message"),
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
        (CPULion, {"betas": (0.9,)}, "CPULion: betas is (0.9,), expected two numbers"),
        (CPULion, {"betas": 0.9}, "CPULion: betas is 0.9, expected two numbers"),
    ],
)
def test_options_out_of_range_are_rejected(optimizer_class, options, message):
    assert error_message(lambda: optimizer_class(parameters((2,)), **options), ValueError) == message


def test_a_rejected_group_is_not_added():
    optimizer = CPUAdam(parameters((2,)))
    new_group = {"params": parameters((3,)), "amsgrad": True}
    message = error_message(lambda: optimizer.add_param_group(new_group), ValueError)
    assert message.startswith("CPUAdam: amsgrad is True")
    assert len(optimizer.param_groups) == 1


def test_importing_opforge_imports_no_front_end():
    code = "import sys, opforge; sys.exit('opforge.ops' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    code = "import sys, opforge.ops; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
