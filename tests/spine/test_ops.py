"""The ops that opforge brings: each once, at one dtype and one shape, against torch or a reference in float64."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="pip install torch")

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("quick_builds")]


def close(got, expected, tolerance=2e-5):
    assert torch.allclose(got.double(), expected.double(), rtol=tolerance, atol=tolerance), (got, expected)


def steps(ours, other, params, others, count=3):
    """Makes steps of two optimizers with the same gradients; compares the parameters."""
    for number in range(count):
        for param, peer in zip(params, others, strict=True):
            param.grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(number)).to(param.dtype)
            peer.grad = param.grad.clone()
        ours.step()
        other.step()
    for param, peer in zip(params, others, strict=True):
        close(param.detach(), peer.detach())


def parameters(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def test_adam_is_torchs_adamw():
    from opforge.ops import CPUAdam

    params = parameters((37, 5), (70,))
    others = copy.deepcopy(params)
    ours = CPUAdam(params, lr=1e-2, weight_decay=0.01)
    steps(ours, torch.optim.AdamW(others, lr=1e-2, weight_decay=0.01), params, others)


def test_adagrad_is_torchs():
    from opforge.ops import CPUAdagrad

    params = parameters((37, 5), (70,))
    others = copy.deepcopy(params)
    steps(CPUAdagrad(params, lr=1e-2), torch.optim.Adagrad(others, lr=1e-2), params, others)


def test_lion_is_the_reference():
    from opforge.ops import CPULion, reference

    (param,) = parameters((70,))
    expected, state = param.detach().double(), torch.zeros(70).double()
    ours = CPULion([param], lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    for number in range(3):
        param.grad = torch.randn(70, generator=torch.Generator().manual_seed(number))
        numbers = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
        expected, state = reference.lion(expected, param.grad.double(), state, **numbers)
        ours.step()
    close(param.detach(), expected)


def test_lamb_is_the_reference():
    from opforge.ops import FusedLamb, reference

    (param,) = parameters((70,))
    exact = [param.detach().double(), torch.zeros(70).double(), torch.zeros(70).double()]
    ours = FusedLamb([param], lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    for step in range(1, 4):
        param.grad = torch.randn(70, generator=torch.Generator().manual_seed(step))
        numbers = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
        *exact, _ratio = reference.lamb(exact[0], param.grad.double(), *exact[1:], step=step, **numbers)
        ours.step()
    close(param.detach(), exact[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_cpu_optimizers_take_the_short_dtypes(dtype):
    from opforge.ops import CPUAdam

    (param,) = (torch.nn.Parameter(each.detach().to(dtype)) for each in parameters((70,)))
    before = param.detach().clone()
    param.grad = torch.ones(70, dtype=dtype)
    CPUAdam([param], lr=0.5, weight_decay=0.0).step()
    close(param.detach(), before.float() - 0.5, 1e-2)


def test_groups_are_quantized_and_come_back_within_a_step():
    from opforge import get_accelerator

    op = get_accelerator().create_op_builder("QuantizerBuilder").load()
    x = torch.randn(4, 128, generator=torch.Generator().manual_seed(0))
    codes, params = op.quantize(x, 4, 8, op.Symmetric)
    back = op.dequantize(codes, params, 4, 8, op.Symmetric).reshape(x.shape).float()
    step = 2 * x.abs().amax(1, keepdim=True) / 256
    assert ((back - x).abs() <= step + x.abs() * 2.0**-10).all()  # the result is float16
    assert not torch.equal(back, x)


@pytest.mark.parametrize("bits", [12, 8, 6, 4])
def test_floats_of_few_bits_come_back_within_their_precision(bits):
    """The largest of a group is the largest code; the smallest step is that of the subnormal codes."""
    from opforge.ops import FPQuantizer

    mantissa, exponent = {12: (7, 4), 8: (3, 4), 6: (2, 3), 4: (1, 2)}[bits]
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    quantizer = FPQuantizer(64, bits, mantissa)
    back = quantizer.dequantize(quantizer.quantize(x), x.shape, torch.float32)
    smallest = x.abs().amax(1, keepdim=True) * 2.0 ** (2 - 2**exponent - mantissa)
    assert ((back - x).abs() <= x.abs() * 2.0 ** -(mantissa + 1) + smallest + 1e-6).all()
    assert not torch.equal(back, x)


def test_evoformer_attention_is_attention():
    from opforge.ops import evoformer_attention

    shape = (1, 2, 9, 2, 8)
    q, k, v = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    mask = torch.randn(1, 2, 1, 1, 9, generator=torch.Generator().manual_seed(4))
    got = evoformer_attention(q, k, v, [mask])
    scores = torch.einsum("bnqhd,bnkhd->bnhqk", q.double(), k.double()) / 8**0.5 + mask.double()
    close(got, torch.einsum("bnhqk,bnkhd->bnqhd", scores.softmax(-1), v.double()), 1e-4)


def test_aio_writes_and_reads_a_tensor(tmp_path):
    from opforge.ops import aio

    data, back = torch.randn(10_001), torch.empty(10_001)
    with aio.Queue() as queue:
        queue.write(tmp_path / "file", data).result(60)
        queue.read(tmp_path / "file", back).result(60)
    assert torch.equal(data, back)


def reduce(rank, size, store):
    import torch.distributed as dist

    from opforge.ops import shm

    group = shm.Group(dist.FileStore(store, size), rank, size, 60.0)
    x = torch.full((1000,), float(rank + 1))
    group.all_reduce(x)
    return x.unique().tolist()


def test_shm_adds_the_tensors_of_the_processes_of_a_host(tmp_path):
    from support.processes import ranks

    from opforge.ops.host_op import host_op

    host_op("ShareMemCommBuilder")
    assert ranks.run(reduce, 2, tmp_path) == [[3.0], [3.0]]
