"""The calls of the fused optimizers' ops: DeepSpeed's functions, error messages, tracing by torch.compile."""

import pytest
import torch
from support.optimizer_steps import assert_same

from opforge import get_accelerator
from opforge.ops import reference

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]


@pytest.fixture(scope="module")
def modules():
    accelerator = get_accelerator()
    return [accelerator.load_op(f"{name}Builder") for name in ("FusedAdam", "FusedLion", "FusedLamb")]


def test_deepspeeds_functions_perform_a_step(modules):
    adam, lion, lamb = modules
    torch.manual_seed(0)
    noop = torch.tensor([0], dtype=torch.int32)
    g, p, m, v = lists = [[torch.rand(5), torch.rand(70, 40)] for _ in range(4)]
    numbers = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
    expected = [
        reference.adam(*(t.double() for t in (p[i], g[i], m[i], v[i])), step=2, eps=1e-6, adamw_mode=False, **numbers)
        for i in range(2)
    ]
    adam.multi_tensor_adam(2048 * 32, noop, lists, 1e-2, 0.9, 0.99, 1e-6, 2, 0, 1, 0.1)
    for i in range(2):
        assert_same([p[i].double(), m[i].double(), v[i].double()], expected[i])
    expected_lion = reference.lion(p[0].double(), g[0].double(), m[0].double(), **numbers)
    lion.multi_tensor_lion(2048 * 32, noop, [g, p, m], 1e-2, 0.9, 0.99, 2, 0.1)
    assert_same([p[0].double(), m[0].double()], expected_lion)
    kept = [t[0].clone() for t in (p, g, m, v)]
    *expected_lamb, ratio = reference.lamb(
        *(t.double() for t in kept), step=2, eps=1e-6, max_coeff=5.0, min_coeff=0.1, scale=2.0, **numbers
    )
    copy_of = torch.empty(5, dtype=torch.float16)
    ratio_of_op = lamb.lamb(p[0], copy_of, m[0], v[0], g[0], 1e-2, 0.9, 0.99, 5.0, 0.1, 1e-6, 2.0, 2, 1, 1, 0.1)
    assert ratio_of_op.item() == pytest.approx(ratio, rel=1e-5)
    assert_same([p[0].double(), m[0].double(), v[0].double()], expected_lamb)
    assert torch.equal(copy_of, p[0].half())
    with pytest.raises(ValueError) as caught:
        adam.multi_tensor_adam(1, noop, [g, p, m], 1e-2, 0.9, 0.99, 1e-6, 2, 0, 1, 0.1)
    assert str(caught.value) == (
        "multi_tensor_adam: tensor_lists has 3 lists, expected 4 or 5: [grads, params, exp_avg, exp_avg_sq], and "
        "optionally a list of tensors for copies of the new parameters"
    )


def arguments_of(count, lists=1):
    many = [[torch.rand(3, 5) for _ in range(lists)] for _ in range(count)]
    return (torch.zeros(1, dtype=torch.int32), *many, [])


def test_opcheck_accepts_copies_and_numbers_on_the_device(modules):
    """The contract tries what has neither, but for LAMB's, whose case is a function of Python."""
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
        arguments = arguments_of(count, 2)
        if op is lamb.fused_lamb_:
            torch.library.opcheck(op, arguments, {**numbers, **more}, test_utils=utils)
        on_device = {"lr_tensor": torch.tensor(1e-2), "step_tensor": torch.tensor(1.0), "grad_scale": None}
        copied = (*arguments[:-1], [torch.empty(3, 5, dtype=torch.bfloat16) for _ in range(2)])
        torch.library.opcheck(op, copied, {**numbers, **more, **on_device}, test_utils=utils)


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
    ("change", "message"),
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
            "params[0] is on cpu, expected meta: move it with .to(), or use the op of its device",
        ),
        ({"step": 0}, "step is 0, expected 1 at the first step: count it before the call"),
        (
            {"lr_tensor": torch.ones(2)},
            "lr_tensor has 2 elements and is float32, expected one of float32: make it with torch.tensor",
        ),
    ],
)
def test_the_error_names_the_rejected_tensor_and_nothing_is_changed(modules, change, message):
    adam = modules[0]
    arguments = list(arguments_of(4))
    numbers = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "step": 1}
    numbers.update({"adamw_mode": True, "bias_correction": True})
    kept = [tensors[0].clone() for tensors in arguments[1:5]]
    original = [tensors[0] for tensors in arguments[1:5]]
    for key, value in change.items():
        if isinstance(key, int):
            arguments[key] = value
        else:
            numbers[key] = value
    with pytest.raises(RuntimeError) as caught:
        adam.fused_adam_(*arguments, **numbers)
    if "meta" not in message:
        assert str(caught.value) == message
    for now, then in zip(original, kept, strict=True):
        assert torch.equal(now, then)
