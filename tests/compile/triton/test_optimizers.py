"""The optimizers on Triton: tables of tensors, captured steps, and agreement with the steps of the CPU's ops.

tests/compile/ops/fused/test_fused_ops.py tests the results of each op, together with those of the other devices' ops.
"""

from __future__ import annotations

import weakref

import pytest
import torch
from support.gpu.triton_cases import ADAM, INTERPRETED, LAMB, LION, builder_of, zeros
from torch.utils._python_dispatch import TorchDispatchMode

from opforge.accelerator import CPUAccelerator
from opforge.ops import FusedAdam, FusedLamb, FusedLion
from opforge.ops import triton as ops
from opforge.ops.triton import devices, registry
from opforge.ops.triton.optimizers import chunks

pytestmark = INTERPRETED
NAMES = ("params", "grads", "exp_avgs", "copies")


@pytest.fixture(autouse=True)
def no_tables():
    """No table is cached before a test, and none after it."""
    chunks.reset()
    yield
    chunks.reset()


def test_a_mix_of_dtypes_has_its_own_kernel_or_shares_the_one_for_any():
    dtypes = [torch.float32, torch.bfloat16, torch.bfloat16, torch.float16, torch.bfloat16]
    params = [torch.zeros(64, dtype=dtype) for dtype in dtypes]
    params[4] = torch.zeros(65, dtype=torch.bfloat16)[1:]
    grads = [torch.zeros_like(param) for param in params]
    states = [torch.zeros_like(param, dtype=torch.float32) for param in params]
    states[2] = torch.zeros(64, dtype=torch.float16)
    tables = chunks.tables("op", {"params": params, "grads": grads, "exp_avgs": states, "copies": []})
    assert [(*table.dtypes, *table.spans[:, 2].tolist()) for table in tables] == [
        ("fp32", "fp32", "fp32", "none", 0),
        ("bf16", "bf16", "fp32", "none", 1),
        ("any", "any", "any", "any", 2, 4),
        ("fp16", "fp16", "fp32", "none", 3),
    ]
    # Two bits per list: bf16, bf16, fp16; bf16, bf16, fp32.
    assert tables[2].rows[:, 4].tolist() == [2 + (2 << 2) + (1 << 4), 2 + (2 << 2)]


def table_of(tensors):
    """Returns the one table of a call with the same tensors in every list."""
    (table,) = chunks.tables("op", dict.fromkeys(NAMES, tensors))
    return table


def test_a_table_is_cached_by_the_tensors_addresses():
    tensors = zeros(5000, 0, 3)
    first = table_of(tensors)
    assert table_of(tensors) is first and first.dtypes == chunks.ANY
    assert first.rows[:, -2].tolist() == [chunks.SMALLEST_CHUNK, 5000 - chunks.SMALLEST_CHUNK, 3]
    assert first.rows[:, -1].tolist() == [0, 0, 2] and first.spans.tolist() == [[0, 2, 0], [2, 3, 2]]
    assert first.rows[:, 0].tolist() == [
        tensors[0].data_ptr(),
        tensors[0].data_ptr() + 4 * chunks.SMALLEST_CHUNK,
        tensors[2].data_ptr(),
    ]
    others = [torch.zeros(5000), *tensors[1:]]
    assert table_of(others) is not first


def test_a_table_has_the_same_rows_computed_one_by_one_and_at_once(monkeypatch):
    tensors = [zeros(5000, 0, 3), zeros(5000, 0, 3, dtype=torch.bfloat16)]
    tensors[1][2] = tensors[1][2].half()  # so that rows have different dtypes
    lists = dict(zip(NAMES, (tensors[0], tensors[0], tensors[1], []), strict=True))
    (few,) = chunks.tables("op", lists)
    chunks.reset()
    monkeypatch.setattr(chunks, "FEW_ROWS", 0)
    (many,) = chunks.tables("op", lists)
    assert few.dtypes == many.dtypes == chunks.ANY and len(set(few.rows[:, 4].tolist())) == 2
    assert torch.equal(few.rows, many.rows) and few.rows.dtype == many.rows.dtype == torch.int64
    assert torch.equal(few.spans, many.spans)


def test_the_least_recently_used_table_is_dropped():
    first, second, *others = [zeros(size + 1) for size in range(chunks.CACHED_TABLES + 1)]
    tables = {name: weakref.ref(table_of(tensors).rows) for name, tensors in (("first", first), ("second", second))}
    for tensors in others[:-1]:
        table_of(tensors)
    assert tables["first"]() is table_of(first).rows
    table_of(others[-1])
    assert tables["second"]() is None and tables["first"]() is not None


def test_chunks_leave_several_rows_for_every_multiprocessor():
    sizes = {values: chunks.chunk_size(values, 132) for values in (1, 10 << 20, 100 << 20, 1 << 30, 1 << 34)}
    assert list(sizes.values()) == [4096, 4096, 4096, 32768, 65536]
    assert all(values // size >= 8 * 132 for values, size in sizes.items() if values > 1)
    assert all(size % 1024 == 0 for size in sizes.values()), "blocks of the kernels"


def test_the_accelerator_page_locks_a_table_before_its_copy(monkeypatch):
    pinned = []
    monkeypatch.setattr(CPUAccelerator, "pin_memory", lambda self, tensor: pinned.append(tensor.dim()) or tensor)
    table_of(zeros(33))
    assert pinned == [2, 2], "the rows and the spans"


def test_a_table_that_another_stream_reads_is_recorded_for_that_stream(monkeypatch):
    records = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: records.append((self.dim(), stream)))
    monkeypatch.setattr(CPUAccelerator, "current_stream", lambda self, index: "the second")
    tensors = zeros(33)
    for number in (1, 1, 2):
        assert records == []
        monkeypatch.setattr(devices, "raw_stream", lambda device, number=number: number)
        table = table_of(tensors)
    assert records == [(2, "the second")] * 2 and table.stream == 1, "the rows and the spans"


