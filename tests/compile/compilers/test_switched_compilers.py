"""A compiler behind a link, each load as that of a new process: after a switch the library is the new compiler's."""

from __future__ import annotations

import os
import shutil

import pytest
from support import sample_ops, text_files

from opforge.errors import UnstableInputError

WHICH = sample_ops.EXPORT + " int value() {\n#ifdef __clang__\n  return 2;\n#else\n  return 1;\n#endif\n}\n"
CLANG = shutil.which("clang++")
needs_clang = pytest.mark.skipif(CLANG is None, reason="needs clang++ (apt install clang)")


def switch(link, target):
    """Points a link at another file, as update-alternatives and `ln -sfn` do."""
    os.symlink(target, f"{link}.new")
    os.replace(f"{link}.new", link)


@pytest.fixture
def load(folder, load_anew):
    """Loads the op as a new process does; returns what the compiler made of it and where it came from."""
    text_files.write(folder, "plain.cpp", WHICH)
    return load_anew


def one_link(tmp_path):
    (tmp_path / "bin").mkdir()
    return str(tmp_path / "bin" / "g++"), str(tmp_path / "bin" / "g++"), "{}"


def alternatives(tmp_path):
    """Switches not the link on PATH, but the one that it leads to."""
    link, _switched, _target = one_link(tmp_path)
    (tmp_path / "alternatives").mkdir()
    os.symlink(tmp_path / "alternatives" / "g++", link)
    return link, str(tmp_path / "alternatives" / "g++"), "{}"


def profile(tmp_path):
    """Switches a folder on the way, as with Nix profiles and /usr/local/cuda."""
    for name in ("g++", "clang++"):
        (tmp_path / name / "bin").mkdir(parents=True)
        os.symlink(shutil.which(name), tmp_path / name / "bin" / "g++")
    return str(tmp_path / "current" / "bin" / "g++"), str(tmp_path / "current"), str(tmp_path / "{}")


@needs_clang
@pytest.mark.parametrize(
    ("arrange", "found_by"),
    [
        (alternatives, "PATH"),
        (profile, "CXX"),
        pytest.param(one_link, "CXX", marks=pytest.mark.long("the next tests switch such a link")),
        pytest.param(profile, "PATH", marks=pytest.mark.long("each half is in another case")),
    ],
)
def test_a_switched_link_is_another_compiler(tmp_path, load, monkeypatch, arrange, found_by):
    program, link, target = arrange(tmp_path)
    of = {name: target.format(name if arrange is profile else shutil.which(name)) for name in ("g++", "clang++")}
    env = {"CXX": program} if found_by == "CXX" else {"PATH": f"{os.path.dirname(program)}:{os.environ['PATH']}"}
    switch(link, of["g++"])
    assert load(**env) == "1 built"
    assert load(**env) == load(**env) == "1 cache"
    switch(link, of["clang++"])
    assert load(**env) == "2 built"
    assert load(**env) == load(**env) == "2 cache"
    assert load(CXX=CLANG) == "2 cache", "a library is filed under the compiler that made it"
    switch(link, of["g++"])
    assert load(**env) == "1 cache"


@needs_clang
@pytest.mark.parametrize(
    "mode",
    ["OPFORGE_PARANOID", pytest.param("FORCE", marks=pytest.mark.long("builds three times what the others build"))],
)
def test_a_switched_link_is_seen_in_every_mode(tmp_path, load, mode):
    link, _switched, _target = one_link(tmp_path)
    for number, name in ((1, "g++"), (2, "clang++"), (1, "g++")):
        switch(link, shutil.which(name))
        assert load(**{"CXX": link, mode: "1"}).startswith(str(number))


@needs_clang
def test_a_link_that_is_switched_while_a_process_lives_is_seen_by_its_next_build(tmp_path, folder, load, monkeypatch):
    link, _switched, _target = one_link(tmp_path)
    monkeypatch.setenv("CXX", link)
    cls = sample_ops.builder_class(folder, "plain", abi="c")
    switch(link, shutil.which("g++"))
    first = cls().build()
    switch(link, CLANG)
    second = cls().build()
    assert second.origin == "built" and second.key != first.key


