"""Checks, logs and small names of torch's headers: each gives what torch's own headers give."""

import os
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import torch
from facade.compiling import compile_library
from facade.module_record import load
from support.processes import forked_python

SOURCE = Path(__file__).parents[2] / "support" / "facade" / "checks_source.cpp"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checks") / "facade_checks.so"
    compile_library("facade", "facade_checks", [SOURCE], path, ["-O0"])
    return path


@pytest.fixture(scope="module")
def module(library: Path) -> ModuleType:
    return load(library, "facade_checks")


X, Y, WRITTEN = "for argument #1 'x'", "for argument #2 'y'", "(while checking arguments for f)"
A, B = torch.ones(2, 3), torch.ones(4, dtype=torch.double)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (
            "types",
            f"Expected tensor {X} to have the same type as tensor {Y}; "
            f"but type torch.FloatTensor does not equal torch.DoubleTensor {WRITTEN}",
        ),
        ("dtype", f"Expected tensor {X} to have scalar type Long; but got torch.FloatTensor instead {WRITTEN}"),
        ("sizes", f"Expected tensor {X} to have same size as tensor {Y}; but [2, 3] does not equal [4] {WRITTEN}"),
        (
            "elements",
            f"Expected tensor {X} to have same number of elements as tensor {Y}; but 6 does not equal 4 {WRITTEN}",
        ),
        ("GPUs", f"Tensor {X} is on CPU, Tensor {Y} is on CPU, but expected it to be on GPU {WRITTEN}"),
        (
            "dimensions",
            f"Expected tensor {X} to have the same dimension as tensor {Y}; but 2 does not equal 1 {WRITTEN}",
        ),
        ("range", f"Expected 3 to 4 dimensions, but got 2-dimensional tensor {X} {WRITTEN}"),
        ("device", f"Expected tensor to have cuda DeviceType, but got tensor with cpu DeviceType {WRITTEN}"),
        ("layout", f"Expected tensor to have Sparse Layout, but got tensor with Strided Layout {WRITTEN}"),
        (
            "size",
            "Expected a tensor of dimension 2 and tensor.size[1] == 9, but got : dimension 2 and tensor.size[1] = 3",
        ),
    ],
)
def test_a_check_of_tensors_has_torchs_text(module: ModuleType, what: str, text: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        module.checked(A, B, what)
    assert str(raised.value) == text


def test_tensors_of_two_devices_or_layouts_have_two_types(module: ModuleType) -> None:
    for other, name in (
        (A.to("meta"), "MetaFloatType"),
        (A.to_sparse(), "torch.sparse.FloatTensor"),
        (A.bfloat16(), "CPUBFloat16Type"),
    ):
        with pytest.raises(RuntimeError, match=f"but type torch.FloatTensor does not equal {name}"):
            module.checked(A, other, "types")
    module.checked(A, A, "types")


def test_a_dtype_is_one_of_a_list(module: ModuleType) -> None:
    module.checked(A, A, "dtypes")
    with pytest.raises(RuntimeError) as raised:
        module.checked(A.int(), A, "dtypes")
    types = "to have one of the following scalar types: Float, Double; but got torch.IntTensor instead"
    assert str(raised.value) == f"Expected tensor {X} {types} {WRITTEN}"


def test_an_operation_without_a_deterministic_way_says_what_torch_says(module: ModuleType) -> None:
    module.checked(A, A, "determinism")
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError) as of_torch:
            torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
        with pytest.raises(RuntimeError) as raised:
            module.checked(A, A, "determinism")
        torch.use_deterministic_algorithms(True, warn_only=True)
        module.checked(A, A, "determinism")
    finally:
        torch.use_deterministic_algorithms(False)
    assert str(raised.value) == str(of_torch.value)


@pytest.mark.parametrize(("level", "seen"), [(None, ["warning 3", "error"]), ("ERROR", ["error"]), ("2", ["error"])])
def test_logs_are_lines_of_standard_error(library: Path, level: str | None, seen: list[str]) -> None:
    code = f"import sys, torch; sys.path.insert(0, {str(library.parent)!r})\nimport facade_checks as m; m.logged(False)"
    env = {key: value for key, value in os.environ.items() if key != "TORCH_CPP_LOG_LEVEL"}
    env |= {"TORCH_CPP_LOG_LEVEL": level} if level else {}
    ended = subprocess.run([forked_python.python(), "-c", code], env=env, capture_output=True, text=True, check=True)
    lines = ended.stderr.splitlines()
    texts = [found[1] for line in lines if (found := re.match(r"\[[WE]\d{4} [\d:]+\.\d{9} .+\.cpp:\d+\] (.+)$", line))]
    assert texts == seen and not any("never seen" in line for line in lines)


def test_a_failed_check_ends_the_process_as_with_torchs_headers(library: Path) -> None:
    code = f"import sys, torch; sys.path.insert(0, {str(library.parent)!r})\nimport facade_checks as m; m.logged(True)"
    ended = subprocess.run([forked_python.python(), "-c", code], capture_output=True, text=True)
    assert ended.returncode == -6 and "] Check failed: !fatal text\n" in ended.stderr


def test_a_written_tensor_has_a_new_version(module: ModuleType) -> None:
    for tensor in (torch.ones(2, 3, requires_grad=True), torch.ones(()), torch.ones(0, 3), torch.ones(4)[::2]):
        before, values = tensor._version, tensor.tolist()
        module.increment_version(tensor)
        assert (tensor._version, tensor.tolist()) == (before + 1, values)
    base = torch.ones(3, requires_grad=True)
    squared = base.square()
    module.increment_version(base)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


def test_tensors_are_flattened_and_taken_apart(module: ModuleType) -> None:
    x = torch.arange(6.0).view(2, 3)
    one, two, flat = module.flattened(x)
    assert torch.equal(one, x) and torch.equal(two, x * 2)
    assert torch.equal(flat, torch.cat([x.flatten(), x.flatten() * 2]))


def test_small_names_have_torchs_values(module: ModuleType) -> None:
    assert [module.quotient(x, y) for x, y in ((-7, 2), (7, -2), (6, 2), (-6, 2), (7, 2))] == [-4, -4, 3, -3, 3]
    assert module.bytes_like(A).dtype is torch.uint8
    assert module.seed() == torch.Generator().initial_seed()
