"""c10::Dict on the facade, and ops that take and return it, and tuples: each gives what torch's own headers give."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from facade.compiling import compile_library
from facade.module_record import load
from support.processes import forked_python

NAME = "facade_dictionaries"
SOURCE = Path(__file__).parents[2] / "support" / "facade" / "dictionaries_source.cpp"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("dictionaries") / f"{NAME}.so"
    compile_library("facade", NAME, [SOURCE], library, ["-O0"])
    return library


@pytest.fixture(scope="module")
def module(library: Path) -> ModuleType:
    return load(library, NAME)


@pytest.fixture
def ops(module: ModuleType) -> Any:
    return getattr(torch.ops, NAME)


def test_a_dictionary_has_torchs_functions(module: ModuleType) -> None:
    assert module.entries() == "110 01 b4a2c5 101110 9223 c10"


def test_an_op_takes_and_returns_dictionaries_in_their_order(ops: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    sums, counts, keys = ops.joined({"z": x, "a": x * 2}, {"a": [1], "z": [1, 2], "more": []}, 10, torch.tensor(2.0))
    assert (list(sums), [value.item() for value in sums.values()]) == (["z", "a"], [12.0, 14.0])
    assert (counts, keys) == ({"z": 12, "a": 11}, ["z", "a"])
    sums["a"].backward()
    assert x.grad is not None and x.grad.tolist() == [4.0] * 3
    sums, counts, keys = ops.joined({}, {}, 0, None)
    assert (sums, counts, keys) == ({}, {}, [])
    assert ops.total({2: torch.ones(()), 5: torch.ones(())}).item() == 7


def test_an_op_with_a_stated_schema_takes_dictionaries_on_its_device(ops: Any) -> None:
    given = {"a": torch.zeros(1)}
    assert list(ops.stated(given, torch.ones(1))) == ["a", "x"]
    assert list(given) == ["a"]
    with pytest.raises(NotImplementedError, match="facade_dictionaries::stated"):
        ops.stated({}, torch.ones(1, device="meta"))


def test_an_op_takes_tuples_and_lists_of_them(ops: Any) -> None:
    assert ops.named(("a", 3), [("b", True), ("c", False)]) == "a3b+c-"
    assert str(ops.named.default._schema).endswith("named((str, int) _0, (str, bool)[] _1) -> str _0")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda ops: ops.joined({"a": torch.ones(1)}, {}, 0, None), IndexError, "Argument passed to at() was not in"),
        (lambda ops: ops.total({}), RuntimeError, "no tensors"),
        (lambda ops: ops.total({"a": torch.ones(1)}), RuntimeError, "Expected a value of type 'Dict[int, Tensor]'"),
        (lambda ops: ops.total(torch.ones(1)), RuntimeError, "Expected a value of type 'Dict[int, Tensor]'"),
    ],
    ids=["a missing key", "an error of the function", "a key of another type", "no dictionary"],
)
def test_an_error_of_such_an_op_is_torchs(ops: Any, call: Callable[[Any], object], error: Any, text: str) -> None:
    with pytest.raises(error) as raised:
        call(ops)
    assert type(raised.value) is error and text in str(raised.value)


def test_no_bytecode_runs_within_the_dynamic_loader(library: Path, tmp_path: Path) -> None:
    # another thread could get the GIL there, and wait with it for the loader's lock
    (tmp_path / "use.py").write_text("""import _ctypes, os, sys, torch
ran = []
sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_name) if event == "call" else None)
_ctypes.dlopen(sys.argv[1], os.RTLD_NOW)
sys.setprofile(None)
print(ran, torch.ops.facade_dictionaries.total({2: torch.ones(1)}).tolist())
""")
    command = [forked_python.python(), str(tmp_path / "use.py"), str(library)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stdout == "[] [2.0]\n", ended.stderr


def test_torchscript_calls_such_an_op(library: Path, tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text("""import sys, torch, warnings
from typing import Dict
warnings.simplefilter("ignore")
torch.ops.load_library(sys.argv[1])
@torch.jit.script
def use(x: torch.Tensor):
    given: Dict[int, torch.Tensor] = {3: x}
    return torch.ops.facade_dictionaries.total(given)
print(use(torch.ones(2)).tolist(), torch.ops.facade_dictionaries.joined.default._schema)
""")
    command = [forked_python.python(), str(tmp_path / "use.py"), str(library)]
    ended = subprocess.run(command, capture_output=True, text=True)
    schema = "facade_dictionaries::joined(Dict(str, Tensor) _0, Dict(str, int[]) _1, int _2, Tensor? _3) -> "
    assert ended.stdout == f"[3.0, 3.0] {schema}(Dict(str, Tensor) _0, Dict(str, int) _1, str[] _2)\n", ended.stderr


DEFAULT = "f(Dict(str, Tensor) x, int n=1) -> Tensor", "its schema has defaults or arguments by name alone"
OTHER = "f(Dict(str, int) x, int n) -> Tensor", "has the arguments (Dict(str, int), int), and the C++ function has"


@pytest.mark.parametrize(
    ("refused", "is_last"),
    [(DEFAULT, False), (OTHER, True)],
    ids=["a default", "another type after the function"],
)
def test_a_schema_that_such_an_op_cannot_have_is_an_import_error(
    refused: tuple[str, str], is_last: bool, tmp_path: Path
) -> None:
    schema, text = refused
    name = f"facade_refused{len(schema)}{is_last}"
    blocks = [
        f'TORCH_LIBRARY({name}, m) {{ m.def("{schema}"); }}\n',
        f'TORCH_LIBRARY_IMPL({name}, CPU, m) {{ m.impl("f", &f); }}\n',
    ]
    (tmp_path / "op.cpp").write_text(f"""#include <torch/extension.h>
at::Tensor f(c10::Dict<std::string, at::Tensor> x, int64_t n) {{ return x.at("a") + n; }}
{"".join(reversed(blocks) if is_last else blocks)}PYBIND11_MODULE({name}, m) {{}}
""")
    compile_library("facade", name, [tmp_path / "op.cpp"], tmp_path / "op.so", ["-O0"])
    with pytest.raises(ImportError) as raised:
        load(tmp_path / "op.so", name)
    assert text in str(raised.value)
