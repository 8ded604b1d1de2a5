"""What the commands answer to wrong or unusual calls: one error that says what to do, and nothing left behind."""

from __future__ import annotations

import errno
import json
import os

import pytest
from click.testing import CliRunner
from support.remote.withdrawing import withdraw_release
from support.text_files import write

import opforge
from opforge.cli import group
from opforge.errors import KernelIncompatibleError
from opforge.packages.installed import layout
from opforge.packages.load import get_kernel
from opforge.remote.withdrawal_lists import LOADING


@pytest.fixture
def user(registry, monkeypatch):
    """Runs a command; returns its exit code and what it printed."""
    monkeypatch.setenv("OPFORGE_REMOTES", registry.url)
    monkeypatch.chdir(registry.scratch)

    def run(*words):
        done = CliRunner().invoke(group, list(words), catch_exceptions=False)
        return done.exit_code, done.output

    return run


def test_a_package_that_is_nowhere_is_said(user):
    code, output = user("ls", "acme/plain")
    assert code == 2 and "error: acme/plain is not installed: opforge ls shows installed packages" in output
    code, output = user("install", "acme/plain", "--dry-run")
    assert code == 1 and "it has no package acme/plain" in output


def test_a_package_by_its_kind_is_listed_and_a_name_without_its_owner_is_completed(user, registry):
    registry.publish("acme/plain", "1")
    assert user("install", "acme/plain", "--into", registry.root.path)[0] == 0
    assert "acme/plain" in user("ls", "--kind", "package", "acme/plain")[1]
    code, output = user("ls", "--kind", "package", "plain")
    assert (
        code == 2 and "plain is not installed: opforge ls shows installed packages. Did you mean acme/plain?" in output
    )


def test_a_target_for_a_package_without_a_library_is_refused(user, registry):
    folder = registry.packed()
    code, output = user("pack", folder, "--target", "cuda:sm_90")
    assert code == 1 and "it has no library that could be built for cuda:sm_90" in output
    assert "see `backends` in kernel.toml" in output


@pytest.mark.parametrize("text", ["acme/plain@", "acme/plain@@1", "acme/plain@ "])
def test_a_version_that_is_left_out_is_refused(user, registry, text):
    registry.publish()
    code, output = user("install", text, "--into", "new")
    assert code == 1 and "the version of acme/plain: '" in output and "cannot be used" in output
    assert not os.path.exists("new")


def test_if_one_of_several_is_not_there_none_is_installed(user, registry):
    registry.publish()
    code, output = user("install", "acme/plain", "acme/none", "--into", "new", "--json")
    assert code == 1 and "it has no package acme/none" in json.loads(output)["message"]
    assert not os.path.exists("new")


def test_two_versions_are_installed_side_by_side(user, registry):
    for number in ("1", "2"):
        registry.publish(number=number, text=f"VALUE = {number}\n")
    code, output = user("install", "acme/plain@1", "acme/plain@2", "--into", "new")
    lines = [line for line in output.splitlines() if line.startswith("installed ")]
    assert code == 0 and [line.split()[2] for line in lines] == ["1", "2"]


def test_a_release_that_was_withdrawn_is_named_with_the_reason(user, registry):
    registry.publish()
    withdraw = ("withdraw", registry.url, "acme/plain@1")
    assert user(*withdraw, "--reason", "wrong")[0] == 0
    for asked, sought in (("acme/plain", "release"), ("acme/plain@==1", "release in ==1")):
        code, output = user("install", asked, "--into", "new")
        assert code == 1 and "acme/plain 1 was withdrawn: wrong (acme/plain@1.0 requests it nevertheless)" in output
        assert f"acme/plain has no {sought} that may be chosen; its newest are: 1" in output
    assert user(*withdraw, "--undo")[0] == 0
    assert user("install", "acme/plain@1", "--into", "new")[0] == 0
    assert user(*withdraw, "--reason", "wrong")[0] == 0
    code, output = user("install", "acme/plain@==1.0", "--into", "new")
    assert code == 0 and "warning: acme/plain 1 was withdrawn: wrong" in output, "which is installed already"
    code, output = user("install", "acme/plain@==1.0", "--dry-run")
    assert code == 0 and "torch-universal" in output, "install takes it, too"


