"""Calls of a facade module's functions: what they keep of tensors."""

import gc
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from facade.compiling import compile_library

SOURCE = Path(__file__).parents[2] / "support" / "facade" / "calls_source.cpp"


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    library = tmp_path_factory.mktemp("calls") / "facade_calls.so"
    compile_library("facade", "facade_calls", [SOURCE], library, ["-O0"])
    spec = importlib.util.spec_from_file_location("facade_calls", library)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


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


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_keeps_no_tensor(
    module: ModuleType, call: Callable[[ModuleType, torch.Tensor, torch.Tensor], object]
) -> None:
    x, y = torch.ones(3), torch.ones(3)

    def kept() -> tuple[int, ...]:
        gc.collect()
        tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
        return tensors, sys.getrefcount(x), sys.getrefcount(y), x._use_count(), y._use_count()

    call(module, x, y)
    before = kept()
    for _ in range(5):
        call(module, x, y)
    assert kept() == before
