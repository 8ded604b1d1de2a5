"""Archives of built ops: carried to another machine, and those of an author who means harm."""

from __future__ import annotations

import os
import tarfile

import pytest
from support import child_processes, sample_ops
from support.store.fake_archives import members, new_member, rewrite

pytestmark = pytest.mark.compile
LOAD = "from plain_ops import Plain; op = Plain().load(); print(op.value(), op.origin)"


@pytest.fixture
def archive(folder, declared, tmp_path):
    """An archive of the op, whose library makes a file `ran` when it is loaded."""
    source = "#include <fstream>\n" + sample_ops.PLAIN_SOURCE
    source += f'static int ran = (std::ofstream("{tmp_path}/ran") << "ran", 1);\n'
    (folder / "plain.cpp").write_text(source)
    assert child_processes.run_python(LOAD, env=declared) == "1 built\n"
    path = str(tmp_path / "ops.tar")
    done = child_processes.run_command("cache", "export", path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "ran").unlink()
    return path


@pytest.fixture
def other(tmp_path):
    """The variables of a machine with an empty store and no compiler."""
    return {"OPFORGE_CACHE_DIR": str(tmp_path / "other"), "PATH": str(tmp_path)}


def files_below(folder):
    """Returns the paths of all files and links below a folder, apart from those of a process's memory."""
    return sorted(os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)


def test_an_import_executes_nothing_and_the_next_load_needs_no_compiler(archive, declared, other, tmp_path):
    done = child_processes.run_command("cache", "import", archive, **other)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()
    assert child_processes.run_python(LOAD, env={**declared, **other}) == "1 cache\n"
    assert (tmp_path / "ran").exists()


def test_nothing_of_it_is_written_outside_the_store(archive, other, tmp_path):
    parts = members(archive)
    (library,) = (number for number, (member, _content) in enumerate(parts) if member.name.endswith(".so"))
    before = None
    for name, kind, link in (
        ("../../escaped.so", tarfile.REGTYPE, ""),
        (f"{tmp_path}/escaped.so", tarfile.REGTYPE, ""),
        (f"{os.path.dirname(parts[library][0].name)}/evil.so", tarfile.SYMTYPE, f"{tmp_path}/target"),
        (f"{os.path.dirname(parts[library][0].name)}/evil.so", tarfile.FIFOTYPE, ""),
    ):
        path = str(tmp_path / "evil.tar")
        rewrite(path, [*parts[:library], (new_member(name, kind, link), b"evil"), *parts[library:]])
        before = before or [name for name in files_below(tmp_path) if not name.startswith(other["OPFORGE_CACHE_DIR"])]
        done = child_processes.run_command("cache", "import", path, **other)
        assert done.returncode == 1 and done.stderr.startswith("error: "), done.stderr
        outside = [name for name in files_below(tmp_path) if not name.startswith(other["OPFORGE_CACHE_DIR"])]
        assert outside == before
        assert not [name for name in files_below(other["OPFORGE_CACHE_DIR"]) if name.endswith(".so")]


@pytest.mark.parametrize("ending", [".so", "record.json"])
def test_a_library_and_a_record_that_do_not_belong_together_are_not_published(archive, other, tmp_path, ending):
    parts = []
    for member, content in members(archive):
        if member.name.endswith(ending):
            content = content.replace(b"plain", b"plane", 1) if ending != ".so" else content[:-1] + b"x"
        parts.append((member, content))
    path = str(tmp_path / "damaged.tar")
    rewrite(path, parts)
    done = child_processes.run_command("cache", "import", path, **other)
    assert done.returncode == 1 and "error: " in done.stderr
    assert not [name for name in files_below(other["OPFORGE_CACHE_DIR"]) if name.endswith(".so")]


def test_an_archive_that_is_cut_is_an_error(archive, other):
    os.truncate(archive, os.path.getsize(archive) // 2)
    done = child_processes.run_command("cache", "import", archive, **other)
    assert done.returncode == 1 and "error: " in done.stderr