@needs_clang
def test_what_another_compiler_built_than_that_of_the_plan_is_not_stored(tmp_path, load, own_store):
    link, _switched, _target = one_link(tmp_path)
    body = f'case "$*" in *plain.cpp*) ln -sfn {CLANG} {link};; esac\nexec {shutil.which("g++")} "$@"'
    switch(link, text_files.write_script(tmp_path, "g++", body))
    with pytest.raises(UnstableInputError, match=r"the compiler was replaced during the build\. Load the op again"):
        load(CXX=link)
    assert not any(name.endswith((".so", ".o")) for _at, _folders, files in os.walk(own_store) for name in files)
    assert load(CXX=link) == "2 built"


def test_compilers_that_share_one_driver_are_told_apart(tmp_path, load):
    """Tools that save space link equal files: then the driver is one file, and only what it starts differs."""
    real, versions = os.path.realpath(shutil.which("g++")), {}
    for number in (1, 2):
        home = tmp_path / f"gcc{number}" / "bin"
        home.mkdir(parents=True)
        flag = f'home=$(dirname "$(realpath "$0")"); exec {real} $(cat "$home/flags") "$@"'
        if number == 1:
            text_files.write_script(home, "g++", flag)
        else:
            os.link(tmp_path / "gcc1" / "bin" / "g++", home / "g++")
        text_files.write(home, "flags", f"-DNUMBER={number}")
        versions[number] = str(home.parent)
    text_files.write(tmp_path / "op", "plain.cpp", sample_ops.EXPORT + " int value() { return NUMBER; }\n")
    link = str(tmp_path / "current")
    for number in (1, 2):
        switch(link, versions[number])
        assert load(CXX=f"{link}/bin/g++") == f"{number} built"
        assert load(CXX=f"{link}/bin/g++") == load(CXX=f"{link}/bin/g++") == f"{number} cache"


@pytest.mark.parametrize("name", ["ld", pytest.param("as", marks=pytest.mark.long("is probed as ld is"))])
def test_a_program_that_the_compiler_starts_may_be_a_switched_link_too(tmp_path, load, name):
    link = str(tmp_path / "bin" / name)
    (tmp_path / "bin").mkdir()
    real, env = shutil.which(name), {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    other = text_files.write_script(tmp_path, f"other-{name}", f'touch {tmp_path}/ran; exec {real} "$@"')
    switch(link, real)
    assert load(**env) == "1 built"
    assert load(**env) == load(**env) == "1 cache"
    switch(link, other)
    assert load(**env) == "1 built"
    assert load(**env) == "1 cache"
    switch(link, real)
    assert load(**env) == "1 cache"


NEXT_ON_PATH = """\
name=$(basename "$0") here=$(dirname "$0") IFS=:
for folder in $PATH; do
  [ "$folder" != "$here" ] && [ -x "$folder/$name" ] && exec "$folder/$name" "$@"
done"""


@needs_clang
@pytest.mark.parametrize(("name", "script"), [("g++", NEXT_ON_PATH), ("mpicxx", 'exec g++ "$@"')])
def test_a_switched_compiler_that_a_wrapper_finds_on_path_is_another_compiler(tmp_path, load, name, script):
    """As ccache does whose links come first on PATH, and Open MPI's wrapper."""
    _program, link, target = alternatives(tmp_path)
    (tmp_path / "wrappers").mkdir()
    wrapper = text_files.write_script(tmp_path / "wrappers", "wrapper", script)
    os.symlink(wrapper, tmp_path / "wrappers" / name)
    env = {"CXX": name, "PATH": f"{tmp_path}/wrappers:{tmp_path}/bin:{os.environ['PATH']}"}
    switch(link, target.format(shutil.which("g++")))
    assert load(**env) == "1 built"
    assert load(**env) == "1 cache"
    switch(link, target.format(CLANG))
    assert load(**env) == "2 built"
    switch(link, target.format(shutil.which("g++")))
    assert load(**env) == "1 cache"


@needs_clang
def test_a_compiler_behind_a_wrapper_that_is_replaced_in_place_is_another_compiler(tmp_path, load):
    one_link(tmp_path)
    wrapper = text_files.write_script(tmp_path, "mpicxx", 'exec g++ "$@"')
    env = {"CXX": wrapper, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    for number, compiler in ((1, shutil.which("g++")), (2, CLANG)):
        text_files.write_script(tmp_path / "bin", "g++", f'exec {compiler} "$@"')
        assert load(**env) == f"{number} built"
        assert load(**env) == f"{number} cache"
