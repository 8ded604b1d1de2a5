"""Connections to servers: kept, dropped by a fork, through proxies, with TLS and credentials that nothing prints."""

from __future__ import annotations

import base64
import logging
import os
import socket
import ssl
import sys
import threading
import time
import traceback

import pytest
from support.remote import servers
from support.remote.certificates import self_signed
from support.remote.scripted import response, serve

from opforge.errors import StoreError
from opforge.remote.stores import open_store
from opforge.remote.stores.web import connection
from opforge.remote.stores.web.store import WebStore
from opforge.remote.stores.web.timing import Timing

QUICK = Timing(connect=0.5, idle=2.0, grace=3.0, pauses=(0.01, 0.02))
TOKEN = "s3cret-t0ken"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    with servers.without_proxies():
        yield


def here(request, number):
    return response(body=request.target.encode(), ETag='"1"')


def test_one_connection_serves_many_requests():
    with serve(here) as script:
        store = WebStore(script.url + "/base/")
        for name in ("a", "b/c"):
            assert store.get(name, 100).data == f"/base/{name}".encode()
        with serve(lambda request, number: response("404 Not Found", b"none here")) as other:
            missing = WebStore(other.url)
            assert [missing.get("x", 1) for _ in range(3)] == [None] * 3
    assert script.connections == other.connections == 1


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="this system cannot be asked to acknowledge at once")
def test_a_server_that_sends_an_answer_in_two_parts_is_not_kept_waiting():
    """`python -m http.server`, for one. Each further answer of a connection would take 40 ms."""

    def parts(request, number):
        head, _, body = response(body=b"x" * 500).partition(b"\r\n\r\n")
        return [head + b"\r\n\r\n", body]

    with serve(parts) as script:
        store, times = WebStore(script.url), []
        for _ in range(12):
            began = time.monotonic()
            store.get("a", 1000)
            times.append(time.monotonic() - began)
    assert script.connections == 1 and sorted(times)[5] < 0.03, times


def test_a_kept_connection_that_the_server_closed_is_replaced_without_a_pause():
    with serve(here, keep=False) as script:
        store = WebStore(script.url, timing=QUICK._replace(pauses=(60, 60)))
        for _ in range(4):
            assert store.get("a", 100).data == b"/a"
            time.sleep(0.02)  # the end of the connection arrives
    assert script.connections == 4


def test_a_thread_has_a_connection_of_its_own():
    with serve(here) as script:
        store = WebStore(script.url)
        store.get("a", 10)
        thread = threading.Thread(target=lambda: store.get("b", 10))
        thread.start()
        thread.join()
        store.get("c", 10)
    assert script.connections == 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_and_its_parent_do_not_share_a_connection():
    with serve(here) as script:
        store = WebStore(script.url)
        assert store.get("parent", 100).data == b"/parent"
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(writer, store.get("child", 100).data)
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            assert file.read() == b"/child"
        os.waitpid(child, 0)
        assert store.get("again", 100).data == b"/again"
    assert script.connections == 2


def test_a_server_that_is_not_there_is_an_error():
    url = f"http://127.0.0.1:{servers.free_port()}"
    with pytest.raises(StoreError, match=r"the connection failed \(Connection refused\) \(tried 3 times\)"):
        WebStore(url, timing=QUICK).get("x", 1)


def test_a_server_that_accepts_no_connection_is_left_after_the_time_out():
    with socket.socket() as listener, socket.socket() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting.connect(listener.getsockname())  # the queue is full, so the next packets are dropped
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(StoreError, match=r"the server did not answer in time \(tried 3 times\)"):
            WebStore(url, timing=QUICK._replace(connect=0.2)).get("x", 1)
    assert time.monotonic() - began < 3


def test_a_host_that_does_not_exist_is_an_error_at_once():
    began = time.monotonic()
    with pytest.raises(StoreError, match="the host's name cannot be resolved"):
        WebStore("http://host.invalid", timing=QUICK._replace(pauses=(0.01,))).get("x", 1)
    assert time.monotonic() - began < 20


def proxied(request, number):
    return response(body=f"{request.target} {request.headers.get('proxy-authorization', '-')}".encode())


def test_the_proxy_of_the_environment_is_used(monkeypatch):
    with serve(proxied) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//user:pass%20word@"))
        login = base64.b64encode(b"user:pass word").decode()
        store = WebStore("http://cache.example:81/ops", timing=QUICK)
        assert store.get("x", 1000).data == f"http://cache.example:81/ops/x Basic {login}".encode()
        assert proxy.requests[0].headers["host"] == "cache.example:81"
        monkeypatch.setenv("no_proxy", "other,127.0.0.1")
        with serve(here) as script:
            assert WebStore(script.url).get("direct", 100).data == b"/direct"


