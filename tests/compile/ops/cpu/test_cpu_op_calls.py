"""The calls of the CPU optimizers' ops: DeepSpeed's functions, and error messages."""

import pytest
import torch

from opforge.builders.cpu.adagrad import CPUAdagradBuilder
from opforge.builders.cpu.adam import CPUAdamBuilder
from opforge.builders.cpu.lion import CPULionBuilder
from opforge.ops import reference

pytestmark = pytest.mark.compile

NUMBERS = {
    "step": 1,
    "lr": 1e-2,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "adamw_mode": True,
    "bias_correction": True,
    "maximize": False,
}


@pytest.fixture(scope="module")
def adam():
    return CPUAdamBuilder().load()


@pytest.fixture(scope="module")
def adagrad():
    return CPUAdagradBuilder().load()


@pytest.fixture(scope="module")
def lion():
    return CPULionBuilder().load()


def tensors(shape=(4,), count=4):
    torch.manual_seed(0)
    return [torch.rand(shape) for _ in range(count)]


def exact(values):
    return [value.double() for value in values]


def test_adam_has_deepspeeds_functions_and_argument_order(adam):
    values = tensors()
    expected = reference.adam(
        *exact(values), step=2, lr=1e-2, beta1=0.9, beta2=0.99, eps=1e-6, weight_decay=0.5, adamw_mode=False
    )
    assert adam.create_adam(7, 1e-3, 0.9, 0.999, 1e-8, 0.0, False, True) == 0
    adam.adam_update(7, 2, 1e-2, 0.9, 0.99, 1e-6, 0.5, True, *values)
    torch.testing.assert_close(values[0].double(), expected[0], rtol=1e-6, atol=1e-6)
    adam.adam_rollback(7, 2, 1e-2, 0.9, 0.99, 1e-6, 0.5, True, *values)
    torch.testing.assert_close(values[0], tensors()[0], rtol=1e-6, atol=1e-6)
    assert adam.destroy_adam(7) == 0
    assert adam.destroy_adam(7) == 0


def test_adagrad_has_deepspeeds_functions_and_argument_order(adagrad):
    values = tensors(count=3)
    expected = reference.adagrad(*exact(values), lr=1e-2, eps=1e-6, weight_decay=0.5)
    assert adagrad.create_adagrad(7, 1e-2, 1e-8, 0.0, False) == 0
    adagrad.adagrad_update(7, 1, 1e-2, 1e-6, 0.5, *values)
    torch.testing.assert_close(values[0].double(), expected[0], rtol=1e-6, atol=1e-6)
    assert adagrad.destroy_adagrad(7) == 0


