"""Signatures of the hub's packages: accepted by a rule of the trust file, offline, with an instance of our own."""

from __future__ import annotations

import json
import os
import time

import pytest
from support.kernels.projects import python_project
from support.text_files import write

import opforge
from opforge.errors import ExtraNotInstalledError, KernelIncompatibleError, KernelLockError, TrustFileError
from opforge.foundation import settings
from opforge.packages.form import digests
from opforge.packages.installed.layout import Root
from opforge.packages.load import get_kernel as loading
from opforge.packages.pack.run import Options, pack
from opforge.packages.project import hub_signatures, install_hub_locked
from opforge.packages.sources import reading
from opforge.remote.signatures import trust_file
from opforge.remote.signatures.trust_file import Workflow

RULE = Workflow(("package:acme/*",), "acme/kernels", ".github/workflows/build.yaml", "main")


@pytest.fixture(scope="module")
def instance():
    pytest.importorskip("sigstore", reason="not run: needs pip install 'opforge[sigstore]'")
    from support.remote.sigstore_instance import Instance

    return Instance()


@pytest.fixture
def variant(tmp_path, monkeypatch, instance):
    """A variant of acme/plain in the download cache of the hub's loader, of a package that rules cover."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    top = tmp_path / "hub" / "kernels--acme--plain"
    folder = python_project(top / "snapshots" / ("a" * 40), text="VALUE = 5\n")
    pack(reading.read(folder), folder, Options(tried=False))
    write(top, "refs/v1", "a" * 40)
    write(tmp_path, "root.json", instance.root())
    loading.reset()
    yield os.path.join(folder, "build", "torch-universal")
    loading.reset()


def rule(variant, **fields):
    root = os.path.join(variant, *[os.pardir] * 6, "root.json")
    trust_file.write(
        trust_file.Trust(settings.trust_file(), workflows=(RULE._replace(root=os.path.abspath(root), **fields),))
    )


def signed(instance, variant, **fields):
    with open(os.path.join(variant, "metadata.json"), "rb") as file:
        write(variant, "metadata.json.sigstore", instance.bundle(file.read(), **fields))


def loaded():
    loading.reset()
    return opforge.get_kernel("acme/plain", 1, hub=True).VALUE


def test_a_signature_by_the_workflow_of_a_rule_is_accepted(instance, variant):
    rule(variant)
    signed(instance, variant)
    assert loaded() == 5


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"workflow": ".github/workflows/other.yaml"}, "Certificate's OIDCBuildSignerURI does not match"),
        ({"branch": "next"}, "Certificate's OIDCBuildSignerURI does not match"),
        ({"repository": "evil/kernels"}, "Certificate's OIDCSourceRepositoryURI does not match"),
        ({"late": 60}, "certificate"),
    ],
    ids=["workflow", "branch", "repository", "clock"],
)
def test_a_signature_by_another_or_at_another_time_is_not(instance, variant, fields, reason):
    rule(variant)
    signed(instance, variant, **fields)
    with pytest.raises(KernelIncompatibleError, match=rf"not accepted for {RULE} \((.|\n)*{reason}") as caught:
        loaded()
    assert "To trust these very files, add " in str(caught.value)


def test_the_time_of_this_machine_does_not_matter(instance, variant, monkeypatch):
    rule(variant)
    signed(instance, variant)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert hub_signatures.problem("acme/plain", variant) == ""


def test_a_signature_of_other_bytes_or_by_another_instance_is_not_accepted(instance, variant, tmp_path):
    from support.remote.sigstore_instance import Instance

    rule(variant)
    write(variant, "metadata.json.sigstore", instance.bundle(b"other"))
    with pytest.raises(KernelIncompatibleError, match=r"not accepted for .*Bundle message digest mismatch"):
        loaded()
    write(tmp_path, "root.json", Instance().root())
    signed(instance, variant)
    with pytest.raises(KernelIncompatibleError, match=r"not accepted for acme/kernels"):
        loaded()


@pytest.mark.parametrize("text", ["", "{}", "[]", "\0"])
def test_what_is_no_bundle_is_not_accepted(variant, text):
    rule(variant)
    write(variant, "metadata.json.sigstore", text)
    with pytest.raises(KernelIncompatibleError, match="its signature cannot be read"):
        loaded()


def test_an_unsigned_package_says_how_to_trust_these_files_alone(variant):
    rule(variant)
    with pytest.raises(KernelIncompatibleError, match=r"it is not signed: it has no metadata\.json\.sigstore") as error:
        loaded()
    with open(os.path.join(variant, "metadata.json"), "rb") as file:
        digest = digests.tree_digest(digests.of_folder(variant), file.read())
    assert f"To trust these very files, add {digest} to 'files' of a rule of 'sigstore' in " in str(error.value)
    rule(variant, files=(digest,))
    assert loaded() == 5
    with open(os.path.join(variant, "metadata.json"), "a") as file:
        file.write("\n")
    with pytest.raises(KernelIncompatibleError, match="it is not signed"):
        loaded()


def test_what_is_installed_from_a_lock_file_of_the_hub_is_checked_too(variant, tmp_path):
    rule(variant)
    locked = {"dependency": {"repo-id": "acme/plain", "version": 1}, "lock": {"commit": "a" * 40}}
    write(tmp_path / "project", "kernels.lock", json.dumps([locked]))
    with pytest.raises(KernelLockError, match=r"it is not signed: it has no metadata\.json\.sigstore"):
        root = Root(str(tmp_path / "installed"), "folder")
        install_hub_locked.install_hub_locked(root, str(tmp_path / "project"), False)


def test_a_package_that_no_rule_covers_needs_no_signature(variant):
    rule(variant, scopes=("package:other/*",))
    assert loaded() == 5


def test_digests_that_are_missing_cannot_be_signed(variant):
    rule(variant)
    path = os.path.join(variant, "metadata.json")
    with open(path) as file:
        text = json.load(file)
    write(variant, "metadata.json", json.dumps({**text, "digest": None}))
    with pytest.raises(KernelIncompatibleError, match="it states no digests, so a signature would cover no file"):
        loaded()


def test_without_sigstore_the_extra_is_named(instance, variant, monkeypatch):
    rule(variant)
    signed(instance, variant)

    def fail(name):
        raise ImportError(name)

    monkeypatch.setattr(hub_signatures.importlib, "import_module", fail)
    with pytest.raises(ExtraNotInstalledError, match=r"Install it with: pip install 'opforge\[sigstore\]'"):
        hub_signatures.problem("acme/plain", variant)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"repository": "a/b"}, "a rule of sigstore has 'repository', 'workflow' and 'branch', or 'files'"),
        ({}, "a rule of sigstore has 'repository', 'workflow' and 'branch', or 'files'"),
        ({"files": ["x"]}, r"'sigstore\[0\].files\[0\]' is 'x': expected 64 hex digits"),
        ({"repository": "a b"}, r"'sigstore\[0\].repository' is 'a b': expected a repository such as org/name"),
        ({"brunch": "main"}, "brunch"),
    ],
)
def test_a_rule_that_cannot_be_used_is_an_error_with_its_line(fields, problem):
    value = {"format": 1, "sigstore": [{"for": ["package:a/*"], **fields}], "keys": []}
    with pytest.raises(TrustFileError, match=rf"line 1: (.|\n)*{problem}"):
        trust_file.parse("trust.json", json.dumps(value).encode())
