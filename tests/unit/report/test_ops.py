"""The state of each op: ready, cached, buildable or unusable with its reasons."""

from __future__ import annotations

from support import sample_ops
from support.offered_ops import CompatibleBuilder, IncompatibleBuilder, offer

from opforge.report import ops


def broken_builder(*, target):
    raise ZeroDivisionError("division by zero")


def readiness(builder_class):
    return ops.readiness(offer("OpBuilder", builder_class))


def test_an_incompatible_op_is_unusable_with_its_reasons():
    assert readiness(IncompatibleBuilder) == ("OpBuilder", "cpu", "cpu:x86-64", "unusable", ("it needs a device",), "")


def test_an_op_of_another_package_is_buildable():
    assert readiness(CompatibleBuilder).state == "buildable"


def test_a_broken_builder_becomes_a_reason_and_does_not_raise():
    assert readiness(broken_builder).reasons == ("broken: ZeroDivisionError: division by zero",)


def test_an_op_without_a_compiler_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = readiness(sample_ops.plain_op(tmp_path))
    assert result.state == "unusable" and "apt install g++" in result.reasons[0]
