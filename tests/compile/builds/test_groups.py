"""Groups of sources with flags of their own, built by g++: their flags, their inputs, reuse of their objects."""

from __future__ import annotations

import json

import pytest
from support import sample_ops, text_files

import opforge
from opforge.builders.jit_builders import detected_abi
from opforge.builders.load_op import find
from opforge.errors import BuilderError, SourceNotFoundError

VALUES = f"""\
int near(); int far();
{sample_ops.EXPORT} int value() {{ return 100 * near() + far(); }}
{sample_ops.EXPORT} int fused() {{
#ifdef __FMA__
  return 1;
#else
  return 0;
#endif
}}
"""
PART = '#include "number.h"\nint @NAME@() { return NUMBER + MORE; }\n'
NEAR = {"sources": ["near.cpp"], "include_dirs": ["near"], "define_macros": {"MORE": "1"}}
FAR = {"sources": ["far.cpp"], "include_dirs": ["far"], "define_macros": {"MORE": "0"}}


@pytest.fixture
def op(tmp_path):
    """The builder class of an op with two groups, each of which finds another number.h."""
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
        text_files.write(tmp_path, f"{name}.cpp", PART.replace("@NAME@", name))
        text_files.write(tmp_path / name, "number.h", f"#define NUMBER {3 if name == 'near' else 7}\n")
    text_files.write(tmp_path, "value.cpp", VALUES)
    return sample_ops.builder_class(
        tmp_path, "grouped", abi="c", sources=["value.cpp"], groups=[NEAR, FAR], include_dirs=["none"]
    )


@pytest.fixture(autouse=True)
def empty_folder(tmp_path):
    (tmp_path / "none").mkdir()


def test_each_group_has_its_own_folders_definitions_and_flags(op):
    assert op().load().value() == 407
    op.groups = [NEAR, {**FAR, "define_macros": {"MORE": "5"}}]
    assert op().load().value() == 412


def test_only_the_objects_of_a_group_whose_flags_or_headers_changed_are_compiled(op, tmp_path):
    entry = op().build()
    files = {(root, path) for root, path, *_ in entry.build()["inputs"]["files"]}
    assert {("own", "near/number.h"), ("own", "far/number.h")} <= files
    text_files.write(tmp_path / "far", "number.h", "#define NUMBER 8\n")
    assert find(op().spec()).entry is None, "a header of one group is an input of the op"
    edited = op().build()
    assert sorted(edited.build()["reused"]) == ["compile near.cpp", "compile value.cpp"]
    assert op().load().value() == 408
    op.groups = [{**NEAR, "extra_compile_args": ["-O1"]}, FAR]
    assert sorted(op().build().build()["reused"]) == ["compile far.cpp", "compile value.cpp"]
    op.groups = [FAR, NEAR]
    assert len(op().build().build()["reused"]) == 3, "the order of groups is in no object"


def test_a_header_that_appears_earlier_in_a_groups_folders_is_seen(op, tmp_path):
    (tmp_path / "first").mkdir()
    op.groups = [NEAR, {**FAR, "include_dirs": ["first", "far"]}]
    assert op().load().value() == 407
    text_files.write(tmp_path / "first", "number.h", "#define NUMBER 9\n")
    assert find(op().spec()).entry is None
    assert op().load().value() == 409


def test_a_file_that_a_groups_flag_names_is_an_input(op, tmp_path):
    other = text_files.write(tmp_path / "none", "other.h", "#define EXTRA 1\n")
    op.groups = [{**NEAR, "extra_compile_args": ["-include", other]}, FAR]
    entry = op().build()
    assert str(tmp_path) not in json.dumps(entry.build()["components"]), "the path is named by its root"
    text_files.write(tmp_path / "none", "other.h", "#define EXTRA 2\n")
    assert find(op().spec()).entry is None


def test_an_architectures_flag_of_a_cpu_group_is_for_that_group_alone(op):
    level = "cpu:x86-64"
    op.groups = [{**NEAR, "extra_compile_args": {"cpu": ["-mfma"]}}, FAR]
    entry = op(level).build()
    near, far = entry.build()["components"]["groups"]
    assert "-mfma" in near["compile_flags"] and "-mfma" not in far["compile_flags"]
    assert entry.record["target"] == level


def test_the_wrong_folder_and_a_missing_source_of_a_group_are_named(op):
    op.groups = [{**NEAR, "sources": ["gone.cpp"]}]
    with pytest.raises(SourceNotFoundError, match=r"gone\.cpp"):
        op().build()
    op.groups = [{**NEAR, "include_dirs": ["gone"]}]
    with pytest.raises(SourceNotFoundError, match="gone"):
        op().build()


# -- opforge.load ------------------------------------------------------------------------------------------------------


def test_load_takes_sources_by_device_and_groups(op, tmp_path):
    sources = {"all": [tmp_path / "value.cpp"], "cpu": [], "cuda": []}
    near = {**NEAR, "sources": [tmp_path / "near.cpp"], "include_dirs": [tmp_path / "near"]}
    far = {**FAR, "sources": {"cpu": [tmp_path / "far.cpp"]}, "include_dirs": [tmp_path / "far"]}
    name = sample_ops.unique_name("grouped")
    loaded = opforge.load(name, sources, groups=[near, far])
    assert loaded.value() == 407 and loaded.__entry__.record["target"].startswith("cpu:")
    assert opforge.load(name, sources, groups=[near, far]) is loaded
    again = opforge.load(name, sources, groups=[near, {**far, "define_macros": {"MORE": "1"}}])
    assert again.value() == 408


def test_load_detects_the_abi_of_each_device(tmp_path):
    stable = text_files.write(tmp_path, "stable.cpp", sample_ops.STABLE_HEADERS)
    plain = text_files.write(tmp_path, "plain.cpp", f"{sample_ops.EXPORT} int f() {{ return 1; }}")
    sources, groups = {"cpu": [plain], "cuda": [], "all": []}, [{"sources": [stable], "devices": ["cuda"]}]
    assert detected_abi(sources, groups, ("cpu", "cuda")) == {"cpu": "c", "cuda": "torch-stable"}
    assert detected_abi([plain], [], ("cpu",)) == "c"
    in_c = text_files.write(tmp_path, "plain.c", '#include "plain.h"  /* which exports it */')
    assert (detected_abi([in_c], [], ("cpu",)), detected_abi([in_c, stable], [], ("cpu",))) == ("c", "torch-stable")


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"cudda": []}, "sources has the key 'cudda'. Write sources = {\"cuda\": ...}. Expected cpu, cuda, hip"),
        ({"all": []}, "sources={'all': ()} names no device. Expected cpu, cuda, hip"),
        ({7: []}, "sources has the key 7. Expected cpu, cuda, hip"),
    ],
)
def test_load_refuses_a_device_that_it_has_no_compiler_for(sources, message):
    with pytest.raises(BuilderError) as refused:
        opforge.load("grouped", sources)
    assert message in str(refused.value)


@pytest.mark.parametrize("groups", ["a.cpp", ["a.cpp"], [{"source": ["a.cpp"]}], [{"include_dirs": ["near"]}]])
def test_load_refuses_what_is_no_group(op, tmp_path, groups):
    with pytest.raises(BuilderError, match="groups"):
        opforge.load("grouped", [tmp_path / "value.cpp"], abi="c", groups=groups)
