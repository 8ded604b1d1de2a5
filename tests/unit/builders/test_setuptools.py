"""The table [tool.opforge] of a project, and the commands that it adds."""

from __future__ import annotations

import json
import os
import platform
import sys

import pytest
from setuptools import Extension
from setuptools.dist import Distribution
from setuptools.errors import OptionError

from opforge.builders import setuptools as setuptools_commands
from opforge.builders import setuptools_hook
from opforge.compat import setuptools_hook as compat_hook


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A function that makes the working folder a project with this pyproject.toml and returns its distribution."""
    monkeypatch.chdir(tmp_path)

    def create(text):
        (tmp_path / "pyproject.toml").write_text(text)
        (tmp_path / "mine").mkdir(exist_ok=True)
        attributes = {"name": "mine", "version": "1", "packages": ["mine"], "script_name": "setup.py"}
        return Distribution(attributes)

    return create


def test_a_project_without_the_table_gets_no_command(project, tmp_path):
    assert "build_ops" not in project("[project]\nname = 'mine'\nversion = '1'\n").cmdclass
    distribution = project("")
    project_file = tmp_path / "pyproject.toml"
    project_file.write_text("this is not toml")
    setuptools_hook.finalize(distribution)  # other packages' hooks, such as scikit-build-core's, refuse the file
    assert "build_ops" not in distribution.cmdclass


def test_the_kernels_that_a_project_requires_are_not_of_its_wheel(project):
    kernels = '[tool.opforge.kernels]\n"acme/relu" = ">=2.1,<3"\n'
    assert "build_ops" not in project(kernels).cmdclass
    command = project('[tool.opforge]\nops = ["mine.ops:A"]\n' + kernels).get_command_obj("build_ops")
    assert command.config.ops == ("mine.ops:A",)


def test_the_table_adds_the_commands(project):
    distribution = project(
        '[tool.opforge]\nops = ["mine.ops:A", "mine.more:B", "other:C"]\ntargets = ["cpu:x86-64-v3"]\n'
    )
    command = distribution.get_command_obj("build_ops")
    assert command.config.targets == ("cpu:x86-64-v3",) and command.config.portable is False
    assert command.config.by_package() == {"mine": ["mine.ops:A", "mine.more:B"], "other": ["other:C"]}
    assert "build_ops" in distribution.get_command_obj("build").get_sub_commands()
    distribution.get_command_obj("bdist_wheel").ensure_finalized()
    assert distribution.has_ext_modules() and distribution.get_command_obj("bdist_wheel").root_is_pure is False
    assert distribution.get_command_obj("build_ops").layers()[0].endswith("/mine/_opforge_ops")


def test_commands_of_the_project_are_subclassed():
    class Own(setuptools_commands.build):
        """A command of the project."""

    commands = setuptools_commands.commands(["mine.ops:A"], bases={"build": Own})
    assert issubclass(commands["build"], Own)
    assert issubclass(commands["bdist_wheel"], setuptools_commands.bdist_wheel)


def test_an_editable_install_builds_nothing_ahead(project):
    command = project('[tool.opforge]\nops = ["mine.ops:A"]\n').get_command_obj("build_ops")
    command.editable_mode = True
    command.run()
    assert command.get_outputs() == [] and not os.path.exists("build")


@pytest.fixture
def built(tmp_path):
    """A function that puts the record of an op for a machine into a package of the build folder."""

    def put(command, package, machine):
        entry = tmp_path / command.build_lib / package / "_opforge_ops/v2/entries/key-1"
        entry.mkdir(parents=True)
        floors = {"GLIBC": "2.17"}
        (entry / "record.json").write_text(json.dumps({"machine": machine, "abi": "c", "needs": [], "floors": floors}))
        return entry

    return put


MINE = '[tool.opforge]\nops = ["mine.ops:A"]\n'


def test_the_tag_of_an_editable_install_is_not_that_of_an_earlier_wheels_ops(project, built):
    distribution = project(MINE)
    command = distribution.get_command_obj("bdist_wheel")
    command.ensure_finalized()
    built(command.get_finalized_command("build_ops"), "mine", "s390x")
    assert command.get_tag() == ("py3", "none", "manylinux_2_17_s390x")
    distribution.get_command_obj("editable_wheel")
    assert command.get_tag()[2].endswith(f"_{platform.machine()}")


def test_a_wheel_with_extension_modules_of_its_own_has_the_tag_that_they_need(project, built):
    distribution = project(MINE)
    distribution.ext_modules = [Extension("mine.own", ["own.c"])]
    command = distribution.get_command_obj("bdist_wheel")
    command.ensure_finalized()
    built(command.get_finalized_command("build_ops"), "mine", platform.machine())
    this = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert command.get_tag() == (this, this, f"linux_{platform.machine()}")
    distribution.ext_modules[0].py_limited_api, command.py_limited_api = True, "cp311"
    assert command.get_tag() == ("cp311", "abi3", f"linux_{platform.machine()}")


def test_a_platform_that_is_named_is_the_wheels_which_is_for_every_python_as_without_it(project, built):
    command = project(MINE).get_command_obj("bdist_wheel")
    command.plat_name = "manylinux_2_28_x86_64"
    command.ensure_finalized()
    built(command.get_finalized_command("build_ops"), "mine", "x86_64")
    assert command.get_tag() == ("py3", "none", "manylinux_2_28_x86_64")


def test_ops_for_another_machine_than_the_extension_modules_are_an_error(project, built):
    distribution = project(MINE)
    distribution.ext_modules = [Extension("mine.own", ["own.c"])]
    command = distribution.get_command_obj("bdist_wheel")
    command.ensure_finalized()
    built(command.get_finalized_command("build_ops"), "mine", "s390x")
    with pytest.raises(OptionError, match=r"the project's own libraries: it is for .*, and its ops are for s390x"):
        command.get_tag()


def test_ops_of_an_earlier_wheel_are_removed_from_packages_that_have_none_any_more(project, built, tmp_path):
    command = project('[tool.opforge]\nops = ["missing.ops:A"]\n').get_command_obj("build_ops")
    command.ensure_finalized()
    entry = built(command, "mine", "x86_64")
    kept = tmp_path / command.build_lib / "mine/_opforge_ops/the_authors.txt"
    kept.touch()
    with pytest.raises(OptionError, match="there is no package 'missing'"):
        command.run()
    assert kept.exists() and not entry.exists()


def test_the_tag_is_chosen_after_other_hooks_have_added_extensions():
    assert setuptools_hook.finalize.order > getattr(compat_hook.finalize, "order", 0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('ops = ["mine.ops:A"]\ntarget = []', r"\[tool.opforge\] has target, which is unknown; expected ops = "),
        ('ops = "mine.ops:A"', "ops='mine.ops:A' is not a list of names; expected"),
        ('ops = ["mine.ops:A"]\ntargets = [1]', r"targets=\[1\] is not a list of names"),
        ('ops = ["mine.ops:A"]\nportable = 1', "portable=1 is neither true nor false"),
        ('ops = ["mine.ops.A"]', "'mine.ops.A' names no builder"),
        ("", "no op is named"),
        (
            'ops = ["mine.ops:A"]\nvariants = true',
            'variants are several: build-backend = "opforge.backend" and backend = "setuptools.build_meta"',
        ),
    ],
)
def test_a_wrong_table_is_an_error(project, table, message):
    with pytest.raises(OptionError, match=message):
        project("[tool.opforge]\n" + table)


def test_a_project_whose_backend_is_wrapped_gets_no_command(project):
    table = "[tool.opforge]\nbackend = 'setuptools.build_meta'\nops = ['mine.ops:A']\n"
    assert "build_ops" not in project(table).cmdclass


def test_an_op_of_a_package_that_the_project_lacks_is_an_error(project):
    command = project('[tool.opforge]\nops = ["other.ops:A"]\n').get_command_obj("build_ops")
    command.ensure_finalized()
    with pytest.raises(OptionError, match="there is no package 'other' in this project"):
        command.run()


def test_a_machine_without_default_targets_must_name_them(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert setuptools_commands.default_targets() == ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(OptionError, match="there are no default targets for riscv64: set `targets`"):
        setuptools_commands.default_targets()


def test_a_setuptools_that_is_too_old_is_an_error(project, monkeypatch):
    monkeypatch.setitem(sys.modules, setuptools_hook.WHEEL_COMMAND, None)
    monkeypatch.delitem(sys.modules, "opforge.builders.setuptools")
    with pytest.raises(OptionError) as error:
        project('[tool.opforge]\nops = ["mine.ops:Op"]\n')
    assert "and building ops into a wheel takes 70.1 or newer. " in str(error.value)
    assert str(error.value).endswith("Install it by: pip install --upgrade setuptools.")