def test_lion_has_deepspeeds_functions_and_argument_order(lion):
    values = tensors(count=3)
    expected = reference.lion(*exact(values), lr=1e-2, beta1=0.8, beta2=0.9, weight_decay=0.5)
    assert lion.create_lion(7, 1e-3, 0.9, 0.999, 0.0, False) == 0
    lion.lion_update(7, 1, 1e-2, 0.8, 0.9, 0.5, *values)
    torch.testing.assert_close(values[0].double(), expected[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(values[2].double(), expected[1], rtol=1e-6, atol=1e-6)
    assert lion.destroy_lion(7) == 0


def test_the_error_for_an_unknown_id_names_the_missing_call(adam, adagrad, lion):
    for call, op in (
        (lambda: adam.adam_update(55, 1, 1e-2, 0.9, 0.99, 1e-6, 0.5, True, *tensors()), "adam"),
        (lambda: adam.adam_rollback(55, 1, 1e-2, 0.9, 0.99, 1e-6, 0.5, True, *tensors()), "adam"),
        (lambda: adagrad.adagrad_update(55, 1, 1e-2, 1e-6, 0.5, *tensors(count=3)), "adagrad"),
        (lambda: lion.lion_update(55, 1, 1e-2, 0.8, 0.9, 0.5, *tensors(count=3)), "lion"),
    ):
        with pytest.raises(RuntimeError) as caught:
            call()
        assert str(caught.value) == (
            f"optimizer_id 55 is unknown, expected one given to create_{op}: call create_{op}(55, ...) first"
        )


def replaced(position, value):
    """Returns lists for two parameters, with one tensor of the second parameter replaced."""
    lists = [[tensor, tensor.clone()] for tensor in tensors((2, 3))]
    lists[position][1] = value
    return lists


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (
            1,
            torch.ones(3, 2),
            "grads[1] has shape (3, 2), expected that of params[1], (2, 3): pass a gradient and states that belong to "
            "the parameter",
        ),
        (
            0,
            torch.ones(()),
            "grads[1] has shape (2, 3), expected that of params[1], (): pass a gradient and states that belong to the "
            "parameter",
        ),
        (
            0,
            torch.ones(2, 3, dtype=torch.float64),
            "params[1] is float64, expected float32, bfloat16 or float16: convert it with .to(torch.float32), or use "
            "torch.optim, which takes other dtypes",
        ),
        (
            1,
            torch.ones(2, 3, dtype=torch.complex64),
            "grads[1] is complex64, expected float32, bfloat16 or float16: convert it with .to(torch.float32), or use "
            "torch.optim, which takes other dtypes",
        ),
        (
            2,
            torch.ones(2, 3, dtype=torch.float16),
            "exp_avgs[1] is float16, expected float32 or bfloat16: convert it with .to(torch.float32)",
        ),
        (
            3,
            torch.ones(2, 3, dtype=torch.bfloat16),
            "exp_avg_sqs[1] is bfloat16, expected the dtype of exp_avgs[1], float32: convert one with .to()",
        ),
        (
            1,
            torch.ones(2, 3).to_sparse(),
            "grads[1] is sparse, expected a dense tensor: convert it with .to_dense()",
        ),
        (
            0,
            torch.ones(2, 6)[:, ::2],
            "params[1] has strides (6, 2) for shape (2, 3), expected elements without gaps or overlap: pass "
            ".contiguous() and copy the result back",
        ),
        (
            0,
            torch.ones(1, 3).expand(2, 3),
            "params[1] has strides (0, 1) for shape (2, 3), expected elements without gaps or overlap: pass "
            ".contiguous() and copy the result back",
        ),
        (
            2,
            torch.ones(3, 2).t(),
            "exp_avgs[1] has strides (1, 2), expected those of params[1], (3, 1): copy it into "
            "torch.empty_like(params[1])",
        ),
        (
            1,
            torch.ones(2, 3, device="meta"),
            "params[0] is on cpu, expected meta: move it with .to(), or use the op of its device",
        ),
    ],
)
def test_the_error_names_the_rejected_tensor_and_nothing_is_changed(adam, position, value, message):
    lists = replaced(position, value)
    before = [[tensor.clone() for tensor in tensors] for tensors in lists]
    with pytest.raises(RuntimeError) as caught:
        adam.multi_adam_(*lists, **NUMBERS)
    assert str(caught.value) == message
    for now, then in zip(lists, before, strict=True):
        assert torch.equal(now[0], then[0])


def test_lists_of_different_lengths_are_rejected(adam):
    lists = [[tensor] for tensor in tensors()]
    lists[2].append(torch.ones(4))
    with pytest.raises(RuntimeError) as caught:
        adam.multi_adam_(*lists, **NUMBERS)
    assert str(caught.value) == "exp_avgs has 2 tensors, expected 1: pass one for each parameter"


def test_empty_lists_do_nothing(adam):
    adam.multi_adam_([], [], [], [], **NUMBERS)


def test_a_step_number_of_zero_is_rejected(adam):
    with pytest.raises(RuntimeError, match=r"^step is 0, expected 1 at the first step: count it before the call$"):
        adam.multi_adam_(*([tensor] for tensor in tensors()), **{**NUMBERS, "step": 0})


def test_a_step_without_a_trace_of_the_old_state_cannot_be_rolled_back(adam):
    adam.create_adam(8)
    with pytest.raises(RuntimeError, match=r"expected none to be 0: such a step keeps nothing to go back from$"):
        adam.adam_rollback(8, 1, 1e-2, 0.0, 0.999, 1e-8, 0.0, True, *tensors())
    adam.destroy_adam(8)


def test_views_of_tensors_that_require_grad_are_updated(adam):
    leaf = torch.nn.Parameter(torch.ones(10))
    with torch.no_grad():
        adam.multi_adam_([leaf[2:6]], *([tensor] for tensor in tensors()[1:]), **NUMBERS)
    assert bool((leaf[2:6] != 1).all()) and bool((leaf[:2] == 1).all()) and bool((leaf[6:] == 1).all())


OPCHECK = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")


def test_opcheck_accepts_deepspeeds_functions(adam, adagrad, lion):
    adam.create_adam(9)
    adagrad.create_adagrad(9)
    lion.create_lion(9)
    for op, arguments in (
        (adam.adam_update, (9, 1, 1e-2, 0.9, 0.99, 1e-8, 0.1, True, *tensors())),
        (adam.adam_rollback, (9, 1, 1e-2, 0.9, 0.99, 1e-8, 0.1, True, *tensors())),
        (adagrad.adagrad_update, (9, 1, 1e-2, 1e-8, 0.1, *tensors(count=3))),
        (lion.lion_update, (9, 1, 1e-2, 0.9, 0.99, 0.1, *tensors(count=3))),
    ):
        torch.library.opcheck(op, arguments, test_utils=OPCHECK)
    adam.destroy_adam(9)
    adagrad.destroy_adagrad(9)
    lion.destroy_lion(9)
