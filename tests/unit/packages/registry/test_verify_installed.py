"""What `opforge verify --deep` notices: every file is hashed, and signatures are verified with today's trusted keys."""

from __future__ import annotations

import json
import os

import pytest
from support.text_files import write

from opforge.packages.form.version import Version
from opforge.packages.installed import receipt, releases
from opforge.packages.registry import verify_installed
from opforge.remote import statements
from opforge.remote.signatures import trust_file


@pytest.fixture
def installed(registry):
    """Returns the problems of the installed release: those by its stamps, and all."""
    registry.publish()
    registry.install()

    def problems():
        present = releases.read(registry.root, "acme/plain", Version(1))
        return verify_installed.problems(present, deep=False), verify_installed.problems(present, deep=True)

    assert problems() == ([], [])
    return problems


def part_of(registry):
    (part,) = releases.read(registry.root, "acme/plain", Version(1)).variants
    return part


def change(registry, **fields):
    """Changes fields of the variant in the release's own file, which nobody signs."""
    path = registry.root.release("acme/plain", "1")
    with open(path) as file:
        value = json.load(file)
    value["variants"][0] |= fields
    write(os.path.dirname(path), "1.json", json.dumps(value))


def test_a_file_whose_stamp_agrees_is_hashed(registry, installed):
    part = part_of(registry)
    os.chmod(os.path.join(part.folder, "__init__.py"), 0o644)
    write(part.folder, "__init__.py", "VALUE = 2\n")
    change(registry, receipt=receipt.stamps(part.folder))
    shallow, deep = installed()
    assert shallow == [] and "torch-universal: File hash mismatch for __init__.py" in deep[0]


def test_changed_metadata_is_noticed(registry, installed):
    part = part_of(registry)
    path = os.path.join(part.folder, "metadata.json")
    os.chmod(path, 0o644)
    with open(path, "a") as file:
        file.write(" ")
    assert installed() == (["torch-universal: File hash mismatch for metadata.json"],) * 2


def test_a_key_that_was_revoked_since_is_reported(registry, installed):
    content = trust_file.read()
    trust_file.write(content._replace(keys=tuple(key._replace(revoked="2026-01-01") for key in content.keys)))
    shallow, deep = installed()
    assert shallow == [] and "revoked" in deep[0]


def test_a_key_that_may_not_sign_the_name_any_more_is_reported(registry, installed):
    registry.trust("other/*")
    shallow, deep = installed()
    assert shallow == [] and "no key that signed it may sign package:acme/plain" in deep[0]


@pytest.mark.parametrize("content", [None, b"", b"{}\n[]\n", b"\0" * 100])
def test_a_signed_release_that_is_lost_or_damaged_is_reported(registry, installed, content):
    folder = registry.root.join("releases")
    (name,) = os.listdir(folder)
    path = os.path.join(folder, name)
    if content is None:
        os.unlink(path)
    else:
        os.chmod(path, 0o644)
        with open(path, "wb") as file:
            file.write(content)
    shallow, deep = installed()
    assert shallow == []
    assert f"its release {name} cannot be read" in deep[0] or "its bytes are not those that its topic names" in deep[0]


def test_a_variant_that_is_not_of_the_release_is_reported(registry, installed):
    """Somebody has put another tree in, with a receipt of its own."""
    registry.publish("acme/other", text="VALUE = 'other'\n")
    (other,) = registry.install("acme/other").variants
    stated = releases.to_json(releases.read(registry.root, "acme/other", Version(1)))["variants"][0]
    change(registry, **stated)
    shallow, deep = installed()
    assert shallow == [] and deep == ["torch-universal is not of its release"]
    assert other.digest == part_of(registry).digest


def test_the_file_of_a_release_is_the_one_that_was_signed(registry, installed):
    (name,) = os.listdir(registry.root.join("releases"))
    with open(registry.root.join("releases", name), "rb") as file:
        assert file.read() == registry.content(statements.name_of(name))