def test_what_is_not_loaded_any_more_is_refused_where_it_is_installed(user, registry):
    registry.publish()
    assert user("install", "acme/plain", "--into", "new")[0] == 0
    code, output = user("withdraw", registry.url, "acme/plain@1", "--stop-loading", "--reason", "it leaks")
    assert code == 0 and output.startswith(
        "acme/plain@1 is not loaded any more\n1 statement withdrawn by ci, in its list"
    )
    code, output = user("install", "acme/plain@==1.0", "--into", "new")
    assert code == 1 and "the key ci has withdrawn it: it leaks. Use another version" in output
    with open("new/kernels/names/acme/plain/1.json") as file:
        assert json.load(file)["stops"] == "loading"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("withdraw", "URL", "acme/plain@9"), "acme/plain 9 was not withdrawn in URL: there is no such release. There"),
        (("withdraw", "URL", "acme/plain"), "'acme/plain': expected ORG/NAME@VERSION, as opforge ls"),
        (("withdraw", "URL", "3f9c2a"), "'3f9c2a': expected op:ENTRY, as opforge ls"),
        (("withdraw", "URL", "--reason", "two\nlines"), "--reason: the reason is 'two\\nlines': expected one line"),
        (("withdraw", "URL", "--undo", "--stop-loading"), "--stop-loading and --undo exclude each other"),
        (("withdraw", "URL?unsigned=1"), "with unsigned=1 no list of withdrawals is read: leave it out"),
        (
            ("install", "acme/plain", "--for", "kernel.toml"),
            "--for shows what another machine would get: add --dry-run",
        ),
        (("install", "--dry-run"), "--dry-run shows the variants of packages: name one"),
        (
            ("publish", "URL", "./none"),
            "'./none' does not exist: expected a folder that opforge pack has written, or an",
        ),
        (("publish", "URL", "relu", "--all"), "--all publishes every op of the cache: leave out names"),
        (("ls", "URL", "acme/other"), "URL has no acme/other: check the names, or name another store"),
        (("mirror", "URL", "URL", "../x"), "NAME: '../x' is not a name that can be used"),
        (("mirror", "URL", "URL", "Acme/plain"), "NAME: 'Acme/plain' is not a name that can be used"),
        (("install", "--dry-run", "acme/plain@7"), "URL: acme/plain has no release in 7; its newest are: 1"),
        (
            ("install", "--dry-run", "empty"),
            "empty: there is no variant in it. Expected a folder that opforge pack has written",
        ),
    ],
)
def test_a_wrong_call_is_answered_by_its_reason(user, registry, words, problem):
    registry.publish()
    os.mkdir("empty")
    write(registry.scratch, "kernel.toml", "")
    before = registry.files()
    code, output = user(*(word.replace("URL", registry.url) for word in words))
    assert code in (1, 2) and problem.replace("URL", registry.url) in output, output
    assert registry.files() == before


@pytest.mark.parametrize("command", [("install",), ("install", "--dry-run")])
@pytest.mark.parametrize("path", ["./kernels/relu", "/nowhere/relu", "relu/", "~/relu", "../relu"])
def test_a_path_that_leads_to_no_folder_is_not_taken_for_a_name(user, command, path):
    code, output = user(*command, path)
    assert code == 1 and f"error: {path}: there is no such folder. Expected one that opforge pack has" in output


def test_a_dry_run_shows_the_release_that_install_takes(user, registry):
    """The newest may be for other machines alone."""
    registry.publish()
    folder = registry.packed(number="2")
    with open(os.path.join(folder, "kernel.toml"), "a") as file:
        file.write('backends = ["rocm"]\n')
    assert user("pack", folder, "--no-try")[0] == 0
    os.rename(os.path.join(folder, "build", "torch-universal"), "elsewhere")
    assert user("publish", registry.url, folder, "--key", "ci")[0] == 0
    code, output = user("install", "acme/plain", "--dry-run")
    assert code == 0 and "release 1 of" in output
    code, output = user("install", "acme/plain@2", "--dry-run")
    assert code == 1 and "rejected" in output and "release 2 of" in output


