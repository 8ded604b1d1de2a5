"""Opforge's own ops, built by zig for older systems: they load beside torch's C++ runtime and raise Python errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import kernel_abi_check
import pytest
from support import child_processes, sample_ops, tiers
from support.compilers.installed_compilers import skip_if_zig_is_slow

from opforge.builders.cpu import BUILDERS
from opforge.builders.toolchains import zig
from opforge.errors import ToolchainNotFoundError

pytestmark = pytest.mark.usefixtures("builds_are_shared")
LEVEL = {"x86_64": "cpu:x86-64-v2", "aarch64": "cpu:aarch64"}.get(os.uname().machine, "")
LONG = tiers.is_long()
OFTEN = ("CPUAdamBuilder", "PinMemoryBuilder")
"""The stable ABI, and the C ABI."""
STEP = """
import torch

from opforge.builders.cpu.adam import CPUAdamBuilder

op = CPUAdamBuilder("@LEVEL@", portable=True).load()
random = torch.Generator().manual_seed(0)
mine, grad = torch.randn(5003, generator=random), torch.randn(5003, generator=random)
theirs, states = mine.clone(), lambda: [torch.zeros(5003)]
numbers = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
modes = {"adamw_mode": True, "bias_correction": True, "maximize": False}
op.multi_adam_([mine], [grad], states(), states(), step=1, **numbers, **modes)
step = [torch.tensor(1.0)]
torch._fused_adamw_([theirs], [grad], states(), states(), [], step, **numbers, amsgrad=False, maximize=False)
torch.testing.assert_close(mine, theirs)
for wrong in (lambda: op.multi_adam_([mine], [grad[:2]], states(), states(), step=1, **numbers, **modes),
              lambda: op.adam_update(7, 1, 0.1, 0.9, 0.9, 0.1, 0.0, True, mine, grad, *states(), *states())):
    try:
        wrong()
    except RuntimeError as error:
        print(error)
"""


@pytest.fixture(autouse=True)
def with_zig():
    """Skips a test without zig, or if zig would have to build its libc++ first."""
    try:
        zig.find()
    except ToolchainNotFoundError as error:
        pytest.skip(str(error))
    if not LEVEL:
        pytest.skip(f"portable ops are built for x86-64 and aarch64, not for {os.uname().machine}")
    skip_if_zig_is_slow()


@pytest.mark.parametrize("name", sorted(set(BUILDERS) - {"CCLCommBuilder"}))  # it needs oneCCL
def test_every_op_of_the_host_is_built_for_older_systems(name):
    if name not in OFTEN and not LONG:
        pytest.skip("zig compiles each op for seconds; `make dist` builds all: `make test-long`")
    from opforge.accelerator.registry import make_accelerator

    cls = make_accelerator("cpu", "the test").get_op_builder(name)
    entry = cls(LEVEL, portable=True).build()
    record = entry.record
    assert not any("stdc++" in library or "gcc" in library for library in record["needs"])
    assert tuple(map(int, record["floors"]["GLIBC"].split("."))) <= (2, 28)
    assert not kernel_abi_check.ObjectFile(entry.library).check_manylinux("manylinux_2_28"), "as the hub checks it"
    if record["abi"] == "torch-stable":
        assert os.path.getsize(entry.library) < 256 << 10, "libc++abi's demangler, of 170 KB, is not in it"


def test_a_portable_optimizer_computes_as_torch_does_and_raises_in_python():
    sizes, unknown = child_processes.run_with_torch(STEP.replace("@LEVEL@", LEVEL), timeout=280).strip().splitlines()
    assert sizes.startswith("grads[0] has shape (2,), expected that of params[0], (5003,)")
    assert unknown.startswith("optimizer_id 7 is unknown, expected one given to create_adam")


ENDS = """
#include <torch/csrc/stable/library.h>
#include <stdexcept>
#include <string>
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("unused(Tensor x) -> Tensor"); }
extern "C" __attribute__((visibility("default"))) void ends() noexcept { throw std::runtime_error("nobody caught it"); }
"""
HANDLED = """
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <exception>
#include <typeinfo>
extern "C" __attribute__((visibility("default"))) void handled() noexcept {
    std::set_terminate([] {
        const char* mangled = typeid(std::string*).name();
        std::fprintf(stderr, "ended with %s", abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr));
        std::abort();
    });
    throw 3;
}
"""
CALL = "import ctypes, torch; ctypes.CDLL({path!r}).{name}()"


def errors_of(path, name):
    """Returns what a process prints that calls a function of a library and is ended by it."""
    command = [sys.executable, "-c", CALL.format(path=path, name=name)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == -signal.SIGABRT, ended.stderr
    return ended.stderr


@pytest.mark.parametrize("is_handled", [False, pytest.param(True, marks=pytest.mark.long("zig compiles it for 10 s"))])
def test_an_exception_that_nobody_catches_ends_the_process_with_its_text(tmp_path, is_handled):
    """A source that sets a handler, or demangles a name, gets those of libc++abi."""
    builder = sample_ops.op_from_source(tmp_path, ENDS + HANDLED * is_handled)(LEVEL, portable=True)
    library = builder.build().library
    if is_handled:
        assert errors_of(library, "handled").startswith("ended with std::")
    else:
        assert errors_of(library, "ends") == "opforge: the process is ended by: nobody caught it\n"
