"""A real nginx that is overloaded, cuts connections, or has a newer object: downloads go on where they were cut."""

from __future__ import annotations

import io
import os
import signal
import threading

import pytest
from support.polling import wait_for
from support.remote import servers

from opforge.errors import StoreError
from opforge.remote.stores.web.store import WebStore
from opforge.remote.stores.web.timing import Timing

DATA = os.urandom(1 << 20)
QUICK = Timing(connect=1.0, idle=5.0, pauses=(0.3, 0.6))


@pytest.fixture(autouse=True)
def no_proxies():
    with servers.without_proxies():
        yield


def statuses(server, count):
    """Returns the status of each request that nginx has answered, when it has written down so many."""
    return wait_for(lambda: len(logged := _logged(server)) >= count and logged, 30, "nginx has logged less")


def _logged(server):
    with open(os.path.join(os.path.dirname(server.root), "access.log"), encoding="utf-8") as file:
        return [line.split('" ')[1].split()[0] for line in file]


def put(server, data, modified=1e9):
    """Puts the object in its place, with a time of its own: nginx's ETag is that second and the size, no more."""
    with open(os.path.join(server.root, "new"), "wb") as file:
        file.write(data)
    os.chmod(file.name, 0o644)
    os.utime(file.name, (modified, modified))
    os.replace(file.name, os.path.join(server.root, "blob"))


def workers(server):
    """Returns the process ids of nginx's workers."""
    with open(f"/proc/{server.pid}/task/{server.pid}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]


class Slow(io.BytesIO):
    """A file that says when half of the object has arrived."""

    def __init__(self):
        super().__init__()
        self.half = threading.Event()

    def write(self, data):
        size = super().write(data)
        if self.tell() >= len(DATA) // 2:
            self.half.set()
        return size


def cut(server, change=None):
    """Downloads while nginx's worker is killed in the middle; returns the bytes."""
    file, errors = Slow(), []

    def run():
        try:
            WebStore(server.url, timing=QUICK).download("blob", file, len(DATA))
        except StoreError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert file.half.wait(30)
    if change:
        put(server, change, 2e9)
    for pid in workers(server):
        os.kill(pid, signal.SIGKILL)
    thread.join(60)
    assert not thread.is_alive() and not errors, errors
    return file.getvalue()


def test_a_download_that_nginx_cuts_goes_on_by_range_and_etag():
    with servers.nginx("limit_rate 2m;") as server:
        put(server, DATA)
        assert cut(server) == DATA
        # nginx logs no request of a worker that was killed.
        assert statuses(server, 1) == ["206"]


def test_a_download_that_nginx_cuts_begins_again_if_the_object_has_changed():
    with servers.nginx("limit_rate 2m;") as server:
        put(server, DATA)
        newer = DATA[::-1]
        assert cut(server, newer) == newer
        assert statuses(server, 1) == ["200"]


def test_an_nginx_that_answers_429_is_asked_again():
    with servers.nginx("limit_req zone=slow; limit_req_status 429;") as server:
        put(server, b"an object")
        store = WebStore(server.url, timing=QUICK)
        assert [store.get("blob", 100).data for _turn in range(3)] == [b"an object"] * 3
        assert sorted({*statuses(server, 4)}) == ["200", "429"]


def test_an_nginx_that_closes_each_connection_is_an_error():
    with servers.nginx("return 444;") as server, pytest.raises(StoreError) as caught:
        WebStore(server.url, timing=QUICK).get("blob", 100)
    assert "get blob failed: the server closed the connection without an answer (tried 3 times)" in str(caught.value)


def test_an_nginx_that_comes_back_is_used_again():
    with servers.nginx() as server:
        put(server, b"an object")
        store = WebStore(server.url, timing=QUICK)
        assert store.get("blob", 100).data == b"an object"
        (before,) = workers(server)
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: workers(server) not in ([], [before]), 30, "no new worker")
        assert store.get("blob", 100).data == b"an object"
