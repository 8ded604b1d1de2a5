"""The optimizers on Triton: tables of tensors, captured steps, and the host's steps beside theirs.

The results of each op are tested with those of the other devices, in test_ops_fused_optimizers.py.
"""

from __future__ import annotations

import pytest
import torch
from support.gpu.triton_cases import ADAM, INTERPRETED, LAMB, LION, builder_of, zeros
from torch.utils._python_dispatch import TorchDispatchMode

from opforge.accelerator import CPUAccelerator
from opforge.ops import FusedAdam, FusedLamb, FusedLion
from opforge.ops import triton as ops
from opforge.ops.triton import chunks, devices, registry

pytestmark = INTERPRETED


def test_a_mix_of_dtypes_takes_its_own_kernel_and_others_share_one():
    dtypes = [torch.float32, torch.bfloat16, torch.bfloat16, torch.float16, torch.bfloat16]
    params = [torch.zeros(64, dtype=dtype) for dtype in dtypes]
    params[4] = torch.zeros(65, dtype=torch.bfloat16)[1:]
    grads = [torch.zeros_like(one) for one in params]
    states = [torch.zeros_like(one, dtype=torch.float32) for one in params]
    states[2] = torch.zeros(64, dtype=torch.float16)
    found = chunks.tables("op", {"params": params, "grads": grads, "exp_avgs": states, "copies": []})
    assert [(*one.dtypes, *one.spans[:, 2].tolist()) for one in found] == [
        ("fp32", "fp32", "fp32", "none", 0),
        ("bf16", "bf16", "fp32", "none", 1),
        ("any", "any", "any", "any", 2, 4),
        ("fp16", "fp16", "fp32", "none", 3),
    ]
    # Two bits a list: bf16, bf16, fp16; bf16, bf16, fp32.
    assert found[2].rows[:, 4].tolist() == [2 + (2 << 2) + (1 << 4), 2 + (2 << 2)]


def test_a_table_is_kept_while_the_addresses_stay():
    tensors = zeros(5000, 0, 3)
    names = ("params", "grads", "exp_avgs", "copies")

    def tables():
        return chunks.tables("op", dict.fromkeys(names, tensors))

    (first,) = tables()
    assert tables()[0] is first and first.dtypes == chunks.ANY
    assert first.rows[:, -2].tolist() == [chunks.SMALLEST_CHUNK, 5000 - chunks.SMALLEST_CHUNK, 3]
    assert first.rows[:, -1].tolist() == [0, 0, 2] and first.spans.tolist() == [[0, 2, 0], [2, 3, 2]]
    assert first.rows[:, 0].tolist() == [
        tensors[0].data_ptr(),
        tensors[0].data_ptr() + 4 * chunks.SMALLEST_CHUNK,
        tensors[2].data_ptr(),
    ]
    tensors[0] = torch.zeros(5000)
    assert tables()[0] is not first
    for _ in range(3 * chunks.CACHED_TABLES):
        tensors.append(torch.zeros(1))
        tables()
    assert len(chunks._tables) <= chunks.CACHED_TABLES


def test_chunks_are_as_large_as_leaves_every_multiprocessor_several():
    found = {values: chunks.chunk_size(values, 132) for values in (1, 10 << 20, 100 << 20, 1 << 30, 1 << 34)}
    assert list(found.values()) == [4096, 4096, 4096, 32768, 65536]
    assert all(values // size >= 8 * 132 for values, size in found.items() if values > 1)
    assert all(size % 1024 == 0 for size in found.values()), "blocks of the kernels"


def test_a_table_that_another_stream_reads_is_noted_there(monkeypatch):
    noted = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: noted.append((self.dim(), stream)))
    monkeypatch.setattr(CPUAccelerator, "current_stream", lambda self, index: "the second")
    tensors, names = zeros(33), ("params", "grads", "exp_avgs", "copies")
    for number in (1, 1, 2):
        assert noted == []
        monkeypatch.setattr(devices, "raw_stream", lambda device, number=number: number)
        (found,) = chunks.tables("op", dict.fromkeys(names, tensors))
    assert noted == [(2, "the second")] * 2 and found.stream == 1, "the rows and the spans"


