"""`opforge inspect --env`: what each installed extension of torch loads under."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.sample_extensions import ABSENT, LIBTORCH, LINKED_ALONE, SAMPLES, STABLE, install

from opforge.cli import inspect
from opforge.errors import InspectionError
from opforge.packages.audit import environment


def by_library(site: Path) -> dict[str, environment.Extension]:
    """Returns the extensions of an environment by the names of their libraries."""
    return {Path(one.path).name: one for one in environment.extensions(str(site))}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with one extension of each kind."""
    site = tmp_path_factory.mktemp("env") / "lib" / "python3.11" / "site-packages"
    for name, libraries in SAMPLES.items():
        install(site, name, libraries)
    return site


def test_a_library_on_the_stable_abi_has_the_oldest_torch_whose_functions_it_calls(site: Path) -> None:
    found = by_library(site)
    assert (found["stable.so"].torch, found["newer.so"].torch) == ("2.9", "2.12")
    assert found["stable.so"].unstable == () == found["newer.so"].unstable


def test_a_library_that_is_linked_with_torch_and_calls_nothing_of_it_loads_under_any(tmp_path: Path) -> None:
    install(tmp_path, "linked", {"linked.so": LINKED_ALONE})
    assert by_library(tmp_path)["linked.so"].torch == "any"
    shown = CliRunner().invoke(inspect.command, ["--env", str(tmp_path)])
    assert shown.output.splitlines()[1].split()[:5] == ["linked", "1.0", "linked.so", "any", "any"], shown.output


def test_a_library_with_torchs_cxx_functions_is_bound_to_one_release(site: Path) -> None:
    found = by_library(site)["bound.so"]
    assert (found.torch, found.unstable) == ("", ("_ZN3c1010TensorImplC1Ev",))
    assert found.problems == ["is bound to one release of torch, by c10::TensorImpl::TensorImpl()"]


def test_the_oldest_python_follows_from_the_functions_and_one_python_from_the_name(site: Path) -> None:
    found = by_library(site)
    assert (found["stable.so"].python, found["stable.so"].bound_to_python) == ("any", "")
    assert (found["limited.abi3.so"].python, found["limited.abi3.so"].bound_to_python) == ("3.2", "")
    tagged = found["tagged.cpython-311-x86_64-linux-gnu.so"]
    assert (tagged.python, tagged.bound_to_python) == ("", "3.11")
    assert tagged.problems == ["is bound to Python 3.11"]
    assert found["free.so"].problems == ["is bound to one Python"]


def test_what_does_not_use_torch_is_left_out(site: Path) -> None:
    assert "other.so" not in by_library(site)


def test_an_environment_is_named_by_its_own_folder_too(site: Path, tmp_path: Path) -> None:
    assert environment.extensions(str(site.parents[2])) == environment.extensions(str(site))
    (tmp_path / "lib" / "python3").mkdir(parents=True)
    (tmp_path / "lib" / "python3" / "dist-packages").symlink_to(site)
    assert environment.extensions(str(tmp_path)) == environment.extensions(str(site)), "as Debian has it"


def test_without_headers_of_python_a_library_is_not_said_to_be_bound(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment.python_abi, "limited_api", lambda major, minor: frozenset())
    found = by_library(site)
    assert (found["limited.abi3.so"].python, found["limited.abi3.so"].bound_to_python) == ("", "?")
    text = "comparing its functions needs the headers of this Python (python3-dev) and a C compiler"
    assert found["limited.abi3.so"].problems == [f"may be bound to one Python: {text}"]
    assert (found["stable.so"].python, found["tagged.cpython-311-x86_64-linux-gnu.so"].bound_to_python) == (
        "any",
        "3.11",
    )


def test_a_damaged_library_of_a_distribution_that_needs_torch_is_shown(tmp_path: Path) -> None:
    install(tmp_path, "damaged", {})
    (tmp_path / "damaged-1.0.dist-info" / "RECORD").write_text("damaged/a.so,,\ndamaged/gone.so,,\n")
    (tmp_path / "damaged" / "a.so").write_bytes(b"\x7fELF nothing")
    (problem,) = by_library(tmp_path)["a.so"].problems
    assert problem.startswith("cannot be read: ") and "a.so is" in problem


def test_a_distribution_with_damaged_metadata_hides_no_other_and_is_named_by_its_folder(tmp_path: Path) -> None:
    for name in ("broken", "good"):
        install(tmp_path, name, {f"{name}.so": LINKED_ALONE})
    (tmp_path / "broken-1.0.dist-info" / "METADATA").write_bytes(b"\xff\xfe\x00")
    assert [(one.distribution, one.version) for one in by_library(tmp_path).values()] == [
        ("broken", "1.0"),
        ("good", "1.0"),
    ]
    (tmp_path / "broken-1.0.dist-info" / "METADATA").unlink()
    assert set(by_library(tmp_path)) == {"broken.so", "good.so"}


def test_a_damaged_list_of_files_is_shown_and_hides_no_other_distribution(tmp_path: Path) -> None:
    for name in ("broken", "good"):
        install(tmp_path, name, {f"{name}.so": LINKED_ALONE})
    (tmp_path / "broken-1.0.dist-info" / "RECORD").write_bytes(b"\xff\xfe\x00")
    result = CliRunner().invoke(inspect.command, ["--env", str(tmp_path)])
    assert [line.split()[:5] for line in result.output.splitlines()[1:3]] == [
        ["broken", "1.0", "RECORD", "?", "?"],
        ["good", "1.0", "good.so", "any", "any"],
    ]
    assert "broken: RECORD cannot be read: " in result.output and result.exit_code == 1


