"""Operators with a number, which the facade computes by others, give what torch's own C++ calls."""

import subprocess
import sys
from pathlib import Path

from facade.compiling import compile_library

SOURCE = """
#include <torch/extension.h>
using torch::Tensor;
#define EACH(name, expression) \\
  m.def(name, [](Tensor x, double y) { return expression; }); \\
  m.def(name, [](Tensor x, int64_t y) { return expression; });
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  EACH("add", x + y) EACH("sub", x - y) EACH("rsub", y - x) EACH("mul", x * y) EACH("div", x / y) EACH("pow", x.pow(y))
  EACH("eq", x == y) EACH("lt", x < y) EACH("ge", x >= y) EACH("remainder", x.remainder(y)) EACH("fmod", x.fmod(y))
  EACH("floor_divide", x.floor_divide(y)) EACH("clamp_min", x.clamp_min(y)) EACH("clamp", x.clamp(y, 2))
  EACH("fill_", x.clone().fill_(y)) EACH("add_", x.clone().add_(y)) EACH("mul_", x.clone().mul_(y))
  EACH("add_alpha", x.add(x, y)) EACH("masked_fill", x.masked_fill(x == x, y)) EACH("full_like", torch::full_like(x, y))
  EACH("constant_pad_nd", at::constant_pad_nd(x, {1, 2}, y))
}
"""
COMPARE = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("numbers_op", sys.argv[1])
op = importlib.util.module_from_spec(spec)
spec.loader.exec_module(op)
expected = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "rsub": lambda x, y: torch.empty_like(x).fill_(y).sub_(x),
    "mul": lambda x, y: x * y, "div": lambda x, y: x / y, "pow": lambda x, y: x.pow(y), "eq": torch.ops.aten.eq.Scalar,
    "lt": torch.ops.aten.lt.Scalar, "ge": torch.ops.aten.ge.Scalar, "remainder": lambda x, y: x.remainder(y),
    "fmod": lambda x, y: x.fmod(y), "floor_divide": lambda x, y: x.floor_divide(y),
    "clamp_min": lambda x, y: torch.clamp_min(x, y), "clamp": lambda x, y: x.clamp(y, 2),
    "fill_": lambda x, y: x.clone().fill_(y), "add_": lambda x, y: x.clone().add_(y),
    "mul_": lambda x, y: torch.ops.aten.mul_.Scalar(x.clone(), y), "add_alpha": lambda x, y: x.add(x, alpha=y),
    "masked_fill": lambda x, y: x.masked_fill(x == x, y), "full_like": lambda x, y: torch.full_like(x, y),
    "constant_pad_nd": lambda x, y: torch.constant_pad_nd(x, (1, 2), y),
}
def outcome(f, x, y):
    try:
        r = f(x, y)
    except Exception as error:
        return str(error)
    bits = torch.view_as_real(r) if r.is_complex() else r
    return r.dtype, r.shape, r.stride(), bits.double().nan_to_num(nan=77.25).flatten().tolist()
torch.manual_seed(0)
count, different = 0, []
dtypes = "float16 bfloat16 float32 float64 int64 int32 uint8 bool complex64".split()
dtypes += [f"float8_{form}" for form in ("e5m2", "e4m3fn", "e4m3fnuz")]
numbers = (0, 1, 2, 3, -1, -2, 300, 0.5, 2.0, 3.0, -0.5, -2.0, 0.1, 1e30, 2**40)
# Each dtype with each number, and each shape with each dtype.
cases = [(dtype, (4, 3), numbers) for dtype in dtypes]
cases += [(dtype, shape, (2, 0.5)) for dtype in dtypes[:9] for shape in ((33,), (0, 4))]
cases += [(dtype, (), (2, -0.5, 1e30)) for dtype in dtypes]
for dtype, shape, numbers in cases:
    x = (torch.randn(shape) * 3 + 1).to(getattr(torch, dtype))
    for y in numbers:
        for name, f in expected.items():
            mine, other = outcome(getattr(op, name), x, y), outcome(f, x, y)
            count += 1
            if "on torch's stable ABI" in str(mine):
                continue
            if isinstance(mine, str) and isinstance(other, str):
                continue
            if mine != other:
                different.append((name, dtype, shape, y, mine, other))
print(count, len(different))
for entry in different[:12]:
    print(*(str(part)[:130] for part in entry))
"""


def test_each_operator_with_a_number_gives_what_torch_gives(tmp_path: Path) -> None:
    (tmp_path / "op.cpp").write_text(SOURCE)
    compile_library("facade", "numbers_op", [tmp_path / "op.cpp"], tmp_path / "op.so", ["-O0"])
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPARE, str(tmp_path / "op.so")], capture_output=True, text=True
    )
    assert ended.stdout.splitlines()[:1] == ["5292 0"], ended.stdout + ended.stderr[-1500:]
