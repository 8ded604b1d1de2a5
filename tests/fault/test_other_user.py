"""Two users on one machine: what user 65534 plants or does where the victim builds and loads."""

from __future__ import annotations

import os
import stat

import pytest
from support import child_processes, other_user
from support.owners import as_root
from support.store.fake_store import ME, FakeStore

from opforge.cache import layer
from opforge.cache.keys import key_of

pytestmark = [as_root, pytest.mark.compile, pytest.mark.timeout(180)]
TEXT = 'extern "C" int answer() { return 42; }\n'
VICTIM = """
import os, opforge
from opforge.errors import OpforgeError
try:
    module = opforge.load_inline("answer", os.environ["TEXT"], abi="c", build_directory=os.environ["FOLDER"])
    print("LOADED", module.answer())
except OpforgeError as error:
    print("REFUSED", type(error).__name__, error)
"""
EVIL = 'extern "C" int answer() { return 666; }\n'


@pytest.fixture
def shared():
    """A folder like /tmp: everybody may write to it, and only owners may rename or delete."""
    with other_user.shared_folder() as path:
        yield path


def load(folder, **env):
    """Loads the op as the victim, with its store in a folder."""
    return child_processes.run_python(VICTIM, env={"FOLDER": folder, "TEXT": TEXT, **env}).strip()


def the_source(store):
    """Returns the path of the one source of load_inline in a store, relative to it."""
    (key,) = os.listdir(os.path.join(store, "v2", "sources"))
    return os.path.join("v2", "sources", key, "main.cpp")


def test_the_other_user_really_is_another_one(shared):
    assert other_user.run_shell("id -u; id -g; id -G; touch own", shared).split() == ["65534"] * 3
    assert os.stat(os.path.join(shared, "own")).st_uid == other_user.NOBODY
    with pytest.raises(AssertionError, match="the attack failed"):
        other_user.run_shell("cat /etc/shadow", shared)


def test_a_failing_attack_fails_the_test(shared):
    with pytest.raises(AssertionError, match="ZeroDivisionError"), other_user.attacking(lambda: 1 / 0):
        pytest.fail("the block ran without an attack")


@pytest.mark.parametrize("planted", ["opforge", "opforge/v2", "opforge/v2/sources/0a/x"])
def test_a_store_that_the_other_user_has_made_is_refused(shared, planted):
    other_user.run_shell(f"mkdir -p {planted}; chmod -R 0777 opforge", shared)
    answer = load(shared)
    assert answer.startswith("REFUSED CacheDirError") and f"user {other_user.NOBODY}" in answer, answer


def test_a_planted_source_of_load_inline_is_not_run(shared):
    with other_user.shared_folder(0o755) as own:
        assert load(own) == "LOADED 42"
        source = the_source(os.path.join(own, "opforge"))
    path = os.path.join("opforge", source)
    other_user.run_shell(f"mkdir -p {os.path.dirname(path)}; cat > {path} <<'END'\n{EVIL}END\n", shared)
    assert "LOADED" not in load(shared)


def test_a_link_that_the_other_user_plants_as_the_store_is_refused_and_what_it_names_is_unharmed(shared):
    with other_user.shared_folder(0o755) as project:
        thesis = os.path.join(project, "thesis.tmp")
        with open(thesis, "w") as file:
            file.write("years of work")
        os.utime(thesis, (1, 1))
        other_user.run_shell(f"ln -s {project} opforge", shared)
        answer = load(shared)
        assert answer.startswith("REFUSED CacheDirError"), answer
        assert os.listdir(project) == ["thesis.tmp"]


def test_the_other_user_can_change_nothing_in_a_store_of_the_victims(shared):
    assert load(shared) == "LOADED 42"
    store = os.path.join(shared, "opforge")
    attack = """
    for target in opforge $(find opforge 2>/dev/null); do
        ! touch "$target/evil" 2>/dev/null || echo "created in $target"
        ! mv "$target" "$target.moved" 2>/dev/null || echo "renamed $target"
        ! rm -rf "$target" 2>/dev/null || echo "removed $target"
        ! chmod 0777 "$target" 2>/dev/null || echo "opened $target"
    done
    """
    assert other_user.run_shell(attack, shared) == ""
    assert os.path.isdir(store) and load(shared) == "LOADED 42"


def test_a_user_of_the_same_group_opens_no_file_of_a_layer_while_it_is_made(tmp_path, shared):
    """Under umask 002 the group may write what is created; a descriptor that was opened then outlives any chmod."""
    fake_store = FakeStore(tmp_path / "store", tmp_path / "src")
    folder, opened = os.path.join(shared, "layer"), os.path.join(shared, "opened")
    open(opened, "w").close()
    os.chmod(opened, 0o666)

    def open_everything():
        for parent, _, names in os.walk(folder):
            for name in names:
                try:
                    os.close(os.open(os.path.join(parent, name), os.O_RDWR))
                except OSError:
                    continue
                with open(opened, "a") as file:
                    file.write(f"{parent}/{name}\n")

    old = os.umask(0o002)
    try:
        with other_user.attacking(open_everything, group=os.getegid()):
            for number in range(40):
                entry = fake_store.store.own.read(fake_store.add(f"op{number}", size=1 << 20))
                layer.add(folder, entry, key_of(["description", f"op{number}"]), ME)
    finally:
        os.umask(old)
    with open(opened) as file:
        assert file.read() == ""
    files = [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]
    assert len(files) >= 80
    assert not any(stat.S_IMODE(os.stat(path).st_mode) & 0o022 for path in files)
