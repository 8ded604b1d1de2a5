"""Two users on one machine: what user 65534 plants, replaces or links where the victim's layer is filled and loaded."""

from __future__ import annotations

import os
import shutil

import pytest
from support import child_processes, other_user, sample_ops
from support.owners import as_root

pytestmark = [as_root, pytest.mark.compile, pytest.mark.timeout(180)]
MODULE = """
from opforge.builders.base import OpBuilder
class Layered(OpBuilder):
    name, abi, sources = "plain", "c", ["plain.cpp"]
"""
VICTIM = """
from shared_ops import Layered
from opforge.errors import OpforgeError
try:
    op = Layered().load()
    print("LOADED", op.value(), op.origin)
except OpforgeError as error:
    print("REFUSED", type(error).__name__, error)
"""
LEVELS = ("layer", "v2", "v2/entries", "v2/entries/ENTRY", "v2/entries/ENTRY/LIBRARY")
BETWEEN = LEVELS[1:3]
"""The others have been replaced in tests/spine/test_other_users.py."""


@pytest.fixture
def shared():
    """A folder like /tmp: everybody may write to it, and only owners may rename or delete."""
    with other_user.shared_folder() as path:
        yield path


@pytest.fixture(scope="module")
def op_path(tmp_path_factory):
    """The environment in which the child processes find a module with an op."""
    folder = tmp_path_factory.mktemp("op")
    sample_ops.plain_op(folder, value=42)
    (folder / "shared_ops.py").write_text(MODULE)
    return {"PYTHONPATH": os.pathsep.join([child_processes.environment()["PYTHONPATH"], str(folder)])}


@pytest.fixture
def fill(op_path):
    """A function that fills a layer with the op, as the victim."""

    def build(folder):
        return child_processes.run_command("build-ops", "shared_ops:Layered", "--out", folder, **op_path)

    return build


@pytest.fixture
def load(op_path):
    """A function that loads the op from a layer, as the victim, and returns what that prints. It never compiles."""

    def run(folder, **env):
        own = {"OPFORGE_CACHE_LAYERS": folder, "OPFORGE_PREBUILT": "require"}
        return child_processes.run_python(VICTIM, env={**own, **op_path, **env}).strip()

    return run


@pytest.fixture(scope="module")
def filled(op_path, tmp_path_factory):
    """A layer of the victim's, to be copied."""
    folder = str(tmp_path_factory.mktemp("filled"))
    env = {**op_path, "OPFORGE_CACHE_DIR": f"{folder}/store"}
    done = child_processes.run_command("build-ops", "shared_ops:Layered", "--out", f"{folder}/layer", **env)
    assert done.returncode == 0, done.stderr
    return f"{folder}/layer"


@pytest.fixture
def layer(filled, shared):
    """A layer of the victim's in the shared folder."""
    return shutil.copytree(filled, os.path.join(shared, "layer"))


def library_of(layer):
    (entry,) = os.listdir(os.path.join(layer, "v2", "entries"))
    folder = os.path.join(layer, "v2", "entries", entry)
    (name,) = (name for name in os.listdir(folder) if name.endswith(".so"))
    return os.path.join(folder, name)


def path_at(layer, level):
    """Returns the path in the layer that a level stands for."""
    library = library_of(layer)
    names = {"ENTRY": os.path.basename(os.path.dirname(library)), "LIBRARY": os.path.basename(library)}
    return os.path.join(layer, *(names.get(part, part) for part in level.split("/") if level != "layer"))


@pytest.mark.parametrize("level", BETWEEN)
def test_what_the_other_user_has_replaced_in_a_layer_is_not_loaded(layer, load, level):
    """He has the same bytes there, and can change them at any moment: after the check and before it is opened."""
    path = path_at(layer, level)
    parent = os.path.dirname(path)
    mode = os.stat(parent).st_mode
    os.chmod(parent, 0o777)  # an unlucky moment, which has passed when the victim loads
    name = os.path.basename(path)
    other_user.run_shell(f"cp -rp {name} copy; mv {name} old; mv copy {name}", parent)
    os.chmod(parent, mode)
    assert os.stat(path).st_uid == other_user.NOBODY
    answer = load(layer)
    assert answer.startswith(("REFUSED LayerError", "REFUSED PrebuiltRequiredError")), answer
    trusting = load(layer, OPFORGE_TRUSTED_OWNERS=str(other_user.NOBODY))
    assert trusting == f"LOADED 42 {layer}", "the attack is complete: only the owner makes the difference"


@pytest.mark.parametrize("mode", [0o1777, 0o775])
@pytest.mark.parametrize("level", LEVELS)
def test_what_the_other_user_may_write_in_a_layer_is_not_loaded(layer, load, level, mode):
    path = path_at(layer, level)
    os.chmod(path, mode)
    os.chown(path, 0, other_user.NOBODY)
    writes = f"echo x >> {path}" if level.endswith("LIBRARY") else f"touch {path}/planted"
    other_user.run_shell(f"{writes}; rm -f {path}/planted", layer)
    answer = load(layer)
    assert answer.startswith(("REFUSED LayerError", "REFUSED PrebuiltRequiredError")), answer


