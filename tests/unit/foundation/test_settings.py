"""Settings: what each variable may hold, and the error for any other value."""

from __future__ import annotations

import os
import pwd
import re

import pytest

from opforge.errors import SettingError
from opforge.foundation import environment, settings


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (None, False),
        ("", False),
        ("0", False),
        ("No", False),
        ("off", False),
        ("1", True),
        (" TRUE ", True),
        ("on", True),
    ],
)
def test_a_flag_is_on_or_off(monkeypatch, text, value):
    if text is not None:
        monkeypatch.setenv("OPFORGE_PARANOID", text)
    assert settings.paranoid() is value


def test_a_flag_with_another_value_is_an_error(monkeypatch):
    monkeypatch.setenv("OPFORGE_PARANOID", "2")
    with pytest.raises(SettingError, match=re.escape("OPFORGE_PARANOID='2' cannot be used: expected 1 or 0.")):
        settings.paranoid()


def test_opforges_variable_for_the_accelerator_comes_before_deepspeeds(monkeypatch):
    assert settings.accelerator() == "" and not settings.accelerator.is_set()
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert settings.accelerator.found() == ("cpu", "DS_ACCELERATOR")
    monkeypatch.setenv("OPFORGE_ACCELERATOR", " ")
    assert settings.accelerator.found() == ("cpu", "DS_ACCELERATOR")
    monkeypatch.setenv("OPFORGE_ACCELERATOR", "cuda")
    assert settings.accelerator.found() == ("cuda", "OPFORGE_ACCELERATOR")


def test_the_cache_folder_is_the_one_that_was_chosen_or_the_platforms(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFORGE_CACHE_DIR", "~/x")
    monkeypatch.setenv("HOME", "/home/ann")
    assert settings.cache_dir() == "/home/ann/x" and settings.cache_dir.is_set()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", "relative")
    assert settings.cache_dir() == str(tmp_path / "relative") and settings.cache_dir.is_set()
    monkeypatch.delenv("OPFORGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "a relative path is ignored")
    assert settings.cache_dir() == "/home/ann/.cache/opforge" and not settings.cache_dir.is_set()
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert settings.cache_dir() == "/xdg/opforge" and not settings.cache_dir.is_set()


def test_the_default_cache_folder_is_that_of_platformdirs(monkeypatch):
    import platformdirs

    monkeypatch.delenv("OPFORGE_CACHE_DIR")
    for base in (None, "/xdg"):
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        if base:
            monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert settings.cache_dir() == platformdirs.user_cache_dir("opforge") and not settings.cache_dir.is_set()


@pytest.mark.parametrize("home", [None, "", "."])
def test_a_user_without_a_home_folder_has_nothing_below_the_working_folder(monkeypatch, tmp_path, home):
    """What lies there may be a checkout of others, and its trust file would be used."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "OPFORGE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)  # no such user
    monkeypatch.chdir(tmp_path)
    assert settings.trust_file() == "/.config/opforge/trust.json"
    assert settings.user_file() == "/.config/opforge/config.toml"
    assert environment.data_dir() == "/.local/share/opforge"
    assert settings.cache_dir() == "/.cache/opforge" and not settings.cache_dir.is_set()


@pytest.mark.parametrize("home", ["", ".", "ann", "./ann"])
def test_a_relative_home_is_none_and_the_systems_own_list_counts(monkeypatch, home):
    for name in ("XDG_CACHE_HOME", "OPFORGE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", home)
    assert (
        settings.cache_dir() == f"{pwd.getpwuid(os.getuid()).pw_dir}/.cache/opforge" and not settings.cache_dir.is_set()
    )


def test_layers_and_owners_are_lists(monkeypatch):
    assert settings.cache_layers() == () == settings.trusted_owners()
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", os.pathsep.join(["/a", "", "/b/../c"]))
    monkeypatch.setenv("OPFORGE_TRUSTED_OWNERS", " ann , ,7,")
    assert settings.cache_layers() == ("/a", "/c")
    assert settings.trusted_owners() == ("ann", "7")


@pytest.mark.parametrize(("text", "value"), [("", None), ("0", 0.0), (" 2.5 ", 2.5), ("1e3", 1000.0)])
def test_a_timeout_is_a_number_of_seconds(monkeypatch, text, value):
    monkeypatch.setenv("OPFORGE_LOCK_TIMEOUT", text)
    assert settings.lock_timeout() == value


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_a_timeout_that_is_no_number_of_seconds_is_an_error(monkeypatch, text):
    monkeypatch.setenv("OPFORGE_LOCK_TIMEOUT", text)
    message = f"OPFORGE_LOCK_TIMEOUT={text!r} cannot be used: expected a number of seconds, 0 or more."
    with pytest.raises(SettingError, match=re.escape(message)):
        settings.lock_timeout()


def test_opforges_variable_for_jobs_comes_before_torchs(monkeypatch):
    assert settings.jobs() is None
    monkeypatch.setenv("MAX_JOBS", "3")
    assert settings.jobs() == 3
    monkeypatch.setenv("OPFORGE_JOBS", "2")
    assert settings.jobs() == 2


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "²"])
@pytest.mark.parametrize("name", ["OPFORGE_JOBS", "MAX_JOBS"])
def test_jobs_that_are_no_whole_number_are_an_error(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(
        SettingError, match=re.escape(f"{name}={text!r} cannot be used: expected a whole number, 1 or more.")
    ):
        settings.jobs()


def test_settings_are_read_at_each_call(monkeypatch):
    for text in ("1", "0", "1"):
        monkeypatch.setenv("OPFORGE_PARANOID", text)
        assert settings.paranoid() is (text == "1")


@pytest.mark.parametrize(
    "path", ["/a/b", "/a/b/", "/a//b", "/a/./b", "/a/../b", "/a/.hidden", "a/b", "~/a", "//a", "/", "."]
)
def test_a_chosen_cache_folder_is_absolute_and_normal(monkeypatch, path):
    monkeypatch.setenv("OPFORGE_CACHE_DIR", path)
    assert settings.cache_dir() == os.path.abspath(os.path.expanduser(path)) and settings.cache_dir.is_set()


def test_compiler_variables_are_names_separated_by_commas_or_spaces(monkeypatch):
    assert settings.compiler_env() == ()
    monkeypatch.setenv("OPFORGE_COMPILER_ENV", "ONE, TWO THREE")
    assert settings.compiler_env() == ("ONE", "TWO", "THREE")
    monkeypatch.setenv("OPFORGE_COMPILER_ENV", "ONE=1")
    with pytest.raises(SettingError, match="expected names of variables, separated by commas"):
        settings.compiler_env()
