"""A project's lock file: what is written, checked and refused."""

from __future__ import annotations

import json
import os
import tomllib

import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies
from support.remote.withdrawing import withdraw_release
from support.text_files import write

from opforge.cli import group
from opforge.errors import KernelFormatError, KernelLockError
from opforge.packages.choose import environment
from opforge.packages.form import version
from opforge.packages.installed import releases
from opforge.packages.project import lock_file, locking
from opforge.packages.project.install_locked import install_locked
from opforge.packages.registry import publish, selection
from opforge.remote import topics
from opforge.remote.withdrawal_lists import LOADING


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    return folder


def requires(folder, **kernels):
    lines = "".join(f'"acme/{name}" = "{numbers}"\n' for name, numbers in kernels.items())
    write(folder, "pyproject.toml", f"[tool.opforge.kernels]\n{lines}")


def locked(registry, folder, upgrade=None):
    lock, changes = locking.make(str(folder), registry.sources(), upgrade)
    lock_file.write(str(folder), lock)
    return {kernel.name: str(kernel.version) for kernel in lock.kernels}, changes


def install_now(registry, folder):
    """Installs what is locked, by lists that are read now."""
    list(selection.releases("acme/plain", version.ANY, registry.sources()))
    return install_locked(registry.root, str(folder), True, False, [registry.url])


class TestMake:
    def test_it_lists_every_release_sorted(self, registry, project):
        registry.publish("acme/base", "1")
        registry.publish("acme/top", "2.3", depends={"acme/base": ">=1"})
        requires(project, top=">=2,<3")
        assert locked(registry, project) == (
            {"acme/base": "1", "acme/top": "2.3"},
            ["added acme/base 1", "added acme/top 2.3"],
        )
        lock = tomllib.loads((project / "opforge.lock").read_text())
        base, top = lock["kernel"]
        assert (base["name"], base["requires"]) == ("acme/base", ["acme/top >=1"])
        assert top["source"] == registry.url
        assert [*top] == ["name", "version", "digest", "source", "requires"]  # the digest covers the variants
        assert locking.problems(str(project)) == []

    def test_the_same_choice_gives_the_same_bytes(self, registry, project):
        registry.publish()
        requires(project, plain="1")
        locked(registry, project)
        before = (project / "opforge.lock").read_bytes()
        assert locked(registry, project) == ({"acme/plain": "1"}, [])
        assert (project / "opforge.lock").read_bytes() == before

    def test_what_is_locked_stays_until_it_is_upgraded(self, registry, project):
        registry.publish("acme/plain", "1")
        registry.publish("acme/other", "1")
        requires(project, plain=">=1", other=">=1")
        locked(registry, project)
        registry.publish("acme/plain", "1.1", text="VALUE = 2\n")
        registry.publish("acme/other", "1.1", text="VALUE = 2\n")
        assert locked(registry, project)[0] == {"acme/plain": "1", "acme/other": "1"}
        assert locked(registry, project, ["acme/plain"])[1] == ["changed acme/plain 1 to 1.1"]
        assert locked(registry, project, ())[0] == {"acme/plain": "1.1", "acme/other": "1.1"}

    def test_a_locked_release_that_was_withdrawn_stays_with_a_warning(self, registry, project):
        registry.publish("acme/plain", "1.2")
        requires(project, plain="1")
        locked(registry, project)
        withdraw_release(registry.store, "acme/plain@1.2", "wrong")
        expected = ["warning: acme/plain 1.2 was withdrawn: wrong"]
        assert locked(registry, project) == ({"acme/plain": "1.2"}, expected)

    def test_an_index_of_yesterday_hides_nothing(self, registry, project):
        registry.publish("acme/plain", "1")
        with open(os.path.join(registry.path, topics.name_of("package", "acme/plain")), "rb") as file:
            yesterday = file.read()
        registry.publish("acme/plain", "2", text="VALUE = 2\n")
        requires(project, plain="*")
        stored = registry.store.get(topics.name_of("package", "acme/plain"), topics.MAX_LISTING_BYTES)
        assert registry.store.put_if_unchanged(topics.name_of("package", "acme/plain"), yesterday, stored.version)
        assert locked(registry, project)[0] == {"acme/plain": "2"}


