"""What `opforge new` writes, and what it refuses. tests/compile/new builds, tests and installs the projects."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from packaging.specifiers import SpecifierSet
from support import text_files
from support.paths import CHECKOUT

from opforge.cli import group
from opforge.errors import ProjectError
from opforge.new.project import (
    BUILD_SYSTEMS,
    KINDS,
    MANIFEST,
    SETUPTOOLS,
    TEMPLATES,
    check_name,
    compatible_versions,
    create,
)
from opforge.packages.form import toml_file
from opforge.packages.sources import reading

C_SOURCES = (".cpp", ".cu", ".h", ".sycl")


@pytest.fixture(params=KINDS)
def project(request, tmp_path):
    """(kind, folder) of a new project of each kind."""
    folder = tmp_path / f"my-{request.param}"
    create(str(folder), request.param)
    return request.param, folder


@pytest.fixture(params=[name for name in BUILD_SYSTEMS if name != SETUPTOOLS])
def build_system(request):
    """The name of each build system that is not the default."""
    return request.param


def texts(folder):
    """Returns the text of each file of a project, by its path below the folder."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_command_lists_the_files_and_says_what_is_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(group, ["new", "ops/my-relu"])
    assert result.exit_code == 0, result.output
    names = sorted(os.path.join("ops/my-relu", name) for name in texts(tmp_path / "ops" / "my-relu"))
    assert sorted(result.stdout.split()) == names
    assert "cd ops/my-relu\n  pip install" in result.stderr
    result = CliRunner().invoke(group, ["new", "ops/other", "--kind", "triton", "--json"])
    assert "ops/other/other/kernels/squared_relu.py" in json.loads(result.stdout)["files"]
    assert {"ops/my-relu/my_relu/csrc/squared_relu.cpp", "ops/my-relu/.github/workflows/wheels.yml"} <= set(names)


def test_every_kind_has_what_a_project_needs(project):
    kind, folder = project
    names = set(texts(folder))
    package = f"my_{kind}"
    needed = {".gitignore", ".github/workflows/wheels.yml", "README.md", "pyproject.toml", f"{package}/__init__.py"}
    op = {"kernel.toml", f"{package}/cases.py", "tests/test_squared_relu.py", f"{package}/reference.py"}
    assert needed | (set() if kind == "accelerator" else op) <= names
    assert not any(name.endswith(".in") for name in names - {MANIFEST})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "accelerator"])
def test_another_build_system_changes_only_how_the_wheel_is_made(tmp_path, kind, build_system):
    own, other = tmp_path / "default" / "my-op", tmp_path / "other" / "my-op"
    create(str(own), kind)
    create(str(other), kind, build_system)
    files, others = texts(own), texts(other)
    differing = {name for name in {*files, *others} if files.get(name) != others.get(name)}
    added = {"scikit-build-core": {"CMakeLists.txt"}, "meson-python": {"meson.build"}}.get(build_system, set())
    assert differing == {"pyproject.toml", "README.md", MANIFEST} | added
    assert not re.findall(r"@[A-Z_]+@", "".join(others.values()))
    described = toml_file.read(str(other / "pyproject.toml"), "TOML")
    backend, table = described["build-system"]["build-backend"], described["tool"].get("opforge", {})
    wrapped = BUILD_SYSTEMS[build_system].is_wrapped and kind != "sycl"
    assert backend == ("opforge.backend" if wrapped else BUILD_SYSTEMS[build_system].backend)
    assert table.get("backend") == (BUILD_SYSTEMS[build_system].backend if wrapped else None)
    holds_the_op = "ops" in table or "opforge_add_op" in others.get("CMakeLists.txt", "")
    assert holds_the_op == (kind != "sycl"), "no runner of a public forge has icpx"
    targets = table.get("targets", re.findall(r"TARGETS (\S+)\)", others.get("CMakeLists.txt", "")))
    own_table = toml_file.read(str(own / "pyproject.toml"), "TOML")["tool"].get("opforge", {})
    assert targets == own_table.get("targets", [])


def test_what_is_next_includes_the_build_systems_packages(tmp_path):
    arguments = ["new", str(tmp_path / "my-op"), "--build-system", "scikit-build-core"]
    result = CliRunner().invoke(group, arguments)
    steps = "pip install 'scikit-build-core>=0.10' cmake\n  pip install --no-build-isolation --editable '.[test]'\n"
    assert result.exit_code == 0 and steps in result.stderr
    assert steps.replace("\n  ", "\n") in (tmp_path / "my-op" / "README.md").read_text()


