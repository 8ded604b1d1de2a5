"""Kernels for the layers of a model: which are taken, what a scope changes and restores, and what is refused."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import types

import pytest
import torch
from torch import nn

import opforge
from opforge.errors import KernelMappingError, KernelNotFoundError, KernelScopeError
from opforge.models import LayerKernel
from opforge.models import mapping as mappings


class Norm(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 2.0))

    def forward(self, x):
        return x * self.weight


class Kernel(nn.Module):
    can_torch_compile = True

    def forward(self, hidden):
        return hidden * self.weight + 0


class Marked(nn.Module):
    """Gives another result, so that it is seen where it runs."""

    def forward(self, x):
        return x * 0 + 7


class Forwards(nn.Module):
    has_backward = False

    def forward(self, x):
        return Marked.forward(self, x)


class Fails(nn.Module):
    def forward(self, x):
        raise ZeroDivisionError("broken")


class Changes(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * self.weight


class ChangesAndFails(nn.Module):
    def forward(self, x):
        x.add_(1)
        raise ZeroDivisionError("broken")


class WrongGradient(nn.Module):
    def forward(self, x):
        return x.detach() * self.weight + (x - x.detach()) * 5


class Drops(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        self.calls += 1
        return nn.functional.dropout(x * self.weight, training=self.training)


class Dropping(nn.Module):
    forward = Drops.forward


class Past:
    """As a cache of keys and values."""

    def __init__(self):
        self.parts = []


class Keeps(nn.Module):
    def forward(self, x, past):
        if past is None:
            return x
        past.parts.append(x)
        return torch.cat(past.parts)


class KeepsAndFails(nn.Module):
    def forward(self, x, past):
        raise ZeroDivisionError("broken")


@pytest.fixture
def model():
    return nn.Sequential(Norm(), nn.Linear(4, 4), Norm())


def entered(model, layer, **options):
    return opforge.kernels_for(model, {"Norm": LayerKernel(layer)}, **options)


X = torch.ones(2, 4)


class TestAScope:
    def test_layers_run_kernels_inside_and_their_own_methods_outside(self, model):
        expected, state = model(X), model.state_dict()
        with entered(model, Marked) as inside:
            assert inside is model and model[0](X).unique().tolist() == [7.0]
            assert [*model.state_dict()] == [*state] and type(model[0]) is Norm
        assert torch.equal(model(X), expected) and "forward" not in vars(model[0])

    def test_a_notebook_shows_the_lines_and_a_layer_that_keeps_its_own_forward(self, model):
        entries = [LayerKernel(Marked, device="cuda")]
        with opforge.kernels_for(model, {"Norm": entries}):
            pass
        explanation = opforge.explain_kernels(model)
        assert repr(explanation) == str(explanation) and str(explanation).startswith("0 (Norm): original: Marked")
        assert repr(explanation[0]) == f"<{explanation[0]}>"

    def test_hooks_stay_the_models(self, model):
        seen = []
        model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.unique().tolist()))
        with entered(model, Marked):
            model(X)
        assert seen == [[7.0]]

    def test_everything_is_restored_after_an_exception(self, model):
        model[2].forward = own = types.MethodType(Norm.forward, model[2])
        before = [dict(vars(module)) for module in model.modules()]
        with pytest.raises(KeyError), entered(model, Marked):
            raise KeyError
        assert [dict(vars(module)) for module in model.modules()] == before and model[2].forward is own

    def test_a_nested_scope_of_the_same_thread_is_left_first(self, model):
        outer, inner = entered(model, Kernel), entered(model, Marked)
        with outer:
            with inner:
                assert model[0](X).unique().tolist() == [7.0]
            assert model[0](X).unique().tolist() == [2.0]
        outer.__enter__()
        inner.__enter__()
        with pytest.raises(KernelScopeError, match=r"an outer scope is left first\. Leave scopes in their order"):
            outer.__exit__(None, None, None)
        inner.__exit__(None, None, None)
        outer.__exit__(None, None, None)

    @pytest.mark.parametrize("part", [False, True], ids=["the model", "a part of it"])
    def test_another_thread_is_refused_meanwhile(self, model, part):
        errors = []

        def enter():
            try:
                with entered(model[0] if part else model, Marked):
                    pass
            except KernelScopeError as error:
                errors.append(str(error))

        with entered(model, Kernel):
            thread = threading.Thread(target=enter)
            thread.start()
            thread.join()
        assert len(errors) == 1 and "another thread has a scope on it" in errors[0]

    @pytest.mark.parametrize("when", ["entering", "leaving"])
    def test_a_model_that_runs_in_another_thread_is_not_changed(self, model, when):
        begun, end = threading.Event(), threading.Event()

        def wait(_module, _inputs):
            begun.set()
            end.wait(30)

        hook = model[1].register_forward_pre_hook(wait)
        thread = threading.Thread(target=model, args=(X,))
        scope = entered(model, Marked)
        if when == "leaving":
            scope.__enter__()
        thread.start()
        assert begun.wait(30)
        try:
            with pytest.raises(KernelScopeError, match=r"another thread runs it\. Wait until its calls have ended"):
                scope.__enter__() if when == "entering" else scope.__exit__(None, None, None)
        finally:
            end.set()
            thread.join()
            hook.remove()
        if when == "leaving":
            scope.__exit__(None, None, None)
        assert "forward" not in vars(model[0])

    def test_a_model_that_fsdp2_shards_keeps_its_parameters(self, model):
        """It gives a sharded module another class, of the same names in a mapping."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor

        plain = copy.deepcopy(model)
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            mesh = init_device_mesh("cpu", (1,))
            for part in (model[0], model):
                fully_shard(part, mesh=mesh)
            with entered(model, Kernel, mode="training"):
                model(X).square().sum().backward()
                lines = opforge.explain_kernels(model)
            assert [str(line) for line in lines] == ["0 (Norm): Kernel", "2 (Norm): Kernel"]
            assert [*model.state_dict()] == [*plain.state_dict()]
            plain(X).square().sum().backward()
            for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                assert isinstance(mine, DTensor) and torch.equal(mine.grad.full_tensor(), theirs.grad)
        finally:
            torch.distributed.destroy_process_group()

    @pytest.mark.parametrize(
        ("use", "problem"),
        [
            (copy.deepcopy, "it is copied or saved with its kernels"),
            (pickle.dumps, "it is copied or saved with its kernels"),
            (lambda model: torch.save(model, io.BytesIO()), "it is copied or saved with its kernels"),
            (lambda model: copy.deepcopy(model[0]), "it is copied or saved with its kernels"),
            (lambda model: model.double(), "it is moved or converted"),
            (lambda model: model[2].to("meta"), "it is moved or converted"),
            (torch.jit.script, "it is scripted with its kernels"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:`torch.jit.script")
    def test_what_would_take_the_kernels_along_is_an_error(self, model, use, problem):
        with entered(model, Kernel):
            with pytest.raises(KernelScopeError, match=problem):
                use(model)
            assert model[0].weight.dtype == torch.float32 and torch.save(model.state_dict(), io.BytesIO()) is None
        assert torch.equal(copy.deepcopy(model)(X), model(X)) and pickle.loads(pickle.dumps(model))


class TestChoosing:
    def test_the_most_specific_entry_that_fits_is_taken(self, model):
        entries = [
            LayerKernel(Kernel),
            LayerKernel(Marked, device="cpu", condition=lambda module: module is model[2]),
            LayerKernel(Fails, device="cuda", architectures=("sm_90",)),
        ]
        with opforge.kernels_for(model, {"Norm": entries}):
            lines = str(opforge.explain_kernels(model)).splitlines()
        assert lines == ["0 (Norm): Kernel", "2 (Norm): Marked"]

    @pytest.mark.parametrize(
        ("mode", "layer", "reason"),
        [
            ("training", Forwards, "Forwards: it has no backward, and the scope is for training"),
            ("inference+compiled", Marked, "Marked: it does not say that torch.compile traces it"),
        ],
    )
    def test_a_layer_that_cannot_be_used_says_why(self, model, mode, layer, reason):
        with entered(model, layer, mode=mode):
            assert torch.equal(model[0](X), X * 2)
        assert [line.reason for line in opforge.explain_kernels(model)] == [reason] * 2

    def test_an_entry_for_something_else_says_why(self, model):
        entries = [
            LayerKernel(Marked, device="cuda"),
            LayerKernel(Marked, mode="training"),
            LayerKernel(Marked, architectures=("sm_90",)),
            LayerKernel(Marked, condition=lambda module: False),
        ]
        with opforge.kernels_for(model, {"Norm": entries}):
            reason = opforge.explain_kernels(model)[0].reason
        assert reason == (
            "Marked: its condition does not hold; Marked: it is for sm_90, and the machine has none; "
            "Marked: it is for cuda, and the layer is on cpu; Marked: it is for training, and the scope for inference"
        )

    def test_a_package_that_is_not_installed_is_an_error_and_nothing_is_replaced(self, model):
        with pytest.raises(KernelNotFoundError, match="opforge install"):
            opforge.kernels_for(model, {"Linear": LayerKernel(Marked), "Norm": "acme/absent:Norm"}).__enter__()
        assert all("forward" not in vars(module) for module in model.modules())

    @pytest.mark.parametrize(
        ("entries", "problem"),
        [
            ([LayerKernel(Kernel), LayerKernel(Marked)], "Kernel and Marked fit the same layers"),
            (
                [LayerKernel(Kernel, mode="training"), LayerKernel(Marked, mode="compiled")],
                "fit the same layers. Expected one that is more specific",
            ),
            (
                [LayerKernel(Kernel, architectures=("sm_80", "sm_90")), LayerKernel(Marked, architectures=("sm_90",))],
                "fit the same",
            ),
            ("acme/norms", "'acme/norms' is not a kernel of a layer"),
            (7, "7 is not a kernel of a layer"),
            (LayerKernel("Norm"), "'Norm' is of no package"),
            (LayerKernel(Kernel, mode="fast"), "mode='fast'. Expected inference, training or compiled"),
            (LayerKernel(Kernel, mode="inference+training"), r"mode='inference\+training'"),
        ],
    )
    def test_a_mapping_that_cannot_be_used_is_refused_when_it_is_made(self, entries, problem):
        with pytest.raises(KernelMappingError, match=problem):
            mappings.parse({"Norm": entries if isinstance(entries, list) else [entries]})

    def test_a_layer_that_the_package_lacks_is_an_error_with_those_that_it_has(self, monkeypatch):
        package = types.SimpleNamespace(layers=types.SimpleNamespace(RMSNorm=Kernel), Act=Marked, value=1)
        monkeypatch.setattr("opforge.packages.load.get_kernel.get_kernel", lambda *_arguments: package)
        assert LayerKernel("acme/norms:RMSNorm").load() is Kernel and LayerKernel("acme/norms:Act").load() is Marked
        with pytest.raises(KernelMappingError, match=r"no layer 'RMS'.* one of its classes: Act, RMSNorm"):
            LayerKernel("acme/norms:RMS").load()

    def test_entries_that_never_fit_the_same_layer_stand_side_by_side(self):
        for field, values in (("device", ("cpu", "cuda")), ("mode", ("inference", "training"))):
            mappings.parse({"Norm": [LayerKernel(Kernel, **{field: value}) for value in values]})

    def test_a_class_named_twice_is_an_error(self, model):
        full = f"{Norm.__module__}.Norm"
        with pytest.raises(KernelMappingError, match="the class is named by Norm and by"):
            opforge.kernels_for(model, {"Norm": LayerKernel(Kernel), full: LayerKernel(Kernel)}).__enter__()
        other = type("Norm", (Norm,), {"__module__": "elsewhere"})
        both = nn.Sequential(Norm(), other())
        with pytest.raises(KernelMappingError, match=r"and elsewhere\.Norm\. Expected the name with its module"):
            entered(both, Kernel).__enter__()
        with opforge.kernels_for(both, {"elsewhere.Norm": LayerKernel(Marked)}):
            assert [line.name for line in opforge.explain_kernels(both)] == ["1"]


def layer(*bases, **members):
    return type("Odd", bases or (nn.Module,), members)


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (layer(object, forward=Marked.forward), "it is not a subclass of torch.nn.Module"),
        (layer(forward=Marked.forward, __init__=lambda self: None), "it has a constructor"),
        (layer(forward=Marked.forward, scale=2), "it has scale: a layer has forward, has_backward, can_torch_compile"),
        (layer(forward=Marked.forward, help=lambda self: None), "it has help"),
        (
            layer(forward=lambda self, x, y: x),
            r"its forward has the parameters \(x, y\), and the original's \(x\): .* of the same kinds",
        ),
        (layer(forward=lambda self, *x: x), "its forward has the parameters"),
        (layer(forward=lambda self, x=1: x), r"its forward has the parameters \(x=1\), and the original's \(x\)"),
        (layer(forward=Marked.forward, has_backward="no"), "its has_backward is 'no', and neither True nor False"),
        (layer(), "it has no forward"),
    ],
)
def test_a_layer_that_breaks_the_rules_is_refused_before_the_first_call(model, kernel, problem):
    with pytest.raises(KernelMappingError, match=problem):
        entered(model, kernel).__enter__()
    assert all("forward" not in vars(module) for module in model.modules())


class TestCalls:
    def test_a_kernel_that_fails_ends_the_call_with_its_own_error_and_its_name(self, model):
        with pytest.raises(ZeroDivisionError, match="broken") as caught, entered(model, Fails):
            model(X)
        assert caught.value.__notes__ == ["in the kernel Fails of the layer 0 (Norm)"]

    def test_the_original_takes_over_if_that_is_chosen_and_it_is_said_once(self, model, caplog):
        with entered(model, Fails, on_error="original"):
            for _ in range(3):
                assert torch.equal(model[0](X), X * 2)
            line = opforge.explain_kernels(model)[0]
        assert (line.failed, str(line)) == (
            3,
            "0 (Norm): Fails; original after 3 errors: ZeroDivisionError: broken",
        )
        assert [record.message for record in caplog.records] == ["0: Fails failed, the original is used: broken"]

    def test_a_kernel_that_has_changed_its_inputs_is_not_made_up_for(self, model):
        with pytest.raises(ZeroDivisionError), entered(model, ChangesAndFails, on_error="original"):
            model[0](X.clone())

    def test_a_layer_without_a_backward_is_not_used_where_gradients_are_needed(self, model):
        with entered(model, Forwards):
            assert torch.equal(model[0](X), X * 2), "its weight needs a gradient"
            with torch.no_grad():
                assert model[0](X).unique().tolist() == [7.0]
            assert opforge.explain_kernels(model)[0].originals == 1

    def test_the_first_calls_are_compared(self, model):
        with entered(model, Kernel, check=2):
            for _ in range(5):
                model(X)
            line = opforge.explain_kernels(model)[0]
        assert (line.checked, line.difference) == (2, 0.0)

    @pytest.mark.parametrize("kernel", [Marked, WrongGradient], ids=["forward", "backward"])
    def test_a_difference_is_an_error_or_the_original_takes_over(self, model, kernel):
        x = X.clone().requires_grad_()
        with pytest.raises(KernelScopeError, match="differs from the original by"), entered(model, kernel, check=1):
            model[0](x)
        with entered(model, kernel, check=1, on_difference="original"):
            for _ in range(2):
                (gradient,) = torch.autograd.grad(model[0](x).sum(), x)
                assert gradient.unique().tolist() == [2.0]
            assert "it differs by" in opforge.explain_kernels(model)[0].reason

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), 1 + 2j])
    def test_inputs_of_any_value_are_compared(self, model, value):
        given = torch.full((2, 4), value)
        with entered(model, Kernel, check=1), torch.no_grad():
            model[0](given)
            assert opforge.explain_kernels(model)[0].difference == 0.0

    def test_random_numbers_and_buffers_are_those_of_one_call(self):
        """A comparison runs the original and the kernel with the same of both, before the call."""
        layer = Drops()
        torch.manual_seed(0)
        expected = [layer(X), layer(X)]
        layer.calls.zero_()
        torch.manual_seed(0)
        with opforge.kernels_for(layer, {"Drops": LayerKernel(Dropping)}, check=2):
            assert all(map(torch.equal, [layer(X), layer(X)], expected))
            line = opforge.explain_kernels(layer)[0]
        assert (line.checked, line.difference, int(layer.calls)) == (2, 0.0, 2)

    def test_a_buffer_that_the_kernel_does_not_change_is_a_difference(self):
        layer = Drops().eval()
        scope = opforge.kernels_for(layer, {"Drops": LayerKernel(Kernel)}, check=1)
        with pytest.raises(KernelScopeError, match="differs from the original by 1 in the layer"), scope:
            layer(X)
        assert int(layer.calls) == 0

    def test_an_object_that_calls_change_is_changed_by_one_call(self):
        layer = Keeps()
        with opforge.kernels_for(layer, {"Keeps": LayerKernel(Keeps)}, check=1):
            past = Past()
            for length in (1, 2):
                assert layer(X, past).shape[0] == length * X.shape[0]
            assert opforge.explain_kernels(layer)[0].checked == 1

    def test_without_a_copy_of_its_arguments_a_call_is_not_compared(self):
        layer, past = Keeps(), Past()
        past.parts.append(X.clone().requires_grad_() * 2)  # which copy.deepcopy refuses
        with opforge.kernels_for(layer, {"Keeps": LayerKernel(Keeps)}, check=1):
            assert layer(X, past).shape[0] == 2 * X.shape[0]
            line = opforge.explain_kernels(layer)[0]
        assert line.checked == 0
        assert str(line).endswith("; calls not compared: a Past cannot be copied")

    def test_the_original_does_not_go_on_with_an_object_that_may_be_changed(self):
        layer, past = Keeps(), Past()
        with (
            opforge.kernels_for(layer, {"Keeps": LayerKernel(KeepsAndFails)}, on_error="original"),
            pytest.raises(ZeroDivisionError),
        ):
            layer(X, past)
        with opforge.kernels_for(layer, {"Keeps": LayerKernel(KeepsAndFails)}, on_error="original"):
            assert torch.equal(layer(X, None), X), "there is nothing that it could have changed"

    def test_a_layer_whose_forward_other_code_has_replaced_keeps_it(self, model):
        """As hooks of accelerate do, which move weights and inputs to another device."""
        model[0].forward = lambda x: x * 0 + 3
        with entered(model, Marked), entered(model, Marked):
            assert model[0](X).unique().tolist() == [3.0]
            assert "other code has replaced its forward" in opforge.explain_kernels(model)[0].reason
        assert model[0](X).unique().tolist() == [3.0]

    def test_a_forward_that_changes_its_inputs_is_noticed(self, model):
        given = X.clone()
        scope = entered(model, Changes, check=1)
        with pytest.raises(KernelScopeError, match="Changes changed the inputs"), scope, torch.no_grad():
            model[0](given)
        assert torch.equal(given, X), "the copy was changed"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_error": "never"}, "on_error='never': expected 'raise' or 'original'."),
        ({"on_difference": "ignore"}, "on_difference='ignore': expected 'error' or 'original'."),
        ({"mode": "fast"}, "mode: mode='fast'. Expected inference, training or compiled"),
    ],
)
def test_an_option_with_another_value_is_refused_with_those_that_it_has(model, options, text):
    with pytest.raises(KernelMappingError) as caught:
        entered(model, Kernel, **options)
    assert str(caught.value).startswith(text)


def test_a_model_without_a_scope_has_nothing_to_explain(model):
    with pytest.raises(KernelScopeError, match="no scope was entered on it"):
        opforge.explain_kernels(model)


def test_compiling_breaks_no_graph_and_a_scope_that_is_entered_again_compiles_nothing(model):
    torch._dynamo.reset()
    graphs = []

    def count(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=count, fullgraph=True)
    compiled(X)
    for _ in range(3):
        with entered(model, Kernel, mode="inference+compiled"):
            assert torch.allclose(compiled(X), model(X))
        compiled(X)
    torch._dynamo.reset()
    assert len(graphs) == 2, "one with the kernels, one without"