class RecordedLaunches:
    """Behaves like a graph: launches are recorded while it is captured, and run when it is replayed."""

    def __init__(self, kernels):
        self.kernels, self.op, self.launches, self.capturing = kernels, kernels.op, [], False

    def launch(self, *arguments):
        self.launches.append(arguments)
        if not self.capturing:
            self.kernels.launch(*arguments)

    def replay(self):
        for arguments in self.launches:
            self.kernels.launch(*arguments)


class CaptureRules(TorchDispatchMode):
    """Fails on what is forbidden while a graph is captured: the host reads a tensor, or tensors are moved or copied."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function.namespace == "opforge_triton" or function.overloadpacket in ALLOWED, function
        return function(*args, **(kwargs or {}))


ALLOWED = (torch.ops.aten.empty, torch.ops.aten.view, torch.ops.aten.detach)


@pytest.mark.parametrize("name", ["fused_adam_", "fused_lion_", "fused_lamb_"])
def test_a_captured_step_follows_the_numbers_on_the_device(name, monkeypatch):
    count = 1 if name == "fused_lion_" else 2
    numbers = {"fused_adam_": ADAM, "fused_lion_": LION, "fused_lamb_": LAMB}[name]
    numbers = {**numbers, "lr": 0.0, **({} if name == "fused_lion_" else {"step": 0})}
    lr, t, scale, flag = torch.tensor(0.0), torch.tensor(1.0), torch.tensor(4.0), torch.zeros(1, dtype=torch.int32)
    on_device = {"lr_tensor": lr, "step_tensor": t, "grad_scale": scale}

    def fresh():
        torch.manual_seed(0)
        params, grads = [torch.randn(3000), torch.randn(5)], [torch.randn(3000), torch.randn(5)]
        return [params, grads, *([torch.zeros_like(param) for param in params] for _ in range(count))]

    def step(lists):
        more = {"ratios": ratios} if name == "fused_lamb_" else {}
        getattr(ops, name)(flag, *lists, [], **on_device, **more, **numbers)

    graphed, eager, ratios = fresh(), fresh(), torch.ones(2)
    step(graphed)  # a rate of 0 leaves the parameters; the moments are reset
    for states in graphed[2:]:
        for state in states:
            state.zero_()
    builder = f"Triton{name.split('_')[1].title()}Builder"
    graph = RecordedLaunches(registry.kernels_of(builder_of(builder)))
    registry.bind(graph)
    monkeypatch.setattr(devices, "is_capturing", lambda device: True)
    with pytest.raises(RuntimeError, match="run one step with the same tensors first"):
        step(eager)
    graph.capturing = True
    with CaptureRules():
        step(graphed)
    graph.capturing = False
    assert len(chunks.captured_tables) == 1 and len(graph.launches) == (3 if name == "fused_lamb_" else 1)
    monkeypatch.setattr(devices, "is_capturing", lambda device: False)
    registry.bind(graph.kernels)
    for number in (1, 2, 3):
        lr.fill_(0.1 / number)
        t.fill_(number)
        scale.fill_(2.0**number)
        flag.fill_(number == 2)
        for lists in (graphed, eager):
            for grad in lists[1]:
                grad.mul_(-1.5)
        graph.replay()
        step(eager)
        assert all(
            torch.equal(tensor, other)
            for tensors, others in zip(graphed, eager, strict=True)
            for tensor, other in zip(tensors, others, strict=True)
        )
    assert not torch.equal(graphed[0][0], fresh()[0][0])


@pytest.mark.usefixtures("builds_are_shared")
@pytest.mark.parametrize("optimizer", [FusedAdam, FusedLion, FusedLamb])
def test_an_optimizers_steps_agree_with_those_by_the_cpus_op(optimizer, monkeypatch):
    """For bfloat16 parameters with float32 master weights and states, and with bfloat16 states."""
    from opforge.ops.optimizers import fused_optimizer

    load_cpu_op = fused_optimizer.load_op
    triton_builders = {f"Fused{name}Builder": f"Triton{name}Builder" for name in ("Adam", "Lion", "Lamb")}
    for modes in ({"master_weights": True, "capturable": True}, {"fp32_optimizer_states": False}):
        results = []
        for load in (load_cpu_op, lambda builder, device: builder_of(triton_builders[builder])().load()):
            monkeypatch.setattr(fused_optimizer, "load_op", load)
            torch.manual_seed(0)
            params = [torch.nn.Parameter(torch.randn(size).bfloat16()) for size in ((30, 20), (5,))]
            ours = optimizer(params, lr=0.01, weight_decay=0.1, **modes)
            for _ in range(3):
                for param in params:
                    param.grad = torch.randn_like(param)
                ours.step()
            states = [value for state in ours.state.values() for value in state.values() if torch.is_tensor(value)]
            results.append([*params, *states])
        for tensor, other in zip(*results, strict=True):
            assert tensor.dtype == other.dtype
            torch.testing.assert_close(tensor, other)
