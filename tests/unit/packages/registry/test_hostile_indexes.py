"""What an index may hold and what may be written into it: nobody signs it, and it is read by everybody."""

from __future__ import annotations

import json
import os

import pytest
from support.remote.withdrawing import withdraw_release

from opforge.errors import KernelFormatError, KernelNotFoundError, PublishError
from opforge.packages.registry import publish
from opforge.remote import blobs, topics
from opforge.remote.signatures import keys

INDEX = "v1/topics/package/acme/plain.json"


def with_fields(registry, **releases):
    """Puts entries into the index, as whoever can write there may do."""
    value = json.loads(registry.content(INDEX))
    value["statements"] |= releases
    registry.replace(INDEX, json.dumps(value).encode())


def test_a_version_in_two_spellings_is_refused(registry):
    done = registry.publish(number="2")
    with_fields(registry, **{"2.0": {"digest": done.digest}})
    with pytest.raises(KernelFormatError, match=r"version 2\.0 is in it twice"):
        registry.publish(number="3")
    with pytest.raises(KernelNotFoundError, match=r"its index of acme/plain is not used: .* 2\.0 is in it twice"):
        registry.install(numbers=">=3")
    assert str(registry.install().version) == "2"


@pytest.mark.parametrize("reason", ["x" * 501, "two\nlines", "half \udcff", "bad\x1b[2J"])
def test_a_reason_that_nobody_could_read_is_refused(registry, reason):
    registry.publish()
    before = registry.content("v1/withdrawals/ci.json")
    with pytest.raises(ValueError, match="expected one line of at most 500 characters"):
        withdraw_release(registry.store, "acme/plain@1", reason)
    assert registry.content("v1/withdrawals/ci.json") == before


def test_an_index_that_nobody_could_read_is_not_written(registry, monkeypatch):
    registry.publish()
    before = registry.content(INDEX)
    monkeypatch.setattr(topics, "MAX_LISTING_BYTES", len(before) + 10)
    with pytest.raises(PublishError, match=r"it would have .* bytes, more than"):
        registry.publish(number="2", text="VALUE = 2\n")
    assert registry.content(INDEX) == before


def test_publishing_what_another_has_just_published_is_nothing(registry, monkeypatch):
    """The same files with another outcome of the checks, on another machine."""
    folder = registry.packed()
    first = publish.publish(registry.store, folder, keys.signer("ci"))
    content = registry.content(INDEX)
    os.unlink(os.path.join(registry.path, INDEX))
    os.unlink(os.path.join(folder, "build", "checks.json"))
    put = registry.store.put_if_absent

    def slower(name, data):
        is_new = put(name, data)
        if name.startswith("v1/statements/"):
            registry.replace(INDEX, content)
        return is_new

    monkeypatch.setattr(registry.store, "put_if_absent", slower)
    again = publish.publish(registry.store, folder, keys.signer("ci"))
    assert (again.digest, again.is_new) == (first.digest, False)


def test_a_release_that_the_store_has_lost_is_put_back_and_no_other_in_its_place(registry):
    done = registry.publish()
    name = f"v1/statements/sha256/{done.digest[:2]}/{done.digest}"
    content = registry.content(name)
    os.unlink(os.path.join(registry.path, name))
    with pytest.raises(PublishError, match="the list of its key names this version, and its release is missing"):
        registry.publish(text="VALUE = 2\n")
    again = registry.publish()
    assert (again.digest, again.is_new, registry.content(name)) == (done.digest, False, content)


def test_files_that_change_while_they_are_published_are_refused(registry, monkeypatch):
    """Another process packs again at the same time."""
    folder = registry.packed()
    pack = blobs.pack

    def changed(path, *arguments):
        with open(os.path.join(path, "__init__.py"), "a") as file:
            file.write("OTHER = 1\n")
        return pack(path, *arguments)

    monkeypatch.setattr(blobs, "pack", changed)
    with pytest.raises(PublishError, match=r"__init__\.py changed while it was published"):
        publish.publish(registry.store, folder, keys.signer("ci"))
    assert not [name for name in registry.files() if "/statements/" in name or "/topics/" in name]


def test_variants_of_two_commits_are_no_release(registry):
    """One was packed earlier, for a target that is not packed any more."""
    folder = registry.packed()
    build = os.path.join(folder, "build")
    for label, commit in (("torch-cpu", "a" * 40), ("torch-cuda", "b" * 40)):
        os.mkdir(os.path.join(build, label))
        with open(os.path.join(build, "torch-universal", "metadata.json")) as file:
            stated = json.load(file)
        backend = label.removeprefix("torch-")
        stated["backend"]["type"] = stated["x-opforge"]["properties"]["backend"] = backend
        stated["provenance"] = {"kernel": {"commit": commit, "dirty": False}}
        with open(os.path.join(build, label, "metadata.json"), "w") as file:
            json.dump(stated, file)
        for name in ("__init__.py", "_ops.py"):
            os.link(os.path.join(build, "torch-universal", name), os.path.join(build, label, name))
    os.rename(os.path.join(build, "torch-universal"), os.path.join(folder, "elsewhere"))
    with pytest.raises(PublishError, match="its variants are of several commits: aaaaaaaaaaaa, bbbbbbbbbbbb"):
        publish.publish(registry.store, folder, keys.signer("ci"))


def hub_folder(registry, digest):
    """Returns a package as another builder writes it: with SHA-512, or in older ones without digests."""
    from opforge.packages.form import digests

    folder = registry.packed()
    variant = os.path.join(folder, "build", "torch-universal")
    with open(os.path.join(variant, "metadata.json")) as file:
        stated = json.load(file)
    del stated["digest"]
    if digest:
        stated["digest"] = {"algorithm": digest, "files": digests.of_folder(variant, digest)}
    with open(os.path.join(variant, "metadata.json"), "w") as file:
        json.dump(stated, file)
    return folder


@pytest.mark.parametrize("digest", ["sha512", ""])
def test_a_package_of_another_builder_is_published_and_installed(registry, digest):
    publish.publish(registry.store, hub_folder(registry, digest), keys.signer("ci"))
    (part,) = registry.install().variants
    assert sorted(part.files) == ["__init__.py", "_ops.py"]


def test_with_another_algorithm_every_file_is_compared_too(registry):
    folder = hub_folder(registry, "sha512")
    with open(os.path.join(folder, "build", "torch-universal", "__init__.py"), "a") as file:
        file.write("OTHER = 1\n")
    with pytest.raises(PublishError, match=r"File hash mismatch for __init__\.py"):
        publish.publish(registry.store, folder, keys.signer("ci"))
