"""A variant for each architecture: made with a real nvcc, installed for the devices that a machine has, and picked."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys

import pytest
import torch
from support.kernels.projects import INIT, SOURCE
from support.kernels.registries import Registry
from support.text_files import write

import opforge
from opforge.accelerator.target import Target
from opforge.accelerator.vendors import nvidia
from opforge.builders.declaration import machine
from opforge.builders.toolchains import nvcc
from opforge.errors import KernelIncompatibleError, PackError, ToolchainNotFoundError
from opforge.packages.choose import environment
from opforge.packages.load import checkout
from opforge.packages.load import get_kernel as loading
from opforge.packages.pack.run import Options, pack
from opforge.packages.registry import publish
from opforge.packages.sources import reading
from opforge.remote.signatures import keys

pytestmark = [pytest.mark.compile, pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux")]
KERNEL = "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }\n"
TOML = """\
name = "acme/scale"
version = "2.1"
license = "MIT"
python = "python/scale"
targets = ["cuda:sm_80+sm_90+ptx"]
[op]
name = "split_scale"
devices = ["cuda"]
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    try:
        nvcc.find()
    except ToolchainNotFoundError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("split")
    write(folder, "scale.cpp", SOURCE.replace("@NAME@", "split_scale").replace("@FACTOR@", "2"))
    write(folder, "twice.cu", KERNEL)
    write(folder, "python/scale/__init__.py", INIT)
    write(folder, "kernel.toml", TOML + 'sources = ["scale.cpp", "twice.cu"]\n')
    pack(reading.read(str(folder)), str(folder), Options(split=True))
    return str(folder)


@pytest.fixture(scope="module")
def torch_library(tmp_path_factory):
    """Opens an empty library of the name that torch's own for CUDA has: this torch may have none."""
    path = tmp_path_factory.mktemp("lib") / "libtorch_cuda.so"
    subprocess.run(
        ["cc", "-shared", "-o", path, "-Wl,-soname,libtorch_cuda.so,-z,noexecstack", "-xc", os.devnull], check=True
    )
    return ctypes.CDLL(str(path))


@pytest.fixture
def devices(monkeypatch, torch_library):
    """Records a machine with these devices, in order, a torch for CUDA, and which device is current."""
    read = machine.this_machine

    def this_machine(device="cpu"):
        value = read(device)
        return value._replace(torch_libraries=value.torch_libraries | {"libtorch_cuda.so", "libc10_cuda.so"})

    monkeypatch.setattr(machine, "this_machine", this_machine)

    def record(*archs, current=0):
        monkeypatch.setattr(nvidia, "driver_version", lambda: (13, 1))
        monkeypatch.setattr(machine, "present", lambda device: tuple(sorted(set(archs))) if device == "cuda" else ())
        monkeypatch.setattr(machine, "current_arch", lambda _device: archs[current])
        monkeypatch.setattr(environment, "_torch_backend", lambda: ("cuda", (13, 0)))

    return record


@pytest.fixture
def registry(packed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    registry = Registry(tmp_path)
    publish.publish(registry.store, packed, keys.signer())
    monkeypatch.setenv("OPFORGE_KERNEL_PATH", registry.root.path)
    loading.reset()
    yield registry
    loading.reset()


def labels(release):
    return sorted(part.candidate.label.partition(".")[2] for part in release.variants)


@pytest.mark.long("compiles for three GPUs")
def test_each_variant_holds_the_code_of_one_architecture_and_the_newest_the_ptx(packed):
    stated = {choice.candidate.label.partition(".")[2]: choice.metadata for choice in checkout.variants(packed)[0]}
    assert {arch: part.opforge["measured"]["archs"] for arch, part in stated.items()} == {
        "sm_80": ["sm_80"],
        "sm_90+ptx": ["compute_90", "sm_90"],
    }
    for part in stated.values():
        major = part.opforge["record"]["requires"]["cuda"].partition(".")[0]
        assert part.opforge["measured"]["floors"]["driver"] == f"{major}.0"
    assert {arch: part.archs for arch, part in stated.items()} == {
        "sm_80": ("8.0",),
        "sm_90+ptx": ("9.0+PTX",),
    }


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (("sm_80",), ["sm_80"]),
        (("sm_86",), ["sm_80"]),
        (("sm_90",), ["sm_90+ptx"]),
        (("sm_100",), ["sm_90+ptx"]),
        (("sm_90", "sm_80", "sm_90"), ["sm_80", "sm_90+ptx"]),
        (("sm_80", "sm_75"), ["sm_80"]),
    ],
)
def test_install_takes_the_variants_of_the_devices_that_are_here(registry, devices, here, expected):
    devices(*here)
    assert labels(registry.install("acme/scale")) == expected


def test_a_machine_whose_devices_have_no_variant_gets_every_reason(registry, devices):
    devices("sm_61", "sm_75")
    with pytest.raises(KernelIncompatibleError) as error:
        registry.install("acme/scale")
    assert len(error.value.reasons) == 2 and "it holds code for sm_80" in str(error.value)


def test_get_kernel_takes_the_variant_of_the_current_device(registry, devices):
    devices("sm_80", "sm_90")
    registry.install("acme/scale")
    first = opforge.get_kernel("acme/scale", 2)
    devices("sm_80", "sm_90", current=1)
    second = opforge.get_kernel("acme/scale", 2)
    assert first is not second and "sm_90" not in first.__file__
    assert torch.equal(first.scale(torch.ones(2)), second.scale(torch.ones(2)))
    devices("sm_80", "sm_90")
    assert opforge.get_kernel("acme/scale", 2) is first


def test_a_device_that_none_of_the_installed_variants_serves_gets_every_reason(registry, devices):
    devices("sm_90")
    registry.install("acme/scale")
    devices("sm_80", "sm_90")
    with pytest.raises(KernelIncompatibleError, match=r"holds code for sm_90\+ptx, but the cuda device here is sm_80"):
        opforge.get_kernel("acme/scale", 2)
    registry.install("acme/scale")
    assert opforge.get_kernel("acme/scale", 2).scale(torch.ones(1)).tolist() == [2.0]


def test_an_op_that_declares_its_architectures_cannot_be_split(packed, tmp_path):
    folder = shutil.copytree(packed, tmp_path / "declared")
    text = TOML.replace("[op]\n", '[op]\nsources = ["scale.cpp", "twice.cu"]\n')
    write(folder, "kernel.toml", text)
    write(
        folder,
        "ops.py",
        "from opforge import OpBuilder\nclass B(OpBuilder):\n"
        + "".join(
            f"    {line}\n"
            for line in (
                'name, sources = "split_scale", ["scale.cpp", "twice.cu"]',
                'devices, architectures = ["cuda"], ["8.0", "9.0"]',
            )
        ),
    )
    write(folder, "kernel.toml", TOML.partition("[op]")[0] + 'builder = "ops:B"\n')
    options = Options((Target.parse("cuda:sm_80+sm_90"),), split=True)
    with pytest.raises(PackError, match=r"declares the architectures that it is compiled for: sm_80\+sm_90"):
        pack(reading.read(str(folder)), str(folder), options)
