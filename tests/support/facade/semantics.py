"""`python semantics.py FOLDER` uses the libraries of semantics_source.cpp there, `one` and `other`."""

import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType

import torch

FOLDER = Path(sys.argv[1])


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.so")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


one, other = load("one"), load("other")


def error(function, *arguments):
    try:
        function(*arguments)
    except Exception as raised:
        return type(raised).__name__, str(raised)
    raise AssertionError("no error was raised")


def a_function_has_gradients_of_both_orders():
    x = torch.randn(4, dtype=torch.double, requires_grad=True)
    assert torch.equal(torch.autograd.grad(one.power(x, 3).sum(), x)[0], 3 * x * x)
    assert torch.autograd.gradcheck(lambda v: one.power(v, 3), x)
    assert torch.autograd.gradgradcheck(lambda v: one.power(v, 3), x)
    assert not one.power(x.detach(), 3).requires_grad
    with torch.no_grad():
        assert not one.power(x, 3).requires_grad
    assert one.power(x, 2).grad_fn.name() == "torch::autograd::CppNode<Power>"
    assert torch.equal(one.power(x, 2, torch.tensor(2.0).double()), x * x * 2)


def a_change_in_place_is_known():
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    z, count = one.add_one(y)
    assert z is y and y._version > 0 and count.item() == 3 and not count.requires_grad
    z.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0, 3.0]
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    z = one.power(y, 2)
    y.add_(1)
    kind, text = error(lambda: z.sum().backward())
    assert kind == "RuntimeError" and "modified by an inplace operation" in text, text


def a_list_counts_once_for_each_tensor():
    parts = [torch.ones(2, requires_grad=True) for _ in range(3)]
    one.sum(parts).sum().backward()
    assert [part.grad[0].item() for part in parts] == [1.0, 2.0, 3.0]


def errors_of_functions_keep_type_and_text():
    x = torch.ones(2, requires_grad=True)
    assert error(one.power, x, -7) == ("IndexError", "no such power: -7")
    assert error(lambda: one.power(x, 9).sum().backward()) == ("NotImplementedError", "no gradient of the ninth power")


def requires_grad_is_read():
    x = torch.ones(2, requires_grad=True)
    assert one.requires_grad(x) and one.requires_grad(x * 2) and one.requires_grad(x.view(1, 2))
    assert not one.requires_grad(x.detach()) and not one.requires_grad(torch.ones(2, dtype=torch.int64))
    with torch.no_grad():
        assert one.requires_grad(x) and not one.requires_grad(x * 2)
    assert one.grad_modes(x) == (False, False) and torch.is_grad_enabled()


def the_gil_is_held_unless_the_source_releases_it():
    assert one.held() and not one.held_when_released() and one.held_again() and one.held()


def threads_of_parallel_for_call_operators():
    torch.set_num_threads(2)
    assert one.in_parallel(100) == [i * i for i in range(100)] and one.in_parallel(0) == []
    assert [part[0].item() for part in one.tensors_in_parallel(torch.ones(2), 64)] == [i + 1 for i in range(64)]
    assert one.reduced(1000) == sum(range(1000))
    assert error(one.fails_in_parallel) == ("ValueError", "in a worker")
    kind, text = error(one.applies_in_parallel, torch.ones(2))
    assert kind == "RuntimeError" and text.startswith(
        "apply of an autograd Function within parallel_for is not possible"
    )


def many_threads_use_functions_at_once():
    results = []

    def work():
        x = torch.ones(8, requires_grad=True)
        results.extend(torch.autograd.grad(one.power(x, 2).sum(), x)[0].sum().item() for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [16.0] * 200


def two_libraries_share_nothing():
    one.twice(torch.ones(1)), one.twice(torch.ones(1)), other.twice(torch.ones(1))
    assert (one.calls(), other.calls()) == (2, 1)
    x = torch.ones(2, requires_grad=True)
    assert torch.equal(one.power(x, 2), other.power(x, 2))
    assert one.power(x, 2).grad_fn.__class__ is not other.power(x, 2).grad_fn.__class__
    assert error(other.power, x, -7) == ("IndexError", "no such power: -7")
    # a real extension of pybind11 in the same process
    assert torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(x)


def ops_have_the_schemas_that_the_source_states():
    x = torch.ones(2, 3)
    for namespace in ("facade_one", "facade_other"):
        twice = getattr(torch.ops, namespace).twice
        assert str(twice.default._schema) == f"{namespace}::twice(Tensor x, *, float by=2.) -> Tensor"
        assert torch.equal(twice(x, by=3.0), x * 3) and twice(x.to("meta")).shape == (2, 3)
    ops = torch.ops.facade_one
    assert str(ops.deduced.default._schema) == "facade_one::deduced(Tensor _0, int _1, Tensor? _2) -> Tensor _0"
    assert ops.pair(x, [1], "four")[1] == 4 and ops.pair(x, [1], "four")[0].tolist() == [3.0, 3.0]
    assert ops.pair(x, None, "")[0].shape == (2, 3)
    assert torch.equal(ops.deduced(x, 2, None), x * 2) and torch.equal(ops.deduced(x, 2, x), x * 3)
    assert error(ops.refused, x) == ("IndexError", "refused 1")
    assert error(ops.through_function, x) == ("IndexError", "no such power: -7")
    leaf = torch.ones(2, requires_grad=True)
    assert torch.autograd.grad(ops.deduced(leaf, 3, None).sum(), leaf)[0].tolist() == [3.0, 3.0]
    torch.library.opcheck(
        torch.ops.facade_one.twice.default, (torch.randn(3),), test_utils=("test_schema", "test_faketensor")
    )


for name, check in list(globals().items()):
    if callable(check) and name not in ("load", "error", "Path", "ModuleType"):
        check()
