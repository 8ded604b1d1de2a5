"""Calls of a facade module's functions: what they keep of tensors, and Functions without a gradient."""

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from facade.compiling import compile_library
from facade.module_record import load

SOURCE = Path(__file__).parents[2] / "support" / "facade" / "calls_source.cpp"


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    library = tmp_path_factory.mktemp("calls") / "facade_calls.so"
    compile_library("facade", "facade_calls", [SOURCE], library, ["-O0"])
    return load(library, "facade_calls")


@pytest.fixture
def only_new_objects() -> None:
    """Has the collector look at what a test makes alone: it takes seconds for all that has been imported."""
    gc.collect()
    gc.freeze()


def _refused(module: ModuleType, x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="refused"):
        module.refused(x, 0)
    with pytest.raises(TypeError):
        module.refused(x, "no number")


CALLS: dict[str, Callable[[ModuleType, torch.Tensor, torch.Tensor], object]] = {
    "an argument that is returned": lambda m, x, y: m.same(x),
    "a new tensor": lambda m, x, y: m.root(x),
    "lists of tensors": lambda m, x, y: m.both([x, y]),
    "an error": lambda m, x, y: _refused(m, x),
    "a Function without gradients": lambda m, x, y: m.scaled(x, y),
    "a Function": lambda m, x, y: m.scaled(x.clone().requires_grad_(), y),
    "a Function and its backward": lambda m, x, y: m.scaled(x.clone().requires_grad_(), y).sum().backward(),
}


@pytest.mark.usefixtures("only_new_objects")
def test_a_call_keeps_no_tensor(module: ModuleType) -> None:
    x, y = torch.ones(3), torch.ones(3)

    def kept() -> tuple[int, ...]:
        gc.collect()
        tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
        return tensors, sys.getrefcount(x), sys.getrefcount(y), x._use_count(), y._use_count()

    for name, call in CALLS.items():
        call(module, x, y)
        before = kept()
        for _ in range(5):
            call(module, x, y)
        assert kept() == before, name


def _facts(result: torch.Tensor, x: torch.Tensor) -> tuple[object, ...]:
    return result is x, result.requires_grad, result.is_leaf, result._is_view(), result._version, result.tolist()


@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_results_of_a_function_are_those_of_torchs_headers(
    module: ModuleType, grad_mode: bool, requires_grad: bool
) -> None:
    x = torch.ones(2, requires_grad=requires_grad)
    has_node = grad_mode and requires_grad
    with torch.set_grad_enabled(grad_mode):
        # An argument that is returned becomes a view, or is detached where it needs a gradient and gets none.
        is_view = grad_mode or not requires_grad
        assert _facts(module.returned(x), x) == (False, has_node, not has_node, is_view, 0, [1, 1])
        assert _facts(module.in_graph(x), x)[:3] == (False, has_node, not has_node)
        dirty = x * 3
        version = dirty._version
        first, second = module.zeroed(dirty, x)
        assert first is dirty and (first._version, first.tolist(), second.tolist()) == (version + 2, [0, 0], [2, 2])
        assert (first.requires_grad, second.requires_grad) == (has_node, has_node)
        assert module.checked(x).item() == 0
        with pytest.raises(ValueError, match=r"^one dimension is expected$"):
            module.checked(x[None])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_function_under_a_mode_a_subclass_and_a_transform_goes_through_python(module: ModuleType) -> None:
    class Sub(torch.Tensor):
        pass

    x = torch.ones(2)
    assert module.scaled(x.as_subclass(Sub), x).tolist() == [1, 1]
    with torch.autograd.forward_ad.dual_level(), pytest.raises((RuntimeError, NotImplementedError)):
        module.scaled(torch.autograd.forward_ad.make_dual(x, x), x)
    with pytest.raises(RuntimeError):
        torch.func.vmap(lambda row: module.scaled(row, row))(torch.ones(2, 2))

    class Mode(torch.overrides.TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
            Mode.seen += getattr(func, "__name__", "") == "__get__"
            return func(*args, **(kwargs or {}))

    with Mode():
        module.scaled(x, x)
    assert Mode.seen == 0


def test_threads_go_backward_through_one_graph(module: ModuleType) -> None:
    x = torch.arange(8.0, requires_grad=True)
    y = module.rereads(x).sum()
    wrong: list[object] = []

    def backward() -> None:
        try:
            for _ in range(20):
                (grad,) = torch.autograd.grad(y, x, retain_graph=True)
                if not torch.equal(grad, 2 * x.detach()):
                    wrong.append(grad)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=backward) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.usefixtures("only_new_objects")
def test_a_thread_leaves_nothing_behind(module: ModuleType) -> None:
    def run(count: int) -> int:
        for _ in range(count):
            thread = threading.Thread(target=module.root, args=(torch.ones(1),))
            thread.start()
            thread.join()
        gc.collect()
        return sys.getallocatedblocks()

    before = run(20)
    assert run(200) - before < 100


def test_too_little_memory_of_a_device_is_torchs_error(module: ModuleType) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory\. Tried to allocate 2\.00 GiB\.$"):
        module.out_of_memory()
