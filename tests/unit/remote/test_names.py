"""Names of objects and URLs of stores: what is allowed stays below the root, and no message holds credentials."""

from __future__ import annotations

import os
import posixpath

import pytest
from hypothesis import given, strategies

from opforge.errors import StoreError
from opforge.remote.stores import STORES, open_store
from opforge.remote.stores.protocol import LOCK_SUFFIX, MAX_NAME_CHARACTERS, check_name, check_prefix, is_name
from opforge.remote.stores.web.address import address_of, redirected

CHARACTERS = strategies.sampled_from("aZ0-_./\\%~ :\n\0ä*?")
PART = strategies.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True)


def accepts(name):
    try:
        return check_name("store", name) == name
    except StoreError:
        return False


@given(strategies.text(CHARACTERS, max_size=12))
def test_an_accepted_name_is_a_plain_path_below_the_root(name):
    if accepts(name):
        assert posixpath.normpath(name) == name and not name.startswith(("/", "."))
        assert name.isascii() and not any(
            part.startswith(".") or part.endswith(LOCK_SUFFIX) for part in name.split("/")
        )
        assert os.path.join("/store", name).startswith("/store/") and check_prefix("store", name + "/")
    assert accepts(name) == is_name(name)


@given(strategies.lists(PART, min_size=1, max_size=6))
def test_every_name_that_opforge_makes_is_accepted(parts):
    name = "/".join(parts)
    is_lock = any(part.endswith(LOCK_SUFFIX) for part in parts)
    assert accepts(name) == (not is_lock and len(name) <= MAX_NAME_CHARACTERS)


@pytest.mark.parametrize("prefix", ["", "v1", "v1/", "v1/topics/op/ab"])
def test_a_prefix_may_end_within_a_name(prefix):
    assert check_prefix("store", prefix) == prefix


@pytest.mark.parametrize("prefix", ["/", "../", "v1//", "v1/.", "a b", "x" * 241])
def test_a_prefix_that_is_no_path_is_refused(prefix):
    with pytest.raises(StoreError, match="cannot be the beginning of an object's name"):
        check_prefix("store", prefix)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("flie:///shared", "the scheme 'flie' is unknown. Did you mean 'file'?"),
        ("htps://host", "the scheme 'htps' is unknown. Did you mean 'https'?"),
        ("ftp://host", "Expected any of: file, http, https, s3, gs, az"),
        ("/shared/ops", "it is not a URL. Write file:///shared/ops"),
        ("ops", "Expected SCHEME://..., such as file:///shared/ops"),
        ("file://server/ops", "it names the host 'server'. Write file:///PATH"),
        ("file://", "its path is not absolute"),
        ("file:///ops?push=1", "the option 'push' is unknown. Options of file:// stores: none"),
        ("https://host/ops?tokn_env=A", "the option 'tokn_env' is unknown. Did you mean 'token_env'?"),
        ("https://host/ops?tokn_env=", "the option 'tokn_env' is unknown. Did you mean 'token_env'?"),
        ("https://host/ops?token_env=A&token_env=B", "the option 'token_env' is twice"),
        ("https://host/ops?token_env=hid.den", "token_env is not the name of a variable"),
        ("https://user:hidden@host/ops", "credentials are in the URL. Remove them: a server's are in ~/.netrc"),
        ("https://host:port/ops", "it is not a URL"),
        ("https:///ops", "is not the name of a host"),
        ("https://host/a b", "it has spaces or control characters"),
        ("https://host/../ops", "has other characters"),
        ("https://host/ops#part", "it has a fragment"),
        ("s3://", "it names no bucket"),
    ],
)
def test_a_url_that_cannot_be_used_is_an_error(url, text):
    with pytest.raises(StoreError) as raised:
        open_store(url)
    assert text in str(raised.value)
    assert "hid.den" not in str(raised.value) and "hidden" not in str(raised.value)


@given(strategies.sampled_from([*STORES, "x"]), strategies.text(max_size=20), strategies.text(max_size=20))
def test_no_message_holds_what_is_before_the_host(scheme, user, password):
    secret = "Pass" + password.replace("/", "") + "Word"
    with pytest.raises(StoreError) as raised:
        open_store(f"{scheme}://{user.replace('/', '')}:{secret}@host/?x=1")
    assert secret not in str(raised.value) and secret not in raised.value.url


def test_the_network_can_be_forbidden(tmp_path):
    for url in ("https://host/ops", "s3://bucket"):
        with pytest.raises(StoreError, match=r"the network is forbidden\. Unset OPFORGE_OFFLINE"):
            open_store(url, offline=True)
    assert open_store(tmp_path.as_uri(), offline=True).get("none", 1) is None


def test_the_path_of_a_file_url_is_decoded(tmp_path):
    (tmp_path / "a b").mkdir()
    assert open_store(f"{tmp_path.as_uri()}/a%20b").put_if_absent("x", b"1")
    assert (tmp_path / "a b" / "x").read_bytes() == b"1"


@given(strategies.text(CHARACTERS, max_size=20) | strategies.sampled_from(["//evil/x", "https://evil", "file:///x"]))
def test_a_redirect_never_leaves_the_host(location):
    for scheme in ("http", "https"):
        address = address_of(scheme, "host", None)
        target = redirected(address, "/base/x", location)
        if target:
            assert target[0] in (address, address_of("https", "host", target[0].port)) and target[1].startswith("/")
            assert scheme == "http" or target[0].scheme == "https"