def test_verify_reports_a_release_whose_file_cannot_be_read(user, registry, monkeypatch):
    registry.publish()
    registry.install()
    path = registry.root.release("acme/plain", "1")
    write(os.path.dirname(path), "1.json", "{")
    code, output = user("verify")
    assert code == 1 and f"{path} cannot be read: install it again, or remove it" in output
    assert user("install", "acme/plain", "--into", registry.root.path)[0] == 0
    assert user("verify", "--deep")[0] == 0


class TestProject:
    def test_kernels_toml_serves_beside_a_pyproject_without_kernels(self, user, registry):
        registry.publish()
        write(registry.scratch, "pyproject.toml", '[project]\nname = "x"\n')
        write(registry.scratch, "kernels.toml", '[kernels]\n"acme/plain" = "1"\n')
        assert user("lock")[0] == 0

    @pytest.mark.parametrize(
        "text", ["tool = 1\n", "[tool]\nopforge = 1\n", "[tool]\nkernels = 'x'\n", "[tool.opforge]\n"]
    )
    def test_another_value_in_the_place_of_a_table_is_no_traceback(self, user, registry, text):
        write(registry.scratch, "pyproject.toml", text)
        code, output = user("lock")
        assert code == 1 and "there is no [tool.opforge.kernels] in pyproject.toml" in output

    def test_a_withdrawal_that_lock_has_read_stops_what_is_installed_in_any_folder(self, user, registry):
        registry.publish()
        write(registry.scratch, "kernels.toml", '[kernels]\n"acme/plain" = "1"\n')
        assert user("install", "acme/plain", "--user")[0] == 0
        assert opforge.get_kernel("acme/plain").VALUE == 1
        withdraw_release(registry.store, "acme/plain@1", "it leaks", LOADING)
        code, output = user("lock")
        assert code == 1 and "the key ci has withdrawn it: it leaks" in output
        get_kernel.reset()
        with pytest.raises(KernelIncompatibleError, match="the key ci has withdrawn it: it leaks"):
            opforge.get_kernel("acme/plain")

    def test_upgrading_what_the_project_does_not_have_is_refused(self, user, registry):
        registry.publish()
        write(registry.scratch, "kernels.toml", '[kernels]\n"acme/plain" = "1"\n')
        assert user("lock")[0] == 0
        code, output = user("lock", "--upgrade-kernel", "acme/none")
        assert code == 2 and "acme/none is not in the lock file, which has: acme/plain" in output
        for words in (("--upgrade",), ("--upgrade-kernel", "acme/plain")):
            code, output = user("lock", "--check", *words)
            assert code == 2 and "--check writes nothing: leave out --upgrade and --upgrade-kernel" in output


def test_one_variant_is_installed_from_its_folder(user, registry):
    folder = os.path.join(registry.packed(), "build", "torch-universal")
    code, output = user("install", folder, "--into", "new")
    assert code == 0 and "installed acme/plain 1 (torch-universal)" in output
    write(folder, "more.py", "")
    code, output = user("install", folder, "--into", "new")
    assert code == 1 and f"{folder} was not installed: Unknown file: more.py.\nhint: It was changed after" in output


def test_a_folder_of_a_packages_name_is_not_taken_for_the_package(user, registry, tmp_path, monkeypatch):
    os.makedirs(tmp_path / "acme")
    os.rename(registry.packed(), tmp_path / "acme" / "plain")
    monkeypatch.chdir(tmp_path)
    for command in (("install", "acme/plain", "--into", "new"), ("ls", "acme/plain")):
        code, output = user(*command)
        assert code in (1, 2) and "acme/plain" in output and "installed acme" not in output
    assert user("install", "acme/plain", "--into", "new")[1].endswith(
        "For the folder of that name: opforge install ./acme/plain\n"
    )
    code, output = user("install", "./acme/plain", "--into", "new")
    assert code == 0 and "installed acme/plain 1 (torch-universal)" in output