class TestCheck:
    def test_every_difference_is_listed(self, registry, project):
        for name in ("acme/plain", "acme/other"):
            registry.publish(name, "1")
        requires(project, plain="1", other="1")
        locked(registry, project)
        requires(project, plain="2", third="1")
        assert locking.problems(str(project)) == [
            "acme/plain 2 is required, and 1 is locked",
            "acme/third 1 is required, and not in the lock file",
            "acme/other is in the lock file, and not required any more",
        ]
        with pytest.raises(KernelLockError, match="Bring it up to date with: opforge lock"):
            locking.check(str(project))

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"acme/plain" = ">=1"', '"acme/plain" = ">=1,<9"'),
            ('requires = ["project >=1"]', 'requires = ["project 7"]'),
        ],
    )
    def test_what_it_says_of_the_project_is_compared(self, registry, project, old, new):
        registry.publish()
        requires(project, plain=">=1")
        locked(registry, project)
        assert locking.problems(str(project)) == []
        text = (project / "opforge.lock").read_text()
        assert old in text
        write(project, "opforge.lock", text.replace(old, new))
        expected = "acme/plain >=1 is required, and the lock file was made for something else"
        assert locking.problems(str(project)) == [expected]

    def test_a_project_without_a_lock_file(self, project):
        requires(project, plain="1")
        with pytest.raises(KernelFormatError, match=r"opforge\.lock: there is no such file\. Expected a lock"):
            locking.problems(str(project))

    def test_a_project_that_requires_nothing(self, project):
        with pytest.raises(KernelFormatError, match=r"there is no \[tool\.opforge\.kernels\] in pyproject"):
            locking.problems(str(project))


class TestInstall:
    def test_frozen_installs_what_is_locked_without_the_index(self, registry, project):
        registry.publish("acme/plain", "1")
        requires(project, plain=">=1")
        locked(registry, project)
        registry.publish("acme/plain", "2", text="VALUE = 2\n")
        registry.store.delete(topics.name_of("package", "acme/plain"))
        ((release, is_new),) = install_locked(registry.root, str(project), True, False, [registry.url])
        assert (str(release.version), is_new) == ("1", True)

    def test_a_release_that_was_withdrawn_is_still_installed_by_the_lock(self, registry, project):
        registry.publish("acme/plain", "1")
        requires(project, plain="1")
        locked(registry, project)
        withdraw_release(registry.store, "acme/plain@1", "wrong")
        ((release, _is_new),) = install_locked(registry.root, str(project), True, False, [registry.url])
        assert str(release.version) == "1"

    def test_one_that_was_withdrawn_from_use_is_replaced_by_the_command_that_each_error_names(self, registry, project):
        for number in ("1", "1.1"):
            registry.publish("acme/plain", number)
        registry.publish("acme/top", depends={"acme/plain": ">=1"})
        requires(project, top="1")
        locked(registry, project)
        withdraw_release(registry.store, "acme/plain@1.1", "it leaks", LOADING)
        advice = "Lock another release with: opforge lock --upgrade-kernel acme/plain"
        for call in (lambda: locked(registry, project), lambda: install_now(registry, project)):
            with pytest.raises(KernelLockError, match=rf"(?s)the key ci has withdrawn it: it leaks.*{advice}"):
                call()
        assert locked(registry, project, ["acme/plain"])[0] == {"acme/plain": "1", "acme/top": "1"}
        assert [str(release.version) for release, _is_new in install_now(registry, project)] == ["1", "1"]

    def test_without_frozen_the_lock_file_is_made_first(self, registry, project):
        registry.publish("acme/plain", "1")
        requires(project, plain="1")
        install_locked(registry.root, str(project), False, False, [registry.url])
        assert releases.names(registry.root) == ["acme/plain"] and locking.problems(str(project)) == []

    def test_everything_that_is_missing_is_listed_with_one_command(self, registry, project, monkeypatch):
        for name in ("acme/plain", "acme/other"):
            registry.publish(name, "1")
        requires(project, plain="1", other="1")
        locked(registry, project)
        monkeypatch.setenv("XDG_CACHE_HOME", str(registry.scratch / "another machine's"))
        for name in registry.files():
            if name.startswith("v1/statements/"):
                registry.store.delete(name)
        with pytest.raises(KernelLockError) as error:
            install_locked(registry.root, str(project), True, False, [registry.url])
        assert "acme/plain 1: The kernel acme/plain 1 was not found" in str(error.value)
        assert "acme/other 1: The kernel acme/other 1 was not found" in str(error.value)
        assert "Get everything with: opforge install --frozen --remote URL" in str(error.value)

    def test_the_lock_of_another_project_is_refused(self, registry, project, tmp_path):
        registry.publish("acme/plain", "1")
        requires(project, plain="1")
        locked(registry, project)
        other = tmp_path / "other"
        write(other, "opforge.lock", (project / "opforge.lock").read_text())
        requires(other, different="1")
        with pytest.raises(KernelLockError, match="acme/different 1 is required, and not in the lock file"):
            install_locked(registry.root, str(other), True, False, [registry.url])


