"""Which variant fits and which is the best: every rule, and that the order of the variants decides nothing."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from opforge.builders.declaration.abi import INTERFACE, STABLE
from opforge.builders.declaration.machine import Machine
from opforge.errors import KernelFormatError
from opforge.packages.choose import environment, order
from opforge.packages.choose.candidate import VariantCandidate, target_of
from opforge.packages.choose.environment import Environment
from opforge.packages.form import properties, variant

HOST = Machine("x86_64", "x86-64-v3", "2.36", "3.4.30", "cpython-311", "2.13.0+cu130")
CPU = Environment("linux", {"cpu": HOST._replace(torch="2.13.0+cpu")}, "cpu")
GPU = HOST._replace(
    device="cuda", devices=("sm_90",), driver=(13, 0), torch_libraries=frozenset({"libtorch_cuda.so", "libc10_cuda.so"})
)
CUDA = Environment("linux", {"cpu": HOST, "cuda": GPU}, "cuda", (13, 0))


def variant_of(label, arch="", needs=(), problem=""):
    """Returns a variant as if its library had nothing but what its label says; `arch` are a device's architectures."""
    kind = variant.parse(label)
    record = None
    if kind.framework != properties.PYTHON:
        target = target_of(kind, ())
        number = ".".join(map(str, kind.backend_version or ()))
        record = {
            "abi": STABLE if kind.framework == properties.STABLE else "c",
            "target": f"cuda:{arch}" if arch else target,
            "machine": kind.processor,
            "torch_target": ".".join(map(str, kind.framework_version)),
            "requires": {"cuda": number} if kind.backend == "cuda" else {},
            "floors": {},
            "needs": list(needs),
            "shims": [],
            "built_with_torch": "2.13",
            "user_flags": {},
        }
    return VariantCandidate(label, kind, record, problem=problem)


def labels(decisions):
    return [choice.candidate.label for choice in decisions if not choice.problem]


def best_first(variants, here):
    return labels(order.decide(variants, here))


def problem(label, here, **more):
    (choice,) = order.decide([variant_of(label, **more)], here)
    return choice.problem


class TestOrder:
    BEST_FIRST = [
        ("torch-stable-abi210-cu130-x86_64-linux.sm_90", "sm_90"),
        ("torch213-cxx11-cu130-x86_64-linux", "sm_90a"),
        ("tvm-ffi01-cu130-x86_64-linux", "sm_80+sm_90"),
        ("torch-stable-abi211-cu129-x86_64-linux", None),
        ("torch-stable-abi211-cu130-x86_64-linux", "sm_80+ptx"),
        ("torch-cuda", ""),
        ("torch-universal", ""),
        ("torch-stable-abi210-cpu-x86_64-linux.x86-64-v3", ""),
        ("torch-stable-abi210-cpu-x86_64-linux", ""),
    ]

    def variants(self):
        return [variant_of(label, arch or "") for label, arch in self.BEST_FIRST if arch is not None]

    def test_the_whole_order(self):
        here = CUDA._replace(tvm_ffi="0.1.4")
        expected = [label for label, arch in self.BEST_FIRST if arch is not None]
        assert best_first(self.variants(), here) == expected

    def test_the_order_of_the_variants_decides_nothing(self):
        here, variants, chance = CUDA._replace(tvm_ffi="0.1.4"), self.variants(), random.Random(7)
        expected = best_first(variants, here)
        for _number in range(200):
            chance.shuffle(variants)
            assert best_first(variants, here) == expected

    def test_every_permutation_of_four_gives_one_order(self):
        chosen = self.variants()[:2] + self.variants()[-2:]
        orders = {tuple(best_first(list(variants), CUDA)) for variants in itertools.permutations(chosen)}
        assert len(orders) == 1

    def test_a_family_is_before_ptx_and_after_the_device_itself(self):
        here = CUDA._replace(machines={"cpu": HOST, "cuda": GPU._replace(devices=("sm_86",))})
        texts = {"sm_80": "sm_80", "sm_86": "sm_80+sm_86", "ptx": "sm_75+ptx"}
        named = [
            variant_of(f"torch-stable-abi210-cu130-x86_64-linux.{name}", arch) for name, arch in sorted(texts.items())
        ]
        assert [label.rpartition(".")[2] for label in best_first(named, here)] == ["sm_86", "sm_80", "ptx"]

    def test_the_newer_framework_and_the_newer_backend_come_first(self):
        named = ["torch-stable-abi29-cu130-x86_64-linux", "torch-stable-abi211-cu130-x86_64-linux"]
        assert best_first([variant_of(label) for label in named], CUDA) == named[::-1]
        here = CUDA._replace(backend_version=(13, 2))
        named = ["torch-stable-abi211-cu130-x86_64-linux", "torch-stable-abi211-cu132-x86_64-linux"]
        variants = [variant_of(label)._replace(record=None) for label in named]
        assert best_first(variants, here) == named[::-1]

    def test_the_hubs_tie_is_none_here(self):
        named = ["torch-cuda", "tvm-ffi01-cu130-x86_64-linux"]
        assert best_first([variant_of(label) for label in named], CUDA._replace(tvm_ffi="0.1.9")) == named[::-1]


