"""How contracts run: without pytest, with assertions turned off, and what importing them costs."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from support import child_processes

from opforge.accelerator import CPUAccelerator
from opforge.testing import AcceleratorContract, Contract, ToolchainContract, contract

WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = None            # an import of it fails
from opforge.accelerator import CPUAccelerator
from opforge.testing import AcceleratorContract

class Host(AcceleratorContract):
    def make_accelerator(self):
        return CPUAccelerator()

assert Host.check() == {}
class Wrong(CPUAccelerator):
    def device_count(self):
        return "1"
Host.make_accelerator = lambda self: Wrong()
Host.names = lambda: ["test_device_numbers_are_ints_and_names_make_devices"]
try:
    Host.check()
except AssertionError as error:
    print(error)
"""


class Sample(Contract):
    """A contract with a test of each outcome."""

    def test_passes(self):
        assert self

    def test_fails(self):
        assert self is None, "the value is wrong"

    def test_raises(self):
        raise KeyError("name")

    def test_skips(self):
        from opforge.testing.contract import skip

        skip("no compiler")


def test_check_reports_every_failure_and_returns_what_was_skipped():
    with pytest.raises(AssertionError) as error:
        Sample.check()
    lines = [line for line in str(error.value).splitlines() if line.startswith("Sample.")]
    assert lines == ["Sample.test_fails: the value is wrong", "Sample.test_raises: KeyError: 'name'"]
    good = type("Good", (Sample,), {"test_fails": lambda self: None, "test_raises": lambda self: None})
    assert good.check() == {"test_skips": "no compiler"}


@pytest.mark.test_all("a process runs a whole contract with torch")
def test_contracts_need_no_pytest_and_name_the_value_and_the_reason():
    output = child_processes.run_with_torch(WITHOUT_PYTEST)
    assert "Host.test_device_numbers_are_ints_and_names_make_devices: device_count() is '1', expected an int" in output


def test_a_contract_is_not_run_without_assertions():
    code = f"import runpy; runpy.run_path({contract.__file__!r})['Contract']().setup_method()"
    env = child_processes.environment()
    process = subprocess.run([sys.executable, "-O", "-c", code], env=env, capture_output=True, text=True)
    reason = "RuntimeError: Python runs with -O, which removes assertions: run the contract without it."
    assert process.stderr.splitlines()[-1] == reason


@pytest.mark.parametrize("kind", [AcceleratorContract, ToolchainContract])
def test_a_method_that_must_be_overridden_says_so(kind):
    tested = kind()
    (make,) = [name for name in ("make_accelerator", "make_toolchain") if hasattr(tested, name)]
    with pytest.raises(NotImplementedError, match=f"{kind.__name__} must override {make}"):
        getattr(tested, make)()


def test_neither_opforge_nor_a_load_imports_contracts():
    code = (
        "import sys, opforge\nfrom opforge import OpBuilder, get_accelerator\nget_accelerator()"
        "\nimport opforge.builders.loader\nprint('opforge.testing' in sys.modules)"
    )
    assert child_processes.run_python(code).strip() == "False"


def test_the_cost_of_a_call_does_not_include_what_a_collection_of_garbage_runs():
    class Imports:
        def __del__(self):
            from opforge.accelerator import select  # noqa: F401  # runs functions of importlib

    class Host(AcceleratorContract):
        def make_accelerator(self):
            return CPUAccelerator()

    host, before = Host(), gc.get_threshold()
    assert host.calls_of(int) == []
    gc.collect()
    gc.set_threshold(100_000)
    try:
        ring = [Imports()]
        ring.append(ring)
        del ring
        assert host.calls_of(lambda: [[] for _ in range(200_000)]) == []
    finally:
        gc.set_threshold(*before)
    assert gc.isenabled()
