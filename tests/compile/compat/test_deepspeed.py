"""A real, unmodified DeepSpeed on opforge. It prints and warns when it is imported, so it runs in processes of its own.

What its own CPU kernel computes takes a minute or more to build: OPFORGE_LONG_TESTS=1 compares with that too.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket

import pytest
from support import child_processes, text_files

try:
    importlib.metadata.version("deepspeed")
except importlib.metadata.PackageNotFoundError:
    pytest.skip("needs DeepSpeed: pip install --no-build-isolation deepspeed==0.19.8", allow_module_level=True)

LONG = pytest.mark.skipif(
    not os.environ.get("OPFORGE_LONG_TESTS"), reason="builds DeepSpeed's own kernel, for a minute: OPFORGE_LONG_TESTS=1"
)

LOOK = """
import json, logging, os, abc, importlib.metadata
import torch, deepspeed, opforge, opforge.compat.deepspeed as compat
from deepspeed.accelerator import DeepSpeedAccelerator, get_accelerator
from deepspeed.ops import op_builder
from deepspeed.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder, TransformerBuilder
from deepspeed.ops.op_builder import CPUAdamBuilder as Renamed
from opforge.accelerator import Accelerator
from opforge.builders.cpu.adam import CPUAdamBuilder as Ours
from opforge.ops import reference

said, before, facts = [], [get_accelerator(), CPUAdamBuilder, AsyncIOBuilder], {}
handler = logging.Handler(); handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("opforge").addHandler(handler)
compat.install()
ours = get_accelerator()
facts["both kinds"] = isinstance(ours, Accelerator) and isinstance(ours, DeepSpeedAccelerator)
facts["name"] = ours._name
opforge.get_accelerator().set_device(3)
facts["one state"] = [ours.current_device()]
ours.set_device(torch.device("cpu:2"))
ours.set_device(torch.device("cpu"))
facts["one state"].append(opforge.get_accelerator().current_device())
opforge.get_accelerator().set_device(0)
facts["everywhere"] = deepspeed.runtime.engine.get_accelerator() is ours
facts["builder is ours"] = issubclass(op_builder.CPUAdamBuilder, Ours)
names = (CPUAdamBuilder, Renamed, deepspeed.ops.adam.cpu_adam.CPUAdamBuilder, ours.get_op_builder("CPUAdamBuilder"))
facts["names"] = [one is op_builder.CPUAdamBuilder for one in names]
facts["library"] = CPUAdamBuilder().load().path
facts["theirs stay"] = AsyncIOBuilder is before[2] and AsyncIOBuilder.__module__
facts["all callable"] = all(callable(value) for name, value in vars(op_builder).items() if name.endswith("Builder"))
try:
    TransformerBuilder().load()
except ValueError as error:
    facts["what neither has"] = str(error)
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
    # As DeepSpeed's kernel has it: the correction scales the whole step, the ratio of norms stays in its bounds.

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

found = importlib.metadata.version
importlib.metadata.version = lambda name: "0.20.0" if name == "deepspeed" else found(name)
facts["said before"] = list(said)
compat.install(builders=["CPULionBuilder"])
facts["untested"] = said
facts["chosen"] = [CPUAdamBuilder is before[1], op_builder.CPULionBuilder.__module__]
compat.uninstall()
DeepSpeedAccelerator.grow = abc.abstractmethod(lambda self: None)
abc.update_abstractmethods(DeepSpeedAccelerator)
try:
    compat.install()
except compat.DeepSpeedError as error:
    facts["too different"] = str(error)
facts["still theirs"] = get_accelerator() is before[0]
print(json.dumps(facts))
"""

TRAIN = """
import json, os
if os.environ["ON_OPFORGE"] == "1":  # here before DeepSpeed is imported
    import opforge.compat.deepspeed
    opforge.compat.deepspeed.install()
import torch, deepspeed
deepspeed.ops.__compatible_ops__ = {}  # one rank needs no shared-memory op, which DeepSpeed would build at length
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
settings = {"lr": 1e-2, "weight_decay": 0.01, "torch_adam": os.environ["TORCH_ADAM"] == "1"}
config = {
    "train_batch_size": 8,
    "zero_optimization": {"stage": int(os.environ["STAGE"]), "offload_optimizer": {"device": "cpu"}},
    "optimizer": {"type": "AdamW", "params": settings},
}
engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
losses = []
for _ in range(20):
    loss = ((engine(x) - x.sum(1, keepdim=True)) ** 2).mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
