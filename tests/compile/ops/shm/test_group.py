"""`Group`: what its calls compute, for every dtype, operation, size and stride, and what it leaves behind."""

from __future__ import annotations

import os
import platform
import threading
import time

import pytest
import torch
import torch.distributed as dist
from support import tiers
from support.processes import ranks

from opforge.builders.cpu.share_mem_comm import ShareMemCommBuilder
from opforge.ops import shm
from opforge.ops.shm import dtypes

MEBIBYTE = 1 << 20


def group(rank, size, store, seconds=30.0, op=None):
    return shm.Group(dist.FileStore(store, size), rank, size, seconds, op=op)


def values(count, dtype, rank):
    generator = torch.Generator().manual_seed(1000 * rank + count)
    if dtype is torch.bool:
        return torch.rand(count, generator=generator) > 0.5
    if dtype.is_floating_point:
        return torch.randn(count, dtype=torch.float64, generator=generator).to(dtype)
    return torch.randint(0, 100, (count,), generator=generator).to(dtype)


FOLDS = {
    "sum": torch.add,
    "average": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}


def reference(tensors, operation):
    """Returns the reduction by torch: 16-bit floats in float32, integers in int64, in the order of the ranks."""
    dtype = tensors[0].dtype
    fold = FOLDS[operation]
    if dtype is torch.bool:
        fold = {torch.add: torch.bitwise_or, torch.maximum: torch.bitwise_or}.get(fold, fold)
        fold = {torch.mul: torch.bitwise_and, torch.minimum: torch.bitwise_and}.get(fold, fold)
        wide = torch.bool
    elif dtype.is_floating_point:
        wide = torch.float64 if dtype is torch.float64 else torch.float32
    else:
        wide = torch.int64
    result = tensors[0].to(wide)
    for tensor in tensors[1:]:
        result = fold(result, tensor.to(wide))
    if operation == "average":
        result = result / len(tensors) if dtype.is_floating_point else result.div(len(tensors), rounding_mode="trunc")
    return result.to(dtype)


def reduce_everything(rank, size, store, level):
    op = ShareMemCommBuilder(f"cpu:{level}").load() if level else None
    shared = group(rank, size, store, op=op)
    for name in dtypes.REDUCED:
        dtype = getattr(torch, name)
        for operation in dtypes.OPERATIONS:
            for count in (33, 5_003):
                tensors = [values(count, dtype, other) for other in range(size)]
                reduced, scattered = tensors[rank].clone(), torch.empty(count, dtype=dtype)
                try:
                    shared.all_reduce(reduced, operation)
                except TypeError as error:
                    floats = dtype.is_floating_point and operation in ("and", "or", "xor")
                    assert floats or (dtype, operation) == (torch.bool, "average"), error
                    continue
                shared.reduce_scatter(scattered, [tensors[rank]] * size, operation)
                expected = reference(tensors, operation)
                assert torch.equal(reduced, expected), (name, operation, count)
                assert torch.equal(scattered, expected), (name, operation, count)
    return "done"


LEVELS = [(3, ""), *([(2, "x86-64-v2"), (2, "x86-64-v3")] if tiers.is_long() else [])]


@pytest.mark.parametrize(("size", "level"), LEVELS)
def test_reductions_are_torchs(tmp_path, size, level):
    if level and platform.machine() != "x86_64":
        pytest.skip("a level of x86-64")
    assert ranks.run(reduce_everything, size, tmp_path, level) == ["done"] * size