class TestDevices:
    """Kernels for devices that this machine's torch is not built for: they are locked, and not installed."""

    @pytest.fixture
    def gpu_project(self, registry, project):
        registry.publish("acme/base", "1")
        registry.publish("acme/shared", "1")
        registry.publish("acme/gpu", "1", depends={"acme/base": ">=1", "acme/shared": ">=1"})
        registry.publish("acme/plain", "1", depends={"acme/shared": ">=1"})
        marked = '"acme/gpu" = {version = ">=1", devices = ["cuda"]}\n"acme/plain" = "1"\n'
        write(project, "pyproject.toml", f"[tool.opforge.kernels]\n{marked}")
        assert sorted(locked(registry, project)[0]) == ["acme/base", "acme/gpu", "acme/plain", "acme/shared"]
        assert locking.problems(str(project)) == []
        return project

    def install(self, registry, project, all_platforms=False):
        skipped = {}

        def skip(kernel, devices, backend):
            skipped[kernel.name] = (devices, backend)

        done = install_locked(registry.root, str(project), True, all_platforms, [registry.url], skip=skip)
        return sorted(release.name for release, _is_new in done), skipped

    def test_what_does_not_apply_is_skipped_with_what_it_alone_needs(self, registry, gpu_project):
        installed, skipped = self.install(registry, gpu_project)
        assert installed == ["acme/plain", "acme/shared"]
        assert skipped == {"acme/base": (["cuda"], "cpu"), "acme/gpu": (["cuda"], "cpu")}

    def test_all_of_it_is_installed_where_torch_is_built_for_the_device(self, registry, gpu_project, monkeypatch):
        here = environment.here()
        monkeypatch.setattr(environment, "here", lambda *arguments: here._replace(backend="cuda"))
        assert self.install(registry, gpu_project) == (["acme/base", "acme/gpu", "acme/plain", "acme/shared"], {})

    def test_all_of_it_is_installed_for_all_platforms(self, registry, gpu_project):
        assert self.install(registry, gpu_project, all_platforms=True)[1] == {}

    def test_the_command_says_what_it_skips(self, registry, gpu_project, monkeypatch):
        monkeypatch.chdir(gpu_project)
        words = ["install", "--frozen", "--into", registry.root.path, "--remote", registry.url]
        done = CliRunner().invoke(group, words)
        assert done.exit_code == 0, done.output
        assert "skipped acme/gpu 1: required for cuda, and torch is for cpu" in done.output.splitlines()
        (row, *_others) = json.loads(CliRunner().invoke(group, [*words, "--json"]).stdout)["skipped"]
        assert row == {"name": "acme/base", "version": "1", "devices": ["cuda"], "backend": "cpu"}


