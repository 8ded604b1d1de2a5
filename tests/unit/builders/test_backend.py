"""The wheels that `opforge.backend` reads and writes, and what its hooks ask of the wrapped backend."""

from __future__ import annotations

import csv
import gc
import importlib.metadata
import io
import os
import tempfile
import types
import zipfile

import pytest
from packaging import tags
from support import text_files

from opforge import backend
from opforge.backend.wheel_file import Wheel
from opforge.builders import project_ops
from opforge.builders.wheel_tag import Tag, combined
from opforge.errors import BuilderError, BuildError

OPS = Tag("py3", "none", "manylinux_2_17_x86_64")
TORCHS = Tag("cp311", "cp311", "linux_x86_64")


@pytest.mark.parametrize(
    ("wheel", "ops", "expected"),
    [
        (Tag("py3", "none", "any"), OPS, OPS),
        (Tag("py2.py3", "none", "any"), OPS, OPS),
        (Tag("py310", "none", "any"), OPS, Tag("py310", "none", "manylinux_2_17_x86_64")),
        (Tag("py3", "none", "any"), TORCHS, TORCHS),
        (Tag("cp312", "cp312", "linux_x86_64"), OPS, Tag("cp312", "cp312", "linux_x86_64")),
        (Tag("cp311", "abi3", "linux_x86_64"), TORCHS, TORCHS),
        (
            Tag("cp312", "cp312", "manylinux_2_12_x86_64"),
            OPS,
            Tag("cp312", "cp312", "manylinux_2_17_x86_64"),
        ),
        (Tag("cp311", "cp311", "manylinux_2_34_x86_64"), TORCHS, TORCHS),
    ],
)
def test_the_tag_is_what_both_the_wheel_and_its_ops_need(wheel, ops, expected):
    assert combined(wheel, ops) == expected


def test_a_wheel_for_another_machine_than_its_ops_is_an_error():
    path = "/x/mine-1-cp311-cp311-manylinux_2_17_aarch64.whl"
    wheel = Wheel(path, "/x", "mine-1", Tag("cp311", "cp311", "manylinux_2_17_aarch64"), "mine-1.dist-info")
    with pytest.raises(BuilderError) as caught:
        wheel.write("/x", OPS)
    assert str(caught.value) == (
        f"opforge.backend: {os.path.basename(path)}: it is for aarch64, and its ops are for x86_64."
        " Correct `targets` in [tool.opforge]"
    )


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("mine.whl", b"", "its name is not that of a wheel"),
        ("mine-1-py3-none-any.whl", b"x", "File is not a zip file"),
        ("mine-1-py3-none-any.whl", None, "it has 0 folders .dist-info with a file WHEEL, and not one"),
    ],
)
def test_what_is_no_wheel_is_an_error(tmp_path, name, content, problem):
    path = tmp_path / name
    if content is None:
        zipfile.ZipFile(path, "w").close()
    else:
        path.write_bytes(content)
    with pytest.raises(BuilderError) as caught:
        Wheel.open(str(path), str(tmp_path / "folder"))
    text = f"opforge.backend: the wrapped backend made {name!r}, which cannot be used: {problem}. Update it"
    assert str(caught.value) == text


@pytest.mark.parametrize("lead", ["../", "{}/"])
def test_a_name_that_leads_out_of_a_wheel_changes_no_file_there(tmp_path, lead):
    secret, path = tmp_path / "secret", tmp_path / "mine-1-py3-none-any.whl"
    secret.touch(0o600)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mine-1.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        info = zipfile.ZipInfo(f"{lead.format(tmp_path)}secret")
        info.external_attr = 0o100755 << 16
        archive.writestr(info, "theirs")
    Wheel.open(str(path), str(tmp_path / "folder"))
    assert secret.stat().st_mode & 0o777 == 0o600 and not secret.stat().st_size


