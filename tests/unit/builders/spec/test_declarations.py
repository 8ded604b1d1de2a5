"""What a builder may declare, what is refused, and whether what it declares can be used here."""

from __future__ import annotations

import os
import re

import pytest
from support import sample_ops, text_files
from support.compilers.fake_compiler import plan_of

import opforge
from opforge.builders.spec.description import describe
from opforge.errors import (
    BuilderError,
    OpIncompatibleError,
)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"name": "no good"}, "TestedBuilder: name='no good'. Expected an identifier of at most 200 bytes, such as"),
        ({"sources": []}, "TestedBuilder: it names no sources. Give it at least one file in `sources`"),
        ({"abi": "rust"}, "plain: abi='rust'. Expected one of 'torch-stable', 'c', 'torch'"),
    ],
)
def test_a_builder_that_is_declared_wrongly_says_how(tmp_path, bin, attributes, message):
    cls = sample_ops.plain_op(tmp_path / "src")
    wrong = type("TestedBuilder", (cls,), {"__module__": cls.__module__, **attributes})
    for act in (lambda: describe(wrong().spec()), lambda: plan_of(wrong(), tmp_path)):
        with pytest.raises(BuilderError, match=re.escape(message)):
            act()


def test_an_op_for_another_device_is_not_compatible_and_says_so(tmp_path, bin):
    found = sample_ops.plain_op(tmp_path / "src", devices=["cuda"])("cpu").is_compatible()
    assert not found and str(found) == "it is an op for cuda, not for cpu"


def test_a_level_that_this_processor_lacks_is_a_reason(tmp_path, bin, monkeypatch):
    from opforge.builders.spec import targets

    monkeypatch.setattr(targets, "cpu_level", lambda: "x86-64-v2")
    found = sample_ops.plain_op(tmp_path / "src")("cpu:x86-64-v3").is_compatible()
    assert found.reasons == ("it is built for x86-64-v3, and this processor offers x86-64-v2",)
    with pytest.raises(
        OpIncompatibleError, match=r"The op 'plain' cannot be used for cpu:x86-64-v3:\n  - it is built for"
    ):
        sample_ops.plain_op(tmp_path / "src")("cpu:x86-64-v3").load()


def test_a_machine_without_a_compiler_is_a_reason_not_an_exception(tmp_path, bin):
    (bin / "g++").unlink()
    os.environ["PATH"] = str(bin)
    found = sample_ops.plain_op(tmp_path / "src")().is_compatible()
    assert not found and "No C++ compiler was found" in str(found)


@pytest.mark.parametrize("harm", ["compiler", "source", "include", "cxx"])
def test_whatever_keeps_an_op_from_loading_is_a_reason_not_an_exception(tmp_path, bin, monkeypatch, harm):
    cls = sample_ops.plain_op(tmp_path / "src", include_dirs=["gone"] if harm == "include" else [])
    if harm == "compiler":
        text_files.write_script(bin, "g++", "exit 3")
    if harm == "source":
        (tmp_path / "src" / "plain.cpp").unlink()
    if harm == "cxx":
        monkeypatch.setenv("CXX", "/no/such/compiler")
    found = cls().is_compatible()
    assert not found and found.reasons


def test_a_compatible_op_has_no_reason(tmp_path, bin):
    found = sample_ops.plain_op(tmp_path / "src")().is_compatible()
    assert found and str(found) == "compatible" and found.reasons == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extra_cflags": "-O2 -g"}, "extra_cflags='-O2 -g'. Expected a list of strings, each a word of its own"),
        ({"extra_cflags": [None]}, r"extra_cflags=\[None\]. Expected a list"),
        ({"extra_ldflags": 3}, "extra_ldflags=3. Expected a list"),
        ({"extra_include_paths": [None]}, r"extra_include_paths=\[None\]. Expected a list"),
        ({"sources": None}, "sources=None. Expected a list"),
        ({"name": None}, "name=None. Expected an identifier of at most 200 bytes"),
        ({"name": "n" * 201}, "Expected an identifier of at most 200 bytes"),
        ({"name": "größe", "abi": "torch"}, "name='größe'. Expected ASCII: it is a Python module's"),
        ({"torch_target": 2.10, "abi": "torch-stable"}, 'torch_target=2.1. Expected "MAJOR.MINOR"'),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused(tmp_path, changes, message):
    sample_ops.plain_op(tmp_path)
    with pytest.raises(BuilderError, match=message):
        opforge.load(**{"name": "plain", "sources": [str(tmp_path / "plain.cpp")], **changes})


def test_a_string_is_no_list_of_flags(tmp_path):
    with pytest.raises(BuilderError, match=r"TestedBuilder: extra_compile_args='-O2'. Expected a list of strings"):
        describe(sample_ops.plain_op(tmp_path, extra_compile_args="-O2")().spec())