@pytest.mark.parametrize(
    ("label", "here", "text"),
    [
        ("torch213-cxx11-cpu-aarch64-linux", CPU, "it is for aarch64, and this machine is x86_64"),
        ("torch213-cpu-x86_64-windows", CPU, "it is for windows, and this system is linux"),
        (
            "torch-stable-abi214-cpu-x86_64-linux",
            CPU,
            "it needs torch 2.14 or newer, and torch 2.13.0+cpu is",
        ),
        ("torch212-cxx11-cpu-x86_64-linux", CPU, "it is for torch 2.12 alone, and torch 2.13.0+cpu is installed"),
        ("torch213-cxx98-cpu-x86_64-linux", CPU, "it is for the old C++ interface of strings"),
        ("torch-stable-abi210-cu130-x86_64-linux", CPU, "it is for cuda, and the installed torch is for cpu"),
        (
            "torch-stable-abi210-cu126-x86_64-linux",
            CUDA,
            "it is built with CUDA 12.6, and the installed torch with",
        ),
        (
            "torch-stable-abi210-cu132-x86_64-linux",
            CUDA,
            "it is built with CUDA 13.2, and the installed torch with",
        ),
        ("torch-rocm", CPU, "it is for rocm, and the installed torch is for cpu"),
        ("tvm-ffi01-cpu-x86_64-linux", CPU, "it needs tvm-ffi 0.1, which is not installed"),
        ("tvm-ffi01-cpu-x86_64-linux", CPU._replace(tvm_ffi="0.2.0"), "it needs tvm-ffi 0.1, and 0.2.0 is installed"),
        (
            "torch-stable-abi210-cpu-x86_64-linux.x86-64-v4",
            CPU,
            "it is built for x86-64-v4, and this processor offers x86-64-v3",
        ),
        ("torch-stable-abi210-cpu-x86_64-linux", CPU._replace(free_threaded=True), "this Python is free-threaded"),
        ("torch-universal", CPU._replace(machines={"cpu": HOST._replace(torch=None)}), "torch is not installed"),
    ],
)
def test_a_variant_that_does_not_fit_says_why(label, here, text):
    assert text in problem(label, here)


def test_the_loaders_own_rules_judge_the_record():
    label = "torch-stable-abi210-cu130-x86_64-linux"
    assert "it holds code for sm_80, but the cuda device here is sm_90" in problem(label, CUDA, arch="sm_80")
    older = CUDA._replace(machines={"cpu": HOST, "cuda": GPU._replace(driver=(12, 8))})
    assert "the driver supports CUDA up to 12.8: update the driver" in problem(label, older, arch="sm_90")
    lacking = CUDA._replace(machines={"cpu": HOST, "cuda": GPU._replace(torch_libraries=frozenset({"libc10.so"}))})
    assert "it needs torch's libtorch_cuda.so" in problem(label, lacking, arch="sm_90", needs=("libtorch_cuda.so",))
    lie = "its label says x86_64, and its library is for aarch64"
    assert problem(label, CUDA, arch="sm_90", problem=lie) == lie


