"""A real, unmodified DeepSpeed on opforge: its accelerator, its builders, and what its optimizers compute."""

from __future__ import annotations

import pytest
from support import deepspeed_job, text_files

if not deepspeed_job.is_installed():
    pytest.skip(deepspeed_job.MISSING, allow_module_level=True)

PROGRAM = """
import json, logging, os, abc, importlib.metadata
import torch, deepspeed, opforge, opforge.compat.deepspeed as compat
from deepspeed.accelerator import DeepSpeedAccelerator, get_accelerator
from deepspeed.ops import op_builder
from deepspeed.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder, TransformerBuilder
from deepspeed.ops.op_builder import CPUAdamBuilder as Renamed
from opforge.accelerator import Accelerator
from opforge.builders.cpu.adam import CPUAdamBuilder as Ours
from opforge.ops import reference

messages, before, facts = [], [get_accelerator(), CPUAdamBuilder, AsyncIOBuilder], {}
handler = logging.Handler(); handler.emit = lambda record: messages.append(record.getMessage())
logging.getLogger("opforge").addHandler(handler)
compat.install()
ours = get_accelerator()
facts["both interfaces"] = isinstance(ours, Accelerator) and isinstance(ours, DeepSpeedAccelerator)
facts["name"] = ours._name
opforge.get_accelerator().set_device(3)
facts["shared device"] = [ours.current_device()]
ours.set_device(torch.device("cpu:2"))
ours.set_device(torch.device("cpu"))
facts["shared device"].append(opforge.get_accelerator().current_device())
opforge.get_accelerator().set_device(0)
facts["in the engine"] = deepspeed.runtime.engine.get_accelerator() is ours
facts["builder is ours"] = issubclass(op_builder.CPUAdamBuilder, Ours)
names = (CPUAdamBuilder, Renamed, deepspeed.ops.adam.cpu_adam.CPUAdamBuilder, ours.get_op_builder("CPUAdamBuilder"))
facts["names"] = [kind is op_builder.CPUAdamBuilder for kind in names]
facts["library"] = CPUAdamBuilder().load().path
op, again = CPUAdamBuilder().load(), ours.create_op_builder("CPUAdamBuilder").load()
facts["one op"] = [op is again, hasattr(op, "no_such_function"), type(op).__name__]
states = [torch.ones(3) for _ in range(4)]
op.create_adam(900, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
again.adam_update(900, 1, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, *states)
again.destroy_adam(900)
try:
    op.adam_update(900, 2, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, *states)
except RuntimeError as error:
    facts["destroyed"] = str(error)
kinds = [getattr(op_builder, name) for name in compat.DROP_IN]
facts["identities"] = {kind.__name__: [kind.NAME, kind.BUILD_VAR, kind().absolute_name()] for kind in kinds}
facts["compatible"] = [bool(deepspeed.ops.__compatible_ops__[kind.NAME]) for kind in kinds]
facts["is a builder"] = all(isinstance(kind(), op_builder.OpBuilder) for kind in kinds)
facts["deepspeed keeps"] = AsyncIOBuilder is before[2] and AsyncIOBuilder.__module__
facts["all callable"] = all(callable(value) for name, value in vars(op_builder).items() if name.endswith("Builder"))
try:
    TransformerBuilder().load()
except ValueError as error:
    facts["neither has"] = str(error)
facts["opforge itself"] = opforge.get_accelerator().create_op_builder("TransformerBuilder")
facts["pinned"] = ours.pin_memory(torch.ones(3)).tolist()

from deepspeed.env_report import op_report
from deepspeed.ops.op_builder.all_ops import ALL_OPS
op_report(False)
facts["listed"] = isinstance(ALL_OPS["cpu_adam"], Ours)

from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.lion import DeepSpeedCPULion

def stepped(kind, **options):
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(1001))
    optimizer = kind([p], lr=1e-2, **options)
    for _ in range(5):
        p.grad = torch.sin(p.detach() * 3)
        optimizer.step()
    return p.detach()

class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def step(self):
        (p,) = self.param_groups[0]["params"]
        m = self.state[p].setdefault("m", torch.zeros_like(p))
        p.data -= self.param_groups[0]["lr"] * torch.sign(0.9 * m + 0.1 * p.grad)
        m.mul_(0.99).add_(p.grad, alpha=0.01)

for theirs, peer in [
    (DeepSpeedCPUAdam, lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0)),
    (DeepSpeedCPUAdagrad, lambda p, lr: torch.optim.Adagrad(p, lr=lr)),
    (lambda p, lr: DeepSpeedCPULion(p, lr=lr, betas=(0.9, 0.99)), Lion),
]:
    facts.setdefault("steps differ by", []).append((stepped(theirs) - stepped(peer)).abs().max().item())

from deepspeed.ops.adam import FusedAdam
from deepspeed.ops.lamb import FusedLamb
from deepspeed.ops.lion import FusedLion
from deepspeed.runtime.zero.partition_parameters import CUDAQuantizer

class Lamb(torch.optim.Optimizer):
    # As DeepSpeed's kernel computes it: the correction scales the whole step, and the ratio of norms is bounded.

    def __init__(self, params, lr, weight_decay):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.count = 0

    def step(self):
        (p,), group = self.param_groups[0]["params"], self.param_groups[0]
        m = self.state[p].setdefault("m", torch.zeros_like(p))
        v = self.state[p].setdefault("v", torch.zeros_like(p))
        self.count += 1
        m.mul_(0.9).add_(p.grad, alpha=0.1)
        v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
        size = group["lr"] * (1 - 0.999**self.count) ** 0.5 / (1 - 0.9**self.count)
        update = m / (v.sqrt() + 1e-8) + group["weight_decay"] * p.data
        p.data -= size * min(max((p.data.norm() / update.norm()).item(), 0.01), 10.0) * update

facts["fused differ by"] = {}
for name, theirs, peer, options in [
    ("AdamW", FusedAdam, torch.optim.AdamW, {"weight_decay": 0.1}),
    ("Adam", lambda p, **o: FusedAdam(p, adam_w_mode=False, **o), torch.optim.Adam, {"weight_decay": 0.1}),
    ("Lion", lambda p, lr: FusedLion(p, lr=lr, betas=(0.9, 0.99)), Lion, {}),
    ("Lamb", FusedLamb, Lamb, {"weight_decay": 0.1}),
]:
    facts["fused differ by"][name] = (stepped(theirs, **options) - stepped(peer, **options)).abs().max().item()

halves = torch.nn.Parameter(torch.linspace(-1, 1, 65, dtype=torch.bfloat16))
peer = torch.nn.Parameter(halves.detach().clone())
for p, kind in [(halves, FusedAdam), (peer, torch.optim.AdamW)]:
    p.grad = torch.sin(p.detach() * 3)
    kind([p], lr=1e-2, weight_decay=0.1).step()
facts["bfloat16 differs by"] = (halves - peer).abs().max().item()

quantizer = CUDAQuantizer()
values = torch.randn(16000, generator=torch.Generator().manual_seed(0))
codes, scale = quantizer.quantize(values)
back = quantizer.dequantize(codes, scale, dtype=torch.float32)
largest = values.reshape(scale.numel(), -1).abs().amax(1, keepdim=True)
error = (back - values).reshape(scale.numel(), -1).abs() / largest
facts["quantized"] = [str(codes.dtype), list(codes.shape), error.max().item()]

compat.uninstall()
facts["undone"] = [get_accelerator() is before[0], CPUAdamBuilder is before[1], "opforge" not in str(ALL_OPS)]
facts["untouched"] = isinstance(ours, Accelerator) and opforge.get_accelerator() is not ours

version = importlib.metadata.version
importlib.metadata.version = lambda name: "0.20.0" if name == "deepspeed" else version(name)
facts["messages of the tested version"] = list(messages)
compat.install(builders=["CPULionBuilder"])
facts["messages"] = messages
facts["chosen"] = [CPUAdamBuilder is before[1], op_builder.CPULionBuilder.__module__]
compat.uninstall()
DeepSpeedAccelerator.grow = abc.abstractmethod(lambda self: None)
abc.update_abstractmethods(DeepSpeedAccelerator)
try:
    compat.install()
except compat.DeepSpeedError as error:
    facts["too different"] = str(error)
facts["unchanged after the error"] = get_accelerator() is before[0]
print(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def facts(shared_store, tmp_path_factory):
    """What the program printed."""
    folder = tmp_path_factory.mktemp("deepspeed")
    # As in opforge's checkout: DeepSpeed would take the folder `accelerator` for its own.
    (folder / "accelerator").mkdir()
    text_files.write(
        folder / "accelerator", "__init__.py", "def get_accelerator(): raise AssertionError('not this one')\n"
    )
    return deepspeed_job.run(PROGRAM, shared_store, folder, LOCAL_RANK=None)


def test_the_accelerator_has_both_interfaces(facts):
    assert facts["both interfaces"] is True
    assert facts["name"] == "cpu"
    assert facts["in the engine"] is True


def test_a_device_chosen_through_one_interface_is_current_in_the_other(facts):
    assert facts["shared device"] == [3, 2]


def test_builders_are_opforges_in_modules_imported_before_and_under_other_names(facts, shared_store):
    assert facts["builder is ours"] is True
    assert facts["names"] == [True] * 4
    assert facts["library"].startswith(str(shared_store))


def test_builders_have_deepspeeds_names_also_those_that_its_device_lacks(facts):
    families = {"Adam": "adam", "Adagrad": "adagrad", "Lion": "lion", "Lamb": "lamb", "Quantizer": "quantizer"}
    for kind, (name, variable, module) in facts["identities"].items():
        family = next(family for suffix, family in families.items() if kind.endswith(f"{suffix}Builder"))
        assert (variable, module) == (f"DS_BUILD_{name.upper()}", f"deepspeed.ops.{family}.{name}_op")
    assert len(facts["identities"]) == len(facts["compatible"]) == 7
    assert all(facts["compatible"]) and facts["is a builder"]


def test_loads_share_one_op_and_its_optimizers(facts):
    assert facts["one op"] == [True, False, "LoadedOp"]
    assert facts["destroyed"].startswith("optimizer_id 900 is unknown")


def test_a_builder_that_opforge_lacks_is_deepspeeds_and_never_none(facts):
    assert facts["deepspeed keeps"] == "deepspeed.ops.op_builder.cpu.async_io"
    assert facts["all callable"] is True
    assert facts["neither has"] == "This op had not been implemented on CPU backend."
    assert facts["opforge itself"] is None


def test_cpu_optimizers_compute_the_reference_steps(facts):
    assert max(facts["steps differ by"]) < 1e-6


def test_fused_optimizers_compute_the_reference_steps_on_the_cpu(facts):
    assert set(facts["fused differ by"]) == {"AdamW", "Adam", "Lion", "Lamb"}
    assert max(facts["fused differ by"].values()) < 2e-6
    assert facts["bfloat16 differs by"] <= 2**-8  # at most one unit in the last place


def test_the_quantizer_is_exact_to_half_a_code(facts):
    kind, shape, error = facts["quantized"]
    assert (kind, shape) == ("torch.int8", [16000])
    assert error < 1 / 128


def test_pinning_and_the_list_of_ops_work(facts):
    assert facts["pinned"] == [1, 1, 1]
    assert facts["listed"] is True


def test_uninstall_restores_everything(facts):
    assert facts["undone"] == [True, True, True]
    assert facts["untouched"] is True


def test_the_builders_can_be_chosen(facts):
    assert facts["chosen"] == [True, "opforge.builders.cpu.lion"]


def test_an_untested_version_is_used_with_a_warning(facts):
    assert [text for text in facts["messages of the tested version"] if "tested" in text] == []
    assert "DeepSpeed 0.20.0 is installed, and opforge was tested with DeepSpeed==0.19.8 only" in facts["messages"]


def test_a_deepspeed_with_further_abstract_methods_is_an_error_and_unchanged(facts):
    assert facts["too different"].startswith("DeepSpeed cannot be run on opforge: DeepSpeed 0.20.0 has an")
    assert "abstract method" in facts["too different"] and "grow" in facts["too different"]
    assert facts["too different"].endswith("pip install --no-build-isolation 'deepspeed==0.19.8'")
    assert facts["unchanged after the error"] is True
