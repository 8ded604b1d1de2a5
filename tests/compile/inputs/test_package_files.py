"""Headers outside the project: only those in a package's list are trusted while the list is unchanged."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
from support import sample_ops, text_files
from support.fake_disk import LaterDisk

from opforge.builders.declaration import machine
from opforge.cache.current_store import current_store
from opforge.cache.filesystem import packages

SOURCE = f"#include <value.h>\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A folder in the place of /usr, with a database of packages that lists some of its files."""
    monkeypatch.setattr(packages, "DPKG", str(tmp_path / "dpkg"))
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path / "usr" / "include"))
    (tmp_path / "dpkg" / "info").mkdir(parents=True)
    (tmp_path / "usr" / "include").mkdir(parents=True)
    text_files.write(tmp_path, "plain.cpp", SOURCE)
    lists(tmp_path)
    return tmp_path


def lists(folder, *names):
    """Installs a package with these files. As dpkg's, its list has the folders above them too."""
    paths = [folder / name for name in names]
    listed = dict.fromkeys([*(parent for path in paths for parent in path.parents), *paths])
    text_files.write(folder, "dpkg/info/x.list", "".join(f"{path}\n" for path in listed))
    text_files.write(folder, "dpkg/status", " ".join(names))


def load(folder, **attributes):
    """Builds the op in a folder; returns its value and the entry's origin. Files just written count as unchanged."""
    store = current_store()
    store.disk = LaterDisk()
    entry = sample_ops.builder_class(folder, "plain", abi="c", **attributes)().build(store=store)
    return ctypes.CDLL(entry.library).value(), entry.origin


def test_a_copied_header_beside_a_packages_is_compared(system):
    """`make install --prefix=/usr`, or COPY in a Dockerfile."""
    text_files.write(system, "usr/include/value.h", "#define VALUE 1\n")
    lists(system, "usr/include/other.h")
    assert load(system) == (1, "built")
    assert load(system) == (1, "cache")
    text_files.write(system, "usr/include/value.h", "#define VALUE 2\n")
    assert load(system) == (2, "built")


def test_a_packages_header_is_compared_when_the_database_changes(system):
    text_files.write(system, "usr/include/value.h", "#define VALUE 1\n")
    lists(system, "usr/include/value.h")
    assert load(system) == (1, "built")
    text_files.write(system, "usr/include/value.h", "#define VALUE 2\n")
    assert load(system) == (2, "built"), "nothing was remembered of a header that was just written"
    lists(system, "usr/include/value.h", "usr/include/other.h")
    assert load(system) == (2, "cache")


def test_a_packages_header_that_is_edited_in_place_is_compared_on_request(system, monkeypatch):
    text_files.write(system, "usr/include/value.h", "#define VALUE 1\n")
    lists(system, "usr/include/value.h")
    store = current_store()
    store.disk = LaterDisk()
    builder = sample_ops.builder_class(system, "plain", abi="c")  # what is remembered is a builder's
    assert builder().build(store=store).origin == "built"
    assert builder().build(store=store).origin == "cache"
    text_files.write(system, "usr/include/value.h", "#define VALUE 2\n")
    assert builder().build(store=store).origin == "cache", "docs/cache.md says so"
    monkeypatch.setenv("OPFORGE_PARANOID", "1")
    assert builder().build(store=store).origin == "built"


def test_a_header_that_no_package_has_any_more_is_compared_by_itself(system):
    text_files.write(system, "usr/include/value.h", "#define VALUE 1\n")
    lists(system, "usr/include/value.h")
    assert load(system) == (1, "built")
    lists(system)
    for _again in range(2):
        assert load(system) == (1, "cache")
        text_files.write(system, "plain.cpp", SOURCE)  # its content is compared again
    text_files.write(system, "usr/include/value.h", "#define VALUE 2\n")
    assert load(system) == (2, "built")
    text_files.write(system, "usr/include/value.h", "#define VALUE 3\n")
    assert load(system) == (3, "built")


def test_a_folder_of_headers_that_alternatives_switch_is_compared(system):
    for number in (1, 2):
        (system / f"usr/include/v{number}").mkdir()
        text_files.write(system, f"usr/include/v{number}/value.h", f"#define VALUE {number}\n")
    link = system / "usr" / "include" / "current"
    link.symlink_to("v1")
    text_files.write(system, "plain.cpp", SOURCE.replace("value.h", "current/value.h"))
    lists(system, "usr/include", "usr/include/v1", "usr/include/v1/value.h", "usr/include/v2/value.h")
    assert load(system) == (1, "built")
    assert load(system) == (1, "cache")
    link.unlink()
    link.symlink_to("v2")
    assert load(system) == (2, "built")