def triton_variant(label, arch):
    """Returns a variant of a Triton op: opforge has built it, and its library uses no toolkit."""
    candidate = variant_of(label, arch)
    record = {**candidate.record, "abi": "c", "requires": {}, "interface": INTERFACE}
    return candidate._replace(record=record, own=True)


def with_driver(driver, cuda, device="sm_90"):
    """Returns a machine with a driver for one version of CUDA and a torch for another one."""
    there = GPU._replace(driver=driver, devices=(device,))
    return CUDA._replace(machines={"cpu": HOST, "cuda": there}, backend_version=cuda)


class TestTritonOps:
    LABEL = "torch-stable-abi210-cu129-x86_64-linux"

    @pytest.mark.parametrize("cuda", [(12, 6), (12, 8), (13, 0), (13, 2)])
    def test_the_driver_alone_decides_and_not_the_cuda_of_torch(self, cuda):
        chosen = triton_variant(self.LABEL, "sm_90a")
        assert best_first([chosen], with_driver((13, 2), cuda)) == [self.LABEL]
        assert best_first([chosen], with_driver(None, cuda)) == [self.LABEL]

    def test_the_label_of_one_for_amd_names_no_rocm_that_is_needed(self):
        label = "torch-stable-abi210-rocm71-x86_64-linux"
        candidate = triton_variant(label, "")
        candidate = candidate._replace(record={**candidate.record, "target": "hip:gfx942"})
        there = GPU._replace(device="hip", devices=("gfx942",), driver=None)
        here = Environment("linux", {"cpu": HOST, "hip": there}, "rocm", (7, 2))
        assert best_first([candidate], here) == [label]

    @pytest.mark.parametrize(
        ("driver", "device", "text"),
        [
            ((11, 8), "sm_80", "it was built with CUDA 12.9, and the driver supports CUDA up to 11.8: update"),
            ((12, 4), "sm_90", "it holds PTX of CUDA 12.9 for this device, and the driver compiles PTX of CUDA 12.4"),
            ((12, 4), "sm_80", ""),
        ],
    )
    def test_a_driver_that_is_too_old_is_named(self, driver, device, text):
        (choice,) = order.decide([triton_variant(self.LABEL, "sm_80+compute_80")], with_driver(driver, (12, 4), device))
        assert text in choice.problem
        assert bool(text) == bool(choice.problem)


class TestEnvironment:
    def test_it_is_read_as_it_is_written(self):
        for here in (CPU, CUDA, environment.here(["all"])):
            assert environment.from_json(json.loads(json.dumps(here.to_json())), "m.json") == here

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"format": 2}, "'format' is 2, and this opforge reads 1"),
            ({"machines": {}}, "'machines.cpu' is missing"),
            ({"machines": {"cpu": {}}}, "'machines.cpu.level' is missing"),
            ({"backend_version": [13]}, "'backend_version' is a list of 1 item: expected a list of 2"),
            ({"backend": 3}, "'backend' is 3: expected a text"),
        ],
    )
    def test_another_file_is_refused(self, change, text):
        with pytest.raises(KernelFormatError) as error:
            environment.from_json({**json.loads(json.dumps(CPU.to_json())), **change}, "m.json")
        assert text in str(error.value)


def test_a_mac_with_metal_gets_the_variant_for_metal():
    mac = HOST._replace(processor="aarch64", torch="2.13.0")
    here = Environment("darwin", {"cpu": mac}, "metal")
    labels_here = [f"torch-stable-abi210-{backend}-aarch64-darwin" for backend in ("cpu", "metal")]
    assert best_first([variant_of(label) for label in labels_here], here) == labels_here[::-1]
    assert best_first([variant_of(labels_here[0])], here) == labels_here[:1]
