"""Attributes by device: what a target gets, and what is refused with the line to write instead."""

from __future__ import annotations

import pytest
from support import sample_ops, text_files
from support.compilers.fake_toolchain import FakeToolchain

from opforge.builders.planner import make_plan
from opforge.errors import BuilderError

TARGETS = {"cpu": "cpu:x86-64", "cuda": "cuda:sm_90", "hip": "hip:gfx942"}


@pytest.fixture
def spec_for(tmp_path):
    """Returns a function from a device and attributes to the spec of an op for three devices."""
    for name in ("binding.cpp", "scale.cpp", "scale.cu", "near/a.h", "far/a.h"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text_files.write(tmp_path, name, "")

    def spec(device, **attributes):
        attributes = {"sources": ["binding.cpp"], "devices": [*TARGETS], "abi": "c", **attributes}
        return sample_ops.builder_class(tmp_path, "scale", **attributes)(TARGETS[device]).spec()

    return spec


def test_what_is_for_all_devices_comes_first(spec_for):
    attributes = {
        "sources": {"cpu": ["scale.cpp"], "all": ["binding.cpp"], "cuda": ["scale.cu"], "hip": ["scale.cu"]},
        "include_dirs": {"all": ["near"], "cuda": ["far"]},
        "define_macros": {"all": [("A", "1"), ("B", None)], "hip": {"A": "2"}},
        "libraries": {"cpu": ["m"]},
        "extra_link_args": {"cuda": ["-lcublas"]},
        "abi": {"cpu": "c"},
        "toolchain": {"hip": "mine:Hip"},
    }
    cpu, cuda, hip = (spec_for(device, **attributes) for device in TARGETS)
    assert [spec.sources for spec in (cpu, cuda)] == [("binding.cpp", "scale.cpp"), ("binding.cpp", "scale.cu")]
    assert [spec.include_dirs for spec in (cpu, cuda)] == [("near",), ("near", "far")]
    assert [spec.defines for spec in (cpu, hip)] == [(("A", "1"), ("B", "")), (("A", "2"), ("B", ""))]
    assert [spec.libraries for spec in (cpu, cuda)] == [("m",), ()]
    assert [spec.link_flags for spec in (cpu, cuda)] == [(), ("-lcublas",)]
    assert [spec.abi for spec in (cpu, cuda)] == ["c", "torch-stable"]
    assert [spec.toolchain for spec in (cpu, hip)] == ["", "mine:Hip"]


def test_flags_for_the_cpu_are_those_of_its_cpp_sources_alone(spec_for):
    flags = {"extra_compile_args": {"cxx": ["-O1"], "cpu": ["-mavx2"], "cuda": ["-lineinfo"]}}
    cpu, cuda = spec_for("cpu", **flags), spec_for("cuda", **flags)
    assert cpu.cxx_flags == ("-O1", "-mavx2") and cpu.device_flags == ()
    assert cuda.cxx_flags == ("-O1",) and cuda.device_flags == ("-lineinfo",)
    assert make_plan(cpu, FakeToolchain()).compile_flags[-2:] == ("-O1", "-mavx2")


def test_definitions_by_name_are_no_definitions_by_device(spec_for):
    assert spec_for("cpu", define_macros={"cuda": "1", "all": None}).defines == (("all", ""), ("cuda", "1"))


def test_functions_for_one_abi_may_be_declared_beside_another(spec_for):
    import ctypes

    attributes = {"abi": {"cpu": "c"}, "signatures": {"scale": (ctypes.c_int, [])}, "fakes": {"scale": len}}
    assert spec_for("cpu", **attributes).abi == "c"
    assert spec_for("cuda", **attributes).abi == "torch-stable"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"sources": {"cdua": ["scale.cu"]}},
            "sources has the key 'cdua'. Write sources = {\"cuda\": ...}. The keys are the op's devices"
            " (cpu, cuda, hip) and 'all'",
        ),
        (
            {"libraries": {"opencl": ["m"]}},
            'libraries has the key \'opencl\'. Write devices = ["cpu", "cuda", "hip", "opencl"], or remove it.',
        ),
        ({"include_dirs": {"al": ["near"]}}, "include_dirs has the key 'al'. Write include_dirs = {\"all\": ...}."),
        ({"define_macros": {"CUDA_": [("A", "1")]}}, "define_macros has the key 'CUDA_'. Write devices = "),
        ({"abi": {"cup": "c"}}, "abi has the key 'cup'. Write abi = {\"cpu\": ...}."),
        ({"sources": {"cuda": ["scale.cu"]}}, "it names no sources for cpu. Name at least one file in `sources`"),
        ({"sources": {"cpu": "scale.cpp"}}, "sources['cpu']='scale.cpp'. Expected a list of strings"),
        ({"sources": {"cpu": {"a": 1}}}, "sources['cpu']={'a': 1}. Expected a list of strings"),
        (
            {"extra_compile_args": {"cudaa": ["-O1"]}},
            "extra_compile_args has the key 'cudaa'. Write \"cuda\": [...]. Expected cpu, cuda, cxx,",
        ),
    ],
)
def test_a_misspelt_device_is_refused_with_the_line_to_write(spec_for, attributes, message):
    with pytest.raises(BuilderError) as refused:
        spec_for("cpu", **attributes)
    assert message in str(refused.value)
