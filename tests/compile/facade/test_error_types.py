"""An error of torch's has the type that Python sees, which the facade finds by its text."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from facade.compiling import compile_library
from facade.module_record import load
from torch.nn import functional

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
CASES: dict[str, Callable[[], object]] = {  # by the operator, where its name counts
    "sum": lambda: ROWS.sum(5),
    "select": lambda: ROWS.select(0, 7),
    "select of one": lambda: ONE.select(0, 0),
    "slice of one": lambda: torch.ops.aten.slice(ONE, 0, 0, 1),
    "narrow": lambda: ROWS.narrow(0, 5, 1),
    "mask": lambda: ROWS[torch.ones(5, dtype=torch.bool)],
    "index": lambda: torch.ops.aten.index(ROWS, [torch.tensor([7])]),
    "index_put_": lambda: torch.ops.aten.index_put_(ROWS.clone(), [torch.tensor([7])], ONE),
    "too many indices": lambda: torch.ops.aten.index(ROWS, [INDEX] * 3),
    "index_add": lambda: ROWS.index_add(0, torch.zeros(1, 1, dtype=torch.long), ROWS[:1]),
    "index_select": lambda: ROWS.index_select(0, torch.zeros(1, 1, dtype=torch.long)),
    "embedding": lambda: functional.embedding(torch.tensor([7]), ROWS),
    "index_copy": lambda: ROWS.index_copy(0, torch.tensor([0, 1]), ONE),
    "argmax": lambda: torch.ones(2, 0).argmax(1),
    "amax": lambda: EMPTY.amax(),
    "max": lambda: EMPTY.max(),
    "take": lambda: ROWS.take(torch.tensor([70])),
    "put": lambda: ROWS.put(torch.tensor([0, 1]), ONE),
    "no kernel": lambda: torch.ones(2, dtype=torch.bool).cholesky(),
    "dtype": lambda: torch.ones(2, dtype=torch.int32).erfinv_(),
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
    "statistics": lambda: torch.instance_norm(torch.ones(2, 3, 4), None, None, ONE, None, True, 0.1, 1e-5, False),
    "too few dimensions": lambda: functional.pixel_shuffle(ONE, 2),
    "unfold": lambda: ROWS.unfold(0, 1, 0),
    "unfold_backward": lambda: torch.ops.aten.unfold_backward(torch.ones(2, 1, 1), [2, 1], 0, 1, 0),
    "singular": lambda: torch.linalg.inv(torch.zeros(2, 2)),
    "not positive": lambda: torch.linalg.cholesky(-torch.eye(2)),
    "old cholesky": lambda: torch.cholesky(-torch.eye(2)),
    "shapes": lambda: ROWS @ ROWS,
}


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
