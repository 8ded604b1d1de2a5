"""What a server can answer that it should not: each is one clear error within a bounded time, or is tried again."""

from __future__ import annotations

import io
import itertools
import time

import pytest
from support.remote import servers
from support.remote.scripted import response, serve

from opforge.errors import StoreError
from opforge.remote.stores.web.store import WebStore
from opforge.remote.stores.web.timing import Timing

QUICK = Timing(connect=0.5, idle=0.15, grace=0.3, pauses=(0.01, 0.02), max_retry_after=0.5, void=1.0)
DATA = bytes(range(256)) * 1000


@pytest.fixture(autouse=True)
def no_proxies():
    with servers.without_proxies():
        yield


def get(script, name="v1/x", limit=1 << 20):
    """Returns what the store gets from a scripted server; it must end within five seconds."""
    began = time.monotonic()
    try:
        return WebStore(script.url, timing=QUICK).get(name, limit)
    finally:
        assert time.monotonic() - began < 5


def download(script, size=256_000):
    file = io.BytesIO()
    WebStore(script.url, timing=QUICK).download("v1/blob", file, size)
    return file.getvalue()


def drip(parts, seconds=0.1):
    """Yields the parts slowly."""
    for part in parts:
        yield part
        time.sleep(seconds)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_an_overloaded_server_is_tried_three_times(status):
    with (
        serve(lambda request, number: response(f"{status} Oops")) as script,
        pytest.raises(StoreError, match=rf"answered {status} .* \(tried 3 times\)"),
    ):
        get(script)
    assert len(script.requests) == 3


def test_a_server_that_recovers_is_no_error():
    with serve(lambda request, number: response("503 Busy") if number < 3 else response(body=b"here")) as script:
        assert get(script).data == b"here"
    assert script.connections == 1


def test_the_pause_that_a_server_asks_for_is_made():
    timing = QUICK._replace(max_retry_after=5.0)
    began = time.monotonic()
    with serve(
        lambda request, number: response("429 Slow", Retry_After="1") if number < 2 else response(body=b"x")
    ) as script:
        assert WebStore(script.url, timing=timing).get("x", 9).data == b"x"
    assert 1 <= time.monotonic() - began < 4


def test_a_date_in_retry_after_is_compared_with_the_servers_own_clock():
    headers = {"Date": "Thu, 01 Jan 2060 00:00:00 GMT", "Retry_After": "Thu, 01 Jan 2060 00:00:01 GMT"}
    timing = QUICK._replace(max_retry_after=5.0)
    began = time.monotonic()
    with serve(lambda request, number: response("503 x", **headers) if number < 2 else response(body=b"x")) as script:
        assert WebStore(script.url, timing=timing).get("x", 9).data == b"x"
    assert 1 <= time.monotonic() - began < 4


@pytest.mark.parametrize("value", ["3600", "Thu, 01 Jan 2099 00:00:00 GMT", "9" * 400])
def test_a_pause_that_is_too_long_is_an_error_at_once(value):
    with (
        serve(lambda request, number: response("429 Slow", Retry_After=value)) as script,
        pytest.raises(StoreError, match="asks to come back in"),
    ):
        get(script)
    assert len(script.requests) == 1


@pytest.mark.parametrize("value", ["soon", "-5", "", "\xb2"])
def test_a_malformed_pause_is_ignored(value):
    with (
        serve(lambda request, number: response("429 Slow", Retry_After=value)) as script,
        pytest.raises(StoreError, match="tried 3 times"),
    ):
        get(script)


@pytest.mark.parametrize("status", [400, 401, 403, 405, 418, 206, 204, 304, 300])
def test_another_status_is_an_error_with_its_name_but_not_the_servers_words(status):
    with (
        serve(lambda request, number: response(f"{status} my-token")) as script,
        pytest.raises(StoreError, match=f"the server answered {status}") as raised,
    ):
        get(script)
    assert "my-token" not in str(raised.value) and len(script.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"\x16\x03\x01garbage",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A" * 70000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-15\r\nabcde\r\n0\r\n\r\n",
        b"",
    ],
)
def test_garbage_is_an_error(answer):
    with (
        serve(lambda request, number: answer, keep=False) as script,
        pytest.raises(StoreError, match=r"not HTTP|middle of an answer|without an answer"),
    ):
        get(script)


