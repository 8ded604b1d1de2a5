"""The table [tool.opforge] of a project, and the commands that it adds."""

from __future__ import annotations

import os
import sys

import pytest
from setuptools.dist import Distribution
from setuptools.errors import OptionError

from opforge.builders import setuptools as ours
from opforge.builders import setuptools_hook


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Makes the working folder a project whose pyproject.toml says this; gives its distribution."""
    monkeypatch.chdir(tmp_path)

    def made(text):
        (tmp_path / "pyproject.toml").write_text(text)
        return Distribution({"name": "mine", "version": "1", "packages": ["mine"]})

    return made


def test_a_project_without_the_table_is_left_alone(project):
    assert "build_ops" not in project("[project]\nname = 'mine'\nversion = '1'\n").cmdclass
    assert "build_ops" not in project("this is no toml").cmdclass


def test_the_table_adds_the_commands(project):
    made = project('[tool.opforge]\nops = ["mine.ops:A", "mine.more:B", "other:C"]\ntargets = ["cpu:x86-64-v3"]\n')
    command = made.get_command_obj("build_ops")
    assert command.config.targets == ("cpu:x86-64-v3",) and command.config.portable is False
    assert command.config.by_package() == {"mine": ["mine.ops:A", "mine.more:B"], "other": ["other:C"]}
    assert "build_ops" in made.get_command_obj("build").get_sub_commands()
    made.get_command_obj("bdist_wheel").ensure_finalized()
    assert made.has_ext_modules() and made.get_command_obj("bdist_wheel").root_is_pure is False
    assert made.get_command_obj("build_ops").layers()[0].endswith("/mine/_opforge_ops")


def test_a_project_of_ones_own_commands_keeps_them():
    class Own(ours.build):
        """A command of the project."""

    found = ours.commands(["mine.ops:A"], bases={"build": Own})
    assert issubclass(found["build"], Own) and issubclass(found["bdist_wheel"], ours.bdist_wheel)


def test_in_an_editable_install_nothing_is_built_ahead(project):
    command = project('[tool.opforge]\nops = ["mine.ops:A"]\n').get_command_obj("build_ops")
    command.editable_mode = True
    command.run()
    assert command.get_outputs() == [] and not os.path.exists("build")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('ops = ["mine.ops:A"]\ntarget = []', r"\[tool.opforge\] has target, which is not known; expected ops = "),
        ('ops = "mine.ops:A"', "ops='mine.ops:A' is no list of names; expected"),
        ('ops = ["mine.ops:A"]\ntargets = [1]', r"targets=\[1\] is no list of names"),
        ('ops = ["mine.ops:A"]\nportable = 1', "portable=1 is neither true nor false"),
        ('ops = ["mine.ops.A"]', "'mine.ops.A' names no builder"),
        ("", "no op is named"),
    ],
)
def test_a_wrong_table_is_told(project, table, said):
    with pytest.raises(OptionError, match=said):
        project("[tool.opforge]\n" + table)


def test_an_op_of_a_package_that_the_project_lacks_is_told(project):
    command = project('[tool.opforge]\nops = ["other.ops:A"]\n').get_command_obj("build_ops")
    command.ensure_finalized()
    with pytest.raises(OptionError, match="there is no package 'other' in this project"):
        command.run()


def test_a_machine_without_default_targets_must_name_them(monkeypatch):
    monkeypatch.setattr(ours.platform, "machine", lambda: "x86_64")
    assert ours.default_targets() == ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4")
    monkeypatch.setattr(ours.platform, "machine", lambda: "riscv64")
    with pytest.raises(OptionError, match="there are no default targets for riscv64: name them in `targets`"):
        ours.default_targets()


def test_a_setuptools_that_is_too_old_is_told(project, monkeypatch):
    monkeypatch.setitem(sys.modules, setuptools_hook.WHEEL_COMMAND, None)
    monkeypatch.delitem(sys.modules, "opforge.builders.setuptools")
    with pytest.raises(OptionError) as refused:
        project('[tool.opforge]\nops = ["mine.ops:Op"]\n')
    assert "takes setuptools 70.1 or newer, and this is " in str(refused.value)
    assert str(refused.value).endswith("Install it by: pip install --upgrade setuptools.")