class TestTheSourceOfALock:
    """What a repository's files say never weakens what this user's settings say."""

    def unsigned(self, registry, project):
        """Locks a package that nobody signed, and takes every remote and every key away."""
        publish.publish(registry.store, registry.packed(), None)
        requires(project, plain="1")
        lock, _changes = locking.make(str(project), selection.sources([f"{registry.url}?unsigned=1"]))
        lock_file.write(str(project), lock)
        registry.trust()
        return (project / "opforge.lock").read_text()

    @pytest.mark.parametrize("query", ["?unsigned=1", "?push=0", "?", "#x"])
    def test_options_in_it_are_refused(self, registry, project, query):
        text = self.unsigned(registry, project).replace(registry.url, registry.url + query)
        write(project, "opforge.lock", text)
        with pytest.raises(KernelFormatError) as error:
            install_locked(registry.root, str(project), True, False, [])
        expected = f"{project}/opforge.lock: 'kernel[0].source' is '{registry.url}{query}"[:120]
        assert str(error.value).startswith(expected) and "options count from your own settings alone" in str(
            error.value
        )
        assert releases.names(registry.root) == []

    def test_it_alone_installs_nothing_without_a_signature(self, registry, project):
        self.unsigned(registry, project)
        with pytest.raises(KernelLockError, match=r"acme/plain 1: .* is rejected: it has no signature"):
            install_locked(registry.root, str(project), True, False, [])
        assert releases.names(registry.root) == []

    def test_options_of_the_command_line_count(self, registry, project):
        self.unsigned(registry, project)
        ((release, is_new),) = install_locked(registry.root, str(project), True, False, [f"{registry.url}?unsigned=1"])
        assert (release.signer, is_new) == ("", True)


@pytest.fixture
def content(registry, project):
    registry.publish("acme/plain", "1")
    requires(project, plain="1")
    locked(registry, project)
    return (project / "opforge.lock").read_text()


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("format = 2", "format = 9", "'format' is 9, and this opforge reads 2: update opforge"),
        ("format = 2", "format = 1", "'format' is 1, and this opforge reads 2. Expected a file that `opforge lock`"),
        ("format = 2", "<<<<<<< ours\nformat = 2", "is a mark of a merge conflict"),
        ("[[kernel]]", ">>>>>>> theirs\n[[kernel]]", "is a mark of a merge conflict"),
        ('name = "acme/plain"', 'name = "../x"', "'../x' is not a name that can be used"),
        ('version = "1"', 'version = "one"', "'one' cannot be used"),
        ('digest = "', 'digest = "0', "'kernel[0].digest' is '0"),
        ('source = "', 'signer = "lab"\nsource = "', "'kernel[0].signer' is not a field that is read"),
        ("requires = ", "[[kernel.variant]]\nx = ", "'kernel[0].variant' is not a field that is read"),
        ("[required]", "[policy]\nunsigned = true\n[required]", "'policy' is not a field that is read"),
        ("requires = ", "state = 3\nrequires = ", "'kernel[0].state' is not a field that is read"),
        ("[[kernel]]", "[[kernel]", "it is not valid TOML"),
        ("[required]", "[required]\n'../x' = '1'", "'../x' is not a name"),
    ],
)
def test_a_lock_file_that_is_damaged_or_half_merged_is_refused(content, project, old, new, text):
    assert old in content
    write(project, "opforge.lock", content.replace(old, new, 1))
    with pytest.raises(KernelFormatError) as error:
        locking.problems(str(project))
    assert text in str(error.value)


def test_what_is_said_of_a_damaged_file_helps(registry, content, project):
    write(project, "opforge.lock", content.replace("format = 2", "format = "))
    with pytest.raises(KernelFormatError, match="to write it anew, remove it and run: opforge lock"):
        locked(registry, project)
    os.unlink(project / "opforge.lock")
    assert locked(registry, project)[0] == {"acme/plain": "1"}


def test_a_kernel_that_is_in_it_twice_is_refused(content, project):
    kernel = content[content.index("[[kernel]]") :]
    write(project, "opforge.lock", f"{content}\n{kernel}")
    with pytest.raises(KernelFormatError, match="acme/plain is in it twice"):
        locking.problems(str(project))


@settings(max_examples=150, deadline=None)
@given(strategies.binary(max_size=40), strategies.integers(0, 2000), strategies.integers(0, 60))
def test_any_damage_is_read_or_refused(tmp_path_factory, data, at, removed):
    base = b'format = 2\n[required]\n"acme/plain" = "1"\n[[kernel]]\nname = "acme/plain"\nversion = "1"\ndigest = "'
    base += b"a" * 64 + b'"\n'
    at %= len(base)
    content = base[:at] + data + base[at + removed :]
    path = tmp_path_factory.getbasetemp() / "damaged.lock"
    path.write_bytes(content)
    try:
        lock_file.read(str(path))
    except KernelFormatError:
        return
