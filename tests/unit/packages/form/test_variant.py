"""Labels of variants and the properties that they render."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies

from opforge.errors import KernelFormatError
from opforge.packages.form import properties, variant
from opforge.packages.form.properties import LabelError, Properties, from_json

KNOWN = {
    "torch-stable-abi211-cu130-x86_64-linux": ("torch-stable-abi", (2, 11), "cuda", (13, 0)),
    "torch-stable-abi29-cpu-aarch64-linux": ("torch-stable-abi", (2, 9), "cpu", None),
    "torch213-cxx11-rocm72-x86_64-linux": ("torch", (2, 13), "rocm", (7, 2)),
    "torch210-metal-aarch64-darwin": ("torch", (2, 10), "metal", None),
    "torch212-cxx11-xpu20253-x86_64-linux": ("torch", (2, 12), "xpu", (2025, 3)),
    "torch29-cann81-aarch64-linux": ("torch", (2, 9), "cann", (8, 1)),
    "tvm-ffi01-cu128-x86_64-linux": ("tvm-ffi", (0, 1), "cuda", (12, 8)),
    "tvm-ffi110-cpu-x86_64-windows": ("tvm-ffi", (1, 10), "cpu", None),
    "torch-cuda": ("python", None, "cuda", None),
    "torch-npu": ("python", None, "cann", None),
    "torch-universal": ("python", None, "universal", None),
}


@pytest.mark.parametrize("label", KNOWN)
def test_a_label_of_the_hub_is_read_and_written(label):
    properties = variant.parse(label)
    read = (properties.framework, properties.framework_version, properties.backend, properties.backend_version)
    assert read == KNOWN[label] and variant.label_of(properties) == label


def test_our_own_part_of_a_label_names_the_level():
    label = "torch-stable-abi210-cpu-x86_64-linux.x86-64-v3"
    assert variant.parse(label).arch == ("x86-64-v3",) and variant.label_of(variant.parse(label)) == label
    assert variant.parse("torch-stable-abi210-cu130-x86_64-linux.sm_90a+ptx").arch == ("sm_90a", "ptx")


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("torch2-cpu-x86_64-linux", "begins with 'torch2', and not with a framework"),
        ("torch213-cxx12-cpu-x86_64-linux", "begins with 'torch213-cxx12'"),
        ("jax06-cpu-x86_64-linux", "begins with 'jax06', and not with a framework such as torch-stable-abi210"),
        ("torch205-cpu-x86_64-linux", "begins with 'torch205'"),
        ("torch213-opencl-x86_64-linux", "is not FRAMEWORK-BACKEND-PROCESSOR-SYSTEM"),
        ("torch213-x86_64-linux", "is not FRAMEWORK-BACKEND-PROCESSOR-SYSTEM"),
        ("torch213-cpu-riscv64-linux", "is not FRAMEWORK-BACKEND-PROCESSOR-SYSTEM"),
        ("torch-opencl", "is for 'opencl', and not for one of cpu, cuda"),
        ("torch213-cu1-x86_64-linux", "is not FRAMEWORK-BACKEND"),
        ("torch213-cu013-x86_64-linux", "holds 'cu013', expected a version of cuda"),
        ("../torch213-cpu-x86_64-linux", "begins with '../torch213'"),
        ("torch213-cpu-x86_64-linux.v3+", "has an architecture without a name"),
        ("\uff54orch-cpu", "is not the label of a variant"),
        ("t" * 301, "is not the label of a variant"),
        ("", "is not FRAMEWORK"),
    ],
)
def test_another_label_is_refused_with_its_reason(label, text):
    with pytest.raises(LabelError) as error:
        variant.parse(label)
    assert text in str(error.value)


def test_properties_that_contradict_each_other_name_the_field():
    value = variant.parse("torch-universal").to_json()
    with pytest.raises(LabelError) as error:
        from_json({**value, "framework": "torch", "backend": "npu"})
    assert str(error.value) == (
        "'properties.backend' is 'npu', which a variant of 'torch' cannot be for: expected one of 'cann', 'cpu',"
        " 'cuda', 'metal', 'neuron', 'rocm', 'tpu', 'xpu'"
    )


@pytest.mark.parametrize(
    ("label", "versions"),
    [
        ("torch213-cu1210-x86_64-linux", [(12, 10), (121, 0)]),
        ("torch213-cu130-x86_64-linux", [(13, 0)]),
        ("torch213-rocm710-x86_64-linux", [(7, 10), (71, 0)]),
        ("torch213-xpu202510-x86_64-linux", [(2025, 10), (20251, 0)]),
    ],
)
def test_a_label_that_can_be_read_in_two_ways(label, versions):
    assert [properties.backend_version for properties in variant.readings(label)] == versions


def test_the_metadata_decides_which_reading_is_meant():
    label = "torch213-cu1210-x86_64-linux"
    other = variant.parse(label)._replace(backend_version=(121, 0))
    assert variant.stated(label, {"properties": other.to_json()}, "cuda", "here") == other
    assert variant.stated(label, {}, "cuda", "here").backend_version == (12, 10)


@pytest.mark.parametrize(
    ("label", "opforge", "backend", "text"),
    [
        ("torch213-cpu-x86_64-linux", {}, "cuda", "is for cpu, and its metadata is for cuda"),
        (
            "torch213-cpu-x86_64-linux",
            {"properties": variant.parse("torch213-cpu-aarch64-linux").to_json()},
            "cpu",
            "the properties in its metadata are those of 'torch213-cpu-aarch64-linux'",
        ),
    ],
)
def test_a_label_that_contradicts_the_metadata_is_refused(label, opforge, backend, text):
    with pytest.raises(KernelFormatError) as error:
        variant.stated(label, opforge, backend, "build/x")
    assert text in str(error.value) and str(error.value).startswith("build/x: ")


NUMBERS = strategies.tuples(strategies.integers(1, 9), strategies.integers(0, 99))
ARCHITECTURES = strategies.lists(strategies.sampled_from(["sm_80", "sm_90a", "ptx", "x86-64-v3", "gfx942"]), max_size=3)
BACKENDS = strategies.one_of(
    strategies.tuples(strategies.sampled_from(properties.PLAIN_BACKENDS), strategies.none()),
    strategies.tuples(
        strategies.just("cuda"), strategies.tuples(strategies.integers(10, 99), strategies.integers(0, 9))
    ),
    strategies.tuples(strategies.just("rocm"), NUMBERS),
    strategies.tuples(
        strategies.just("xpu"), strategies.tuples(strategies.integers(2024, 2099), strategies.integers(0, 9))
    ),
)


@given(strategies.sampled_from(["torch-stable-abi", "torch"]), NUMBERS, BACKENDS, ARCHITECTURES)
def test_properties_are_read_as_they_are_written(framework, version, backend, arch):
    kind = Properties(framework, version, *backend, "x86_64", "linux", "", tuple(arch))
    assert kind in variant.readings(variant.label_of(kind))
    assert from_json(kind.to_json()) == kind


@given(strategies.text(max_size=60) | strategies.from_regex(variant.LABEL))
def test_any_text_is_read_or_refused(text):
    try:
        kind = variant.parse(text)
    except LabelError:
        return
    assert all(isinstance(word, str) for word in kind.arch)
