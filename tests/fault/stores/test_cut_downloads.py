"""Downloads that are cut, resumed, too short or too long."""

from __future__ import annotations

import io

import pytest
from support.remote import servers
from support.remote.scripted import response, serve

from opforge.errors import StoreError
from opforge.remote.stores.web.store import WebStore
from opforge.remote.stores.web.timing import Timing

QUICK = Timing(connect=0.5, idle=0.15, grace=0.3, pauses=(0.01, 0.02))
DATA = bytes(range(256)) * 1000


@pytest.fixture(autouse=True)
def no_proxies():
    with servers.without_proxies():
        yield


def download(script, size=256_000):
    file = io.BytesIO()
    WebStore(script.url, timing=QUICK).download("v1/blob", file, size)
    return file.getvalue()


class Cutting:
    """Answers a download in pieces of `piece` bytes, and cuts the connection after each, with or without Range."""

    def __init__(self, piece, etag='"1"', ranges=True, change_at=0, content_range=None):
        self.piece, self.etag, self.ranges, self.change_at = piece, etag, ranges, change_at
        self.content_range = content_range
        self.data = DATA

    def __call__(self, request, number):
        if number == self.change_at:
            self.etag, self.data = '"2"', DATA[::-1]
        start = 0
        if self.ranges and "range" in request.headers and request.headers.get("if-range") == self.etag:
            start = int(request.headers["range"].removeprefix("bytes=").removesuffix("-"))
        headers = {"ETag": self.etag}
        if start:
            headers["Content_Range"] = self.content_range or f"bytes {start}-{len(self.data) - 1}/{len(self.data)}"
        whole = response("206 Partial" if start else "200 OK", self.data[start:], **headers)
        return whole[: len(whole) - len(self.data[start:]) + self.piece]


def test_a_cut_download_is_resumed_where_it_ended():
    with serve(Cutting(100_000), keep=False) as script:
        assert download(script) == DATA
    assert [request.headers.get("range") for request in script.requests] == [None, "bytes=100000-", "bytes=200000-"]


def test_a_download_of_an_object_that_changed_begins_again():
    with serve(Cutting(100_000, change_at=2), keep=False) as script:
        assert download(script) == DATA[::-1]
    assert script.requests[1].headers["if-range"] == '"1"' and len(script.requests) == 4


def test_a_server_without_ranges_is_read_from_the_beginning():
    answer = Cutting(100_000, ranges=False)
    with serve(
        lambda request, number: response(body=DATA) if number == 3 else answer(request, number), keep=False
    ) as script:
        assert download(script) == DATA


@pytest.mark.parametrize("etag", ["", 'W/"1"'])
def test_without_a_strong_etag_nothing_is_resumed(etag):
    with serve(Cutting(100_000, etag), keep=False) as script, pytest.raises(StoreError, match="cut in the middle"):
        download(script)
    assert all("range" not in request.headers for request in script.requests)


@pytest.mark.parametrize("value", ["bytes 0-255999/256000", "bytes 100000-255999/256001", "x", "bytes 100000-/256000"])
def test_another_range_than_the_rest_is_an_error(value):
    with (
        serve(Cutting(100_000, content_range=value), keep=False) as script,
        pytest.raises(StoreError, match="another range"),
    ):
        download(script)


def test_a_download_that_never_gets_on_ends():
    with (
        serve(Cutting(0), keep=False) as script,
        pytest.raises(StoreError, match=r"cut in the middle .* \(tried 3 times\)|cut in the middle"),
    ):
        download(script)
    assert len(script.requests) == 3


@pytest.mark.parametrize("length", [len(DATA) - 1, len(DATA) + 1])
def test_a_wrong_length_is_an_error_before_a_byte_is_read(length):
    with (
        serve(lambda request, number: response(body=DATA[:length] + b"x" * (length - len(DATA)))) as script,
        pytest.raises(StoreError, match=f"it has {length} bytes"),
    ):
        download(script)
    assert len(script.requests) == 1
