"""Another user of this machine (65534), who plants, replaces and links: no library of his is loaded."""

from __future__ import annotations

import os
import shutil

import pytest
from support import child_processes, other_user
from support.owners import as_root

pytestmark = [as_root, pytest.mark.compile]
LOAD = """
from plain_ops import Plain
from opforge.errors import OpforgeError
try:
    op = Plain().load()
    print("LOADED", op.value(), op.origin)
except OpforgeError as error:
    print("REFUSED", type(error).__name__, error)
"""
REQUIRED = {"OPFORGE_PREBUILT": "require"}


@pytest.fixture
def shared():
    """A folder like /tmp: everybody may write to it, and only owners may rename or delete."""
    with other_user.shared_folder() as path:
        yield path


@pytest.fixture
def layer(declared, shared):
    """A layer of ours in the shared folder."""
    path = os.path.join(shared, "layer")
    done = child_processes.run_command("build-ops", "plain_ops:Plain", "--out", path, **declared)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def load(declared, tmp_path):
    """A function that loads the op in another process, with an empty store; returns what it prints."""

    def run(**changes):
        env = {**declared, "OPFORGE_CACHE_DIR": str(tmp_path / "empty"), **changes}
        return child_processes.run_python(LOAD, env=env).strip()

    return run


def library_of(layer):
    """Returns the path of the one library in a layer."""
    (path,) = (os.path.join(parent, name) for parent, _, names in os.walk(layer) for name in names if ".so" in name)
    return path


def replaced(path):
    """Lets the other user replace a file or folder by a copy, at a moment at which its folder is open to all."""
    parent, name = os.path.split(path)
    mode = os.stat(parent).st_mode
    os.chmod(parent, 0o777)
    other_user.run_shell(f"cp -rp {name} copy; mv {name} old; mv copy {name}", parent)
    os.chmod(parent, mode)


@pytest.mark.parametrize("part", ["library", "entry", "layer"])
def test_what_he_has_replaced_in_a_layer_is_loaded_only_if_he_is_a_trusted_owner(layer, load, part):
    library = library_of(layer)
    replaced({"library": library, "entry": os.path.dirname(library), "layer": layer}[part])
    answer = load(OPFORGE_CACHE_LAYERS=layer, **REQUIRED)
    assert answer.startswith(("REFUSED LayerError", "REFUSED PrebuiltRequiredError"))
    trusting = load(OPFORGE_CACHE_LAYERS=layer, OPFORGE_TRUSTED_OWNERS=str(other_user.NOBODY), **REQUIRED)
    assert trusting == f"LOADED 1 {layer}"


def test_what_he_may_write_in_a_layer_is_not_loaded(layer, load):
    library = library_of(layer)
    os.chmod(library, 0o666)
    assert load(OPFORGE_CACHE_LAYERS=layer, **REQUIRED).startswith("REFUSED ")


def test_a_store_that_he_has_made_is_refused_whomever_is_trusted_for_layers(shared, load):
    other_user.run_shell("mkdir -p store/v2/entries", shared)
    store = os.path.join(shared, "store")
    answer = load(OPFORGE_CACHE_DIR=store, OPFORGE_TRUSTED_OWNERS=str(other_user.NOBODY))
    assert answer.startswith("REFUSED CacheDirError") and f"user {other_user.NOBODY}" in answer
    assert os.stat(store).st_uid == other_user.NOBODY, "its owner is left as it is"


def test_he_can_change_nothing_in_a_store_below_a_sticky_folder(shared, load):
    store = os.path.join(shared, "store")
    assert load(OPFORGE_CACHE_DIR=store) == "LOADED 1 built"
    attack = """
    for target in store $(find store 2>/dev/null); do
        ! touch "$target/evil" 2>/dev/null || echo "created in $target"
        ! mv "$target" "$target.moved" 2>/dev/null || echo "renamed $target"
        ! rm -rf "$target" 2>/dev/null || echo "removed $target"
        ! chmod 0777 "$target" 2>/dev/null || echo "opened $target"
    done
    """
    assert other_user.run_shell(attack, shared) == ""
    assert load(OPFORGE_CACHE_DIR=store) == "LOADED 1 cache"


def test_a_link_of_his_on_the_way_is_refused_and_one_of_ours_is_followed(layer, shared, load):
    other_user.run_shell(f"ln -s {layer} his", shared)
    answer = load(OPFORGE_CACHE_LAYERS=os.path.join(shared, "his"), **REQUIRED)
    assert answer.startswith("REFUSED LayerError") and "the link" in answer
    os.symlink(layer, os.path.join(shared, "ours"))
    own = os.path.join(shared, "ours")
    assert load(OPFORGE_CACHE_LAYERS=own, **REQUIRED) == f"LOADED 1 {own}"


def test_nothing_can_be_exchanged_between_the_check_and_the_loading(layer, shared, load):
    library, evil, report = library_of(layer), os.path.join(shared, "evil.so"), os.path.join(shared, "succeeded")
    shutil.copy(library, evil)
    open(report, "w").close()
    for path in (evil, report):
        os.chmod(path, 0o666)

    def swap():
        for path in (library, os.path.dirname(library), layer):
            for attack in (os.unlink, lambda path: os.replace(evil, path), lambda path: os.rename(path, path + ".old")):
                try:
                    attack(path)
                except OSError:
                    continue
                with open(report, "a") as file:
                    file.write(f"{path}\n")

    with other_user.attacking(swap):
        for _attempt in range(3):
            assert load(OPFORGE_CACHE_LAYERS=layer, **REQUIRED) == f"LOADED 1 {layer}"
    with open(report) as file:
        assert file.read() == ""
