"""DeepSpeed's collectives over oneCCL, with real ranks; skipped without oneCCL (CCL_ROOT, or the wheels)."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from support.processes import forked_python, ranks
from torch.distributed import ReduceOp

from opforge.builders.cpu.ccl_comm import CCLCommBuilder
from opforge.ops.ccl.communicators import DTYPES, Communicators


@pytest.fixture
def with_ccl(builds_are_shared, monkeypatch):
    """Builds the op, which the ranks load; skips the test without oneCCL."""
    monkeypatch.setenv("FI_TCP_IFACE", "lo")
    if reason := "; ".join(CCLCommBuilder().gate(None)):
        pytest.skip(f"{reason}. Tested with oneccl-devel==2021.15.2, and 2021.13.1 with libfabric-dev")
    CCLCommBuilder().load()


def test_without_ccl_the_reason_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("CCL_ROOT", str(tmp_path))
    (reason,) = CCLCommBuilder().gate(None)
    assert reason.startswith(f"no oneCCL in {tmp_path}: set CCL_ROOT to an installation")


def test_without_ccl_the_op_is_not_listed_and_its_builder_says_why(tmp_path):
    """Nothing is offered that cannot be built, but the name is known."""
    code = """
import opforge
accelerator = opforge.get_accelerator()
print("CCLCommBuilder" in accelerator.op_builders())
builder = accelerator.create_op_builder("CCLCommBuilder")
print(*builder.is_compatible().reasons)
"""
    for root, is_listed in ((None, "False"), (str(tmp_path), "True")):
        environment = {name: value for name, value in os.environ.items() if name != "CCL_ROOT"}
        if root:
            environment["CCL_ROOT"] = root
        elif os.path.exists(f"{sys.prefix}/include/oneapi/ccl.hpp"):
            continue
        command = [forked_python.python(), "-c", code]
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert output.splitlines()[0] == is_listed
        assert output.splitlines()[1].startswith(f"no oneCCL in {root or sys.prefix}: set CCL_ROOT to an installation")


def test_a_negated_view_is_reduced_by_its_values_and_not_by_its_memory():
    """The imaginary part of a conjugate has the memory of the complex number."""
    seen = []

    def all_reduce(_communicator, memory, numbers, *_rest):
        seen.extend((ctypes.c_float * numbers).from_address(memory))
        (ctypes.c_float * numbers).from_address(memory)[0] = 5.0
        return 0

    zero = {"ccl_reduction": lambda _: 0, "ccl_dtype": lambda _: 0, "ccl_all_reduce": all_reduce}
    communicators = Communicators(SimpleNamespace(**zero))
    communicators._by_ranks[(0,)] = None
    part = torch.tensor([1 + 2j]).conj().imag
    assert part.is_neg() and part.is_contiguous()
    communicators.all_reduce(part, ReduceOp.SUM, [0], False)
    assert seen == [-2.0] and part.tolist() == [5.0]


def address(store, name, values):
    if any(values):
        store.set(name, bytes(values))
    return torch.tensor([*store.get(name)], dtype=torch.uint8)


def collectives(rank, size, path):
    op, store = CCLCommBuilder().load(), dist.FileStore(path, size)
    assert (op.get_rank(), op.get_world_size(0)) == (-1, -1)
    op.initialize(size, rank, address(store, "all", op.get_kvs_addr(rank)))
    assert (op.get_rank(), op.get_world_size(0)) == (rank, size)
    everybody = [*range(size)]
    for name in (*DTYPES, "bool"):
        x = torch.full((5, 4), rank + 1).to(getattr(torch, name))[:, ::2]
        op.all_reduce(x, ReduceOp.SUM, everybody, False)
        assert x.unique().tolist() == [True if name == "bool" else sum(range(size + 1))], name
    flags = torch.tensor([rank > 0, False, True])
    op.all_reduce(flags, ReduceOp.SUM, everybody, False)
    assert flags.tolist() == [True, False, True]
    for _ in range(2):
        x = torch.tensor([2.0 + rank])
        op.all_reduce_caching(x, ReduceOp.PRODUCT, "name", everybody, False)
        assert x.item() == 6.0
    op.broadcast(x := torch.tensor([rank]), 1, everybody, False)
    assert x.item() == 1
    op.inference_all_reduce(x := torch.ones(3), ReduceOp.SUM)
    assert x.tolist() == [2.0] * 3
    op.initialize_sub_comm(size, size - 1 - rank, address(store, "some", op.get_sub_kvs_addr(rank == 1)), [1, 0])
    op.all_reduce(x, ReduceOp.MAX, [1, 0], False)
    op.barrier(everybody, False)
    with pytest.raises(TypeError, match=r"a tensor of torch\.complex64: oneCCL has bool, int8"):
        op.all_reduce(torch.ones(2, dtype=torch.complex64), ReduceOp.SUM, everybody, False)
    with pytest.raises(ValueError, match=r"the ranks \(0,\) have no communicator"):
        op.all_reduce(x, ReduceOp.SUM, [0], False)
    with pytest.raises(ValueError, match=r"expected ReduceOp\.SUM, PRODUCT, MIN, MAX"):
        op.all_reduce(x, ReduceOp.AVG, everybody, False)
    assert os.environ["CCL_ATL_TRANSPORT"] == "ofi"
    return op.get_available_coll()


def test_every_function_of_two_ranks(tmp_path, with_ccl):
    names = ["broadcast", "all_reduce", "inference_all_reduce", "all_reduce_caching", "barrier"]
    assert ranks.run(collectives, 2, tmp_path) == [names] * 2
