"""`opforge.no_builds()` covers compiles: a graph that is compiled already is used, another one is refused by name."""

from __future__ import annotations

import pytest
from support import child_processes, text_files
from support.compiled_graphs import flat

import opforge
from opforge.torch_internals import inductor

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile
REFUSED = r"{} no compiled graph fits, and opforge.no_builds\(\) forbids compiling\.\nCompile it before"


@pytest.fixture
def served(machines):
    """A machine that has found a graph of `flat` for six numbers."""
    own = machines.enter("first")
    with opforge.compiled("views"):
        torch.compile(flat)(torch.ones(6))
    machines.enter("second", own)


def test_the_first_request_compiles_nothing_and_another_shape_is_refused_by_name(served):
    compiled = torch.compile(flat, dynamic=False)
    with opforge.compiled("views") as graphs, opforge.no_builds():
        compiled(torch.ones(6))
        assert graphs.compiled == () and graphs.seconds > 0
        refused = REFUSED.format(r"flat \(compiled_graphs.py:\d+\) for float32\[7\]:")
        with pytest.raises(Exception, match=refused) as error:
            compiled(torch.ones(7))
    assert "CompileForbiddenError" in str(error.value)
    assert torch.equal(compiled(torch.ones(7)), flat(torch.ones(7)))  # it is compiled outside of the scope


def test_without_graphs_everything_is_refused(machines):
    machines.enter("first")
    with opforge.no_builds(), pytest.raises(Exception, match=r"forbids compiling"):
        torch.compile(flat)(torch.ones(6))


def test_no_compiler_is_started_for_inductor(machines):
    machines.enter("first")
    from torch._inductor.codecache import CppCodeCache

    with (
        opforge.no_builds(),
        pytest.raises(opforge.errors.CompileForbiddenError, match=r"^C\+\+ of inductor: no compiled graph fits"),
    ):
        CppCodeCache.load("extern void nothing();")


TRITON = """
import opforge
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def nothing_kernel(x):
    return

def compiled():
    return triton.compile(ASTSource(nothing_kernel, {"x": "*fp32"}), target=GPUTarget("cuda", 90, 32))

with opforge.no_builds():
    try:
        compiled()
    except opforge.errors.CompileForbiddenError as error:
        print(error)
compiled()
with opforge.no_builds():
    assert compiled().asm["ptx"]  # from Triton's cache
"""


def test_triton_compiles_no_kernel(tmp_path):
    """As for a GPU that is not here: Triton compiles for any. In a process in which no kernel was interpreted."""
    pytest.importorskip("triton")
    text_files.write(tmp_path, "kernels.py", TRITON)
    env = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    printed = child_processes.run_python("import kernels", env=env)
    assert printed.startswith("the Triton kernel nothing_kernel: no compiled graph fits")


def test_a_torch_that_is_not_known_is_said_once(machines, monkeypatch, warnings_of_the_cache):
    machines.enter("first")
    for name, value in (("TORCH", ("2.99",)), ("_patched", set()), ("problems", []), ("refusals", [lambda: False])):
        monkeypatch.setattr(inductor, name, value)
    inductor.watch()
    (warning,) = warnings_of_the_cache()
    assert warning.startswith("opforge.no_builds() does not refuse what torch.compile compiles: torch 2.")
    assert " is not known here: expected torch 2.99, or another that has passed `opforge check compiled`" in warning


@pytest.mark.long("takes 8 s")
def test_modules_that_are_imported_later_are_covered():
    code = (
        "import opforge, sys\n"
        "with opforge.no_builds():\n"
        "    assert 'torch' not in sys.modules\n"
        "    import torch\n"
        "    try: torch.compile(lambda x: x.view(1, -1))(torch.ones(6))\n"
        "    except Exception as error: print('forbids compiling' in str(error))\n"
    )
    assert child_processes.run_python(code).strip() == "True"