def special_values(rank, size, store):
    shared = group(rank, size, store)
    nan, infinity = float("nan"), float("inf")
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        pairs = torch.tensor([[nan, 1.0], [1.0, nan], [infinity, -infinity], [2.0, 3.0]], dtype=dtype)
        for operation in ("min", "max", "sum"):
            x = pairs[:, rank].clone()  # 4 elements, then many
            y = pairs[:, rank].repeat(30)
            shared.all_reduce(x, operation)
            shared.all_reduce(y, operation)
            expected = FOLDS[operation](pairs[:, 0], pairs[:, 1])
            assert torch.equal(x.isnan(), expected.isnan()) and torch.equal(x.nan_to_num(), expected.nan_to_num())
            assert torch.equal(y.nan_to_num(), expected.repeat(30).nan_to_num())
    x = torch.full((3,), 0.5**9, dtype=torch.bfloat16) if rank else torch.ones(3, dtype=torch.bfloat16)
    shared.all_reduce(x, "average")
    assert x.tolist() == [0.5] * 3  # rounded once, from float32
    x = torch.tensor([200, 100], dtype=torch.uint8)
    shared.all_reduce(x)
    assert x.tolist() == [144, 200]  # it wraps, as torch's does
    x = torch.tensor([200, 101], dtype=torch.uint8) + rank
    shared.all_reduce(x, "average")
    assert x.tolist() == [200, 101]  # of the exact sum, towards zero
    x = torch.tensor([-(1 << 63), (1 << 63) - 1])
    shared.all_reduce(x, "average")
    assert x.tolist() == [-(1 << 63), (1 << 63) - 1]
    x = torch.tensor([1 + 2j, 3 - 1j])
    shared.all_reduce(x)
    assert x.tolist() == [2 + 4j, 6 - 2j]
    return "done"


def test_nan_wraps_averages_and_complex_numbers(tmp_path):
    assert ranks.run(special_values, 2, tmp_path) == ["done"] * 2