op = getattr(optimizer.optimizer, "ds_opt_adam", None)
print(json.dumps({"losses": losses, "optimizer": type(optimizer.optimizer).__name__, "op": getattr(op, "path", "")}))
"""


def deepspeed(code, store, folder, timeout=280, **settings):
    """Run code with DeepSpeed as the only rank of a job on this machine; gives what it printed last."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    job = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ours = {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "HOME": str(folder), "OPFORGE_CACHE_DIR": str(store)}
    out = child_processes.run_python(code, timeout=timeout, env={**job, **ours, **settings}, cwd=folder)
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def facts(shared_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("look")
    # As in opforge's own checkout, where DeepSpeed would take the folder `accelerator` for its own.
    (folder / "accelerator").mkdir()
    text_files.write(
        folder / "accelerator", "__init__.py", "def get_accelerator(): raise AssertionError('not this one')\n"
    )
    return deepspeed(LOOK, shared_store, folder, LOCAL_RANK=None)


@pytest.fixture(scope="module")
def trained(shared_store, tmp_path_factory):
    settings = {"ON_OPFORGE": "1", "TORCH_ADAM": "0", "STAGE": "2"}
    return deepspeed(TRAIN, shared_store, tmp_path_factory.mktemp("ours"), **settings)


def test_its_accelerator_is_ours_and_a_deepspeed_accelerator(facts):
    assert facts["both kinds"] is True
    assert facts["name"] == "cpu"
    assert facts["everywhere"] is True


def test_what_is_chosen_through_one_interface_holds_for_the_other(facts):
    assert facts["one state"] == [3, 2]


def test_its_builders_are_ours_in_modules_imported_before_and_under_other_names(facts, shared_store):
    assert facts["builder is ours"] is True
    assert facts["names"] == [True] * 4
    assert facts["library"].startswith(str(shared_store))


def test_a_builder_that_opforge_lacks_is_deepspeeds_own_and_never_none(facts):
    assert facts["theirs stay"] == "deepspeed.ops.op_builder.cpu.async_io"
    assert facts["all callable"] is True
    assert facts["what neither has"] == "This op had not been implemented on CPU backend."
    assert facts["opforge itself"] is None


def test_its_optimizers_step_with_our_kernels(facts):
    assert max(facts["steps differ by"]) < 1e-6


def test_its_fused_optimizers_step_with_our_kernels_on_the_cpu_too(facts):
    assert set(facts["fused differ by"]) == {"AdamW", "Adam", "Lion", "Lamb"}
    assert max(facts["fused differ by"].values()) < 2e-6
    assert facts["bfloat16 differs by"] <= 2**-8  # one unit of the last place at most


def test_its_quantizer_is_ours_and_comes_back_within_half_a_code(facts):
    kind, shape, error = facts["quantized"]
    assert (kind, shape) == ("torch.int8", [16000])
    assert error < 1 / 128


def test_it_pins_and_reports_as_before(facts):
    assert facts["pinned"] == [1, 1, 1]
    assert facts["listed"] is True


def test_uninstall_gives_everything_back(facts):
    assert facts["undone"] == [True, True, True]
    assert facts["untouched"] is True


def test_the_builders_can_be_chosen(facts):
    assert facts["chosen"] == [True, "opforge.builders.cpu.lion"]


def test_a_version_that_was_not_tested_is_used_with_a_warning(facts):
    assert [text for text in facts["said before"] if "tested" in text] == []
    assert "DeepSpeed 0.20.0 is installed, and opforge was tested with DeepSpeed==0.19.8 only" in facts["untested"]


def test_a_deepspeed_that_asks_for_more_is_refused_and_left_as_it_was(facts):
    assert facts["too different"].startswith("DeepSpeed cannot be run on opforge: DeepSpeed 0.20.0 is not as opforge")
    assert "abstract method" in facts["too different"] and "grow" in facts["too different"]
    assert facts["too different"].endswith("pip install --no-build-isolation 'deepspeed==0.19.8'")
    assert facts["still theirs"] is True


def test_initialize_trains_with_our_kernel_to_plain_deepspeeds_losses(trained, shared_store, tmp_path):
    plain = deepspeed(TRAIN, shared_store, tmp_path, ON_OPFORGE="0", TORCH_ADAM="1", STAGE="2")
    assert (trained["optimizer"], plain["optimizer"]) == ("DeepSpeedCPUAdam", "AdamW")
    assert trained["op"].startswith(str(shared_store))
    assert trained["losses"][-1] < 0.1 * trained["losses"][0]
    assert trained["losses"] == pytest.approx(plain["losses"], rel=1e-4)


def test_zero_3_trains_to_the_same_losses(trained, shared_store, tmp_path):
    third = deepspeed(TRAIN, shared_store, tmp_path, ON_OPFORGE="1", TORCH_ADAM="0", STAGE="3")
    assert third["losses"] == pytest.approx(trained["losses"], rel=1e-4)


@LONG
@pytest.mark.timeout(1200)
def test_it_trains_to_the_losses_of_deepspeeds_own_kernel(trained, shared_store, tmp_path):
    plain = deepspeed(TRAIN, shared_store, tmp_path, timeout=1000, ON_OPFORGE="0", TORCH_ADAM="0", STAGE="2")
    assert (plain["optimizer"], plain["op"]) == ("DeepSpeedCPUAdam", "")
    assert trained["losses"] == pytest.approx(plain["losses"], rel=1e-4)