def test_what_an_interrupted_pip_has_left_is_not_installed(tmp_path: Path) -> None:
    install(tmp_path, "good", {"good.so": LINKED_ALONE})
    left = tmp_path / "~ood-0.9.dist-info"
    left.mkdir()
    (left / "METADATA").write_text("Metadata-Version: 2.1\nName: good\nVersion: 0.9\n")
    assert by_library(tmp_path)["good.so"].version == "1.0"


def test_the_libraries_of_an_editable_installation_are_those_of_its_source_folder(tmp_path: Path) -> None:
    site, project = tmp_path / "site", tmp_path / "my project"
    install(project / "src", "edited", {"edited.so": LINKED_ALONE})
    library = project / "src" / "edited" / "edited.so"
    for elsewhere in ("build/lib", ".venv", "env"):
        (project / elsewhere).mkdir(parents=True)
        (project / elsewhere / "edited.so").write_bytes(library.read_bytes())
    (project / "env" / "pyvenv.cfg").touch()
    install(site, "edited", {})
    origin = {"dir_info": {"editable": True}, "url": project.as_uri()}
    (site / "edited-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    assert [one.path for one in environment.extensions(str(site))] == [str(library)]
    origin["dir_info"] = {}
    (site / "edited-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    assert environment.extensions(str(site)) == [], "a copy was installed"


def test_a_pipe_in_the_list_of_files_is_not_waited_for(tmp_path: Path) -> None:
    install(tmp_path, "piped", {})
    (tmp_path / "piped-1.0.dist-info" / "RECORD").write_text("piped/pipe.so,,\n")
    os.mkfifo(tmp_path / "piped" / "pipe.so")
    assert "pipe.so is empty" in by_library(tmp_path)["pipe.so"].unreadable


def install_torch(site: Path) -> None:
    """Installs a distribution with the libraries of this process's torch."""
    (site / "torch").mkdir()
    (site / "torch" / "lib").symlink_to(LIBTORCH)
    (site / "torch-2.0.dist-info").mkdir()
    (site / "torch-2.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.0\n")


def test_a_library_that_is_not_linked_with_torch_is_given_torchs_functions_by_whoever_imports_it(
    tmp_path: Path,
) -> None:
    install(tmp_path, "opened", {"stable.so": STABLE})
    install_torch(tmp_path)
    assert by_library(tmp_path)["stable.so"].problems == []


def test_libraries_of_one_name_are_shown_with_their_folders(tmp_path: Path) -> None:
    for name in ("first", "second"):
        install(tmp_path, name, {"m.so": STABLE})
    install(tmp_path, "third", {"other.so": STABLE})
    lines = CliRunner().invoke(inspect.command, ["--env", str(tmp_path)]).output.splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["first/m.so", "second/m.so", "other.so"]


def test_a_library_that_the_torch_there_does_not_satisfy_is_said(tmp_path: Path) -> None:
    install(tmp_path, "absent", {"absent.so": ABSENT})
    install_torch(tmp_path)
    (problem,) = by_library(tmp_path)["absent.so"].problems
    lacks = "which lacks aoti_torch_of_another_release"
    assert problem == f"does not load with the torch of this environment, {lacks}"


def test_what_is_no_environment_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    reasons = {"": "no distribution is installed there", "gone": "it does not exist", "file": "it is not a folder"}
    for name, reason in reasons.items():
        where = str(tmp_path / name)
        with pytest.raises(InspectionError) as caught:
            environment.extensions(where)
        assert str(caught.value) == (
            f"{where} cannot be inspected: {reason}. Name an environment's folder, or its site-packages."
        )


def test_an_empty_folder_and_a_target_are_no_arguments_of_env() -> None:
    result = CliRunner().invoke(inspect.command, ["--env", ""])
    assert result.exit_code == 2 and "leave it out for the environment of opforge" in result.output
    result = CliRunner().invoke(inspect.command, ["--env", "--target", "cpu:x86-64-v3"])
    assert result.exit_code == 2 and "--target and --cpu-level choose a build of an op" in result.output


def test_the_command_shows_a_line_for_each_and_exits_with_1_if_one_is_bound(site: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(inspect.command, ["--env", str(site)])
    assert result.exit_code == 1
    assert "bound.so is bound to one release of torch" in result.output
    assert result.output.rstrip().endswith("On the facade one library serves each torch from 2.10 on, and each Python.")
    shown = json.loads(CliRunner().invoke(inspect.command, ["--env", str(site), "--json"]).output)
    assert len(shown["extensions"]) == 6
    install(tmp_path, "good", {"stable.so": STABLE})
    result = CliRunner().invoke(inspect.command, ["--env", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "hint" not in result.output


def test_without_env_and_without_a_name_the_command_asks_for_one() -> None:
    result = CliRunner().invoke(inspect.command, [])
    assert result.exit_code == 2 and "Missing argument 'ENTRY|OP|PATH'" in result.output


def test_the_limited_api_is_read_from_the_headers_of_a_free_threaded_python_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = "#ifndef Py_PYCONFIG_H\n#define Py_PYCONFIG_H\n#define Py_GIL_DISABLED 1\n#endif\n"
    (tmp_path / "pyconfig.h").write_text(config)
    refusal = "#if defined(Py_LIMITED_API) && defined(Py_GIL_DISABLED)\n#error not supported\n#endif\n"
    (tmp_path / "Python.h").write_text(f'#include "pyconfig.h"\n{refusal}long PyLong_AsLong(void *);\n')
    monkeypatch.setattr(environment.python_abi, "python_include", lambda: str(tmp_path))
    assert environment.python_abi.limited_api.__wrapped__(3, 9) == {"PyLong_AsLong"}
