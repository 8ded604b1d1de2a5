"""The installed package: its accelerator is found, reads the driver's devices, and its ops compute correct results."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import opforge_opencl
import pytest
import torch
from opforge_opencl import devices
from opforge_opencl.accelerator import OpenCLAccelerator
from opforge_opencl.builders.opencl import OpenCLOpBuilder

from opforge.accelerator import INTERFACE_VERSION, Target, candidates
from opforge.errors import OpNotFoundError, SourceNotFoundError
from opforge.ops.cases import Case
from opforge.testing import AcceleratorContract, OpContract

PACKAGE = os.path.dirname(os.path.abspath(opforge_opencl.__file__))
HYPER = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}


@pytest.fixture(scope="session")
def adam(accelerator):
    return accelerator.load_op("OpenCLAdamBuilder").adam_


@pytest.fixture(scope="session")
def softmax(accelerator):
    return accelerator.load_op("OpenCLSoftmaxBuilder").softmax


# -- the accelerator ---------------------------------------------------------------------------------------------------


class TestAcceleratorContract(AcceleratorContract):
    @pytest.fixture(autouse=True)
    def selected(self, accelerator):
        self.accelerator = accelerator


def test_opforge_finds_the_accelerator_by_its_entry_point(accelerator):
    assert type(accelerator).__name__ == "OpenCLAccelerator"
    assert accelerator.interface_version == INTERFACE_VERSION
    (candidate,) = [candidate for candidate in candidates() if candidate.name == "opencl"]
    assert candidate.available and candidate.source.startswith("opforge-opencl ")


def test_the_accelerator_reports_what_the_driver_says_of_its_devices(accelerator):
    assert accelerator.device_count() == len(devices.devices()) > 0
    first = devices.devices()[0]
    assert first.name and first.version.startswith("OpenCL ") and first.memory > 1 << 20
    capabilities = accelerator.capabilities()
    assert (capabilities.device, capabilities.device_name) == ("opencl", first.name)
    assert capabilities.total_memory == first.memory
    free, total = accelerator.mem_get_info()
    assert 0 < free <= total == accelerator.total_memory()
    assert accelerator.target() == Target("opencl")


def test_the_number_of_a_device_that_does_not_exist_is_an_error(accelerator, softmax):
    count = accelerator.device_count()
    for index in (count, -1, torch.device("cpu", count)):
        with pytest.raises(ValueError, match=r"device_index=.* cannot be used: expected a number"):
            accelerator.set_device(index)
    accelerator.set_device(torch.device("cpu", 0))
    assert accelerator.current_device() == 0
    with pytest.raises(RuntimeError, match=f"there is no OpenCL device {count}: this machine has {count}"):
        softmax(torch.ones(2, 2), count)


def test_without_a_driver_the_reason_names_the_package_to_install(monkeypatch, tmp_path):
    for name in devices.LISTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(devices, "VENDORS", str(tmp_path))
    accelerator = OpenCLAccelerator()
    assert not accelerator.is_available()
    if "libOpenCL" not in accelerator.unavailable_reason():
        assert accelerator.unavailable_reason() == (
            f"{tmp_path} lists no OpenCL driver (for the CPU: apt install pocl-opencl-icd)"
        )
    monkeypatch.setattr(devices, "LIBRARY", "libNoSuchOpenCL.so.1")
    assert "libNoSuchOpenCL.so.1: cannot open shared object file" in OpenCLAccelerator().unavailable_reason()


def test_the_search_for_a_driver_loads_none():
    code = (
        "from opforge_opencl.accelerator import OpenCLAccelerator as A; A().is_available()\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'pocl' in line})"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == ""


def test_the_report_lists_the_accelerator_and_its_ops(accelerator):
    code = "import sys; from opforge.cli import main; sys.argv[0] = 'opforge'; main()"
    environment = {**os.environ, "OPFORGE_ACCELERATOR": "opencl"}
    command = [sys.executable, "-c", code, "report", "--json"]
    report = json.loads(subprocess.run(command, env=environment, capture_output=True, text=True).stdout)
    assert report["accelerators"]["in_use"] == {"name": "opencl", "target": "opencl", "ops": "opforge_opencl.builders"}
    states = {op["name"]: (op["accelerator"], op["state"]) for op in report["ops"]}
    assert states["OpenCLAdamBuilder"][0] == "opencl" and states["OpenCLAdamBuilder"][1] in ("buildable", "cached")
    assert states["CPUAdamBuilder"][0] == "cpu"


# -- builders ----------------------------------------------------------------------------------------------------------


def test_the_hosts_ops_are_offered_too_and_an_unknown_name_is_none(accelerator):
    assert accelerator.create_op_builder("CPUAdamBuilder").target.device == "cpu"
    assert accelerator.create_op_builder("OpenCLAdamBuilder").target == Target("opencl")
    assert accelerator.create_op_builder("NoSuchBuilder") is None
    with pytest.raises(OpNotFoundError, match="Did you mean 'OpenCLAdamBuilder'"):
        accelerator.load_op("OpenCLAdmBuilder")


def test_kernels_are_read_from_the_installed_package(accelerator):
    assert OpenCLOpBuilder.opencl_kernel_path("adam.cl") == os.path.join(PACKAGE, "csrc", "adam.cl")
    assert OpenCLOpBuilder.opencl_kernel_include("include") == os.path.join(PACKAGE, "csrc", "include")
    roots = {root.name: root.path for root in accelerator.create_op_builder("OpenCLAdamBuilder").spec().roots}
    assert roots["opencl:opforge_opencl/csrc"] == os.path.join(PACKAGE, "csrc")
    with pytest.raises(SourceNotFoundError, match=r"no_such\.cl"):
        OpenCLOpBuilder.opencl_kernel_path("no_such.cl")


# -- ops ---------------------------------------------------------------------------------------------------------------


def reference(param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps, weight_decay):
    """Returns param, exp_avg and exp_avg_sq after a step of AdamW (arXiv:1711.05101, algorithm 2) in float64."""
    param, grad, exp_avg, exp_avg_sq = (tensor.double() for tensor in (param, grad, exp_avg, exp_avg_sq))
    param = param * (1 - lr * weight_decay)
    exp_avg = beta1 * exp_avg + (1 - beta1) * grad
    exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * grad**2
    root = (exp_avg_sq / (1 - beta2**step)).sqrt()
    return param - lr * exp_avg / (1 - beta1**step) / (root + eps), exp_avg, exp_avg_sq


@pytest.mark.parametrize("shape", [(0,), (1,), (7, 3), (100_003,)])
def test_the_adam_step_agrees_with_float64(adam, shape):
    torch.manual_seed(0)
    param, grad = torch.randn(shape), torch.randn(shape)
    exp_avg, exp_avg_sq = torch.zeros(shape), torch.zeros(shape)
    for step in (1, 2, 3):
        expected = reference(param, grad, exp_avg, exp_avg_sq, step, **HYPER)
        adam(param, grad, exp_avg, exp_avg_sq, step, *HYPER.values(), 0)
        for actual, exact in zip((param, exp_avg, exp_avg_sq), expected, strict=True):
            torch.testing.assert_close(actual.double(), exact, rtol=2e-6, atol=2e-6)


def test_the_errors_of_the_adam_step_name_the_argument(adam):
    ones = torch.ones(4, 4)
    with pytest.raises(RuntimeError, match="adam_: grad must be float32"):
        adam(ones, ones.double(), ones, ones, 1, *HYPER.values(), 0)
    with pytest.raises(RuntimeError, match="adam_: param must be contiguous"):
        adam(ones[:, 1:], ones, ones, ones, 1, *HYPER.values(), 0)
    with pytest.raises(RuntimeError, match="as many elements as param, 16"):
        adam(ones, ones[0], ones, ones, 1, *HYPER.values(), 0)
    with pytest.raises(RuntimeError, match="step counts from 1, not 0"):
        adam(ones, ones, ones, ones, 0, *HYPER.values(), 0)


SOFTMAX = Case(
    "softmax",
    lambda place: (20 * place.draw(*place.shape), 0),
    lambda softmax: softmax,
    reference=lambda x, _device: x.softmax(-1),
    shapes=((0, 5), (3, 0), (1, 1), (63,), (2, 3, 65), (5, 1000)),
    tolerance=1e-5,
    strided=False,
    opcheck=("test_schema", "test_faketensor"),
)


class TestSoftmaxContract(OpContract):
    cases = (SOFTMAX,)

    @pytest.fixture(autouse=True)
    def loaded_softmax(self, softmax):
        self.loaded = softmax


def test_many_threads_share_a_device(softmax):
    from concurrent.futures import ThreadPoolExecutor

    rows = [torch.randn(8, 100 + number) for number in range(16)]
    with ThreadPoolExecutor(4) as pool:
        for x, y in zip(rows, pool.map(lambda x: softmax(x, 0), rows), strict=True):
            torch.testing.assert_close(y, x.softmax(-1), rtol=1e-5, atol=1e-6)