@pytest.mark.parametrize(
    ("head", "endless"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 10000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"Trailer: x\r\n" * 5000),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", b"x" * 65536),
        (b"HTTP/1.1 503 Busy\r\n\r\n", b"x" * 65536),
    ],
)
def test_an_endless_answer_ends(head, endless):
    with serve(lambda request, number: itertools.chain([head], itertools.repeat(endless))) as script:
        if head[9:12] == b"404":
            assert get(script) is None
            return
        with pytest.raises(StoreError, match=r"more than|503"):
            get(script, limit=100_000)
        with pytest.raises(StoreError, match=r"more than|503"):
            download(script, 100_000)


@pytest.mark.parametrize(
    "head",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"],
)
def test_an_answer_that_trickles_ends(head):
    with (
        serve(lambda request, number: drip([head, *[b"x"] * 1000])) as script,
        pytest.raises(StoreError, match="did not answer in time: it sent only"),
    ):
        get(script)


def test_a_server_that_says_nothing_is_left_after_the_time_out():
    with (
        serve(lambda request, number: drip([b""], 0.6)) as script,
        pytest.raises(StoreError, match=r"did not answer in time \(tried 3 times\)"),
    ):
        get(script)


def test_a_slow_answer_that_is_quick_enough_is_read():
    timing = QUICK._replace(bytes_per_second=100.0)
    parts = [b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", *[b"x" * 250] * 20]
    with serve(lambda request, number: drip(parts, 0.05)) as script:
        assert len(WebStore(script.url, timing=timing).get("x", 5000).data) == 5000


def test_an_object_that_is_cut_is_read_again():
    whole = response(body=DATA)
    with serve(lambda request, number: whole[: -10 if number < 3 else None], keep=False) as script:
        assert get(script).data == DATA
    with (
        serve(lambda request, number: whole[:-10], keep=False) as script,
        pytest.raises(StoreError, match="cut in the middle"),
    ):
        get(script)


def test_a_compressed_answer_is_refused_and_none_is_requested():
    with serve(lambda request, number: response(body=b"\x1f\x8b", Content_Encoding="gzip")) as script:
        with pytest.raises(StoreError, match="compressed"):
            get(script)
        with pytest.raises(StoreError, match="compressed"):
            download(script, 2)
    assert {request.headers["accept-encoding"] for request in script.requests} == {"identity"}


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("http://other.example/x?token=1", "redirects to 'http://other.example', and not within its host"),
        ("//me:secret@other.example/x", "redirects to '://other.example', and not within its host"),
        ("file:///etc/passwd", "redirects to 'file://', and not within its host"),
        ("ftp://127.0.0.1/x", "redirects to 'ftp://127.0.0.1', and not"),
        ("http://127.0.0.1:1/x", "redirects to 'http://127.0.0.1:1', and not"),
        ("", "too many redirects"),
        ("http://[::1", "redirects to no URL, and not"),
        ("javascript:1", "redirects to 'javascript://', and not"),
        ("http://127.0.0.1:99999/", "redirects to 'http://127.0.0.1:99999', and not"),
        ("/a b", "redirects to no URL, and not"),
        ("/\xe4", "redirects to no URL, and not"),
    ],
)
def test_a_redirect_to_another_host_is_not_followed(location, problem):
    with (
        serve(lambda request, number: response("302 Found", Location=location)) as script,
        pytest.raises(StoreError, match=problem),
    ):
        get(script)
    assert len(script.requests) <= 6


@pytest.mark.parametrize("etag", ['"a\r\n folded"', "plain", '"\xe4"', '"' + "a" * 5000 + '"', 'W/"', '"a" "b"'])
def test_an_etag_that_cannot_be_sent_back_is_none(etag):
    with serve(lambda request, number: response(body=b"x", ETag=etag)) as script:
        assert get(script) == (b"x", "")


def test_a_redirect_within_the_host_is_followed():
    def answer(request, number):
        return response("301 Moved", Location="/there?a=b") if number == 1 else response(body=request.target.encode())

    with serve(answer) as script:
        assert get(script).data == b"/there?a=b"
    assert script.connections == 1


def test_a_redirect_of_a_loop_ends():
    with (
        serve(lambda request, number: response("302 Found", Location="/again")) as script,
        pytest.raises(StoreError, match="too many redirects"),
    ):
        get(script)
    assert len(script.requests) == 6


def test_a_put_is_not_redirected():
    with (
        serve(lambda request, number: response("307 Moved", Location="/there")) as script,
        pytest.raises(StoreError, match="put v1/probe failed: the server answered 307"),
    ):
        WebStore(script.url, timing=QUICK).put_if_absent("v1/x", b"x")
