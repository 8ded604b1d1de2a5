"""What every store does, on real servers: a folder, http.server, nginx, apache2, S3 by moto, Azure by Azurite."""

from __future__ import annotations

import io
import itertools
import os
import threading

import pytest

from opforge.errors import StoreError
from opforge.remote.stores import open_store
from opforge.remote.stores.protocol import StoredObject

NUMBERS = itertools.count()


@pytest.fixture
def name():
    """A name that no other test has."""
    return f"v1/topics/op/{os.getpid()}-{next(NUMBERS)}.json"


def test_what_was_stored_is_read(backend, name):
    backend.fill(name, b"an offer")
    stored = backend.store.get(name, 8)
    assert isinstance(stored, StoredObject) and stored.data == b"an offer"
    assert stored.version or backend.kind == "http.server"  # which sends no ETags


@pytest.mark.parametrize("missing", ["v1/topics/op/none.json", "none", "v2/deep/er/none"])
def test_an_object_that_does_not_exist_is_none(backend, missing):
    assert backend.store.get(missing, 100) is None


def test_whether_there_is_an_object_is_known_without_its_bytes(backend, name):
    assert not backend.store.exists(name) and not backend.store.exists("v2/deep/er/none")
    backend.fill(name, b"an offer")
    assert backend.store.exists(name)


def test_an_empty_object_is_read(backend, name):
    backend.fill(name, b"")
    assert backend.store.get(name, 0).data == b""
    file = io.BytesIO()
    backend.store.download(name, file, 0)
    assert file.getvalue() == b""


def test_more_bytes_than_the_limit_are_an_error(backend, name):
    backend.fill(name, b"12345678")
    with pytest.raises(StoreError, match=r"get v1/topics/op/.* failed: it has 8 bytes, .*7"):
        backend.store.get(name, 7)


def test_a_download_brings_exactly_the_bytes(backend, name, tmp_path):
    data = os.urandom(3_000_001)
    backend.fill(name, data)
    path = tmp_path / "blob"
    with path.open("wb") as file:
        backend.store.download(name, file, len(data))
    assert path.read_bytes() == data


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_download_of_another_size_is_an_error(backend, name, difference):
    backend.fill(name, b"x" * 1000)
    with pytest.raises(StoreError, match="1000 bytes"):
        backend.store.download(name, io.BytesIO(), 1000 + difference)


def test_a_download_of_what_does_not_exist_is_an_error(backend):
    with pytest.raises(StoreError, match="download v1/none failed"):
        backend.store.download("v1/none", io.BytesIO(), 1)


def test_many_threads_use_a_store_at_once(backend, name):
    backend.fill(name, b"shared")
    results = []

    def read():
        results.extend(backend.store.get(name, 100).data for _ in range(20))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [b"shared"] * 80


@pytest.mark.parametrize(
    "bad", ["", "/etc/passwd", "../x", "v1//x", "v1/../x", ".x", "v1/x.lock", "a b", "ä", "x" * 241]
)
def test_a_name_that_is_no_path_below_the_root_is_refused(backend, bad):
    for operation in (
        lambda: backend.store.get(bad, 1),
        lambda: backend.store.download(bad, io.BytesIO(), 1),
        lambda: backend.store.delete(bad),
        lambda: backend.store.put_if_absent(bad, b""),
        lambda: backend.store.put_if_unchanged(bad, b"", '"1"'),
    ):
        with pytest.raises(StoreError, match="cannot be the name of an object"):
            operation()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_or_says_why_it_cannot(backend, name):
    backend.fill(name, b"shared")
    assert backend.store.get(name, 100).data == b"shared"
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, backend.store.get(name, 100).data)
        except StoreError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        output = file.read().decode()
    os.waitpid(child, 0)
    if backend.is_cloud:
        assert "Fork before the first use, or start a new process" in output
    else:
        assert output == "shared"
    assert backend.store.get(name, 100).data == b"shared"


def test_of_the_options_the_url_holds_only_those_that_say_which_store_it_is(backend):
    query = backend.store.url.partition("?")[2]
    assert query.startswith("endpoint=http://127.0.0.1:") if backend.is_cloud else not query
    assert "region" not in query and backend.store.url in repr(backend.store)


def test_a_bucket_that_does_not_exist_is_no_store_that_has_nothing(backend):
    if not backend.is_cloud:
        pytest.skip("only buckets have names of their own")
    store = open_store(backend.url.replace("://ops/", "://opps/"))
    with pytest.raises(StoreError, match=r"404 Not Found: The specified \w+ does not exist\. Check the bucket's name"):
        store.get("v1/x", 1)


def test_an_object_is_stored_once(writable, name):
    assert writable.store.put_if_absent(name, b"first")
    assert not writable.store.put_if_absent(name, b"second")
    assert writable.store.get(name, 100).data == b"first"


def test_a_file_is_stored_from_its_beginning(writable, name):
    file = io.BytesIO(b"a blob" * 100_000)
    file.read(3)
    assert writable.store.put_if_absent(name, file)
    assert not writable.store.put_if_absent(name, file)
    assert writable.store.get(name, 1_000_000).data == b"a blob" * 100_000


def test_an_object_is_replaced_only_if_it_is_unchanged(writable, name):
    assert writable.store.put_if_absent(name, b"first")
    first = writable.store.get(name, 100)
    assert writable.store.put_if_unchanged(name, b"second", first.version)
    assert not writable.store.put_if_unchanged(name, b"third", first.version)
    second = writable.store.get(name, 100)
    assert second.data == b"second" and second.version != first.version


def test_an_object_that_was_deleted_is_not_replaced(writable, name):
    assert writable.store.put_if_absent(name, b"first")
    version = writable.store.get(name, 100).version
    writable.store.delete(name)
    writable.store.delete(name)  # that there is none is no error
    assert not writable.store.put_if_unchanged(name, b"second", version)
    assert writable.store.get(name, 100) is None


def test_objects_are_listed(backend):
    if backend.kind != "folder" and not backend.is_cloud:
        with pytest.raises(StoreError, match="an HTTP server cannot list its objects"):
            list(backend.store.list("v1/"))
        return
    names = {"listed/a/1", "listed/a/2", "listed/ab", "listed/b"}
    for listed in names:
        backend.fill(listed, b"123")
    assert {entry.name for entry in backend.store.list("listed/")} == names
    assert {entry.name for entry in backend.store.list("listed")} == names
    assert {entry.name for entry in backend.store.list("listed/a")} == names - {"listed/b"}
    assert {entry.name for entry in backend.store.list("listed/a/")} == {"listed/a/1", "listed/a/2"}
    assert names <= {entry.name for entry in backend.store.list("")}
    assert list(backend.store.list("nothing/")) == []
    (entry,) = backend.store.list("listed/b")
    assert entry.size == 3 and 1e9 < entry.modified < 1e11


def test_a_server_that_ignores_preconditions_is_not_published_to(backend):
    if backend.kind in ("nginx", "http.server"):
        reason = "although 'If-None-Match: \\*' forbids that" if backend.kind == "nginx" else "501 Not Implemented"
        for publish in (
            lambda: backend.store.put_if_absent("v1/new", b"x"),
            lambda: backend.store.put_if_absent("v1/new", io.BytesIO(b"x")),
            lambda: backend.store.put_if_unchanged("v1/new", b"x", '"1"'),
        ):
            with pytest.raises(StoreError, match=reason):
                publish()
        assert backend.store.get("v1/new", 10) is None
