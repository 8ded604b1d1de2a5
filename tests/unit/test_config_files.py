"""The settings files: what they may say, which comes first, and who may write them."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import child_processes

from opforge import config_keys, limit_settings, settings
from opforge.accelerator.devices import cpu
from opforge.builders import toolchains
from opforge.builders.cpu.lion import CPULionBuilder
from opforge.cli import group
from opforge.errors import ConfigFileError, ExtraNotInstalledError
from opforge.variables import KNOWN

PARSER = "tomllib" if sys.version_info >= (3, 11) else "tomli"
pytest.importorskip(PARSER, reason="pip install tomli")

ROOT = Path(__file__).resolve().parents[2]


def write(path, text, age=10.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o755), path.write_text(text), path.chmod(0o644)
    os.utime(path, (time.time() - age,) * 2)
    settings.reset()
    return path


@pytest.fixture
def user(monkeypatch, own_store):
    monkeypatch.delenv("OPFORGE_CACHE_DIR")
    return lambda text, **options: write(Path(settings.user_file()), text, **options)


@pytest.fixture
def site(monkeypatch, tmp_path):
    path = tmp_path / "etc" / "config.toml"
    monkeypatch.setattr(settings, "SITE_FILE", str(path))
    return lambda text: write(path, text)


def shown(*arguments):
    done = CliRunner().invoke(group, ["config", "--json"])
    return {name: (row["value"], row["from"]) for name, row in json.loads(done.stdout)["settings"].items()}


def test_a_variable_comes_before_the_users_file_and_that_before_the_sites(user, site, monkeypatch):
    site_file = site('cache_dir = "/site"\njobs = 3\ncache_max_size = "1GiB"\n')
    user_file = user("jobs = 4\noffline = true\n")
    assert settings.cache_dir() == ("/site", True) and limit_settings.jobs() == 4 and settings.offline()
    monkeypatch.setenv("OPFORGE_JOBS", "5"), monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "")
    assert limit_settings.jobs() == 5 and limit_settings.cache_max_size() == 10 << 30
    rows = shown()
    assert rows["cache_dir"] == ("/site", str(site_file)) and rows["offline"] == ("1", str(user_file))
    assert rows["jobs"] == ("5", "OPFORGE_JOBS") and rows["cache_max_size"] == ("10GiB", "default")


def test_deepspeeds_and_torchs_variables_come_before_the_files(user, monkeypatch):
    user('accelerator = "cuda"\njobs = 4\nallow_deprecated_fp16 = true\n')
    assert settings.accelerator() == ("cuda", settings.user_file()) and settings.allow_deprecated_fp16()
    monkeypatch.setenv("DS_ACCELERATOR", "cpu"), monkeypatch.setenv("MAX_JOBS", "2")
    monkeypatch.setenv("DS_ALLOW_DEPRECATED_FP16", "0")
    assert settings.accelerator() == ("cpu", "DS_ACCELERATOR") and limit_settings.jobs() == 2
    assert not settings.allow_deprecated_fp16()
    assert shown()["jobs"] == ("2", "MAX_JOBS")


EXAMPLES = {
    "accelerator": ('"cpu"', lambda: settings.accelerator()[0], "cpu"),
    "allow_deprecated_fp16": ("true", settings.allow_deprecated_fp16, True),
    "cache_dir": ('"/c"', settings.cache_dir, ("/c", True)),
    "cache_layers": ('["/a", "~/b"]', settings.cache_layers, ("/a", os.path.expanduser("~/b"))),
    "cache_max_age": ('"30d"', limit_settings.cache_max_age, 30 * 86400.0),
    "cache_max_size": ('"2GiB"', limit_settings.cache_max_size, 2 << 30),
    "compiler_env": ('["A", "B"]', settings.compiler_variables, ("A", "B")),
    "compiler_launcher": ('"ccache"', lambda: settings.variable("OPFORGE_COMPILER_LAUNCHER"), "ccache"),
    "full_traceback": ("true", settings.full_traceback, True),
    "install": ("true", settings.installs_kernels, True),
    "jobs": ("7", limit_settings.jobs, 7),
    "kernel_path": ('["/k"]', lambda: settings.kernel_folders()[0], ("/k", "folder")),
    "kernels": ('{"acme/relu" = "/r"}', settings.kernel_checkouts, {"acme/relu": "/r"}),
    "lock_timeout": ("1.5", limit_settings.lock_timeout, 1.5),
    "log": ('"/l"', lambda: settings.variable("OPFORGE_LOG"), "/l"),
    "offline": ("true", settings.offline, True),
    "remotes": ('["https://a", "https://b"]', settings.remotes, "https://a https://b"),
    "signing_command": ('"sign"', settings.signing_command, "sign"),
    "sysroot": ('"/s"', settings.sysroot, "/s"),
    "triton_jit": ("true", settings.triton_jit, True),
    "trust_file": ('"/t.json"', settings.trust_file, "/t.json"),
    "trusted_owners": ('["ann", "bob"]', settings.trusted_owners, ("ann", "bob")),
    "visible_numa_nodes": ("[0]", lambda: settings.variable(cpu.VISIBLE_NODES), "0"),
}


@pytest.mark.parametrize("key", config_keys.KEYS)
def test_each_key_has_its_variables_effect_and_another_type_is_refused(user, key):
    text, effect, value = EXAMPLES[key]
    user(f"{key} = {text}\n")
    assert effect() == value
    for wrong in ("1979-05-27", "[[1]]", '"relative/path"' if "path" in config_keys.KEYS[key].expected else "[{}]"):
        path = user(f"{key} = {wrong}\n")
        expected = f"cannot be used: {key} = .*Expected {re.escape(config_keys.KEYS[key].expected)}"
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


def test_every_variable_is_a_key_or_of_the_environment_alone():
    names = {*map(config_keys.variable_of, (*config_keys.KEYS, *config_keys.OF_ENVIRONMENT))}
    assert names == set(KNOWN) and not {*config_keys.KEYS} & {*config_keys.OF_ENVIRONMENT}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cache_dri = '/x'", "'cache_dri' is no setting. Did you mean cache_dir?"),
        ("OPFORGE_JOBS = 1", "'OPFORGE_JOBS' is no setting. Did you mean jobs?"),
        ("zzz = 1", "'zzz' is no setting. Expected one of accelerator, allow_deprecated_fp16, cache_dir, "),
        (
            "paranoid = true",
            "'paranoid' is no setting of a file. Set the variable OPFORGE_PARANOID where it is needed.",
        ),
        ("jobs = 0", "jobs = 0. Expected a whole number, 1 or more."),
        ("jobs = true", "jobs = True. Expected a whole number, 1 or more."),
        ("cache_dir = 'here'", "cache_dir = 'here'. Expected an absolute path, or one that begins with ~/."),
        ("cache_layers = ['/a:/b']", "cache_layers = ['/a:/b']. Expected a list of absolute paths."),
        ("cache_max_size = 'big'", "cache_max_size = 'big'. Expected a number with B, KiB, MB or the like"),
        ("jobs = ", "it is no TOML ("),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(user, text, message):
    path = user(text)
    for _ in range(2):  # it is not remembered
        with pytest.raises(ConfigFileError, match=re.escape(f"{path} cannot be used: {message}")):
            settings.variable("OPFORGE_JOBS")
    done = CliRunner().invoke(group, ["config"])
    assert done.exit_code == 1 and done.stderr.startswith(f"error: The settings file {path} cannot be used: ")
    assert "\nhint: " in done.stderr


def test_a_file_that_others_can_write_or_replace_is_refused(user, monkeypatch, tmp_path):
    path = user("jobs = 4")
    path.chmod(0o666), settings.reset()
    with pytest.raises(ConfigFileError, match=f"others can write it. Run: chmod go-w {path}."):
        limit_settings.jobs()
    path.chmod(0o644), path.parent.chmod(0o777), settings.reset()
    with pytest.raises(ConfigFileError, match=rf"can be written by everybody. Run: chmod go-w {path.parent}\."):
        limit_settings.jobs()
    path.parent.chmod(0o755), settings.reset()
    monkeypatch.setattr(config_keys.os, "geteuid", lambda: 4711)
    monkeypatch.setattr(config_keys.trust, "trusted_ids", lambda names: frozenset({4711} | {*map(int, names)}))
    monkeypatch.setattr(config_keys.trust, "folder_problem", lambda path, owners: None)
    if os.getuid() == 0:
        with pytest.raises(ConfigFileError, match=r"it belongs to user 0, not to you \(user 4711\)"):
            limit_settings.jobs()
        monkeypatch.setenv("OPFORGE_TRUSTED_OWNERS", "0")
        assert limit_settings.jobs() == 4


def test_a_folder_or_a_pipe_in_the_files_place_is_refused(user):
    path = user("jobs = 4")
    path.unlink(), os.mkfifo(path), settings.reset()
    with pytest.raises(ConfigFileError, match="it is not a file"):
        limit_settings.jobs()
    path.unlink(), path.mkdir(), settings.reset()
    with pytest.raises(ConfigFileError, match="it is not a file"):  # not a matter of access
        limit_settings.jobs()


def test_the_example_in_the_documents_is_valid(user):
    (example,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "settings.md").read_text(), re.DOTALL)
    user(example)
    assert settings.cache_layers() == ("/shared/ops",) and settings.trusted_owners() == ("builder",)


def test_without_xdg_folders_the_users_file_is_in_the_home_folder(tmp_path):
    path = write(tmp_path / "home" / ".config" / "opforge" / "config.toml", "jobs = 4")
    path.parent.parent.chmod(0o755), path.parent.parent.parent.chmod(0o755)
    env = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": None, "XDG_CACHE_HOME": None}
    code = "from opforge import limit_settings, settings; print(limit_settings.jobs(), settings.cache_dir()[0])"
    env["OPFORGE_CACHE_DIR"] = None
    assert child_processes.run_python(code, env=env) == f"4 {tmp_path}/home/.cache/opforge\n"


def test_no_file_of_the_working_folder_is_read(monkeypatch, tmp_path):
    for name in ("config.toml", "opforge.toml", "opforge/config.toml", ".config/opforge/config.toml", "pyproject.toml"):
        write(tmp_path / "work" / name, "jobs = 4")
    monkeypatch.chdir(tmp_path / "work"), monkeypatch.setenv("XDG_CONFIG_HOME", "."), settings.reset()
    assert limit_settings.jobs() is None and settings.user_file().startswith("/")


PARSED = f"import sys; from opforge import limit_settings; print(limit_settings.jobs(), {PARSER!r} in sys.modules)"


def test_a_file_is_parsed_once_and_again_when_it_has_changed(user):
    path = user("jobs = 4")
    assert child_processes.run_python(PARSED) == "4 True\n" and child_processes.run_python(PARSED) == "4 False\n"
    write(path, "jobs = 5")
    assert child_processes.run_python(PARSED) == "5 True\n" and child_processes.run_python(PARSED) == "5 False\n"
    path.chmod(0o666)
    with pytest.raises(AssertionError, match="others can write it"):
        child_processes.run_python(PARSED)


def test_what_was_written_a_moment_ago_is_not_remembered(user):
    user("jobs = 4", age=0.0)
    assert [child_processes.run_python(PARSED) for _ in range(2)] == ["4 True\n"] * 2


@pytest.mark.parametrize("damage", ["{", "[]", '{"format": 1}', None])
def test_a_damaged_memory_is_not_used(user, tmp_path, damage):
    user("jobs = 4")
    assert limit_settings.jobs() == 4
    (memory,) = (tmp_path / "caches" / "opforge" / "machine").iterdir()
    memory.chmod(0o666) if damage is None else memory.write_text(damage)
    if damage is None:
        memory.write_text(memory.read_text().replace('"4"', '"9"'))
    settings.reset()
    assert limit_settings.jobs() == 4


def test_without_a_parser_the_error_says_what_to_install(user, monkeypatch):
    user("jobs = 4")
    monkeypatch.setattr(config_keys.sys, "version_info", (3, 10))
    imported = importlib.import_module

    def fail(name):
        raise ImportError(name) if name == "tomli" else AssertionError

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ExtraNotInstalledError, match="tomli"):
        limit_settings.jobs()
    monkeypatch.setattr(importlib, "import_module", imported)


def test_config_shows_all_settings_and_no_secret(user, monkeypatch):
    path = user('remotes = ["https://ann:secret@host/ops"]\n')
    monkeypatch.setenv("OPFORGE_SIGNING_KEY", "top-secret"), monkeypatch.setenv("OPFORGE_LOCK_TIMEOUT", "soon")
    done = CliRunner().invoke(group, ["config"])
    assert done.exit_code == 1 and "secret" not in done.output
    assert f"remotes\thttps://***@host/ops\t{path}\n" in done.stdout
    assert "signing_key\t(set, not shown)\tOPFORGE_SIGNING_KEY\n" in done.stdout
    assert "prebuilt\tprefer\tdefault (variable only)\n" in done.stdout
    assert f"settings file: {path} (this user's)\n" in done.stdout
    assert "error: OPFORGE_LOCK_TIMEOUT='soon' cannot be used: expected a number of seconds" in done.stderr


def test_a_damaged_file_does_not_keep_opforge_from_being_imported(user, monkeypatch):
    user("nonsense = [")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    code = "import torch, opforge\ntry:\n    opforge.get_accelerator()\nexcept Exception as error:\n    print(error)"
    output = child_processes.run_python(code, env={"XDG_RUNTIME_DIR": None})
    assert "config.toml cannot be used: it is no TOML" in output