def test_a_package_that_may_not_be_removed_is_an_error_that_says_who_may(user, registry, monkeypatch):
    registry.publish()
    assert user("install", "acme/plain", "--into", "new")[0] == 0

    def refuse(*_arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("opforge.packages.installed.remove._forget", refuse)
    code, output = user("rm", "acme/plain", "--into", "new")
    assert code == 1 and "error: acme/plain cannot be removed from" in output
    assert "(Permission denied). Run this as its owner" in output


def test_a_package_that_is_installed_elsewhere_is_not_removed_and_its_folder_named(user, registry, monkeypatch):
    registry.publish()
    assert user("install", "acme/plain", "--into", "new")[0] == 0
    monkeypatch.setenv("OPFORGE_KERNEL_PATH", str(registry.scratch / "new"))
    code, output = user("rm", "acme/plain", "--into", "other")
    assert code == 1 and f"It is in {registry.scratch / 'new'}, which --into can name" in output
    assert "--into" not in user("rm", "acme/unknown", "--into", "other")[1]


def test_a_package_that_another_one_needs_is_removed_with_a_warning(user, registry):
    registry.publish(number="1")
    registry.publish(number="2")
    registry.publish("acme/over", depends={"acme/plain": ">=1,<2"})
    for package in ("acme/over", "acme/plain@2"):
        assert user("install", package, "--into", "new")[0] == 0
    assert "warning" not in user("rm", "acme/plain@2", "--into", "new")[1]
    there = f"acme/over 1 in {registry.scratch / 'new'} needs acme/plain >=1,<2, which is installed nowhere else"
    assert json.loads(user("rm", "acme/plain", "--into", "new", "--dry-run", "--json")[1])["warnings"] == [there]
    for more in (["--dry-run"], []):
        code, output = user("rm", "acme/plain", "--into", "new", *more)
        assert code == 0 and f"warning: {there}" in output
    assert "warning" not in user("rm", "acme/over", "--into", "new")[1]


def test_one_that_was_withdrawn_from_use_serves_no_package_that_needs_it(user, registry):
    for number in ("1", "1.1"):
        registry.publish(number=number)
    registry.publish("acme/over", depends={"acme/plain": ">=1,<2"})
    for package in ("acme/over", "acme/plain@==1.0"):
        assert user("install", package, "--into", "new")[0] == 0
    withdraw_release(registry.store, "acme/plain@1.1", "it leaks", LOADING)
    assert user("install", "acme/plain@==1.0", "--into", "new")[0] == 0
    assert "is installed nowhere else" in user("rm", "acme/plain@==1.0", "--into", "new")[1]


def test_a_folder_from_which_nothing_is_loaded_is_named_where_a_package_is_installed(user, registry, monkeypatch):
    registry.publish()
    assert "warning" not in user("install", "acme/plain", "--into", "new")[1]
    os.chmod("new", 0o777)
    monkeypatch.setenv("OPFORGE_KERNEL_PATH", str(registry.scratch / "new"))
    code, output = user("install", "acme/plain", "--into", "new")
    said = f"get_kernel loads nothing from {registry.scratch / 'new'}: "
    assert code == 0 and "installed already: acme/plain 1" in output and f"warning: {said}" in output
    with pytest.raises(KernelIncompatibleError) as error:
        opforge.get_kernel("acme/plain")
    problem = output.split(said)[1].split("\n")[0]
    assert problem in str(error.value)
    assert json.loads(user("install", "acme/plain", "--into", "new", "--json")[1])["warnings"] == [said + problem]
    own = layout.user_root().path
    os.makedirs(own)
    os.chmod(own, 0o777)
    with pytest.raises(KernelIncompatibleError, match=f"{own} can be written by everybody"):
        opforge.get_kernel("acme/plain", install=True)


def test_the_help_says_what_decides_how_old_a_list_may_be(user):
    text = " ".join(user("withdraw", "--help")[1].split())
    assert (
        "`withdrawal_days` in the trust file of a user who fetches limits the list's age, for all kinds; without it"
        in text
    )
    assert "30 days" not in text and "TUF" not in user("gc", "--help")[1]
