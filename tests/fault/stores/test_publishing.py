"""Publishing to servers that lose answers, have weak ETags, ignore preconditions, or keep a dead process's lock."""

from __future__ import annotations

import os
import time

import pytest
from support import child_processes
from support.remote import servers
from support.remote.scripted import response, serve

from opforge.errors import StoreError
from opforge.remote import remembered_answers
from opforge.remote.remotes import parse
from opforge.remote.stores import cloud, open_store, preconditions
from opforge.remote.stores.web import dav
from opforge.remote.stores.web.store import WebStore
from opforge.remote.stores.web.timing import Timing

QUICK = Timing(connect=0.5, idle=0.5, grace=1.0, pauses=(0.01, 0.02), void=0.6)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    monkeypatch.setattr(preconditions, "_proven", set())
    with servers.without_proxies():
        yield


class Honest:
    """A server that honours preconditions. Subclasses change what it answers."""

    weak = ""

    def __init__(self):
        self.objects = {}

    def etag(self, data):
        return f'{self.weak}"{hash(data)}"'

    def __call__(self, request, number):
        name, data = request.target, self.objects.get(request.target)
        if request.method in ("GET", "HEAD"):
            if data is None:
                return response("404 Not Found")
            whole = response(body=data, ETag=self.etag(data))
            return whole[: len(whole) - len(data)] if request.method == "HEAD" else whole
        if request.method == "OPTIONS":
            return response()
        if request.method == "PUT":
            return self.put(request, name, data)
        return response("405 Not Allowed")

    def put(self, request, name, data):
        if "if-none-match" in request.headers and data is not None:
            return response("412 No")
        if "if-match" in request.headers and (data is None or request.headers["if-match"] != f'"{hash(data)}"'):
            return response("412 No")
        self.objects[name] = request.body
        return response("201 Created")


def store_of(script):
    return WebStore(script.url, timing=QUICK)


def test_a_server_proves_once_that_it_honours_preconditions():
    with serve(Honest()) as script:
        for name in ("a", "b"):
            assert store_of(script).put_if_absent(name, b"x")
        probes = [request.method for request in script.requests if request.target.endswith("/v1/probe")]
    assert probes == ["PUT", "PUT", "PUT", "OPTIONS", "OPTIONS"]


def test_a_server_that_ignores_if_match_is_refused():
    class IgnoresIfMatch(Honest):
        def put(self, request, name, data):
            request.headers.pop("if-match", None)
            return super().put(request, name, data)

    with serve(IgnoresIfMatch()) as script, pytest.raises(StoreError, match="although 'If-Match' forbids that"):
        store_of(script).put_if_absent("v1/x", b"x")


@pytest.mark.parametrize(
    "in_its_place",
    [None, b"no HTTP\r\n\r\n", response("503 Service Unavailable")],
    ids=["nothing", "no HTTP", "a proxy's 503"],
)
def test_an_object_whose_answer_was_lost_counts_as_stored(in_its_place):
    class LosesAnswers(Honest):
        lost = 0

        def put(self, request, name, data):
            answer = super().put(request, name, data)
            if name == "/v1/x" and b"201" in answer and self.lost < 2:
                self.lost += 1
                return in_its_place
            return answer

    with serve(LosesAnswers()) as script:
        store = store_of(script)
        assert store.put_if_absent("v1/x", b"own")
        assert not store.put_if_absent("v1/x", b"of another")
        assert store.put_if_unchanged("v1/x", b"changed", store.get("v1/x", 99).version)
        assert store.get("v1/x", 99).data == b"changed"


def test_an_answer_before_the_body_was_read_is_understood():
    refusal = response("413 Too Large", Connection="close")

    def answer(request, number):
        return refusal

    with serve(answer, keep=False) as script, pytest.raises(StoreError, match=r"413 .*Raise the server's limit"):
        store_of(script)._create("v1/x", b"x" * 20_000_000)


def test_weak_etags_are_waited_for():
    class WeakAtFirst(Honest):
        def etag(self, data):
            self.weak = "W/" if time.monotonic() < self.end else ""
            return super().etag(data)

    server = WeakAtFirst()
    server.end = time.monotonic() + 0.7
    with serve(server) as script:
        store = store_of(script)
        assert store.put_if_absent("v1/x", b"1")
        stored = store.get("v1/x", 9)
        assert stored.version.startswith("W/") and store.put_if_unchanged("v1/x", b"2", stored.version)
        server.end = time.monotonic() + 60
        weak = store.get("v1/x", 9).version
        server.objects["/v1/x"] = b"of another"
        assert not store.put_if_unchanged("v1/x", b"3", weak)


def test_a_server_without_strong_etags_is_an_error(monkeypatch):
    monkeypatch.setattr("opforge.remote.stores.web.store.WEAK_SECONDS", 0.4)
    server = Honest()
    server.weak = "W/"
    with serve(server) as script:
        store = store_of(script)
        assert store.put_if_absent("v1/x", b"1")
        with pytest.raises(StoreError, match="the server sends weak ETags only"):
            store.put_if_unchanged("v1/x", b"2", store.get("v1/x", 9).version)
        with pytest.raises(StoreError, match="the server sends no ETags"):
            store.put_if_unchanged("v1/x", b"2", "")