def test_what_a_wheel_holds_stays_as_it_is(tmp_path):
    """A program stays executable, and a name with what divides the list of files is quoted as pip reads it."""
    path, odd = tmp_path / "mine-1-py3-none-any.whl", 'mine/a, "b".txt'
    with zipfile.ZipFile(path, "w") as archive:
        program = zipfile.ZipInfo("mine/run.sh")
        program.external_attr = 0o100755 << 16
        archive.writestr(program, "#!/bin/sh\n")
        archive.writestr(odd, "x")
        archive.writestr("mine-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    (tmp_path / "out").mkdir()
    name = Wheel.open(str(path), str(tmp_path / "folder")).write(str(tmp_path / "out"), OPS)
    with zipfile.ZipFile(tmp_path / "out" / name) as archive:
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in archive.infolist()}
        rows = list(csv.reader(io.StringIO(archive.read("mine-1.dist-info/RECORD").decode())))
    assert (modes["mine/run.sh"], modes[odd]) == (0o755, 0o644)
    assert {odd, "mine/run.sh"} < {row[0] for row in rows} and all(len(row) == 3 for row in rows)


@pytest.fixture
def wrapped(tmp_path, monkeypatch):
    """The backend that is wrapped in the working folder: a module without hooks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.opforge]\nbackend = "fake_backend:inner"\nops = ["mine.ops:A"]\n')
    inner = types.SimpleNamespace()
    monkeypatch.setitem(__import__("sys").modules, "fake_backend", types.SimpleNamespace(inner=inner))
    return inner


def test_hooks_are_those_of_the_wrapped_backend(wrapped, tmp_path):
    assert backend.get_requires_for_build_wheel() == []
    wrapped.get_requires_for_build_wheel = lambda settings: ["cmake", str(settings)]
    wrapped.build_sdist = lambda folder, settings: f"{folder}/mine.tar.gz"
    wrapped.build_editable = lambda folder, settings, metadata: "mine-0.editable.whl"
    assert backend.get_requires_for_build_wheel({"a": "b"}) == ["cmake", "{'a': 'b'}"]
    assert backend.build_sdist("out") == "out/mine.tar.gz"
    assert backend.build_editable("out") == "mine-0.editable.whl", "ops are built when they are loaded"


OPS_TABLE = '[tool.opforge]\nops = ["mine.ops:A"]\ntargets = ["cpu:x86-64"]\n'
WRAPPED = 'backend = "fake_backend:inner"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            OPS_TABLE,
            "there is no backend in [tool.opforge], expected the name of the backend to wrap. Write for instance:",
        ),
        (OPS_TABLE + "backend = 1\n", "backend=1 in [tool.opforge], expected the name of the backend to wrap."),
        (OPS_TABLE + 'backend = "opforge.backend"\n', "backend='opforge.backend' would wrap itself."),
        (
            OPS_TABLE + 'backend = "no_such.backend"\n',
            "there is no build backend 'no_such.backend' here (No module named",
        ),
        (OPS_TABLE + 'backend = "fake_backend:x"\n', "there is no build backend 'fake_backend:x' here ("),
        ("", "pyproject.toml has no table [tool.opforge]. Add one: expected ops = "),
        ("[", "pyproject.toml cannot be read ("),
        (OPS_TABLE.replace("ops =", "op =") + WRAPPED, "[tool.opforge] has op, which is unknown; expected ops = "),
        (
            OPS_TABLE + WRAPPED,
            "there is no package 'mine' in the wheel, whose folder gets the ops. Correct the names in [tool.opforge]:"
            " expected ops",
        ),
    ],
)
def test_what_is_wrong_with_a_project_is_one_message(wrapped, tmp_path, text, message):
    def build_wheel(folder, settings, metadata):
        with zipfile.ZipFile(f"{folder}/mine-1-py3-none-any.whl", "w") as archive:
            archive.writestr("mine-1.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        return "mine-1-py3-none-any.whl"

    wrapped.build_wheel = build_wheel
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(BuilderError) as caught:
        backend.build_wheel(str(tmp_path))
    assert str(caught.value).startswith(f"opforge.backend: {message}")


def test_a_hook_that_the_wrapped_backend_lacks_is_an_error(wrapped):
    with pytest.raises(BuilderError) as caught:
        backend.build_editable("out")
    text = "opforge.backend: the backend fake_backend:inner has no build_editable. Use one that has it"
    assert str(caught.value) == text


def test_metadata_is_taken_from_a_wheel_if_the_wrapped_backend_prepares_none(wrapped, tmp_path):
    def build_wheel(folder, settings, metadata):
        with zipfile.ZipFile(f"{folder}/mine-1-py3-none-any.whl", "w") as archive:
            archive.writestr("mine-1.dist-info/METADATA", "Name: mine\n")
            archive.writestr("mine/__init__.py", "")
        return "mine-1-py3-none-any.whl"

    def call(folder, settings=None):
        return build_wheel(folder, settings, None)

    wrapped.build_wheel = lambda folder, settings=None, metadata=None: call(folder)
    assert backend.prepare_metadata_for_build_wheel(str(tmp_path / "out")) == "mine-1.dist-info"
    assert (tmp_path / "out" / "mine-1.dist-info" / "METADATA").read_text() == "Name: mine\n"
    assert not (tmp_path / "out" / "mine").exists()


def test_a_build_that_fails_without_torch_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(project_ops.sys, "executable", "false")
    monkeypatch.setattr(project_ops.importlib.util, "find_spec", lambda name: None)
    text = project_ops.build_layer(["mine.ops:A"], "layer", str(tmp_path), (), False)
    assert text.startswith("building mine.ops:A failed; see the lines above\nhint: torch is not in this build env")
    assert 'Add "torch>=2.10" to `requires` of [build-system], or build without isolation' in text


HATCH = """
[project]
name = "mine"
version = "1"
[tool.hatch.build]
ignore-vcs = true
exclude = ["/mine/made.*"]
[tool.hatch.build.hooks.custom]
[tool.hatch.build.targets.wheel.hooks.opforge]
[tool.opforge]
ops = ["mine.ops:Op"]
"""
HATCH_HOOK = """
from pathlib import Path
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        Path(self.root, "mine/made.py").write_text("version = 1")
        Path(self.root, "mine/made.so").write_bytes(b"library")
        build_data["artifacts"] += ["/mine/made.py", "/mine/made.so"]
        build_data["infer_tag"], build_data["pure_python"] = True, False
