"""The optimizers' ops, loaded once for all tests of a module that use them."""

from __future__ import annotations

import importlib
import platform

import pytest
from support.gpu import gpu_on_host, triton_interpreter

from opforge.builders import cpu, cuda, triton
from opforge.builders.cpu.adagrad import CPUAdagradBuilder
from opforge.builders.cpu.adam import CPUAdamBuilder
from opforge.builders.cpu.lion import CPULionBuilder
from opforge.builders.cpu.transformer.ragged_ops import RaggedOpsBuilder


def builder_of(package, name):
    table = package.TRITON_BUILDERS if package is triton else package.BUILDERS
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


@pytest.fixture(scope="module", params=["host", "gpu", "triton"])
def fused_ops(request, tmp_path_factory):
    """The ops of Adam, Lion and LAMB: of the host, of the GPU's source run on the host, of Triton interpreted."""
    if request.param == "triton":
        with pytest.MonkeyPatch.context() as patch, triton_interpreter.interpreted(patch):
            yield [builder_of(triton, f"Triton{name}Builder")().load() for name in ("Adam", "Lion", "Lamb")]
    else:
        yield load_fused_ops(request.param, tmp_path_factory)


def load_fused_ops(device, tmp_path_factory):
    loaded = []
    for name in ("FusedAdamBuilder", "FusedLionBuilder", "FusedLambBuilder"):
        builder = builder_of(cpu, name)
        if device == "gpu":
            builder = gpu_on_host.on_host(builder_of(cuda, name), tmp_path_factory.mktemp(name))
        loaded.append(builder().load())
    return loaded


@pytest.fixture(scope="module")
def fused_adam(fused_ops):
    return fused_ops[0]


@pytest.fixture(scope="module")
def fused_lion(fused_ops):
    return fused_ops[1]


@pytest.fixture(scope="module")
def fused_lamb(fused_ops):
    return fused_ops[2]


ANOTHER_LEVEL = pytest.mark.long("builds the ops for one level of the CPU more")


def load_for_level(builder_class, level):
    """Returns the op for a CPU level; skips the test if this machine cannot run it."""
    builder = builder_class(target=f"cpu:{level}") if level else builder_class()
    compatible = builder.is_compatible()
    if not compatible:
        pytest.skip(f"this CPU does not run {level}: {compatible}")
    return builder.load()


@pytest.fixture(
    scope="module", params=["", *(pytest.param(level, marks=ANOTHER_LEVEL) for level in ("x86-64", "x86-64-v3"))]
)
def long_cpu_level(request):
    """Of ops whose vectors are those of Adam, which is tried without any vectors in the second tier too."""
    return request.param


@pytest.fixture(scope="module", params=["", "x86-64", pytest.param("x86-64-v3", marks=ANOTHER_LEVEL)])
def cpu_level(request):
    if request.param and platform.machine() != "x86_64":
        pytest.skip(f"{request.param} is not this machine's architecture")
    return request.param


@pytest.fixture(scope="module")
def cpu_adam(cpu_level):
    return load_for_level(CPUAdamBuilder, cpu_level)


@pytest.fixture(scope="module")
def cpu_adagrad(long_cpu_level):
    return load_for_level(CPUAdagradBuilder, long_cpu_level)


@pytest.fixture(scope="module")
def cpu_lion(long_cpu_level):
    return load_for_level(CPULionBuilder, long_cpu_level)


@pytest.fixture(
    scope="module", params=["", *(pytest.param(level, marks=ANOTHER_LEVEL) for level in ("x86-64", "x86-64-v3"))]
)
def ragged_ops(request):
    return load_for_level(RaggedOpsBuilder, request.param)