def test_an_accelerator_has_no_other_build_system(tmp_path, build_system):
    arguments = ["new", str(tmp_path / "acme"), "--kind", "accelerator", "--build-system", build_system]
    result = CliRunner().invoke(group, arguments)
    assert result.exit_code == 1 and not (tmp_path / "acme").exists()
    text = f"an accelerator's wheel holds no built op, and is made by setuptools and not by {build_system}"
    assert text in " ".join(result.stderr.split()) and "Leave out --build-system" in result.stderr


def test_no_placeholder_is_left_and_each_value_is_used(project):
    kind, folder = project
    left = {name: re.findall(r"@[A-Z_]+@", text) for name, text in texts(folder).items()}
    assert {name: placeholders for name, placeholders in left.items() if placeholders} == {}
    names = {name for name in KINDS[kind].values if name not in ("ON_DEVICE", "DEVICE")}
    used = "".join(text for part in KINDS[kind].folders for text in texts_of_templates(os.path.join(TEMPLATES, part)))
    used += BUILD_SYSTEMS[SETUPTOOLS].packaging
    assert {name for name in names if f"@{name}@" not in used} == set()


def texts_of_templates(folder):
    """Yields the text of every template below a folder."""
    for parent, _folders, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), encoding="utf-8") as file:
                yield file.read()


def test_its_python_and_toml_parse_and_its_readme_names_real_files(project):
    kind, folder = project
    files = texts(folder)
    for name, text in files.items():
        if name.endswith(".py"):
            ast.parse(text, name)
        if name.endswith(".toml"):
            toml_file.read(str(folder / name), "TOML")
    named = re.findall(r"`([\w./-]+\.(?:py|toml|yml))`", files["README.md"])
    assert named and [name for name in named if name not in files] == []
    pyproject = toml_file.read(str(folder / "pyproject.toml"), "TOML")
    assert pyproject["project"]["name"] == f"my-{kind}"
    for package in pyproject["tool"]["setuptools"]["packages"]:
        assert f"{package.replace('.', '/')}/__init__.py" in files
    for points in pyproject["project"]["entry-points"].values():
        for point in points.values():
            module, _, name = point.partition(":")
            assert f"class {name}(" in files[module.replace(".", "/") + ".py"]


@pytest.mark.test_all("needs ruff")
def test_it_passes_the_linters(project):
    _kind, folder = project
    rules = "E,F,W,I,B,UP,SIM,RUF,D1"
    ignored = "RUF012,D102,D103,D104,D107,D105,D101,E501"
    for command in (["check", "--select", rules, "--ignore", ignored], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "120", "."]
        process = subprocess.run(ruff, cwd=folder, capture_output=True, text=True)
        if "No module named ruff" in process.stderr:
            pytest.skip("needs ruff: pip install ruff")
        assert process.returncode == 0, process.stdout
    sources = [str(path) for path in folder.rglob("*") if path.suffix in C_SOURCES]
    if sources:
        style = f"--style=file:{os.path.join(CHECKOUT, '.clang-format')}"
        clang_format = os.path.join(os.path.dirname(sys.executable), "clang-format")
        if not os.path.exists(clang_format):
            pytest.skip("needs clang-format: pip install clang-format")
        process = subprocess.run(
            [clang_format, style, "--dry-run", "--Werror", *sources], capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr


@pytest.mark.test_all("needs check-jsonschema")
def test_the_workflow_has_the_forges_schema(project):
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    pytest.importorskip("check_jsonschema", reason="pip install check-jsonschema")
    kind, folder = project
    path = folder / ".github/workflows/wheels.yml"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout
    workflow = yaml.safe_load(path.read_text())
    assert workflow[True]["push"]["tags"] == ["v*"]  # YAML 1.1 reads the key `on` as true
    jobs = workflow["jobs"]
    assert set(jobs["publish"]["needs"]) <= set(jobs)
    used = {step.get("uses", "").partition("@")[0] for job in jobs.values() for step in job["steps"]}
    assert ("pypa/cibuildwheel" in used) == (kind != "accelerator")


def test_its_owner_chooses_where_ci_downloads_torch(project):
    _kind, folder = project
    files = texts(folder)
    assert {name: re.findall(r"https?://\S+", text) for name, text in files.items() if "://" in text} == {}
    assert "PIP_EXTRA_INDEX_URL: ${{ vars.PIP_EXTRA_INDEX_URL }}" in files[".github/workflows/wheels.yml"]


def test_its_kernel_package_can_be_read(project, monkeypatch):
    kind, folder = project
    if kind == "accelerator":
        return  # the hub has no backend for it
    monkeypatch.chdir(folder)
    described = reading.read(str(folder))
    assert described.name == f"local/my-{kind}" and described.license
    assert (described.builder is None) == (kind == "triton")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "My-Op",
            "expected two to 64 lower-case letters, digits, and '-' or '_' between them; a letter first."
            " Such as 'my-op'",
        ),
        ("2fast", "Such as 'fast'"),
        ("my op", "Such as 'my-op'"),
        ("größe", "expected two to "),
        ("-xy", "Such as 'xy'"),
        ("a--b", "Such as 'a-b'"),
        ("", "Such as 'my-op'"),
        ("x", "expected two to 64 lower-case letters"),  # `opforge pack` could not name its kernel
        ("a" * 65, "expected two to 64 lower-case letters"),
        ("class", "it is a keyword of Python: it cannot be imported. Such as 'class-op'"),
        ("match", "it is a keyword of Python"),
        ("json", "there is a package 'json' already, which it would hide"),
        ("torch", "there is a package 'torch' already"),
    ],
)
def test_a_name_that_no_package_can_have_is_refused_with_a_near_name(name, text):
    with pytest.raises(ProjectError) as error:
        check_name(name)
    assert str(error.value).startswith(f"The project {name!r} cannot be created: ") and text in str(error.value)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("samples", "cpu", "its file samples.py would be imported in place of the package. Such as 'samples-op'."),
        ("build", "triton", "build/ is the folder of what is built, and git ignores it."),
        ("npu", "accelerator", "'npu' is an accelerator of opforge's own, and no package can replace it."),
    ],
)
def test_a_name_that_the_project_could_not_work_with_is_refused(tmp_path, name, kind, text):
    with pytest.raises(ProjectError) as error:
        create(str(tmp_path / name), kind)
    assert text in str(error.value) and not os.listdir(tmp_path)
    create(str(tmp_path / f"{name}-op"), kind)


