"""An error of torch's has the type that Python sees, which the facade finds by its text."""

import re
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from facade.compiling import compile_library
from facade.module_record import load
from torch.nn import functional

from opforge.builders.facade.flags import INCLUDE

pytestmark = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="an older torch gives a library no texts"
)
SOURCE = """#include <torch/extension.h>
PYBIND11_MODULE(error_types, m) {
    m.def("raises", [](const std::string& text, const std::string& what) { c10::facade::fail_as_torch(text, what); });
}
"""
ONE, ROWS, INDEX, EMPTY = torch.ones(()), torch.ones(2, 3), torch.tensor([0]), torch.ones(0)
COMPLEX, META = torch.ones(2, dtype=torch.complex64), torch.ones(2, device="meta")
IMAGE, CONVOLUTION = torch.ones(1, 1, 2, 2), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
CASES: dict[str, Callable[[], object]] = {  # by the operator, where its name counts
    "sum": lambda: ROWS.sum(5),
    "select": lambda: ROWS.select(0, 7),
    "select of one": lambda: ONE.select(0, 0),
    "slice of one": lambda: torch.ops.aten.slice(ONE, 0, 0, 1),
    "narrow": lambda: ROWS.narrow(0, 5, 1),
    "size of one": lambda: ONE.size(0),
    "element of one": lambda: ONE[0],
    "mask": lambda: ROWS[torch.ones(5, dtype=torch.bool)],
    "index": lambda: torch.ops.aten.index(ROWS, [torch.tensor([7])]),
    "index_put_": lambda: torch.ops.aten.index_put_(ROWS.clone(), [torch.tensor([7])], ONE),
    "too many indices": lambda: torch.ops.aten.index(ROWS, [INDEX] * 3),
    "index_add": lambda: ROWS.index_add(0, torch.zeros(1, 1, dtype=torch.long), ROWS[:1]),
    "index_select": lambda: ROWS.index_select(0, torch.zeros(1, 1, dtype=torch.long)),
    "embedding": lambda: functional.embedding(torch.tensor([7]), ROWS),
    "index_copy": lambda: ROWS.index_copy(0, torch.tensor([0, 1]), ONE),
    "index_copy of rows": lambda: ROWS.index_copy(0, torch.zeros(1, 1, dtype=torch.long), ROWS[:1]),
    "argmax": lambda: torch.ones(2, 0).argmax(1),
    "amax": lambda: EMPTY.amax(),
    "amin": lambda: EMPTY.amin(),
    "max": lambda: EMPTY.max(),
    "min": lambda: EMPTY.min(),
    "hash_tensor": lambda: torch.hash_tensor(EMPTY),
    "amin of a dimension": lambda: EMPTY.amin(dim=0),
    "take": lambda: ROWS.take(torch.tensor([70])),
    "put": lambda: ROWS.put(torch.tensor([0, 1]), ONE),
    "no kernel": lambda: torch.ones(2, dtype=torch.bool).cholesky(),
    "dtype": lambda: torch.ones(2, dtype=torch.int32).erfinv_(),
    "product of bools": lambda: torch.ones(2, 2, dtype=torch.bool) @ torch.ones(2, 2, dtype=torch.bool),
    "another backend's": lambda: torch.ops.aten.convolution_overrideable(IMAGE, IMAGE, None, *CONVOLUTION),
    "another backend's gradient": lambda: torch.ops.aten.convolution_backward_overrideable(
        IMAGE, IMAGE, IMAGE, *CONVOLUTION, [True] * 3
    ),
    "sparse": lambda: torch.ones(2).to_sparse().sort(),
    "complex": lambda: COMPLEX.ceil(),
    "order of complex": lambda: COMPLEX.clamp(0),
    "meta": lambda: META.cpu(),
    "sign": lambda: COMPLEX.sign(),
    "signbit": lambda: COMPLEX.signbit(),
    "pad": lambda: functional.pad(ROWS, (1, 1), "strange"),
    "binomial": lambda: torch.binomial(torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)),
    "batch": lambda: functional.nll_loss(ROWS, torch.zeros(5, dtype=torch.long)),
    "one target": lambda: functional.nll_loss(torch.ones(3), torch.zeros(2, dtype=torch.long)),
    "none to join": lambda: torch.cat([]),
    "types to join": lambda: torch.cat([ROWS, ROWS], out=torch.ones(4, 3, dtype=torch.long)),
    "nothing to quantize": lambda: torch.choose_qparams_optimized(EMPTY, 0, 200, 0.16, 8),
    "one of two statistics": lambda: torch.instance_norm(
        torch.ones(2, 3, 4), None, None, torch.ones(3), None, True, 0.1, 1e-5, False
    ),
    "statistics": lambda: torch.instance_norm(torch.ones(2, 3, 4), None, None, ONE, None, True, 0.1, 1e-5, False),
    "too few dimensions": lambda: functional.pixel_shuffle(ONE, 2),
    "unfold": lambda: ROWS.unfold(0, 1, 0),
    "unfold_backward": lambda: torch.ops.aten.unfold_backward(torch.ones(2, 1, 1), [2, 1], 0, 1, 0),
    "singular": lambda: torch.linalg.inv(torch.zeros(2, 2)),
    "no solution": lambda: torch.linalg.solve(torch.zeros(2, 2), torch.ones(2)),
    "no singular values": lambda: torch.linalg.svd(torch.full((2, 2), float("nan"))),
    "not positive": lambda: torch.linalg.cholesky(-torch.eye(2)),
    "old cholesky": lambda: torch.cholesky(-torch.eye(2)),
    "shapes": lambda: ROWS @ ROWS,
}
TEXTS: dict[str, type[Exception]] = {
    "CUDA out of memory. Tried to allocate 2.00 GiB.": torch.OutOfMemoryError,
    "HIP out of memory. Tried to allocate 2.00 GiB.": torch.OutOfMemoryError,
    "XPU out of memory. Tried to allocate 2.00 GiB.": torch.OutOfMemoryError,
    "There were no tensor arguments to this function (e.g., you passed an empty list of Tensors)": NotImplementedError,
    "index 3 is out of range for tensor of dimension 2": IndexError,
    "Expected 1 or more dimensions (got 0)": ValueError,
    "SmallVector unable to grow. Requested capacity (4294967296) is larger than maximum value": ValueError,
    "cannot create std::vector larger than max_size()": ValueError,
    "Input tensor must have at least 3 dimensions, but got 2": ValueError,
    "torch.linalg.lstsq: The least squares solution could not be computed because the input matrix does not have full "
    "rank (error code: 2).": torch.linalg.LinAlgError,
    "CUDA error: out of memory": RuntimeError,
    "a text that begins otherwise: CUDA out of memory. Tried to allocate": RuntimeError,
    "a text of which nothing is known": RuntimeError,
}
"""Texts of devices, of sizes and of operators that no call here can have, with the types that Python sees."""
OWN_TEXTS = {
    "": "aten::op raised an exception of Python, of which torch's stable ABI passes nothing on",
    "isIntList() INTERNAL ASSERT FAILED at ivalue_inl.h": "aten::op in inference mode or in a transform is not on "
    "torch's stable ABI: it passes its list of integers as one of another type. Call it outside, or under "
    "torch.no_grad()",
    "Could not find schema for aten::qr.": "Could not find schema for aten::qr. It was in torch 2.10 and this torch "
    "has removed it: use another operator",
}
"""What the facade says in the place of a text that tells its callers nothing."""
KNOWN = re.compile(r'(begins|has)(?:_any)?\(\s*text,\s*\{?((?:\s*"(?:[^"\\]|\\.)*",?)+)\}?\)')
"""The texts that the facade knows, in its header: how it looks for them, and the literals."""
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("error_types")
    (folder / "error_types.cpp").write_text(SOURCE)
    library = folder / "error_types.so"
    compile_library("facade", "error_types", [folder / "error_types.cpp"], library, ["-O0"])
    return load(library, "error_types")


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
@pytest.mark.parametrize("case", CASES)
def test_an_error_has_the_type_that_python_sees(module: ModuleType, case: str) -> None:
    with pytest.raises(Exception) as raised:
        CASES[case]()
    with pytest.raises(type(raised.value)) as made:
        module.raises(str(raised.value), f"aten::{case}")
    assert type(made.value) is type(raised.value)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_no_call_here_has_gives_its_type(module: ModuleType, text: str) -> None:
    with pytest.raises(Exception, match=re.escape(text)) as made:
        module.raises(text, "aten::op")
    assert type(made.value) is TEXTS[text]


@pytest.mark.parametrize("text", OWN_TEXTS)
def test_a_text_that_says_nothing_is_replaced(module: ModuleType, text: str) -> None:
    with pytest.raises(RuntimeError) as made:
        module.raises(text, "aten::op")
    assert str(made.value) == OWN_TEXTS[text]


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_every_text_that_the_facade_knows_is_tried() -> None:
    tried = [*TEXTS, *OWN_TEXTS]
    for call in CASES.values():
        with pytest.raises(Exception) as raised:
            call()
        tried.append(str(raised.value))
    known = KNOWN.findall((INCLUDE / "opforge" / "facade" / "errors.h").read_text())
    texts = {(how, text.replace('\\"', '"')) for how, literals in known for text in LITERAL.findall(literals)}
    assert len(texts) > 50
    untried = {
        (how, part)
        for how, part in texts
        if not any(text.startswith(part) if how == "begins" else part in text for text in tried)
    }
    assert untried == set()
