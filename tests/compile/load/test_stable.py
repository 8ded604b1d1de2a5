"""Ops on the stable ABI: their functions, their libraries, torch's checks and compiler, and fake kernels."""

from __future__ import annotations

import re
from functools import partial

import pytest
from support import sample_ops

import opforge
from opforge.errors import BuilderError

torch = pytest.importorskip("torch", reason="pip install torch")
pytestmark = pytest.mark.usefixtures("precompiled")


def test_an_op_computes_and_is_registered_under_its_name(relu_op):
    x = torch.tensor([-1.0, 0.0, 2.0])
    assert relu_op.relu(x).tolist() == [0.0, 0.0, 2.0]
    name = relu_op.__name__
    assert getattr(torch.ops, name).relu(x).tolist() == [0.0, 0.0, 2.0]
    assert "relu" in dir(relu_op)
    assert re.fullmatch(
        rf"<op '{name}' \((built|cache)\) from \S+{name}-[0-9a-f]{{16}}\.so\n  relu\(Tensor x\) -> Tensor>",
        repr(relu_op),
    )


def test_a_failing_check_is_a_python_error(relu_op):
    with pytest.raises(RuntimeError, match="relu: float32 expected"):
        relu_op.relu(torch.zeros(2, dtype=torch.float64))


def test_the_error_for_a_missing_function_lists_the_ops_functions(relu_op):
    with pytest.raises(AttributeError, match=rf"the op '{relu_op.__name__}' has no function 'gelu'; it has: relu"):
        relu_op.gelu


def test_opcheck_passes(relu_op):
    torch.library.opcheck(relu_op.relu, (torch.randn(5),))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_traces_an_op_without_a_break(relu_op, backend):
    function = torch.compile(
        lambda x: x if hasattr(relu_op, "relu_v2") else relu_op.relu(x) + 1, fullgraph=True, backend=backend
    )
    assert function(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 3.0]


def test_a_library_exports_only_its_two_entry_points(relu_class):
    record = relu_class().build().record
    assert record["exports"] == ["opforge_describe", "opforge_register"]
    assert "libtorch_cpu.so" in record["needs"] and not any("python" in name for name in record["needs"])


def test_a_library_is_built_for_the_oldest_supported_torch(relu_class):
    record = relu_class().build().record
    assert record["torch_target"] == "2.10" and record["requires"] == {}
    assert "GLIBC" in record["floors"]


# Older headers do not define the newer versions, and the preprocessor takes an undefined name for 0.
OLDER_HEADERS = """\
#include <torch/csrc/stable/version.h>
#undef TORCH_VERSION_2_12_0
#undef TORCH_VERSION_2_13_0
#include <torch/csrc/stable/library.h>
int64_t same(int64_t x) { return x; }
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("same(int x) -> int"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CompositeExplicitAutograd, m) { m.impl("same", TORCH_BOX(&same)); }
"""


def test_a_source_compiles_with_the_headers_of_an_older_torch(tmp_path, monkeypatch):
    monkeypatch.delenv("OPFORGE_COMPILER_LAUNCHER")  # what it undefines has to be so before the other headers are read
    assert sample_ops.op_from_source(tmp_path, OLDER_HEADERS)().load().same(7) == 7


def test_a_fake_for_a_missing_function_is_an_error_at_every_load(relu_class):
    cls = type("OfGelu", (relu_class,), {"__module__": relu_class.__module__, "fakes": {"gelu": sample_ops.relu_fake}})
    for _ in range(3):
        with pytest.raises(BuilderError, match=rf"{cls.name}: fakes names 'gelu'. The library defines: relu"):
            cls().load()
    cls.fakes = {"relu": "relu_fake"}
    with pytest.raises(BuilderError, match=r"fakes\['relu'\]='relu_fake'. Expected a function that returns an empty"):
        cls().load()


def test_a_fake_of_a_later_load_replaces_the_one_before(tmp_path):
    cls = sample_ops.stable_op(tmp_path / "op")
    x = torch.empty(3, device="meta")
    load = partial(opforge.load, cls.name, tmp_path / "op" / f"{cls.name}.cpp")
    op = load()
    with pytest.raises(NotImplementedError):
        op.relu(x)
    assert load(fakes={"relu": sample_ops.relu_fake}) is op and op.relu(x).shape == (3,)
    assert load(fakes={"relu": lambda x: x.new_empty(5)}) is op and op.relu(x).shape == (5,)
    with pytest.raises(BuilderError, match=r"fakes names 'gelu'. The library defines: relu"):
        load(fakes={"gelu": sample_ops.relu_fake})
