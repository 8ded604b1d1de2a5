"""Groups of sources: what each is compiled with, for which architectures the library is, and what is refused."""

from __future__ import annotations

import pytest
from support import sample_ops, text_files
from support.compilers.fake_toolchain import FakeToolchain

from opforge.accelerator.target import Target
from opforge.builders.declaration.op_spec import root_paths
from opforge.builders.planner import make_plan
from opforge.errors import BuilderError

FILES = ("binding.cpp", "rest.cu", "old.cu", "new.cu", "avx.cpp", "near/a.h", "far/a.h", "away/a.h")


@pytest.fixture
def spec_for(tmp_path):
    """Returns a function from a target and attributes to the spec of an op for CUDA, HIP and the CPU."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text_files.write(tmp_path, name, "")

    def spec(target, **attributes):
        attributes = {"sources": ["binding.cpp"], "devices": ["cpu", "cuda", "hip"], "abi": "c", **attributes}
        return sample_ops.builder_class(tmp_path, "scale", **attributes)(target).spec()

    return spec


def group(*sources, **others):
    return {"sources": [*sources], "devices": ["cuda"], **others}


def test_a_group_is_compiled_with_the_ops_flags_then_its_own(spec_for, tmp_path):
    own = group(
        "new.cu",
        include_dirs=["far", str(tmp_path.parent)],
        define_macros=[("A", "2"), ("C", None)],
        extra_compile_args={"cxx": ["-O1"], "cuda": ["-lineinfo"], "nvcc": ["-w"]},
    )
    spec = spec_for(
        "cuda:sm_90",
        include_dirs=["near", str(tmp_path.parent / "other")],
        define_macros=[("A", "1"), ("B", "1")],
        extra_compile_args={"cxx": ["-O2"], "cuda": ["-G"]},
        groups=[own],
    )
    (tmp_path.parent / "other").mkdir(exist_ok=True)
    plan = make_plan(spec, FakeToolchain())
    binding, new = plan.sources
    shaped = plan.of(new)
    assert [folder.root + ":" + folder.path for folder in shaped.include[:4]] == [
        "own:far",
        "include3:",
        "own:near",
        "include1:",
    ]
    paths = root_paths(spec)
    assert paths["include3"] == str(tmp_path.parent) and paths["include1"] == str(tmp_path.parent / "other")
    assert shaped.defines == (("B", "1"), ("A", "2"), ("C", ""))
    assert shaped.compile_flags[-2:] == ("-O2", "-O1")
    assert shaped.device_flags == ("-gencode=sm_90", "-G", "-w", "-lineinfo")
    others = plan.of(binding)
    assert others == plan._replace(groups=()) and others.defines == (("A", "1"), ("B", "1"))
    assert str(tmp_path) not in str(plan.components())


@pytest.mark.parametrize(
    ("attributes", "target", "own"),
    [
        ({"groups": [group("new.cu", architectures=["9.0a"])]}, "cuda:sm_90a", ()),
        (
            {"sources": ["rest.cu"], "groups": [group("new.cu", architectures=["9.0a"])]},
            "cuda:sm_86+sm_90a",
            ("sm_86",),
        ),
        (
            {"groups": [group("old.cu", architectures=["8.0+PTX"]), group("new.cu", architectures=["sm_90a"])]},
            "cuda:sm_80+sm_90a+ptx",
            (),
        ),
        (
            {"groups": [group("old.cu"), group("new.cu", architectures=["10.0f"])]},
            "cuda:sm_86+sm_100f",
            ("sm_86",),
        ),
        ({"sources": ["rest.cu"], "architectures": {"cuda": ["9.0a", "8.0"]}}, "cuda:sm_80+sm_90a", ()),
        (
            {
                "sources": ["rest.cu"],
                "architectures": {"cuda": ["Ampere"]},
                "groups": [group("new.cu", architectures={"cuda": ["9.0"]})],
            },
            "cuda:sm_80+sm_86+sm_90+compute_86",
            ("sm_80", "sm_86", "ptx"),
        ),
        ({"groups": [group("new.cu")]}, "cuda:sm_86", ()),
    ],
)
def test_the_library_is_for_every_architecture_that_a_source_of_the_device_is_compiled_for(
    spec_for, attributes, target, own
):
    spec = spec_for("cuda:sm_86", **attributes)
    assert str(spec.target) == target and spec.own_arch == own


def test_a_group_for_other_devices_is_no_part_of_the_op(spec_for):
    groups = [group("new.cu", architectures=["9.0a"]), {"sources": ["avx.cpp"], "devices": ["cpu"]}]
    spec = spec_for("cpu:x86-64", groups=groups)
    assert spec.sources == ("binding.cpp", "avx.cpp") and spec.target == Target("cpu", ("x86-64",))
    assert spec_for("cuda:sm_90a", groups=groups).sources == ("binding.cpp", "new.cu")


def test_a_group_may_have_sources_and_architectures_by_device(spec_for):
    both = {"devices": ["cuda", "hip"], "architectures": {"cuda": ["9.0a"], "hip": ["gfx942"]}}
    groups = [{"sources": {"all": ["old.cu"], "cuda": ["new.cu"]}, **both}]
    cuda, hip = spec_for("cuda", groups=groups), spec_for("hip", groups=groups)
    assert cuda.sources == ("binding.cpp", "old.cu", "new.cu") and str(cuda.target) == "cuda:sm_90a"
    assert hip.sources == ("binding.cpp", "old.cu") and str(hip.target) == "hip:gfx942", "no device is needed here"
    assert spec_for("cpu:x86-64", groups=groups).sources == ("binding.cpp",)


def test_declared_architectures_are_seen_when_they_change(spec_for, tmp_path):
    cls = sample_ops.builder_class(tmp_path, "scale", sources=["rest.cu"], devices=["cuda"], architectures=["8.0"])
    builder = cls()
    assert str(builder.spec().target) == "cuda:sm_80"
    builder.architectures = ["9.0"]
    assert str(builder.spec().target) == "cuda:sm_90"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("a.cu", 'groups=\'a.cu\'. Expected a list of dicts: [{"sources": ["a.cu"], ...}]'),
        ({"sources": ["new.cu"]}, "groups={'sources': ['new.cu']}. Expected a list of dicts"),
        (["new.cu"], "groups=['new.cu']. Expected a list of dicts"),
        ([{"devices": ["cuda"]}], 'groups[0] names no sources. Write "sources": [...]'),
        (
            [group("new.cu", architecture=["9.0"])],
            "has the key 'architecture'. Write \"architectures\": [...]. The keys",
        ),
        ([group("new.cu", colour=1)], "has the key 'colour'. The keys of a group are sources, devices, architectures"),
        ([{**group("new.cu"), "cuda-capabilities": []}], "'cuda-capabilities'. Write \"architectures\": [...]"),
        ([{**group("new.cu"), "cuda-flags": []}], 'Write "extra_compile_args": {"cuda": [...]}'),
        ([group("new.cu", depends=["cutlass_4_0"])], 'Write "include_dirs": [...], with the folder of these headers'),
        (
            [group("new.cu", devices=["cdua"])],
            "groups[0]['devices'] has 'cdua'. Write \"cuda\". The op's devices are cpu, cuda, hip",
        ),
        ([group("new.cu", devices=["xyz"])], 'Write devices = ["cpu", "cuda", "hip", "xyz"] in the builder, or'),
        (
            [group("new.cu", architectures=["9.0x9"])],
            "groups[0]['architectures'] has '9.0x9'. Expected architectures such as 9.0;9.0a;10.0f+PTX or Hopper",
        ),
        ([group("new.cu", architectures=["native"])], "has 'native'. Expected architectures by name, such as 9.0a"),
        (
            [{"sources": ["new.cu"], "architectures": ["9.0"]}],
            "groups[0]['architectures']=['9.0'] is for cuda and hip alike. Write groups[0]['architectures'] ="
            ' {"cuda": [...], "hip": [...]}',
        ),
        (
            [{"sources": ["avx.cpp"], "architectures": {"cpu": ["x86-64-v4"]}}],
            "has the key 'cpu'. The level of code for the CPU is the target's: use flags such as",
        ),
        ([group("new.cu"), group("./new.cu")], "'new.cu' is named twice among its sources. Name it in one group"),
        ([group("new.cu", define_macros="A")], "define_macros='A'. Expected"),
        ([group("new.cu", extra_compile_args={"cudda": []})], "groups[0]['extra_compile_args'] has the key 'cudda'."),
    ],
)
def test_a_wrong_group_is_refused_with_the_line_to_write(spec_for, groups, message):
    with pytest.raises(BuilderError) as refused:
        spec_for("cuda:sm_90", groups=groups)
    assert message in str(refused.value)


def test_the_order_of_groups_and_the_flags_of_one_change_both_keys(spec_for):
    from opforge.builders.declaration.description import description_key

    first, second = group("old.cu", architectures=["8.0"]), group("new.cu", architectures=["9.0a"])
    variants = [
        [first, second],
        [second, first],
        [first, {**second, "extra_compile_args": {"cuda": ["-G"]}}],
        [first, {**second, "architectures": ["9.0"]}],
        [group("old.cu", "new.cu", architectures=["8.0"])],
    ]
    specs = [spec_for("cuda:sm_90", groups=groups) for groups in variants]
    assert len({description_key(spec) for spec in specs}) == len(variants)
    assert len({make_plan(spec, FakeToolchain()).key for spec in specs}) == len(variants)
