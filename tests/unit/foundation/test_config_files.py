"""The settings files: what they may say, which comes first, and who may write them."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import child_processes

from opforge.builders import toolchains
from opforge.builders.cpu.lion import CPULionBuilder
from opforge.cli import group
from opforge.errors import ConfigFileError
from opforge.foundation import remembered_values, settings
from opforge.foundation.settings import files

ROOT = Path(__file__).resolve().parents[3]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o755), path.write_text(text), path.chmod(0o644)
    os.utime(path, (time.time() - 10,) * 2)
    settings.reset()
    return path


@pytest.fixture
def user(monkeypatch, own_store):
    monkeypatch.delenv("OPFORGE_CACHE_DIR")
    return lambda text: write(Path(settings.user_file()), text)


@pytest.fixture
def site(monkeypatch, tmp_path):
    path = tmp_path / "etc" / "config.toml"
    monkeypatch.setattr(settings.table, "SITE_FILE", str(path))
    return lambda text: write(path, text)


def shown(*arguments):
    done = CliRunner().invoke(group, ["config", "--json"])
    return {name: (row["value"], row["from"]) for name, row in json.loads(done.stdout)["settings"].items()}


def test_a_variable_comes_before_the_users_file_and_that_before_the_sites(user, site, monkeypatch):
    site_file = site('cache_dir = "/site"\njobs = 3\ncache_max_size = "1GiB"\n')
    user_file = user("jobs = 4\noffline = true\n")
    assert (
        settings.cache_dir() == "/site" and settings.cache_dir.is_set() and settings.jobs() == 4 and settings.offline()
    )
    monkeypatch.setenv("OPFORGE_JOBS", "5"), monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "")
    assert settings.jobs() == 5 and settings.cache_max_size() == 10 << 30
    rows = shown()
    assert rows["cache_dir"] == ("/site", str(site_file)) and rows["offline"] == ("1", str(user_file))
    assert rows["jobs"] == ("5", "OPFORGE_JOBS") and rows["cache_max_size"] == ("10GiB", "default")


def test_deepspeeds_and_torchs_variables_come_before_the_files(user, monkeypatch):
    user('accelerator = "cuda"\njobs = 4\nallow_deprecated_fp16 = true\n')
    assert settings.accelerator.found() == ("cuda", settings.user_file()) and settings.allow_deprecated_fp16()
    monkeypatch.setenv("DS_ACCELERATOR", "cpu"), monkeypatch.setenv("MAX_JOBS", "2")
    monkeypatch.setenv("DS_ALLOW_DEPRECATED_FP16", "0")
    assert settings.accelerator.found() == ("cpu", "DS_ACCELERATOR") and settings.jobs() == 2
    assert not settings.allow_deprecated_fp16()
    assert shown()["jobs"] == ("2", "MAX_JOBS")


EXAMPLES = {
    "accelerator": ('"cpu"', "cpu"),
    "allow_deprecated_fp16": ("true", True),
    "allow_undefined": ("true", True),
    "cache_dir": ('"/c"', "/c"),
    "cache_layers": ('["/a", "~/b"]', ("/a", os.path.expanduser("~/b"))),
    "cache_max_age": ('"30d"', 30 * 86400.0),
    "cache_max_size": ('"2GiB"', 2 << 30),
    "compiler_env": ('["A", "B"]', ("A", "B")),
    "compiler_launcher": ('"ccache"', "ccache"),
    "full_traceback": ("true", True),
    "install": ("true", True),
    "jobs": ("7", 7),
    "kernel_path": ('["/k"]', ("/k",)),
    "kernels": ('{"acme/relu" = "/r"}', {"acme/relu": "/r"}),
    "compiled_wait": ("1.5", 1.5),
    "lock_timeout": ("1.5", 1.5),
    "log": ('"/l"', "/l"),
    "offline": ("true", True),
    "remotes": ('["https://a", "https://b"]', ("https://a", "https://b")),
    "signing_command": ('"sign"', "sign"),
    "sysroot": ('"/s"', "/s"),
    "triton_jit": ("true", True),
    "trust_file": ('"/t.json"', "/t.json"),
    "trusted_folders": ('["/volume", "/projects/ann/"]', ("/volume", "/projects/ann")),
    "trusted_owners": ('["ann", "bob"]', ("ann", "bob")),
    "visible_numa_nodes": ("[0]", "0"),
}


@pytest.mark.parametrize("name", [name for name, each in settings.TABLE.items() if each.in_files])
def test_each_key_has_its_variables_effect_and_another_type_is_refused(user, name):
    text, value = EXAMPLES[name]
    path = user(f"{name} = {text}\n")
    here = settings.TABLE[name]
    assert here() == value and here.is_set() and here.found()[1] == str(path)
    for wrong in ("1979-05-27", "[[1]]", '"relative/path"' if "path" in here.kind.in_file else "[{}]"):
        path = user(f"{name} = {wrong}\n")
        expected = f"cannot be used: {name} = .*Expected {re.escape(here.kind.in_file)}"
        with pytest.raises(ConfigFileError, match=re.escape(str(path)) + " " + expected):
            settings.offline()


def test_a_setting_of_a_file_is_part_of_keys_as_its_variable_is(user, monkeypatch):
    spec = CPULionBuilder(portable=True).spec()
    monkeypatch.setenv("MY_WRAPPER", "x")
    user('compiler_env = ["MY_WRAPPER"]\nsysroot = "/s"\n')
    of_file = toolchains.plan_variables(spec), CPULionBuilder(portable=True).spec()
    user("")
    assert of_file != (toolchains.plan_variables(spec), CPULionBuilder(portable=True).spec())
    monkeypatch.setenv("OPFORGE_COMPILER_ENV", "MY_WRAPPER"), monkeypatch.setenv("OPFORGE_SYSROOT", "/s")
    assert of_file == (toolchains.plan_variables(spec), CPULionBuilder(portable=True).spec())


def test_a_variable_is_the_only_place_of_what_is_for_one_command(user):
    """And reading it needs no file: one that is damaged must not keep a build from being refused, or a key secret."""
    user("nonsense = [")
    assert {name for name, each in settings.TABLE.items() if not each.in_files} == {
        "build_ops",
        "build_portable",
        "build_targets",
        "cpp_extension",
        "deepspeed",
        "paranoid",
        "prebuilt",
        "signing_key",
        "warm",
    }
    assert settings.prebuilt() == "prefer" and not settings.paranoid() and settings.signing_key() == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cache_dri = '/x'", "'cache_dri' is not a setting. Did you mean cache_dir?"),
        ("OPFORGE_JOBS = 1", "'OPFORGE_JOBS' is not a setting. Did you mean jobs?"),
        ("zzz = 1", "'zzz' is not a setting. Expected one of accelerator, allow_deprecated_fp16, allow_undefined, "),
        (
            "paranoid = true",
            "'paranoid' is not a setting of a file. Set the variable OPFORGE_PARANOID where it is needed.",
        ),
        ("jobs = 0", "jobs = 0. Expected a whole number, 1 or more."),
        ("jobs = true", "jobs = True. Expected a whole number, 1 or more."),
        ("cache_dir = 'here'", "cache_dir = 'here'. Expected an absolute path, or one that begins with ~/."),
        ("cache_layers = ['/a:/b']", "cache_layers = ['/a:/b']. Expected a list of absolute paths."),
        ("cache_max_size = 'big'", "cache_max_size = 'big'. Expected a number with B, KiB, MB or the like"),
        ("jobs = ", "it is not valid TOML ("),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(user, text, message):
    path = user(text)
    for _ in range(2):  # it is not remembered
        with pytest.raises(ConfigFileError, match=re.escape(f"{path} cannot be used: {message}")):
            settings.jobs()
    done = CliRunner().invoke(group, ["config"])
    assert done.exit_code == 1 and done.stderr.startswith(f"error: The settings file {path} cannot be used: ")
    assert "\nhint: " in done.stderr


def test_a_file_that_others_can_write_or_replace_is_refused(user, monkeypatch, tmp_path):
    path = user("jobs = 4")
    path.chmod(0o666), settings.reset()
    with pytest.raises(ConfigFileError, match=f"others can write it. Run: chmod go-w {path}."):
        settings.jobs()
    path.chmod(0o644), path.parent.chmod(0o777), settings.reset()
    with pytest.raises(ConfigFileError, match=rf"can be written by everybody. Run: chmod go-w {path.parent}\."):
        settings.jobs()
    path.parent.chmod(0o755), settings.reset()
    monkeypatch.setattr(files.os, "geteuid", lambda: 4711)
    monkeypatch.setattr(files.file_owners, "trusted_ids", lambda names: frozenset({4711} | {*map(int, names)}))
    monkeypatch.setattr(files.file_owners, "folder_problem", lambda *_, **_options: None)
    if os.getuid() == 0:
        with pytest.raises(ConfigFileError, match=r"it belongs to user 0, not to you \(user 4711\)"):
            settings.jobs()
        monkeypatch.setenv("OPFORGE_TRUSTED_OWNERS", "0")
        assert settings.jobs() == 4


def test_a_folder_or_a_pipe_in_the_files_place_is_refused(user):
    path = user("jobs = 4")
    path.unlink(), os.mkfifo(path), settings.reset()
    with pytest.raises(ConfigFileError, match="it is not a file"):
        settings.jobs()
    path.unlink(), path.mkdir(), settings.reset()
    with pytest.raises(ConfigFileError, match="it is not a file"):  # not a matter of access
        settings.jobs()


def test_the_example_in_the_documents_is_valid(user):
    (example,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "settings.md").read_text(), re.DOTALL)
    user(example)
    assert settings.cache_layers() == ("/shared/ops",) and settings.trusted_owners() == ("builder",)


def test_without_xdg_folders_the_users_file_is_in_the_home_folder(tmp_path):
    path = write(tmp_path / "home" / ".config" / "opforge" / "config.toml", "jobs = 4")
    path.parent.parent.chmod(0o755), path.parent.parent.parent.chmod(0o755)
    env = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": None, "XDG_CACHE_HOME": None}
    code = "from opforge.foundation import settings; print(settings.jobs(), settings.cache_dir())"
    env["OPFORGE_CACHE_DIR"] = None
    assert child_processes.run_python(code, env=env) == f"4 {tmp_path}/home/.cache/opforge\n"


def test_no_file_of_the_working_folder_is_read(monkeypatch, tmp_path):
    for name in ("config.toml", "opforge.toml", "opforge/config.toml", ".config/opforge/config.toml", "pyproject.toml"):
        write(tmp_path / "work" / name, "jobs = 4")
    monkeypatch.chdir(tmp_path / "work"), monkeypatch.setenv("XDG_CONFIG_HOME", "."), settings.reset()
    assert settings.jobs() is None and settings.user_file().startswith("/")


PARSED = "import sys; from opforge.foundation import settings; print(settings.jobs(), 'tomllib' in sys.modules)"
NEVER_RACY = "from opforge.foundation import remembered_values; remembered_values.RACY_NS = -(10**12)\n"


def test_a_file_is_parsed_once_and_again_when_it_has_changed(user):
    path = user("jobs = 4")
    for number in (4, 5):
        write(path, f"jobs = {number}")
        printed = [child_processes.run_python(NEVER_RACY + PARSED) for _ in range(2)]
        assert printed == [f"{number} True\n", f"{number} False\n"]
    path.chmod(0o666)
    with pytest.raises(AssertionError, match="others can write it"):
        child_processes.run_python(PARSED)


def test_another_user_whose_files_are_read_and_another_home_are_noticed(user, monkeypatch, tmp_path):
    user("jobs = 4")
    for variable, value in (("OPFORGE_TRUSTED_OWNERS", "nobody"), ("HOME", str(tmp_path))):
        assert child_processes.run_python(NEVER_RACY + PARSED) == "4 True\n"
        assert child_processes.run_python(NEVER_RACY + PARSED) == "4 False\n"
        monkeypatch.setenv(variable, value)
    assert child_processes.run_python(PARSED) == "4 True\n"


def kept():
    return [file for folder in remembered_values.kept_folders() for file in Path(folder).iterdir()]


def test_what_was_written_a_moment_ago_is_not_remembered(user, monkeypatch):
    user("jobs = 4")  # its time is set to an earlier one; the time of that change is now
    assert settings.jobs() == 4 and not kept()
    monkeypatch.setattr(remembered_values, "RACY_NS", -(10**12)), settings.reset()
    assert settings.jobs() == 4 and kept()


@pytest.mark.parametrize("damage", ["{", "[]", '["0",[[],0,{}]]', None])
def test_a_damaged_memory_is_not_used(user, monkeypatch, damage):
    user("jobs = 4")
    monkeypatch.setattr(remembered_values, "RACY_NS", -(10**12))
    assert settings.jobs() == 4
    (file,) = kept()
    file.chmod(0o666) if damage is None else file.write_text(damage)
    if damage is None:
        file.write_text(file.read_text().replace('"4"', '"9"'))
    settings.reset()
    assert settings.jobs() == 4


def test_config_shows_all_settings_and_no_secret(user, monkeypatch):
    path = user('remotes = ["https://ann:secret@host/ops", "s3://ann:sec/secret@host/ops"]\n')
    monkeypatch.setenv("OPFORGE_SIGNING_KEY", "top-secret"), monkeypatch.setenv("OPFORGE_LOCK_TIMEOUT", "soon")
    monkeypatch.setenv("OPFORGE_ACCELERATOR", "gpu")
    done = CliRunner().invoke(group, ["config"])
    assert done.exit_code == 1 and "secret" not in done.output
    assert f"remotes\thttps://***@host/ops s3://***@host/ops\t{path}\n" in done.stdout
    assert "signing_key\t(set, not shown)\tOPFORGE_SIGNING_KEY\n" in done.stdout
    assert "prebuilt\tprefer\tdefault (variable only)\n" in done.stdout
    assert f"settings file: {path} (this user's)\n" in done.stdout
    assert "error: OPFORGE_LOCK_TIMEOUT='soon' cannot be used: expected a number of seconds" in done.stderr
    assert "error: 'gpu', requested by OPFORGE_ACCELERATOR, is not a known accelerator." in done.stderr
    monkeypatch.setenv("OPFORGE_REMOTES", "foo")
    assert "error: OPFORGE_REMOTES='foo' cannot be used: " in CliRunner().invoke(group, ["config"]).stderr


def test_a_damaged_file_does_not_keep_opforge_from_being_imported(user, monkeypatch):
    user("nonsense = [")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    code = "import torch, opforge\ntry:\n    opforge.get_accelerator()\nexcept Exception as error:\n    print(error)"
    output = child_processes.run_with_torch(code, env={"XDG_RUNTIME_DIR": None})
    assert "config.toml cannot be used: it is not valid TOML" in output
