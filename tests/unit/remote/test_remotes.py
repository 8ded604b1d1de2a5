"""The setting OPFORGE_REMOTES."""

from __future__ import annotations

import traceback

import pytest

from opforge.errors import SettingError, StoreError
from opforge.remote import remembered_answers
from opforge.remote.remotes import Remote, configured, parse
from opforge.remote.signatures import seen, signing
from opforge.remote.stores import open_store
from opforge.remote.stores.urls import split


def test_remotes_and_their_options(monkeypatch):
    text = "https://cache.example/ops  file:///shared/ops?push=1&flags=1 http://127.0.0.1:8000/?unsigned=1"
    monkeypatch.setenv("OPFORGE_REMOTES", text)
    assert configured() == [
        Remote("https://cache.example/ops"),
        Remote("file:///shared/ops", pushes=True, takes_flags=True),
        Remote("http://127.0.0.1:8000/", is_unsigned=True),
    ]


def test_a_folder_with_spaces_is_one_remote(monkeypatch):
    monkeypatch.setenv(
        "OPFORGE_REMOTES", "file:///home/me/my ops/of today?push=1 file:///b c https://cache.example/ops"
    )
    assert [remote.url for remote in configured()] == [
        "file:///home/me/my%20ops/of%20today",
        "file:///b%20c",
        "https://cache.example/ops",
    ]
    assert parse("file:///my ops") == parse("file:///my%20ops")


def test_a_path_beside_a_folder_is_no_part_of_it(monkeypatch):
    monkeypatch.setenv("OPFORGE_REMOTES", "file:///shared/ops /other/ops")
    with pytest.raises(SettingError, match="'/other/ops' cannot be used: expected a URL: write file:///other/ops"):
        configured()


def test_options_of_the_store_stay_in_its_url():
    remote = parse("https://cache.example/ops?token_env=TOKEN&push=1")
    assert remote == Remote("https://cache.example/ops?token_env=TOKEN", pushes=True)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:secret@cache.example/ops?x=y", "https://cache.example/ops"),
        ("s3://id:sec/ret@bucket/ops", "s3://bucket/ops"),  # as many a secret key of S3
        ("s3://bucket/ops?endpoint=http://me:secret@host:9000", "s3://bucket/ops?endpoint=http://host:9000"),
    ],
)
def test_no_credentials_are_shown(url, shown):
    assert str(parse(url)) == shown
    with pytest.raises(StoreError, match="credentials are in the URL") as caught:
        split(url, ["endpoint", "x"])
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize("url", ["file:///team@site/ops", "http://host:8000/~me@site/ops", "http://[::1]:80/a@b"])
def test_an_at_sign_in_the_path_is_a_part_of_it(url):
    assert str(parse(url)) == split(url, ()).text == url


@pytest.mark.parametrize(
    ("url", "variable", "named"),
    [
        ("s3://bucket/ops", "AWS_ENDPOINT_URL", "s3://bucket/ops?endpoint=http://host:9000"),
        ("s3://bucket/ops", "AWS_ENDPOINT_URL_S3", "s3://bucket/ops?endpoint=http://host:9000"),
        ("s3://bucket/ops?endpoint=http://two", "AWS_ENDPOINT_URL", "s3://bucket/ops?endpoint=http://two"),
        ("az://box/ops", "AZURE_STORAGE_ACCOUNT_NAME", "az://box/ops?account=http://host:9000"),
        ("file:///shared/ops", "AWS_ENDPOINT_URL", "file:///shared/ops"),
    ],
)
def test_an_endpoint_or_an_account_of_the_environment_is_a_part_of_the_name(monkeypatch, url, variable, named):
    monkeypatch.setenv(variable, "http://me:secret@host:9000")
    assert str(parse(url)) == split(url, ["endpoint"]).text == named


def test_an_endpoint_of_the_environment_that_is_above_the_urls_is_refused(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"names another one, http://127\.0\.0\.1:9\. Unset AWS_END"):
        open_store("s3://bucket/ops?endpoint=http://127.0.0.1:8")


def test_buckets_of_one_name_at_two_endpoints_are_two_stores():
    first, second = (f"s3://bucket/ops?endpoint=http://{host}:9000&region=x" for host in ("one", "two"))
    assert str(parse(first)) != str(parse(second)) and "region" not in str(parse(first))
    assert split(first, ["endpoint", "region"]).text == str(parse(first))
    remembered_answers.note_failure(parse(first), StoreError("s3://bucket/ops", "get v1/x", "it is away", "Wait"))
    assert remembered_answers.failure(parse(first)) and not remembered_answers.failure(parse(second))
    key = signing.Named("ci", b"k" * 32)
    assert not seen.problem(str(parse(first)), key, seen.Seen(2, "a"))
    assert not seen.problem(str(parse(second)), key, seen.Seen(1, "b"))


@pytest.mark.parametrize(
    "text",
    [
        "https://me:secret@h/x?push=yes",
        "https://me:secret@h/x?unsigned=1",
        "https://me:secret@h\u2100/x?push=1",  # urlsplit's own error names the host with the password
    ],
)
def test_no_credentials_are_in_an_error(text):
    with pytest.raises(SettingError, match=r"https://\*\*\*@h.?/x") as caught:
        parse(text)
    assert "secret" not in "".join(traceback.format_exception(caught.value)) + str(caught.value.value)


@pytest.mark.parametrize(
    "text", ["", "/shared/ops", "https://[x/ops", "file://?push=maybe", "file:///x?push=maybe", "file:///x?flags="]
)
def test_what_is_no_remote(text):
    with pytest.raises(SettingError):
        parse(text)


@pytest.mark.parametrize("proxy", ["http_proxy", "all_proxy"])
def test_unsigned_is_not_for_what_a_proxy_answers(monkeypatch, proxy):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(proxy, "http://proxy.example:3128")
    with pytest.raises(SettingError, match="unsigned=1 without a proxy, which could answer: name the host in no_proxy"):
        parse("http://localhost:8000/ops?unsigned=1")
    assert parse("file:///shared/ops?unsigned=1").is_unsigned
    monkeypatch.setenv("no_proxy", "localhost")
    assert parse("http://localhost:8000/ops?unsigned=1").is_unsigned


@pytest.mark.parametrize("url", ["https://cache.example/ops", "s3://bucket/ops", "http://localhost.example/"])
def test_unsigned_is_for_folders_and_this_machine_alone(url):
    with pytest.raises(SettingError, match="unsigned=1 only with file:// or a server on this machine"):
        parse(url + "?unsigned=1")