@pytest.mark.parametrize("level", LEVELS[::2])
def test_a_remembered_look_up_does_not_make_a_layer_safe(layer, load, level):
    """The memory of a look-up says which entry, not that it may be loaded."""
    assert load(layer) == f"LOADED 42 {layer}"
    os.chmod(path_at(layer, level), 0o777)
    answer = load(layer)
    assert answer.startswith(("REFUSED LayerError", "REFUSED PrebuiltRequiredError")), answer


@pytest.mark.parametrize("planted", ["v2", "v2/entries", "v2/descriptions"])
def test_a_layer_with_planted_folders_is_not_filled(shared, fill, planted):
    out = os.path.join(shared, "out")
    os.makedirs(os.path.dirname(os.path.join(out, planted)))
    os.chmod(os.path.dirname(os.path.join(out, planted)), 0o777)
    other_user.run_shell(f"mkdir -p {planted}; chmod 0755 {planted}", out)
    os.chmod(os.path.dirname(os.path.join(out, planted)), 0o755)
    done = fill(out)
    assert done.returncode == 1 and f"belongs to user {other_user.NOBODY}" in done.stderr + done.stdout
    assert not [name for _parent, _folders, names in os.walk(out) for name in names]


def test_folders_of_the_keys_that_are_planted_before_a_layer_is_filled_are_refused(layer, shared, fill, load):
    """Keys are no secret: he knows the names before the victim makes them."""
    out = os.path.join(shared, "out")
    (description,) = os.listdir(os.path.join(layer, "v2", "descriptions"))
    entry = os.path.basename(os.path.dirname(library_of(layer)))
    for planted in (f"v2/descriptions/{description}", f"v2/entries/{entry}"):
        shutil.rmtree(out, ignore_errors=True)
        for name in ("v2/descriptions", "v2/entries"):
            os.makedirs(os.path.join(out, name))
        parent = os.path.dirname(os.path.join(out, planted))
        os.chmod(parent, 0o777)
        other_user.run_shell(f"cp -r {layer}/{planted} {planted}; chmod -R a+w {planted}", out)
        os.chmod(parent, 0o755)
        done = fill(out)
        if done.returncode:
            assert f"belongs to user {other_user.NOBODY}" in done.stderr + done.stdout
            assert load(out) == "LOADED 42 cache", "the victim's own, which was built before"
        else:  # the planted entry was set aside
            assert os.stat(os.path.join(out, planted)).st_uid == 0
            assert load(out) == f"LOADED 42 {out}"


def test_a_planted_layer_may_be_filled_but_is_not_loaded(shared, fill, load):
    """A layer is trusted by its owner: a container fills the folder of a user of the host, and root is warned here."""
    other_user.run_shell("mkdir out", shared)
    out = os.path.join(shared, "out")
    fill(out)
    answer = load(out)
    assert answer.startswith("REFUSED LayerError") and f"user {other_user.NOBODY}" in answer


def test_a_link_of_the_other_user_in_a_sticky_folder_is_refused(layer, shared, fill, load, op_path):
    other_user.run_shell(f"ln -s {layer} link", shared)
    link = os.path.join(shared, "link") + "/v2/.."
    answer = load(link)
    assert answer.startswith("REFUSED LayerError") and "the link" in answer, answer
    done = fill(link)
    assert done.returncode == 1 and "the link" in done.stderr + done.stdout
    done = child_processes.run_command("gc", OPFORGE_CACHE_DIR=link, **op_path)
    assert done.returncode == 1 and "the link" in done.stderr
    os.symlink(layer, os.path.join(shared, "own"))
    own = os.path.join(shared, "own")
    assert load(own) == f"LOADED 42 {own}", "the victim's own link is followed"


@pytest.mark.long("loads twelve times under attack; tests/spine/test_other_users.py does so three times")
def test_nothing_can_be_swapped_between_the_check_and_the_opening_of_a_library(layer, shared, load):
    library = library_of(layer)
    evil = os.path.join(shared, "evil.so")
    report = os.path.join(shared, "succeeded")
    with open(report, "w"):
        os.chmod(report, 0o666)
    shutil.copy(library, evil)
    os.chmod(evil, 0o666)
    components = [library]
    while components[-1] != layer:
        components.append(os.path.dirname(components[-1]))

    def swap():
        for path in components:
            for attack in (
                lambda path=path: os.replace(evil, path),
                lambda path=path: os.rename(path, path + ".old"),
                lambda path=path: os.symlink(evil, path),
                lambda path=path: os.unlink(path),
                lambda path=path: os.chmod(path, 0o777),
                lambda path=path: os.close(os.open(path, os.O_WRONLY)),
            ):
                try:
                    attack()
                except OSError:
                    continue
                with open(report, "a") as file:
                    file.write(f"{path}\n")

    with other_user.attacking(swap):
        for _attempt in range(12):
            assert load(layer) == f"LOADED 42 {layer}"
    with open(report) as file:
        assert file.read() == ""