@pytest.fixture(scope="module")
def apache():
    with servers.without_proxies(), servers.apache() as server:
        yield server


KILLED = """
import os
from opforge.remote.stores.web import dav
from opforge.remote.stores.web.store import WebStore
store = WebStore(os.environ["STORE"])
with dav.hold(store._client, "v1/killed"):
    os._exit(3)
"""


@pytest.mark.test_all("starts a server")
def test_the_lock_of_a_process_that_was_killed_is_void_on_apache(apache):
    store = WebStore(apache.url, timing=QUICK)
    assert store.put_if_absent("v1/killed", b"1")
    process = child_processes.start_python(KILLED, env={"STORE": apache.url})
    process.communicate(timeout=30)
    assert process.returncode == 3 and os.path.isdir(f"{apache.root}/v1/killed.lock")
    began = time.monotonic()
    assert store.put_if_unchanged("v1/killed", b"2", store.get("v1/killed", 9).version)
    assert 0.5 < time.monotonic() - began < 10
    assert sorted(os.listdir(f"{apache.root}/v1")) == ["killed", "probe"]


@pytest.mark.test_all("starts a server")
def test_a_live_lock_that_was_taken_for_void_gets_its_name_back_on_apache(apache):
    client = WebStore(apache.url)._client
    dav.make_collections(client, "v1/x")
    with dav.hold(client, "v1/live"):
        dav._remove_void(client, "v1/live.lock", b"the state of an older lock")
        assert os.path.isdir(f"{apache.root}/v1/live.lock")
    assert [name for name in os.listdir(f"{apache.root}/v1") if name.endswith(".lock")] == []


@pytest.mark.test_all("starts a server")
def test_a_folder_and_a_server_of_the_same_files_have_the_same_locks(apache):
    """A team can publish by file:// on some machines, and by WebDAV on others."""
    from opforge.remote.stores.folder.store import FolderStore

    assert WebStore(apache.url).put_if_absent("v1/both", b"1")
    folder = FolderStore("file://test", apache.root, void_seconds=0.4)
    client = WebStore(apache.url)._client
    version = folder.get("v1/both", 9).version
    with dav.hold(client, "v1/both") as held:
        began = time.monotonic()
        assert folder.put_if_unchanged("v1/both", b"2", version)
        assert time.monotonic() - began >= 0.4  # it waited until the lock was void
        held.expires = 0
    assert folder.get("v1/both", 9).data == b"2"


# S3.


@pytest.mark.test_all("needs obstore")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_cannot_use_s3_and_says_so(monkeypatch):
    pytest.importorskip("obstore")
    monkeypatch.setattr(cloud, "_used_by_pid", os.getpid() + 1)
    with pytest.raises(StoreError, match="the process that forked this one has used such a store") as caught:
        open_store("s3://bucket/ops?skip_signature=true").get("v1/x", 1)
    assert not remembered_answers.note_failure(parse("s3://bucket/ops"), caught.value)  # other processes ask it


@pytest.mark.test_all("needs obstore")
def test_a_bucket_that_cannot_be_reached_is_an_error_without_credentials(monkeypatch):
    pytest.importorskip("obstore")
    monkeypatch.setattr(cloud, "_used_by_pid", 0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-secret")
    url = f"s3://bucket/ops?region=us-east-1&endpoint=http://127.0.0.1:{servers.free_port()}"
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"^s3://bucket/ops\?endpoint=http://127\S+: get v1/x failed: ") as raised:
        open_store(url).get("v1/x", 1)
    assert "hidden-secret" not in str(raised.value) and time.monotonic() - began < 20


@pytest.mark.test_all("needs obstore")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            "PUT http://169.254.169.254/latest/api/token in 800 ms",
            r"token in 800 ms\. Set the credentials.*skip_signature",
        ),
        (
            "GET https://host\n\nDebug\n  InvalidCertificate(\n   UnknownIssuer,",
            r"InvalidCertificate UnknownIssuer\. Set SSL_",
        ),
        ("GET http://host - builder error\n\nDebug\n  source: BadScheme,", r"BadScheme\. Name the server in the URL"),
        (
            'GET http://host\n\nDebug\n  message: "Connection refused",',
            r"refused\. Check the URL, its options and the netw",
        ),
        ("GET http://host: 403: <?xml?>\n<Message>Access Denied</Message>", r"host: 403: Access Denied\. Check"),
    ],
)
def test_an_error_of_s3_has_its_cause_and_what_to_do(monkeypatch, words, text):
    obstore = pytest.importorskip("obstore")
    monkeypatch.setattr(cloud, "_used_by_pid", 0)
    store = cloud.CloudStore("s3://bucket/ops", lambda _size: None)
    with pytest.raises(StoreError, match=text), store._errors("get v1/x"):
        raise obstore.exceptions.GenericError(f"Error performing {words}")


def test_a_missing_package_is_an_error_with_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(StoreError, match=r"needs the package 'obstore'.*pip install 'opforge\[s3\]'"):
        open_store("s3://bucket/ops")
