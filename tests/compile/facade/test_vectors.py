"""at::vec on the facade: torch's own headers, within a library that is bound to no torch."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from facade.compiling import compile_library
from facade.module_record import load

SOURCE = Path(__file__).parents[2] / "support" / "facade" / "vectors_source.cpp"
CAPABILITIES = {
    "default": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c", "-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2"],
}


@pytest.fixture(scope="module", params=CAPABILITIES)
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    kind = request.param
    if kind == "avx2" and torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("this processor has no AVX2")
    name = f"facade_vectors_{kind}"
    library = tmp_path_factory.mktemp("vectors") / f"{name}.so"
    compile_library("facade", name, [SOURCE], library, ["-O0", *CAPABILITIES[kind]])
    return load(library, name)


def test_vectors_compute_what_operators_do(module: ModuleType) -> None:
    x = torch.randn(1003, generator=torch.Generator().manual_seed(3))
    assert module.lanes() == 8 and module.first_of(x) == (x[0], x[1], x[2])
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        torch.testing.assert_close(module.scaled(x.to(dtype), 2.0), x.to(dtype) * 2 + 1)
    torch.testing.assert_close(module.exponential(x), x.exp())
    assert torch.equal(module.to_half(x), x.bfloat16())
    assert module.sum(x) == pytest.approx(x.sum().item(), rel=1e-4)