def test_https_goes_through_a_tunnel_of_the_proxy(monkeypatch):
    with serve(lambda request, number: b"HTTP/1.1 403 No\r\n\r\n") as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        with pytest.raises(StoreError, match="the proxy refused the connection: it answered 403"):
            WebStore("https://cache.example", timing=QUICK).get("x", 1)
    assert proxy.requests[0].method == "CONNECT" and proxy.requests[0].target == "cache.example:443"


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_an_error_of_a_request_names_its_proxy_and_the_variable_that_names_it(variable, monkeypatch):
    monkeypatch.setenv(variable, "http://user:hidden@127.0.0.1:1")
    with pytest.raises(StoreError, match=f", with the proxy 127.0.0.1:1 of {variable}. Check the URL") as raised:
        WebStore("http://cache.example", timing=QUICK).get("x", 1)
    assert "hidden" not in str(raised.value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(StoreError) as raised:
        WebStore("http://127.0.0.1:1", timing=QUICK).get("x", 1)
    assert "proxy" not in str(raised.value)


@pytest.mark.parametrize("url", ["socks5://user:hidden@127.0.0.1:1", "http://user:hidden@:1", "http://h:port"])
def test_a_proxy_that_cannot_be_used_is_an_error_without_its_password(url, monkeypatch):
    monkeypatch.setenv("http_proxy", url)
    with pytest.raises(StoreError, match="the proxy that http_proxy names") as raised:
        WebStore("http://cache.example", timing=QUICK).get("x", 1)
    assert "hidden" not in str(raised.value)


# Credentials.


def test_a_token_is_sent_and_never_printed(monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("CACHE_TOKEN", TOKEN)
    with serve(lambda request, number: response(f"403 {request.headers['authorization']}")) as script:
        store = open_store(f"{script.url}?token_env=CACHE_TOKEN")
        with pytest.raises(StoreError, match="403 Forbidden") as raised:
            store.get("x", 1)
    assert script.requests[0].headers["authorization"] == f"Bearer {TOKEN}"
    error = raised.value
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error)) + repr(store) + store.url
    assert TOKEN not in shown + caplog.text + repr(vars(store)) + repr(vars(store._client))


def test_a_new_token_is_used_by_the_next_connection(monkeypatch):
    def answer(request, number):
        return response() if request.headers["authorization"] == "Bearer new" else response("401 No")

    monkeypatch.setenv("CACHE_TOKEN", "old")
    with serve(answer) as script:
        store = open_store(f"{script.url}?token_env=CACHE_TOKEN")
        with pytest.raises(StoreError, match=r"401 Unauthorized\. Add \?token_env=NAME"):
            store.get("x", 1)
        monkeypatch.setenv("CACHE_TOKEN", "new")
        assert store.get("x", 1).data == b""


@pytest.mark.parametrize(
    ("value", "problem"),
    [("", "is not set"), ("a\r\nHost: evil", "does not hold a token"), ("two words", "does not hold a token")],
)
def test_a_token_that_cannot_be_sent_is_an_error(value, problem, monkeypatch):
    monkeypatch.setenv("CACHE_TOKEN", value)
    with pytest.raises(StoreError, match=f"the variable CACHE_TOKEN.* {problem}") as raised:
        open_store("https://127.0.0.1:1?token_env=CACHE_TOKEN").get("x", 1)
    assert not value or value not in str(raised.value)


@pytest.mark.parametrize("host", ["cache.example", "127.0.0.1.example.com", "localhost.example", "10.0.0.1"])
def test_a_token_is_not_sent_without_encryption(host, monkeypatch):
    monkeypatch.setenv("CACHE_TOKEN", TOKEN)
    with pytest.raises(StoreError, match=f"would be sent to http://{host} without encryption"):
        open_store(f"http://{host}?token_env=CACHE_TOKEN").get("x", 1)


def test_a_token_for_this_machine_is_not_sent_to_a_proxy(monkeypatch):
    monkeypatch.setenv("CACHE_TOKEN", TOKEN)
    with serve(here) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        with pytest.raises(StoreError, match="without encryption"):
            open_store("http://127.0.0.1:1?token_env=CACHE_TOKEN").get("x", 1)
    assert proxy.requests == []


def test_a_login_of_netrc_is_sent(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ci password hidden\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with serve(here) as script:
        WebStore(script.url).get("x", 10)
    assert base64.b64decode(script.requests[0].headers["authorization"].removeprefix("Basic ")) == b"ci:hidden"


def test_a_damaged_netrc_is_an_error_without_its_words(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ci\nhidden hidden\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(StoreError, match="netrc cannot be used: line 2") as raised:
        WebStore("http://127.0.0.1:1", timing=QUICK).get("x", 1)
    assert "hidden" not in "".join(traceback.format_exception(raised.value))


# TLS.


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority)
    with serve(here, wrap=lambda sock: context.wrap_socket(sock, server_side=True)) as script:
        yield script


def test_the_file_of_ssl_cert_file_is_trusted(tls, authority, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", authority[0])
    store = WebStore(tls.url, timing=QUICK)
    assert [store.get(name, 10).data for name in "ab"] == [b"/a", b"/b"]
    assert tls.connections == 1


def test_a_server_that_is_not_trusted_is_an_error_with_the_variable_to_set(tls):
    with pytest.raises(StoreError, match=r"certificate is not trusted \(self.signed certificate\).*SSL_CERT_FILE"):
        WebStore(tls.url, timing=QUICK).get("x", 1)
    assert tls.connections == 1  # it is not tried again


def test_a_missing_file_of_certificates_is_an_error(tls, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent/ca.pem")
    with pytest.raises(StoreError, match=r"SSL_CERT_FILE='/nonexistent/ca\.pem' is not a file"):
        WebStore(tls.url, timing=QUICK).get("x", 1)


def test_no_certificates_at_all_are_an_error(tls, monkeypatch, tmp_path):
    (tmp_path / "empty.pem").write_bytes(b"")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "empty.pem"))
    with pytest.raises(StoreError, match=r"not trusted|cannot be read"):
        WebStore(tls.url, timing=QUICK).get("x", 1)


def test_a_python_without_tls_is_an_error(tls, monkeypatch):
    monkeypatch.setitem(sys.modules, "ssl", None)
    monkeypatch.setattr(connection, "_contexts", {})
    with pytest.raises(StoreError, match="this Python has no ssl module"):
        WebStore(tls.url, timing=QUICK).get("x", 1)
