"""The commands of a plan, and the flags and variables that its key depends on."""

from __future__ import annotations

import re

import pytest
from support import sample_ops, text_files
from support.compilers.fake_compiler import COMPILER_VARIABLES, plan_of, toolchain

from opforge.builders.declaration import kernel_roots
from opforge.builders.declaration.description import describe
from opforge.builders.declaration.op_spec import root_paths
from opforge.errors import SourceNotFoundError
from opforge.foundation import environment


def test_the_list_of_variables_that_compilers_read_is_complete():
    assert set(COMPILER_VARIABLES) == set(environment.COMPILER_VARIABLES)


@pytest.mark.parametrize("name", COMPILER_VARIABLES)
def test_variables_that_compilers_read_are_in_the_key(tmp_path, bin, monkeypatch, name):
    cls = sample_ops.plain_op(tmp_path / "src")
    before = plan_of(cls(), tmp_path).key
    monkeypatch.setenv(name, str(tmp_path / "tools"))
    assert plan_of(cls(), tmp_path).key != before


@pytest.mark.parametrize("name", ["CXXFLAGS", "CPPFLAGS", "LDFLAGS"])
def test_flags_from_the_environment_are_in_the_key_and_in_the_commands(tmp_path, bin, monkeypatch, name):
    cls = sample_ops.plain_op(tmp_path / "src")
    before = plan_of(cls(), tmp_path).key
    monkeypatch.setenv(name, "-DFROM='the environment'")
    plan = plan_of(cls(), tmp_path)
    assert plan.key != before
    steps = toolchain(tmp_path).steps(plan, root_paths(cls().spec()), "plain.so")
    step = steps[-1] if name == "LDFLAGS" else steps[0]
    assert "-DFROM=the environment" in step.argv


def test_the_commands_have_the_plans_flags_and_end_with_one_library(tmp_path, bin):
    builder = sample_ops.plain_op(
        tmp_path / "src", libraries=["m"], extra_link_args=["-s"], define_macros={"A": "1", "B": ""}
    )()
    compiling, linking = toolchain(tmp_path).steps(plan_of(builder, tmp_path), root_paths(builder.spec()), "plain.so")
    assert compiling.title == "compile plain.cpp" and linking.title == "link plain"
    assert compiling.argv[1:3] == ("-DA=1", "-DB")
    assert "-fno-gnu-unique" in compiling.argv and "-Wl,-Bsymbolic" in linking.argv
    assert compiling.depfile and "-MD" in compiling.argv and "-MMD" not in compiling.argv
    assert linking.argv[-2:] == ("-o", "plain.so") and "-lm" in linking.argv and "-s" in linking.argv
    assert all(isinstance(part, str) for step in (compiling, linking) for part in step.argv)


def test_two_sources_of_the_same_name_have_two_objects(tmp_path, bin):
    for folder in ("a", "b"):
        (tmp_path / "src" / folder).mkdir(parents=True)
        text_files.write(tmp_path / "src" / folder, "x.cpp", "")
    builder = sample_ops.plain_op(tmp_path / "src", sources=["a/x.cpp", "b/x.cpp"])()
    steps = toolchain(tmp_path).steps(plan_of(builder, tmp_path), root_paths(builder.spec()), "x.so")
    assert len({step.output for step in steps}) == 3


def test_folders_are_kept_out_of_the_binary_unless_it_is_for_debugging(tmp_path, bin):
    cls = sample_ops.plain_op(tmp_path / "src")
    for builder, mapped in ((cls(), True), (cls(debug=True), False), (cls(sanitize="address"), False)):
        step = toolchain(tmp_path).steps(plan_of(builder, tmp_path), root_paths(builder.spec()), "x.so")[0]
        assert any(part.startswith("-ffile-prefix-map=") for part in step.argv) is mapped
        assert ("-g" in step.argv) is not mapped


def test_a_missing_source_names_every_folder_that_was_searched(tmp_path, bin):
    cls = sample_ops.plain_op(tmp_path / "src", sources=["plain.cpp", "gone.cpp"])
    message = (
        "The op 'plain' names 'gone.cpp', which does not exist. Looked in:"
        f"\n  - {tmp_path}/src\n  - {kernel_roots.OPFORGE.path}\n  - {kernel_roots.OPFORGE_ABI.path}\n"
        "Correct the name, or add the folder that holds it."
    )
    for use in (lambda: describe(cls().spec()), lambda: plan_of(cls(), tmp_path)):
        with pytest.raises(SourceNotFoundError, match=re.escape(message)):
            use()


def test_a_missing_include_folder_is_named(tmp_path, bin):
    for folder in ("headers", str(tmp_path / "headers")):
        cls = sample_ops.plain_op(tmp_path / "src", include_dirs=[folder])
        with pytest.raises(SourceNotFoundError, match=re.escape(f"names {folder!r}, which does not exist")):
            plan_of(cls(), tmp_path)
