"""An op inside torch: torch.compile with inductor, export, autograd, copies; and optimizers whose step is compiled."""

from __future__ import annotations

import copy
import pickle

import pytest
from support import child_processes, sample_ops, text_files

import opforge
from opforge.errors import BuilderError
from opforge.ops import CPUAdam, FusedAdam

torch = pytest.importorskip("torch")
# Inductor's own use, on its first import.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")

SOURCE = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <optional>
using torch::stable::Tensor;
Tensor axpy(const Tensor& input, double by, std::optional<Tensor> plus) {
  const Tensor x = torch::stable::contiguous(input);
  const Tensor added = plus ? torch::stable::contiguous(*plus) : x;
  Tensor y = torch::stable::empty_like(x);
  const float* from = static_cast<const float*>(x.const_data_ptr());
  const float* more = static_cast<const float*>(added.const_data_ptr());
  float* to = static_cast<float*>(y.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] * @BY@ by + (plus ? more[i] : 0);
  return y;
}
void double_(Tensor x) {
  float* to = static_cast<float*>(x.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] *= 2;
}
STABLE_TORCH_LIBRARY(@NAME@, m) {
  m.def("axpy(Tensor x, float by, Tensor? plus=None) -> Tensor");
  m.def("double_(Tensor(a!) x) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CPU, m) {
  m.impl("axpy", TORCH_BOX(&axpy));
  m.impl("double_", TORCH_BOX(&double_));
}
"""


def fake(x, by, plus=None):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, shared_store, stable_header):
    """A folder with the source of an op that is named, as its namespace is, for the folder. The op has been loaded, and
    its backward registered: torch looks for one when it first traces the op, and not again.
    """
    folder = tmp_path_factory.mktemp("inside") / sample_ops.unique_name("inside")
    folder.mkdir()
    write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(shared_store))
        patch.setenv("CXXFLAGS", "-O0")
        patch.setenv("OPFORGE_COMPILER_LAUNCHER", stable_header)
        op = opforge.load(folder.name, folder / "op.cpp", fakes={"axpy": fake})

    def setup(ctx, inputs, output):
        ctx.by = inputs[1]

    def backward(ctx, grad):
        return op.axpy(grad, ctx.by), None, None

    torch.library.register_autograd(f"{folder.name}::axpy", backward, setup_context=setup)
    return folder


def write(folder, by=""):
    text_files.write(folder, "op.cpp", SOURCE.replace("@NAME@", folder.name).replace("@BY@", by))


@pytest.fixture
def op(folder, shared_store, precompiled, monkeypatch):
    """The op, none of whose functions has been looked up yet."""
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(shared_store))
    loaded = opforge.load(folder.name, folder / "op.cpp", fakes={"axpy": fake})
    for function in ("axpy", "double_"):
        vars(loaded).pop(function, None)
    yield loaded
    torch._dynamo.reset()


def compiles(function, backend="eager", **options):
    """Returns the function compiled, and what counts how often that was done."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, backend=counter, **options), counter


def test_a_compiled_function_may_be_the_first_to_ask_for_an_ops_function(op):
    compiled, _ = compiles(lambda x: op.axpy(x, 2.0) + 1, fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch's own tracing
def test_the_backward_of_a_compiled_function_may_be_the_first_to_ask(op):
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x / 2

        @staticmethod
        def backward(ctx, grad):
            return op.axpy(grad, 0.5)

    compiled, counter = compiles(lambda x: Half.apply(x).sum(), "aot_eager", fullgraph=True)
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        assert torch.autograd.grad(compiled(x), x)[0].tolist() == [0.5, 0.5]
        op.axpy(x, 1.0)
    assert counter.frame_count == 1


@pytest.mark.long("takes half a minute")
def test_inductor_compiles_pointwise_ops_mutations_views_and_new_shapes_around_an_op(op):
    def function(x, plus, view):
        op.double_(view)
        y = op.axpy(x.sin(), 2.0, plus)
        op.double_(y[1:])
        return op.axpy(y, 0.5).cos() * 3, view + 1

    compiled, counter = compiles(function, "inductor", fullgraph=True)
    for rows in (3, 5, 9, 0):
        for plus in (None, torch.randn(rows, 4)):
            base = torch.randn(rows + 1, 4)
            twin = base.clone()
            want = function(base[1:].t().contiguous().t(), plus, base[:1])
            got = compiled(twin[1:].t().contiguous().t(), plus, twin[:1])
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(twin, base)
    assert counter.frame_count <= 6  # each with and without `plus`: 3 rows, any number of them, none


def test_a_compiled_function_calls_the_version_that_is_passed(op, folder):
    def call(module, x):
        return module.axpy(x, 2.0)

    compiled, _ = compiles(call, "aot_eager", fullgraph=True)
    assert compiled(op, torch.ones(2)).tolist() == [2.0, 2.0]
    write(folder, "5 *")
    try:
        edited = opforge.load(folder.name, folder / "op.cpp", fakes={"axpy": fake})
    finally:
        write(folder)
    assert edited.axpy(torch.ones(1), 2.0).tolist() == [10.0]
    assert compiled(edited, torch.ones(2)).tolist() == [10.0, 10.0]
    assert compiled(op, torch.ones(2)).tolist() == [2.0, 2.0]


def test_fakes_may_come_later_and_take_the_place_of_earlier_ones(op, folder):
    seen = []

    def other(x, by, plus=None):
        seen.append(by)
        return fake(x, by, plus)

    again = opforge.load(folder.name, folder / "op.cpp", fakes={"axpy": other})
    assert again is op
    assert compiles(lambda x: op.axpy(x, 7.0), "aot_eager", fullgraph=True)[0](torch.ones(2)).tolist() == [7.0, 7.0]
    assert seen and set(seen) == {7.0}


MODULE = """\
#include <Python.h>
static PyObject* one(PyObject*, PyObject*) { return PyLong_FromLong(1); }
static PyMethodDef functions[] = {{"one", one, METH_NOARGS, nullptr}, {}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "@NAME@", nullptr, 0, functions};
PyMODINIT_FUNC PyInit_@NAME@() { return PyModule_Create(&definition); }
"""
"""A module of Python as pybind makes one, without its headers."""


def test_fakes_for_what_torch_does_not_know_are_refused(tmp_path):
    name = sample_ops.unique_name("bound")
    path = text_files.write(tmp_path, "bound.cpp", MODULE.replace("@NAME@", name))
    with pytest.raises(BuilderError) as caught:
        opforge.load(name, path, abi="torch", fakes={"one": fake})
    assert str(caught.value) == (
        f"{name}: fakes names 'one'. torch does not have that op: fake kernels are for what TORCH_LIBRARY blocks define"
    )
    assert opforge.load(name, path, abi="torch").one() == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch 2.14's own opcheck
def test_a_backward_registered_after_the_load_is_used_and_traced(op):
    torch.library.opcheck(op.axpy, (torch.randn(3, 4, requires_grad=True), 2.0))
    torch.library.opcheck(op.double_, (torch.randn(3, 4),))
    grads = []
    for function in (lambda x: op.axpy(x.sin(), 2.0), compiles(lambda x: op.axpy(x.sin(), 2.0), "aot_eager")[0]):
        x = torch.full((3,), 0.5, requires_grad=True)
        function(x).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


class Model(torch.nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op, self.weight = op, torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.op.axpy(x + self.weight, 3.0)


def test_a_model_that_holds_an_op_is_copied_but_not_pickled(op):
    twin = copy.deepcopy(Model(op))
    assert twin.op is op and twin(torch.ones(4)).tolist() == [6.0] * 4
    with pytest.raises(TypeError) as caught:
        pickle.dumps(op)
    assert str(caught.value) == (
        f"the op {op.__name__!r} cannot be pickled, because it is a library of this process: load it in the process"
        " that needs it, and do not pickle it"
    )


def test_torchs_other_ways_of_recording_a_call_take_an_op(op):
    model, x = Model(op), torch.ones(2, 4)
    want = model(x)
    with torch.no_grad():
        for recorded in (
            torch.fx.symbolic_trace(model),
            torch.export.export(model, (x,)).module(),
        ):
            assert torch.equal(recorded(x), want)
    assert torch.equal(torch.func.functional_call(model, {"weight": torch.zeros(4)}, (x,)), torch.full((2, 4), 3.0))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(op.axpy(x, 2.0), 2 * x)


RUN = """
import os, warnings, torch, opforge
opforge.load(os.environ["NAME"], os.environ["SOURCE"])
warnings.simplefilter("ignore")  # torch's own, about its own formats
print(torch.export.load(os.environ["PROGRAM"]).module()(torch.ones(5, 4)).sum().item())
"""


def test_an_exported_program_runs_in_a_process_that_has_loaded_the_op(op, folder, shared_store, tmp_path):
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Model(op), (torch.ones(3, 4),), dynamic_shapes={"x": {0: rows}})
    torch.export.save(program, tmp_path / "program.pt2")
    env = {
        "NAME": folder.name,
        "SOURCE": str(folder / "op.cpp"),
        "PROGRAM": str(tmp_path / "program.pt2"),
        "OPFORGE_CACHE_DIR": str(shared_store),
    }
    assert child_processes.run_with_torch(RUN, env=env) == "120.0\n"


@pytest.mark.long("takes half a minute")
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")  # torch's own use
def test_a_package_of_aot_inductor_calls_the_op(op, tmp_path):
    model, x = Model(op).eval(), torch.randn(3, 4)
    with torch.no_grad():
        program = torch.export.export(model, (x,))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    torch.testing.assert_close(torch._inductor.aoti_load_package(path)(x), model(x))


@pytest.mark.parametrize(
    ("kind", "options"), [(CPUAdam, {}), (FusedAdam, {"capturable": True, "master_weights": True})]
)
def test_a_compiled_step_follows_the_learning_rate_without_being_compiled_anew(builds_are_shared, kind, options):
    def stepped(wrap):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        optimizer = kind(model.parameters(), lr=0.1, **options)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        forward, forwards = compiles(lambda: model(torch.ones(2, 4)).square().mean())
        step, counter = wrap(optimizer.step)
        for _ in range(5):
            optimizer.zero_grad()
            step(lambda: forward().backward())
            scheduler.step()
        return list(model.parameters()), forwards.frame_count, counter

    plain, _, _ = stepped(lambda step: (step, None))
    compiled, forwards, counter = stepped(compiles)
    assert all(map(torch.equal, plain, compiled))
    assert forwards == 1 and counter.frame_count <= 1