class Recording:
    """What a graph is: launches that are kept while it is captured, and run when it is replayed."""

    def __init__(self, kernels):
        self.kernels, self.op, self.launches, self.capturing = kernels, kernels.op, [], False

    def launch(self, *arguments):
        self.launches.append(arguments)
        if not self.capturing:
            self.kernels.launch(*arguments)

    def replay(self):
        for arguments in self.launches:
            self.kernels.launch(*arguments)


class NothingForTheHost(TorchDispatchMode):
    """No tensor is read by the host, moved or copied: what a graph's capture forbids."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function.namespace == "opforge_triton" or function.overloadpacket in ALLOWED, function
        return function(*args, **(kwargs or {}))


ALLOWED = (torch.ops.aten.empty, torch.ops.aten.view, torch.ops.aten.detach)


@pytest.mark.parametrize("name", ["fused_adam_", "fused_lion_", "fused_lamb_"])
def test_a_captured_step_follows_what_lies_on_the_device(name, monkeypatch):
    count = 1 if name == "fused_lion_" else 2
    numbers = {"fused_adam_": ADAM, "fused_lion_": LION, "fused_lamb_": LAMB}[name]
    numbers = {**numbers, "lr": 0.0, **({} if name == "fused_lion_" else {"step": 0})}
    lr, t, scale, flag = torch.tensor(0.0), torch.tensor(1.0), torch.tensor(4.0), torch.zeros(1, dtype=torch.int32)
    on_device = {"lr_tensor": lr, "step_tensor": t, "grad_scale": scale}

    def fresh():
        torch.manual_seed(0)
        params, grads = [torch.randn(3000), torch.randn(5)], [torch.randn(3000), torch.randn(5)]
        return [params, grads, *([torch.zeros_like(one) for one in params] for _ in range(count))]

    def step(lists):
        more = {"ratios": ratios} if name == "fused_lamb_" else {}
        getattr(ops, name)(flag, *lists, [], **on_device, **more, **numbers)

    graphed, eager, ratios = fresh(), fresh(), torch.ones(2)
    step(graphed)  # with a rate of 0 it leaves the parameters; the moments are put back
    for each in graphed[2:]:
        for state in each:
            state.zero_()
    (op,) = registry._bound
    graph = Recording(registry._bound[op])
    monkeypatch.setitem(registry._bound, op, graph)
    monkeypatch.setattr(devices, "is_capturing", lambda device: True)
    monkeypatch.setattr(chunks, "_captured", [])
    with pytest.raises(RuntimeError, match="run one step with the same tensors first"):
        step(eager)
    graph.capturing = True
    with NothingForTheHost():
        step(graphed)
    graph.capturing = False
    assert len(chunks._captured) == 1 and len(graph.launches) == (3 if name == "fused_lamb_" else 1)
    monkeypatch.setattr(devices, "is_capturing", lambda device: False)
    monkeypatch.setitem(registry._bound, op, graph.kernels)
    for number in (1, 2, 3):
        lr.fill_(0.1 / number)
        t.fill_(number)
        scale.fill_(2.0**number)
        flag.fill_(number == 2)
        for lists in (graphed, eager):
            for one in lists[1]:
                one.mul_(-1.5)
        graph.replay()
        step(eager)
        assert all(
            torch.equal(one, other)
            for ours, theirs in zip(graphed, eager, strict=True)
            for one, other in zip(ours, theirs, strict=True)
        )
    assert not torch.equal(graphed[0][0], fresh()[0][0])


@pytest.mark.usefixtures("builds_are_shared")
@pytest.mark.parametrize("optimizer", [FusedAdam, FusedLion, FusedLamb])
def test_the_optimizers_step_by_these_ops_as_by_those_of_the_host(optimizer, monkeypatch):
    """bfloat16 parameters with float32 master weights and states, in one pass; and with states in bfloat16."""
    from opforge.ops.optimizers import fused_optimizer

    host = fused_optimizer.load_op
    mine = {f"Fused{name}Builder": f"Triton{name}Builder" for name in ("Adam", "Lion", "Lamb")}
    for modes in ({"master_weights": True, "capturable": True}, {"fp32_optimizer_states": False}):
        results = []
        for load in (host, lambda builder, device: builder_of(mine[builder])().load()):
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
        for one, other in zip(*results, strict=True):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other)
