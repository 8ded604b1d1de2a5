"""ZenFlow's functions over CPUAdam's op: steps that another process performs."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from support import child_processes, polling

torch = pytest.importorskip("torch", reason="pip install torch")

from support.compat import zenflow_process  # noqa: E402

from opforge.compat.deepspeed import zenflow  # noqa: E402
from opforge.ops import reference  # noqa: E402

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes share semaphores on Linux only"),
    pytest.mark.usefixtures("builds_are_shared"),
]
NUMBERS = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}


@pytest.fixture
def functions(builds_are_shared):
    """ZenFlow's functions by their names after `zenflow_adam_`, and CPUAdam's op as `op`."""
    op, functions = zenflow_process.load()
    return {**functions, "op": op}


@pytest.fixture
def started():
    """Starts optimizer processes, which end with the test."""
    processes = []

    def start(*arguments, **options):
        processes.append(zenflow_process.start(*arguments, **options))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.join()


def control_for(functions, groups):
    """Returns an initialized control block in shared memory."""
    control = torch.zeros(functions["ctrl_size"](), dtype=torch.uint8).share_memory_()
    functions["ctrl_init"](control.data_ptr(), groups)
    return control


def shared_group(size, dtype=torch.float32, stale=True):
    """Returns the tensors of a group: parameters, two buffers for each gradient and state, and the copy."""
    param = torch.randn(size).to(dtype)
    buffers = [torch.zeros(size, dtype=dtype if i < 2 else torch.float32) for i in range(6)]
    tensors = [param, *buffers, torch.zeros(size, dtype=dtype)]
    for tensor in tensors:
        tensor.share_memory_()
    return [*tensors[:7], tensors[7] if stale else None]


def submit(functions, control, step, groups=1, bias_correction=True, **changed):
    """Requests a step with the same numbers for each group."""
    numbers = {**NUMBERS, **changed}
    functions["submit"](
        control.data_ptr(),
        step % 2,
        step,
        *([value] * groups for value in numbers.values()),
        [bias_correction] * groups,
    )


OTHER_MODES = pytest.mark.long(
    "starts one more process with DeepSpeed for a mode of adam_update, which has its own tests"
)


@pytest.mark.parametrize(
    ("adamw_mode", "bias_correction"),
    [(True, True), pytest.param(False, True, marks=OTHER_MODES), pytest.param(True, False, marks=OTHER_MODES)],
)
def test_steps_are_those_of_adam_update_bit_for_bit_and_of_the_float64_reference(
    functions, started, adamw_mode, bias_correction
):
    torch.manual_seed(0)
    groups = [shared_group(100_003), shared_group((17, 5), stale=False)]
    control = control_for(functions, len(groups))
    mirrors = [[None if tensor is None else tensor.clone() for tensor in group] for group in groups]
    exact = [[tensor.double() for tensor in group[:7]] for group in groups]
    functions["op"].create_adam(1, 1e-3, 0.9, 0.999, 1e-8, 0.0, adamw_mode, False)
    process = started(groups, control, adamw_mode=adamw_mode)
    for step in range(1, 6):
        now = step % 2
        for group in groups:
            group[1 + now].copy_(torch.randn(group[0].shape))
        submit(functions, control, step, len(groups), bias_correction)
        assert functions["wait"](control.data_ptr(), 60.0) is True
        for index, group in enumerate(groups):
            grad, mirror, wide = group[1 + now].clone(), mirrors[index], exact[index]
            states = mirror[3 + now], mirror[5 + now]
            functions["op"].adam_update(1, step, *NUMBERS.values(), bias_correction, mirror[0], grad, *states)
            assert torch.equal(group[0], mirror[0])
            assert torch.equal(group[3 + now], states[0]) and torch.equal(group[5 + now], states[1])
            assert group[7] is None or torch.equal(group[7], mirror[0])
            wide[0], wide[3 + now], wide[5 + now] = reference.adam(
                wide[0],
                grad.double(),
                wide[3 + now],
                wide[5 + now],
                step=step,
                adamw_mode=adamw_mode,
                bias_correction=bias_correction,
                **NUMBERS,
            )
            torch.testing.assert_close(group[0].double(), wide[0], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(group[3 + now].double(), wide[3 + now], rtol=1e-6, atol=1e-7)
    functions["ctrl_exit"](control.data_ptr())
    process.join(30)
    assert process.exitcode == 0
    functions["op"].destroy_adam(1)


def test_each_group_has_numbers_of_its_own_and_steps_are_counted_whether_they_are_awaited_or_not(functions, started):
    groups = [shared_group(300), shared_group(300, torch.bfloat16)]
    before = [group[0].clone() for group in groups]
    for group in groups:
        group[2].fill_(1.0)
    control = control_for(functions, 2)
    assert functions["wait"](control.data_ptr(), 0.05) is False
    assert functions["wait"](control.data_ptr(), -1.0) is False
    started(groups, control)
    columns = [[NUMBERS[name]] * 2 for name in ("beta1", "beta2", "eps")]
    functions["submit"](control.data_ptr(), 1, 1, [0.0, 0.5], *columns, [0.0, 0.0], [1, 1])
    assert functions["wait"](control.data_ptr(), 60.0) is True
    assert torch.equal(groups[0][0], before[0])
    torch.testing.assert_close(groups[1][0].float(), before[1].float() - 0.5, rtol=0, atol=2**-6)

    submit(functions, control, 2, 2)
    polling.wait_for(
        lambda: not torch.equal(groups[0][0], before[0]) and torch.equal(groups[0][7], groups[0][0]),
        reason="the step's copy",
    )
    assert [functions["wait"](control.data_ptr(), seconds) for seconds in (60.0, 0.05)] == [True, False]


def test_a_block_of_deepspeeds_own_op_is_refused_and_a_missing_worker_is_an_error(functions, monkeypatch):
    theirs = torch.zeros(functions["ctrl_size"](), dtype=torch.uint8)
    for name in ("wait", "ctrl_exit"):
        with pytest.raises(RuntimeError, match="one process runs DeepSpeed's own op"):
            functions[name](theirs.data_ptr(), *([0.0] if name == "wait" else []))
    control = control_for(functions, 1)
    submit(functions, control, 1)
    assert functions["wait"](control.data_ptr(), 0.01) is False
    monkeypatch.setattr(zenflow, "ATTACH_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match="no opforge worker has taken ZenFlow's step"):
        functions["wait"](control.data_ptr(), 0.01)


def test_wrong_numbers_of_groups_and_handles_are_refused(functions):
    with pytest.raises(ValueError, match="num_groups is 1025, expected at most 1024"):
        control_for(functions, 1025)
    control = control_for(functions, 2)
    with pytest.raises(ValueError, match="lr has 1 numbers, expected 2: one for each group"):
        submit(functions, control, 1)
    with pytest.raises(ValueError, match="handle 99999 is unknown"):
        functions["run_worker"](99999, control.data_ptr())
    handle = functions["create"](7, [0])
    with pytest.raises(RuntimeError, match="0 groups are registered, expected 2"):
        functions["run_worker"](handle, control.data_ptr())
    functions["destroy"](handle)
    functions["destroy"](handle)
    with pytest.raises(ValueError, match=f"handle {handle} is unknown"):
        functions["register_group"](handle, *shared_group(3))


PARENT = """
import time
import torch
from support.compat import zenflow_process

functions = zenflow_process.load()[1]
control = torch.zeros(functions["ctrl_size"](), dtype=torch.uint8).share_memory_()
functions["ctrl_init"](control.data_ptr(), 0)
print(zenflow_process.start([], control).pid, flush=True)
time.sleep(100)
"""


def is_running(process):
    """Returns whether the process has not ended; one that has ended may still be listed."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return file.read() != b""
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between opening and reading
        return False


def test_the_optimizers_process_ends_when_the_training_process_is_killed(shared_store):
    with child_processes.start_python(PARENT, env={"OPFORGE_CACHE_DIR": str(shared_store)}) as parent:
        worker = int(parent.stdout.readline())
        try:
            assert is_running(worker)
            parent.kill()
            parent.wait()
            polling.wait_for(lambda: not is_running(worker), reason="the end of the optimizer's process")
        finally:
            if is_running(worker):
                os.kill(worker, signal.SIGKILL)


def test_the_worker_binds_only_while_it_works(functions):
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    control = control_for(functions, 0)
    handle = functions["create"](7, [min(cores), 10_000])
    functions["ctrl_exit"](control.data_ptr())
    functions["run_worker"](handle, control.data_ptr())
    functions["destroy"](handle)
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == (cores, threads)