def test_a_header_copied_before_a_packages_shadows_it(system, monkeypatch):
    """Both folders are the compiler's own, as /usr/include/x86_64-linux-gnu and /usr/include are."""
    (system / "usr" / "include" / "first").mkdir()
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", f"{system}/usr/include/first:{system}/usr/include")
    text_files.write(system, "usr/include/value.h", "#define VALUE 1\n")
    lists(system, "usr/include", "usr/include/first", "usr/include/value.h")
    assert load(system) == (1, "built")
    assert load(system) == (1, "cache")
    text_files.write(system, "usr/include/first/value.h", "#define VALUE 2\n")
    assert load(system) == (2, "built")


@pytest.fixture
def environment(tmp_path):
    """A virtual environment without pip, for wheels."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    return site


def test_a_header_in_a_wheels_folder_that_its_list_does_not_name_is_compared(tmp_path, environment):
    folder = environment / "kernels" / "include"
    folder.mkdir(parents=True)
    (environment / "kernels-1.0.dist-info").mkdir()
    text_files.write(environment, "kernels-1.0.dist-info/RECORD", "kernels/include/listed.h,,\n")
    text_files.write(folder, "listed.h", "#define LISTED 1\n")
    text_files.write(folder, "value.h", "#include <listed.h>\n#define VALUE (10 * LISTED + 1)\n")
    text_files.write(tmp_path, "plain.cpp", SOURCE)
    attributes = {"extra_compile_args": [f"-I{folder}"]}
    assert load(tmp_path, **attributes) == (11, "built")
    text_files.write(folder, "value.h", "#include <listed.h>\n#define VALUE (10 * LISTED + 2)\n")
    assert load(tmp_path, **attributes) == (12, "built")
    text_files.write(folder, "listed.h", "#define LISTED 2\n")
    os.rename(environment / "kernels-1.0.dist-info", environment / "kernels-1.1.dist-info")
    assert load(tmp_path, **attributes) == (22, "built")


@pytest.mark.parametrize("name", ["plain.cpp", "part.cpp"])
def test_a_source_that_is_edited_inside_of_an_installed_wheel(tmp_path, environment, name):
    """Its list of files is as it was. A header there is taken to be as it was installed."""
    folder = environment / "kernels" / "ops"
    folder.mkdir(parents=True)
    (environment / "kernels-1.0.dist-info").mkdir()
    text_files.write(environment, "kernels-1.0.dist-info/RECORD", "kernels/ops/plain.cpp,,\nkernels/ops/part.cpp,,\n")
    text_files.write(
        folder, "plain.cpp", f'#include "part.cpp"\n{sample_ops.EXPORT} int value() {{ return PART + 1; }}\n'
    )
    text_files.write(folder, "part.cpp", "#define PART 10\n")
    assert load(folder) == (11, "built")
    assert load(folder) == (11, "cache")
    text = (folder / name).read_text()
    text_files.write(folder, name, text.replace("1;", "2;").replace("+ 1", "+ 2").replace("PART 10", "PART 20"))
    assert load(folder) == ((12 if name == "plain.cpp" else 21), "built")


def test_an_upgraded_wheel_with_the_same_headers_is_a_hit_by_stamps_again(tmp_path, environment):
    folder = environment / "kernels" / "include"
    folder.mkdir(parents=True)
    (environment / "kernels-1.0.dist-info").mkdir()
    text_files.write(environment, "kernels-1.0.dist-info/RECORD", "kernels/include/value.h,,\n")
    text_files.write(folder, "value.h", "#define VALUE 1\n")
    text_files.write(tmp_path, "plain.cpp", SOURCE)
    attributes = {"extra_compile_args": [f"-I{folder}"]}
    assert load(tmp_path, **attributes) == (1, "built")
    os.rename(environment / "kernels-1.0.dist-info", environment / "kernels-1.1.dist-info")
    assert load(tmp_path, **attributes) == (1, "cache")
    memories = sorted((tmp_path / "caches").rglob("lookups/*.json"), key=lambda path: path.stat().st_mtime_ns)
    newest = memories[-1].read_text()
    assert "kernels-1.1.dist-info" in newest and "kernels-1.0" not in newest


def test_a_header_that_pip_puts_beside_pythons_own_is_compared(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="pip install torch")
    include = tmp_path / "include" / "python3"
    (include / "greenlet").mkdir(parents=True)
    text_files.write(include, "patchlevel.h", "")
    text_files.write(include, "greenlet/value.h", "#define VALUE 1\n")
    monkeypatch.setattr(machine, "python_include", lambda: str(include))
    text_files.write(tmp_path, "plain.cpp", SOURCE.replace("value.h", "greenlet/value.h"))
    for number in (1, 2):
        text_files.write(include, "greenlet/value.h", f"#define VALUE {number}\n")
        store = current_store()
        store.disk = LaterDisk()
        builder = sample_ops.builder_class(tmp_path, "plain", abi="torch")()
        assert builder.build(store=store).origin == "built"