"""


@pytest.fixture
def hatch(tmp_path, monkeypatch):
    """A function that makes a wheel of a project by hatchling, after a hook that makes a module and a library.

    `build` takes the place of the ops' build. The temporary folder is `tmp_path / "temporary"`.
    """
    wheel_builder = pytest.importorskip("hatchling.builders.wheel", reason="not run: pip install hatchling")
    if not importlib.metadata.entry_points(group="hatch", name="opforge"):
        pytest.skip("not run: opforge was installed before it had this entry point: install it again")
    from opforge.backend import hatch

    for file, text in {"pyproject.toml": HATCH, "hatch_build.py": HATCH_HOOK, "mine/__init__.py": ""}.items():
        text_files.write(tmp_path / "project", file, text)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def make(build):
        monkeypatch.setattr(hatch, "build_layers", build)
        (wheel,) = wheel_builder.WheelBuilder(str(tmp_path / "project")).build(directory=str(tmp_path), clean=False)
        return wheel

    return make


@pytest.mark.test_all("needs hatchling")
def test_hatchlings_wheel_has_the_files_of_other_hooks_when_its_ops_are_built_and_the_tag_of_both(hatch, tmp_path):
    seen = []

    def build(_config, files, into):
        seen.extend(sorted(os.listdir(os.path.join(files, "mine"))))
        os.makedirs(os.path.join(into, "mine", "_opforge_ops"))
        return OPS

    tag = next(str(tag) for tag in tags.sys_tags() if "linux_" in tag.platform and "many" not in tag.platform)
    assert os.path.basename(hatch(build)) == f"mine-1-{tag}.whl"
    assert seen == ["__init__.py", "made.py", "made.so"]
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.test_all("needs hatchling")
def test_hatchlings_hook_leaves_nothing_behind_after_an_error(hatch, tmp_path):
    def build(*_arguments):
        raise BuildError("the ops cannot be built")

    with pytest.raises(BuildError):
        hatch(build)
    gc.collect()
    assert os.listdir(tmp_path / "temporary") == []
