"""A real, unmodified DeepSpeed on opforge: its accelerator, its builders, and what its optimizers compute."""

from __future__ import annotations

import pytest
from support import deepspeed_job, text_files

if not deepspeed_job.is_installed():
    pytest.skip(deepspeed_job.MISSING, allow_module_level=True)

pytestmark = pytest.mark.timeout(900)  # the program builds ten ops, if no other test has built them before
PROGRAM = """
import json, logging, os, abc, importlib.metadata
import torch, deepspeed, opforge, opforge.compat.deepspeed as compat
from deepspeed.accelerator import DeepSpeedAccelerator, get_accelerator
from deepspeed.ops import op_builder
from deepspeed.ops.op_builder import AsyncIOBuilder, CCLCommBuilder, CPUAdamBuilder, GDSBuilder
from deepspeed.ops.op_builder import CPUAdamBuilder as Renamed
from opforge.accelerator import Accelerator, select
from opforge.builders.cpu.adam import CPUAdamBuilder as Ours
from opforge.ops import reference

messages, before, results = [], [get_accelerator(), CPUAdamBuilder, GDSBuilder], {}
handler = logging.Handler(); handler.emit = lambda record: messages.append(record.getMessage())
logging.getLogger("opforge").addHandler(handler)
select._active = select.LazyCPUAccelerator()  # what a process has that remembers the choice
compat.install()
ours = get_accelerator()
results["both interfaces"] = isinstance(ours, Accelerator) and isinstance(ours, DeepSpeedAccelerator)
results["name"] = getattr(ours, "_name", None)
opforge.get_accelerator().set_device(3)
results["shared device"] = [ours.current_device()]
ours.set_device(torch.device("cpu:2"))
ours.set_device(torch.device("cpu"))
results["shared device"].append(opforge.get_accelerator().current_device())
opforge.get_accelerator().set_device(0)
results["in the engine"] = deepspeed.runtime.engine.get_accelerator() is ours
results["builder is ours"] = issubclass(op_builder.CPUAdamBuilder, Ours)
names = (CPUAdamBuilder, Renamed, deepspeed.ops.adam.cpu_adam.CPUAdamBuilder, ours.get_op_builder("CPUAdamBuilder"))
results["names"] = [kind is op_builder.CPUAdamBuilder for kind in names]
results["library"] = CPUAdamBuilder().load().path
op, again = CPUAdamBuilder().load(), ours.create_op_builder("CPUAdamBuilder").load()
results["one op"] = [op is again, hasattr(op, "no_such_function"), type(op).__name__]
states = [torch.ones(3) for _ in range(4)]
op.create_adam(900, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
again.adam_update(900, 1, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, *states)
again.destroy_adam(900)
try:
    op.adam_update(900, 2, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, *states)
except RuntimeError as error:
    results["destroyed"] = str(error)
kinds = [getattr(op_builder, name) for name in compat.DROP_IN]
results["identities"] = {kind.__name__: [kind.NAME, kind.BUILD_VAR, kind().absolute_name()] for kind in kinds}
results["compatible"] = [bool(deepspeed.ops.__compatible_ops__[kind.NAME]) for kind in kinds]
results["is a builder"] = all(isinstance(kind(), op_builder.OpBuilder) for kind in kinds)
results["static methods"] = {
    kind.__name__: sorted(
        name for base in theirs.__mro__ for name, value in vars(base).items()
        if isinstance(value, staticmethod) and not callable(getattr(kind, name, None))
    )
    for kind, theirs in ((kind, compat.builders.deepspeeds_class(kind.__name__, before[0])) for kind in kinds)
}
quantizer = getattr(op_builder.FPQuantizerBuilder, "get_default_quant_dtype", lambda: None)
results["called on the class"] = str(quantizer())
results["our name"] = getattr(opforge.get_accelerator(), "_name", None)
results["deepspeed keeps"] = GDSBuilder is before[2]
os.environ["CCL_ROOT"] = os.path.join(os.sep, "none")
try:
    CCLCommBuilder().load()
except opforge.errors.OpIncompatibleError as error:
    results["without oneCCL"] = str(error)
del os.environ["CCL_ROOT"]
locked = op_builder.PinMemoryBuilder().load().pin_handle().new_cpu_locked_tensor(5, torch.empty(0))
aio = AsyncIOBuilder().load().aio_handle(queue_depth=2)
aio.async_pwrite(locked.fill_(3), "five")
results["files"] = [aio.wait(), aio.is_pinned(locked), os.path.getsize("five")]
results["bytes"] = op_builder.UtilsBuilder().load().cast_to_byte_tensor(locked[:1]).tolist()
results["all callable"] = all(callable(value) for name, value in vars(op_builder).items() if name.endswith("Builder"))
try:
    GDSBuilder().load()
except ValueError as error:
    results["neither has"] = str(error)
results["opforge itself"] = opforge.get_accelerator().create_op_builder("GDSBuilder")
results["pinned"] = ours.pin_memory(torch.ones(3)).tolist()

from deepspeed.env_report import op_report
from deepspeed.ops.op_builder.all_ops import ALL_OPS
op_report(False)
results["listed"] = isinstance(ALL_OPS["cpu_adam"], Ours)

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
    results.setdefault("steps differ by", []).append((stepped(theirs) - stepped(peer)).abs().max().item())

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

results["fused differ by"] = {}
for name, theirs, peer, options in [
    ("AdamW", FusedAdam, torch.optim.AdamW, {"weight_decay": 0.1}),
    ("Adam", lambda p, **o: FusedAdam(p, adam_w_mode=False, **o), torch.optim.Adam, {"weight_decay": 0.1}),
    ("Lion", lambda p, lr: FusedLion(p, lr=lr, betas=(0.9, 0.99)), Lion, {}),
    ("Lamb", FusedLamb, Lamb, {"weight_decay": 0.1}),
]:
    results["fused differ by"][name] = (stepped(theirs, **options) - stepped(peer, **options)).abs().max().item()

halves = torch.nn.Parameter(torch.linspace(-1, 1, 65, dtype=torch.bfloat16))
peer = torch.nn.Parameter(halves.detach().clone())
for p, kind in [(halves, FusedAdam), (peer, torch.optim.AdamW)]:
    p.grad = torch.sin(p.detach() * 3)
    kind([p], lr=1e-2, weight_decay=0.1).step()
results["bfloat16 differs by"] = (halves - peer).abs().max().item()

quantizer = CUDAQuantizer()
values = torch.randn(16000, generator=torch.Generator().manual_seed(0))
codes, scale = quantizer.quantize(values)
back = quantizer.dequantize(codes, scale, dtype=torch.float32)
largest = values.reshape(scale.numel(), -1).abs().amax(1, keepdim=True)
error = (back - values).reshape(scale.numel(), -1).abs() / largest
results["quantized"] = [str(codes.dtype), list(codes.shape), error.max().item()]

compat.uninstall()
results["undone"] = [get_accelerator() is before[0], CPUAdamBuilder is before[1], "opforge" not in str(ALL_OPS)]
results["untouched"] = isinstance(ours, Accelerator) and opforge.get_accelerator() is not ours

version = importlib.metadata.version
importlib.metadata.version = lambda name: "0.20.0" if name == "deepspeed" else version(name)
results["messages of the tested version"] = list(messages)
compat.install(builders=["CPULionBuilder"])
results["messages"] = messages
results["chosen"] = [CPUAdamBuilder is before[1], op_builder.CPULionBuilder.__module__]
compat.uninstall()
DeepSpeedAccelerator.grow = abc.abstractmethod(lambda self: None)
abc.update_abstractmethods(DeepSpeedAccelerator)
try:
    compat.install()
except compat.DeepSpeedError as error:
    results["too different"] = str(error)
results["unchanged after the error"] = get_accelerator() is before[0]
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(shared_store, tmp_path_factory):
    """What the program printed."""
    folder = tmp_path_factory.mktemp("deepspeed")
    # As in opforge's checkout: DeepSpeed would take the folder `accelerator` for its own.
    (folder / "accelerator").mkdir()
    text_files.write(
        folder / "accelerator", "__init__.py", "def get_accelerator(): raise AssertionError('not this one')\n"
    )
    return deepspeed_job.run(PROGRAM, shared_store, folder, timeout=850, LOCAL_RANK=None)


def test_the_accelerator_has_both_interfaces(results):
    assert results["both interfaces"] is True
    assert results["name"] == "cpu"
    assert results["in the engine"] is True


def test_a_device_chosen_through_one_interface_is_current_in_the_other(results):
    assert results["shared device"] == [3, 2]


def test_builders_are_opforges_in_modules_imported_before_and_under_other_names(results, shared_store):
    assert results["builder is ours"] is True
    assert results["names"] == [True] * 4
    assert results["library"].startswith(str(shared_store))


def test_builders_have_deepspeeds_names_also_those_that_its_device_lacks(results):
    families = {"Adam": "adam", "Adagrad": "adagrad", "Lion": "lion", "Lamb": "lamb"}
    families |= {"FPQuantizer": "fp_quantizer", "Quantizer": "quantizer"}
    others = {
        "AsyncIOBuilder": ["async_io", "DS_BUILD_AIO", "deepspeed.ops.aio.async_io_op"],
        "CCLCommBuilder": ["deepspeed_ccl_comm", "DS_BUILD_CCL_COMM", "deepspeed.ops.comm.deepspeed_ccl_comm_op"],
        "EvoformerAttnBuilder": ["evoformer_attn", "DS_BUILD_EVOFORMER_ATTN", "deepspeed.ops.evoformer_attn_op"],
        "ShareMemCommBuilder": ["deepspeed_shm_comm", "DS_BUILD_SHM_COMM", "deepspeed.ops.comm.deepspeed_shm_comm_op"],
        "UtilsBuilder": ["utils", "DS_BUILD_UTILS", "deepspeed.ops.utils_op"],
        "RandomLTDBuilder": ["random_ltd", "DS_BUILD_RANDOM_LTD", "deepspeed.ops.random_ltd_op"],
        "SpatialInferenceBuilder": [
            "spatial_inference",
            "DS_BUILD_SPATIAL_INFERENCE",
            "deepspeed.ops.spatial.spatial_inference_op",
        ],
        "TransformerBuilder": ["transformer", "DS_BUILD_TRANSFORMER", "deepspeed.ops.transformer.transformer_op"],
        "StochasticTransformerBuilder": [
            "stochastic_transformer",
            "DS_BUILD_STOCHASTIC_TRANSFORMER",
            "deepspeed.ops.transformer.stochastic_transformer_op",
        ],
        "InferenceBuilder": [
            "transformer_inference",
            "DS_BUILD_TRANSFORMER_INFERENCE",
            "deepspeed.ops.transformer.inference.transformer_inference_op",
        ],
        "InferenceCoreBuilder": [
            "inference_core_ops",
            "DS_BUILD_INFERENCE_CORE_OPS",
            "deepspeed.inference.v2.kernelsinference_core_ops",
        ],
        "RaggedOpsBuilder": [
            "ragged_device_ops",
            "DS_BUILD_RAGGED_DEVICE_OPS",
            "deepspeed.inference.v2.kernels.ragged_ops.ragged_device_ops",
        ],
        "RaggedUtilsBuilder": ["ragged_ops", "DS_BUILD_RAGGED_OPS", "deepspeed.inference.v2.ragged_ops"],
    }
    for kind, (name, variable, module) in results["identities"].items():
        if kind in others:
            assert [name, variable, module] == others[kind]
            continue
        family = next((family for suffix, family in families.items() if kind.endswith(f"{suffix}Builder")), name)
        assert (variable, module) == (f"DS_BUILD_{name.upper()}", f"deepspeed.ops.{family}.{name}_op")
    assert len(results["identities"]) == len(results["compatible"]) == 22
    usable = dict(zip(results["identities"], results["compatible"], strict=True))
    assert all(is_usable for kind, is_usable in usable.items() if kind != "CCLCommBuilder")  # it needs oneCCL
    assert results["is a builder"]


def test_a_replaced_class_has_deepspeeds_static_methods_and_an_accelerator_its_name(results):
    assert set(results["static methods"]) == set(results["identities"])
    assert not any(results["static methods"].values()), "each can be called on the class"
    assert results["called on the class"] == "torch.uint8"
    assert results["our name"] == "cpu"


def test_loads_share_one_op_and_its_optimizers(results):
    assert results["one op"] == [True, False, "LoadedOp"]
    assert results["destroyed"].startswith("optimizer_id 900 is unknown")


def test_a_builder_that_opforge_lacks_is_deepspeeds_and_never_none(results):
    assert results["deepspeed keeps"] is True
    assert "no oneCCL in /none: set CCL_ROOT to an installation" in results["without oneCCL"]
    assert results["all callable"] is True
    assert results["neither has"] == "This op had not been implemented on CPU backend."
    assert results["opforge itself"] is None


def test_host_ops_share_their_locked_memory(results):
    assert results["files"] == [1, True, 20]
    assert results["bytes"] == [0, 0, 64, 64]


def test_cpu_optimizers_compute_the_reference_steps(results):
    assert max(results["steps differ by"]) < 1e-6


def test_fused_optimizers_compute_the_reference_steps_on_the_cpu(results):
    assert set(results["fused differ by"]) == {"AdamW", "Adam", "Lion", "Lamb"}
    assert max(results["fused differ by"].values()) < 2e-6
    assert results["bfloat16 differs by"] <= 2**-8  # at most one unit in the last place


def test_the_quantizer_is_exact_to_half_a_code(results):
    kind, shape, error = results["quantized"]
    assert (kind, shape) == ("torch.int8", [16000])
    assert error < 1 / 128


def test_pinning_and_the_list_of_ops_work(results):
    assert results["pinned"] == [1, 1, 1]
    assert results["listed"] is True


def test_uninstall_restores_everything(results):
    assert results["undone"] == [True, True, True]
    assert results["untouched"] is True


def test_the_builders_can_be_chosen(results):
    assert results["chosen"] == [True, "opforge.builders.cpu.lion"]


def test_an_untested_version_is_used_with_a_warning(results):
    assert [text for text in results["messages of the tested version"] if "tested" in text] == []
    assert "DeepSpeed 0.20.0 is installed, and opforge was tested with DeepSpeed==0.19.8 only" in results["messages"]


def test_a_deepspeed_with_further_abstract_methods_is_an_error_and_unchanged(results):
    assert results["too different"].startswith("DeepSpeed cannot be run on opforge: DeepSpeed 0.20.0 has an")
    assert "abstract method" in results["too different"] and "grow" in results["too different"]
    assert results["too different"].endswith("pip install --no-build-isolation 'deepspeed==0.19.8'")
    assert results["unchanged after the error"] is True
