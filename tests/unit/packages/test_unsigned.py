"""What nobody has signed is said: a package by unsigned=1, a package from a folder, an index without TUF metadata."""

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


INDEX = "note: {0}: the index of acme/plain is not signed: it may hide newer releases (see opforge tuf trust)\n"


def test_an_index_that_is_not_signed(user, registry):
    registry.publish()
    expected = INDEX.format(registry.url)
    assert user("lock")[1] == expected
    assert user("install", "acme/plain", "--into", registry.root.path)[1] == expected
    assert "signed by ci, the index unsigned" in user("ls")[0]
    assert user("verify")[0].endswith(": intact, signed by ci, the index unsigned\n")
    (kernel,) = json.loads(user("ls", "--json")[0])["packages"]
    assert (kernel["signer"], kernel["index"]) == ("ci", "unsigned")
    (kernel,) = json.loads(user("verify", "--json")[0])["packages"]
    assert (kernel["signer"], kernel["index"]) == ("ci", "unsigned")


def test_a_package_that_nobody_has_signed(user, registry):
    publish.publish(registry.store, registry.packed(), None)
    url = f"{registry.url}?unsigned=1"
    expected = f"warning: acme/plain 1 is unsigned: {registry.url} has the option unsigned=1\n"
    assert user("lock", url=url)[1] == expected + INDEX.format(registry.url)
    done = user("install", "acme/plain", "--into", registry.root.path, url=url)
    assert done[1] == expected + INDEX.format(registry.url)
    assert "\tunsigned, the index unsigned" in user("ls")[0]
    assert user("verify", "--deep")[0].endswith(": intact, unsigned, the index unsigned\n")
    user("rm", "acme/plain", "--into", registry.root.path)
    assert user("install", "--frozen", "--into", registry.root.path, url=url)[1] == expected
    assert user("verify")[0].endswith(": intact, unsigned\n")


def test_a_folder_is_signed_by_nobody(user, registry):
    folder = registry.packed()
    assert user("install", folder, "--into", registry.root.path)[1] == ""
    assert user("verify")[0].endswith(": intact, unsigned\n")


@pytest.mark.test_all("needs tuf")
def test_what_tuf_vouches_for_has_a_signed_index(user, registry, tmp_path):
    pytest.importorskip("tuf", reason="pip install tuf")
    registry.publish()
    root = str(tmp_path / "root.json")
    user("tuf", "init", registry.url, "--root-key", "ci", "--key", "ci", "--out", root)
    registry.publish(number="1.1", text="VALUE = 2\n")
    user("tuf", "trust", registry.url, root)
    assert user("install", "acme/plain", "--into", registry.root.path)[1] == ""
    assert user("verify")[0].endswith(": intact, signed by ci\n")
    assert user("lock")[1] == ""