def test_a_name_with_underscores_has_a_kernel_package_too(tmp_path, monkeypatch):
    create(str(tmp_path / "my_op"), "cpu")
    monkeypatch.chdir(tmp_path / "my_op")
    assert reading.read(".").name == "local/my-op"


def test_what_is_next_can_be_typed_whatever_the_folders_name_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(group, ["new", "my ops/my-relu"])
    assert "\n  cd 'my ops/my-relu'\n" in result.stderr


def test_an_empty_working_folder_becomes_the_project(tmp_path, monkeypatch):
    (tmp_path / "my-op").mkdir()
    monkeypatch.chdir(tmp_path / "my-op")
    done = CliRunner().invoke(group, ["new", "."])
    assert done.exit_code == 0 and "\n  cd " not in done.stderr
    assert (tmp_path / "my-op" / "my_op" / "builders.py").is_file()


def test_nothing_that_exists_is_changed(tmp_path):
    text_files.write(tmp_path / "my-op", "notes.txt", "mine")
    (tmp_path / "a-file").write_text("mine")
    (tmp_path / "a-link").symlink_to(tmp_path / "nowhere")
    for name, text in (
        ("my-op", "the folder exists and is not empty: it holds notes.txt."),
        ("a-file", "it exists, and is not a folder"),
        ("a-link", "it exists, and is not a folder"),
    ):
        before = text_files.tree(tmp_path)
        result = CliRunner().invoke(group, ["new", str(tmp_path / name)])
        assert result.exit_code == 1 and text in " ".join(result.stderr.split()), result.stderr
        assert text_files.tree(tmp_path) == before
    (tmp_path / "empty").mkdir()
    create(str(tmp_path / "empty"), "cpu")
    assert (tmp_path / "empty" / "pyproject.toml").exists()


def test_a_file_that_appears_meanwhile_is_kept(tmp_path, monkeypatch):
    from opforge.new import project as module

    rendered = module.rendered

    def racing(*arguments):
        text_files.write(tmp_path / "my-op", "kernel.toml", "mine")
        return rendered(*arguments)

    monkeypatch.setattr(module, "rendered", racing)
    with pytest.raises(FileExistsError):
        create(str(tmp_path / "my-op"), "cpu")
    assert (tmp_path / "my-op" / "kernel.toml").read_text() == "mine"


def test_the_required_versions_of_opforge_follow_from_its_own():
    assert compatible_versions("0.3.1") == ">=0.3,<0.4"
    assert compatible_versions("2.4.0") == ">=2.4,<3"


@pytest.mark.parametrize(
    ("version", "required"),
    [("0.1.0rc1", ">=0.1.0rc1,<0.2"), ("0.3.0.dev4", ">=0.3.0.dev4,<0.4"), ("2.0rc1", ">=2.0rc1,<3")],
)
def test_a_project_made_by_a_candidate_for_release_can_be_installed_beside_it(version, required):
    assert compatible_versions(version) == required
    assert SpecifierSet(required).contains(version)
