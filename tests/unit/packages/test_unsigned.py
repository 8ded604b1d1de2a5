"""What nobody has signed is said: a package by unsigned=1, and a package from a folder."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from support.text_files import write

from opforge.cli import group
from opforge.packages.registry import publish


@pytest.fixture
def user(registry, monkeypatch):
    """Runs a command in a project; returns what it printed on standard output, and on standard error."""
    monkeypatch.setenv("OPFORGE_KERNEL_PATH", registry.root.path)
    monkeypatch.chdir(registry.scratch)
    write(registry.scratch, "kernels.toml", '"acme/plain" = "1"\n')

    def run(*words, url=registry.url):
        monkeypatch.setenv("OPFORGE_REMOTES", url)
        done = CliRunner().invoke(group, list(words), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout, done.stderr

    return run


def test_what_its_signers_list_names_is_signed(user, registry):
    registry.publish()
    assert user("lock")[1] == ""
    assert user("install", "acme/plain", "--into", registry.root.path)[1] == ""
    assert "signed by ci" in user("ls")[0]
    assert user("verify")[0].endswith(": intact, signed by ci\n")
    (kernel,) = json.loads(user("verify", "--json")[0])["packages"]
    assert kernel["signer"] == "ci"


def test_a_package_that_nobody_has_signed(user, registry):
    publish.publish(registry.store, registry.packed(), None)
    url = f"{registry.url}?unsigned=1"
    expected = f"warning: acme/plain 1 is unsigned: {registry.url} has the option unsigned=1\n"
    assert user("lock", url=url)[1] == expected
    done = user("install", "acme/plain", "--into", registry.root.path, url=url)
    assert done[1] == expected
    assert "\tunsigned" in user("ls")[0]
    assert user("verify", "--deep")[0].endswith(": intact, unsigned\n")
    user("rm", "acme/plain", "--into", registry.root.path)
    assert user("install", "--frozen", "--into", registry.root.path, url=url)[1] == expected
    assert user("verify")[0].endswith(": intact, unsigned\n")


def test_a_folder_is_signed_by_nobody(user, registry):
    folder = registry.packed()
    assert user("install", folder, "--into", registry.root.path)[1] == ""
    assert user("verify")[0].endswith(": intact, unsigned\n")
