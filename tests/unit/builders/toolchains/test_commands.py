"""What a plan comes to: its key, its commands, and where its sources and headers are found."""

from __future__ import annotations

import os
import re
import sys

import pytest
from support import sample_ops, text_files
from support.compilers.fake_compiler import PASSED_ENV, plan_of, toolchain

from opforge.builders import toolchains
from opforge.builders.spec import kernel_roots
from opforge.builders.spec.description import describe
from opforge.builders.spec.op_spec import root_paths
from opforge.errors import (
    SourceNotFoundError,
)


def test_the_variables_that_compilers_obey_are_all_known_here():
    assert set(PASSED_ENV) == set(toolchains.PASSED_ENV)


@pytest.mark.parametrize("name", PASSED_ENV)
def test_variables_that_compilers_obey_are_in_the_key(tmp_path, bin, monkeypatch, name):
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


def test_the_commands_end_with_one_library(tmp_path, bin):
    builder = sample_ops.plain_op(
        tmp_path / "src", libraries=["m"], extra_link_args=["-s"], define_macros={"A": "1", "B": ""}
    )()
    compile_, link = toolchain(tmp_path).steps(plan_of(builder, tmp_path), root_paths(builder.spec()), "plain.so")
    assert compile_.title == "compile plain.cpp" and link.title == "link plain"
    assert compile_.argv[1:3] == ("-DA=1", "-DB")
    assert "-fno-gnu-unique" in compile_.argv and "-Wl,-Bsymbolic" in link.argv
    assert compile_.depfile and "-MD" in compile_.argv and "-MMD" not in compile_.argv
    assert link.argv[-2:] == ("-o", "plain.so") and "-lm" in link.argv and "-s" in link.argv
    assert all(isinstance(part, str) for step in (compile_, link) for part in step.argv)


def test_two_sources_of_one_name_have_two_objects(tmp_path, bin):
    for folder in ("a", "b"):
        (tmp_path / "src" / folder).mkdir(parents=True)
        text_files.write(tmp_path / "src" / folder, "x.cpp", "")
    builder = sample_ops.plain_op(tmp_path / "src", sources=["a/x.cpp", "b/x.cpp"])()
    steps = toolchain(tmp_path).steps(plan_of(builder, tmp_path), root_paths(builder.spec()), "x.so")
    assert len({step.output for step in steps}) == 3


def test_debugging_keeps_the_folders_in_the_binary_and_otherwise_they_are_mapped_away(tmp_path, bin):
    cls = sample_ops.plain_op(tmp_path / "src")
    for builder, mapped in ((cls(), True), (cls(debug=True), False), (cls(sanitize="address"), False)):
        step = toolchain(tmp_path).steps(plan_of(builder, tmp_path), root_paths(builder.spec()), "x.so")[0]
        assert any(part.startswith("-ffile-prefix-map=") for part in step.argv) is mapped
        assert ("-g" in step.argv) is not mapped


def test_a_missing_source_names_every_folder_that_was_searched(tmp_path, bin):
    cls = sample_ops.plain_op(tmp_path / "src", sources=["plain.cpp", "gone.cpp"])
    message = (
        "The op 'plain' names 'gone.cpp', which does not exist. Looked in:"
        f"\n  - {tmp_path}/src\n  - {kernel_roots.OPFORGE.path}\n"
        "Correct the name, or add the folder that holds it."
    )
    for act in (lambda: describe(cls().spec()), lambda: plan_of(cls(), tmp_path)):
        with pytest.raises(SourceNotFoundError, match=re.escape(message)):
            act()


def test_a_missing_include_folder_is_named(tmp_path, bin):
    for folder in ("headers", str(tmp_path / "headers")):
        cls = sample_ops.plain_op(tmp_path / "src", include_dirs=[folder])
        with pytest.raises(SourceNotFoundError, match=re.escape(f"names {folder!r}, which does not exist")):
            plan_of(cls(), tmp_path)


def test_an_earlier_root_overrides_a_later_one(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        text_files.write(tmp_path / name, "b.cpp", "")
    text_files.write(tmp_path / "second", "c.cpp", "")
    places = [kernel_roots.KernelRoot(name, str(tmp_path / name)) for name in ("first", "second")]
    assert kernel_roots.locate("op", ["b.cpp", "c.cpp"], places) == (("first", "b.cpp"), ("second", "c.cpp"))


def test_an_absolute_name_is_placed_below_the_nearest_root(tmp_path):
    (tmp_path / "inner").mkdir()
    path = text_files.write(tmp_path / "inner", "a.cpp", "")
    places = [
        kernel_roots.KernelRoot("outer", str(tmp_path)),
        kernel_roots.KernelRoot("inner", str(tmp_path / "inner")),
    ]
    assert kernel_roots.locate("op", [path], places) == (("inner", "a.cpp"),)
    assert kernel_roots.locate("op", [path], places[:1]) == (("outer", "inner/a.cpp"),)
    assert kernel_roots.locate("op", [path], []) == (("system", path[1:]),)
    with pytest.raises(SourceNotFoundError):
        kernel_roots.locate("op", [str(tmp_path / "gone.cpp")], places)


def test_a_package_that_is_not_installed_is_called_so():
    with pytest.raises(SourceNotFoundError, match=r"\(the package no_such_package_here is not installed\)"):
        kernel_roots.package_root("x", "no_such_package_here")
    with pytest.raises(SourceNotFoundError, match=r"names 'json/csrc', which does not exist"):
        kernel_roots.package_root("x", "json")


def test_pythons_headers_are_found_where_sysconfig_says(tmp_path, monkeypatch):
    import sysconfig

    from opforge.builders.spec import installed_torch

    installed_torch.python_include.cache_clear()
    try:
        assert installed_torch.python_include() == os.path.realpath(sysconfig.get_path("include"))
        installed_torch.python_include.cache_clear()
        monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
        monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / f"its-{name}"))
        assert installed_torch.python_include() == str(tmp_path / "its-include"), (
            "where no header lies at the usual place"
        )
    finally:
        installed_torch.python_include.cache_clear()