def every_layout(rank, size, store):
    shared = group(rank, size, store)
    x = torch.zeros(40, 60)
    view = x[::2, 5:50].t()
    view += rank
    shared.all_reduce(view)
    assert x.sum() == view.numel() * sum(range(size)) and view.unique().tolist() == [sum(range(size))]
    image = torch.full((2, 3, 4, 5), float(rank)).contiguous(memory_format=torch.channels_last)
    shared.broadcast(image, 2)
    assert image.unique().tolist() == [2.0]
    outputs = torch.zeros(size, 9)[:, ::3]
    shared.all_gather(outputs, torch.full((3,), float(rank)))
    assert outputs.tolist() == [[float(other)] * 3 for other in range(size)]
    for count in (0, 1, 5 * MEBIBYTE // 8):
        x = torch.full((count,), rank + 1, dtype=torch.int64)
        shared.all_reduce(x)
        assert torch.equal(x, torch.full_like(x, sum(range(size + 1))))
        sent = [torch.full((count * (rank + 1),), 10 * rank + other) for other in range(size)]
        outputs = [torch.empty(count * (other + 1), dtype=torch.int64) for other in range(size)]
        shared.all_to_all(outputs, sent)
        for other, part in enumerate(outputs):
            assert torch.equal(part, torch.full_like(part, 10 * other + rank))
        shared.all_gather(outputs := [torch.empty_like(x) for _ in range(size)], x + rank)
        assert [int(part.sum()) for part in outputs] == [int((x + other).sum()) for other in range(size)]
    for name in dtypes.MOVED:
        if hasattr(torch, name) and name != "float4_e2m1fn_x2":
            x = torch.full((7,), rank, dtype=torch.uint8).repeat(16).view(getattr(torch, name))
            shared.broadcast(x, 1)
            assert x.view(torch.uint8).unique().tolist() == [1]
    return "done"


def test_every_size_and_stride(tmp_path):
    assert ranks.run(every_layout, 3, tmp_path) == ["done"] * 3


def alone(rank, size, store):
    shared = group(rank, size, store)
    x = torch.tensor([3.0, 4.0])
    for operation in ("sum", "average", "max"):
        shared.all_reduce(x, operation)
    shared.broadcast(x, 0)
    shared.reduce_scatter(y := torch.empty(2), [x])
    shared.all_gather([z := torch.empty(2)], y)
    shared.all_to_all([w := torch.empty(2)], [z])
    shared.barrier()
    with pytest.raises(ValueError, match="to=0: expected another rank than this one"):
        shared.send(x, 0)
    return w.tolist()


def test_a_group_of_one(tmp_path):
    assert ranks.run(alone, 1, tmp_path) == [[3.0, 4.0]]


def wrong_arguments(rank, size, store):
    shared = group(rank, size, store)
    x = torch.ones(4)
    cases = [
        (lambda: shared.all_reduce(x, "mean"), "operation='mean': expected one of sum, product, min, max, average"),
        (lambda: shared.all_reduce(x.to("meta")), "a tensor on meta: expected a dense one on the CPU"),
        (lambda: shared.all_reduce(x.to_sparse()), "a tensor of layout torch.sparse_coo: expected a dense one"),
        (lambda: shared.broadcast(x, 2), "source=2: expected a rank from 0 to 1"),
        (lambda: shared.broadcast(x[:1].expand(4), 1 - rank), r"strides \(0,\): elements overlap"),
        (lambda: shared.all_gather([x], x), "1 outputs: expected 2, one for each rank"),
        (lambda: shared.all_gather(torch.ones(9), x), "outputs of 9 elements: expected 2 times the 4 of a rank"),
        (lambda: shared.all_gather([x, x.int()], x), "a tensor of 4 torch.int32: expected 4 torch.float32"),
        (lambda: shared.all_to_all([x, x], [x, x.int()]), "tensors of float32, int32: expected one dtype"),
        (lambda: shared.send(x, 1 - rank, tag=-1), "tag=-1: expected 0 or more"),
        (lambda: shm.Group(None, 2, 2), "rank=2: expected 0 to 1"),
        (lambda: shm.Group(None, 0, 1000), "size=1000: expected 1 to 512 ranks"),
        (lambda: shm.Group(None, 0, 2, timeout=0), "timeout=0: expected more than 0 seconds"),
    ]
    for call, text in cases:
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(TypeError, match=r"average of torch\.bool: there is no such reduction"):
        shared.all_reduce(x > 0, "average")
    with pytest.raises(TypeError, match="list, expected a tensor"):
        shared.all_reduce([1.0])
    shared.barrier()  # no wrong argument has reached the others
    return "done"


def test_wrong_arguments_are_errors_before_anything_is_sent(tmp_path):
    assert ranks.run(wrong_arguments, 2, tmp_path) == ["done"] * 2


def count_while_waiting(rank, size, store):
    shared = group(rank, size, store)
    if rank == 1:
        time.sleep(0.5)
        shared.barrier()
        return None
    count, waits = 0, True

    def work():
        nonlocal count
        while waits:
            count += 1
            time.sleep(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    shared.barrier()
    waits = False
    thread.join()
    return count


def test_a_call_that_waits_does_not_hold_the_interpreters_lock(tmp_path):
    assert ranks.run(count_while_waiting, 2, tmp_path)[0] > 20


def footprint(rank, size, store):
    shared = group(rank, size, store)
    x = torch.ones(20 * MEBIBYTE)
    shared.all_reduce(x)
    if rank == 0:
        shared.send(x, 1)
    else:
        shared.receive(x, 0)
    with open("/proc/self/maps") as file:
        lines = [line.split() for line in file if "opforge_shm" in line]
    begin, end = (int(number, 16) for number in lines[0][0].split("-"))
    paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    descriptors = [os.readlink(path) for path in paths if os.path.lexists(path)]
    assert not [name for name in os.listdir("/dev/shm") if "opforge" in name]
    return len(lines), (end - begin) // size, [path for path in descriptors if "opforge_shm" in path]


def test_at_most_16_mib_a_rank_and_no_name_or_descriptor(tmp_path):
    for maps, size, descriptors in ranks.run(footprint, 2, tmp_path):
        assert maps == 1
        assert size <= 16 * MEBIBYTE
        assert descriptors == []
    op = ShareMemCommBuilder().load()
    assert all(op.shm_rank_bytes(count) <= 16 * MEBIBYTE for count in range(1, op.shm_most_ranks() + 1))


def groups_of_one_store(rank, size, store):
    place = dist.FileStore(store, size)
    sums = []
    for number in range(3):
        shared = shm.Group(place, rank, size, 30.0)
        x = torch.tensor([number + rank])
        shared.all_reduce(x)
        sums.append(x.item())
        if number:
            del shared
    return sums


def test_a_store_can_be_used_for_group_after_group(tmp_path):
    assert ranks.run(groups_of_one_store, 2, tmp_path) == [[1, 3, 5]] * 2
