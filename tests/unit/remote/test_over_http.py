"""A remote on a web server: how many requests a look-up makes, and what bad answers cost."""

from __future__ import annotations

import functools
import http.server
import logging
import threading

import pytest
from click.testing import CliRunner
from support import sample_ops
from support.remote import op_offers
from support.remote.nodes import reasons

from opforge.cache.maintenance import listing
from opforge.cache.records.entry import with_record_key
from opforge.cli import group
from opforge.foundation import remembered_values
from opforge.remote import topics
from opforge.remote.op_statements import OP


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the remote's folder; notes each request, and answers as the test wants."""

    protocol_version = "HTTP/1.1"
    requests: list[str] = []
    answer = None

    def do_GET(self):
        type(self).requests.append(self.path)
        if type(self).answer is None:
            super().do_GET()
            return
        status, headers, body = type(self).answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(nodes, entry, monkeypatch):
    """A server that has the remote's folder; each test begins with no request."""
    handler = functools.partial(Handler, directory=str(nodes.folder / "remote"))
    Handler.requests, Handler.answer = [], None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{running.server_address[1]}"
        monkeypatch.setenv("OPFORGE_REMOTES", url)
        yield url
        running.shutdown()
        thread.join()


def test_a_hit_is_two_requests_and_the_list_of_withdrawals_one_an_hour(nodes, server, builder, entry, tmp_path):
    other = nodes.built(sample_ops.plain_op(tmp_path / "other", "other")(), "other")
    assert nodes.fetch(builder)[0].origin == server
    tree = OP.parse(topics.read_frame(nodes.offers_file(entry).read_bytes())[0].data).tree
    first = [f"/{OP.topic_file(entry.record['description'])}", "/v1/withdrawals/ci.json", f"/{tree.blob.name}"]
    assert Handler.requests == first
    Handler.requests.clear()
    assert nodes.fetch(sample_ops.builder_class(tmp_path / "other", "other", abi="c")())[0].key == other.key
    assert len(Handler.requests) == 2
    Handler.requests.clear()
    assert nodes.fetch(builder)[0].origin == server
    assert not Handler.requests


def test_a_miss_is_one_request(nodes, server, tmp_path, monkeypatch):
    monkeypatch.setattr(remembered_values, "RACY_NS", 0)  # the trust file has just been written
    builder = sample_ops.plain_op(tmp_path / "new", "new")()
    assert nodes.fetch(builder)[0] is None
    assert len(Handler.requests) == 1
    assert nodes.fetch(builder)[0] is None
    assert len(Handler.requests) == 1


@pytest.mark.parametrize("words", [("ls", "URL"), ("verify", "URL"), ("gc", "URL"), ("mirror", "URL", "TARGET")])
def test_what_needs_a_listing_says_that_a_server_has_none(server, tmp_path, words):
    (tmp_path / "target").mkdir()
    places = {"URL": server, "TARGET": f"file://{tmp_path}/target"}
    done = CliRunner().invoke(group, [places.get(word, word) for word in words])
    assert (
        done.exit_code == 1
        and "an HTTP server cannot list its objects. Use the server's folder (file://)" in done.output
    )


def test_a_package_can_be_listed_by_its_name(server):
    done = CliRunner().invoke(group, ["ls", server, "acme/relu"])
    assert done.exit_code == 2 and f"{server} has no acme/relu" in done.output
    assert Handler.requests == ["/v1/topics/package/acme/relu.json"]


def test_an_offer_that_does_not_fit_is_one_request(nodes, server, builder, entry):
    tree = OP.parse(topics.read_frame(nodes.offers_file(entry).read_bytes())[0].data).tree
    record = with_record_key({**entry.record, "floors": {"GLIBC": "99.0"}})
    nodes.put_offer(entry, op_offers.statement(record, entry.record["description"], tree).data())
    assert nodes.fetch(builder)[0] is None
    assert len(Handler.requests) == 1


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((200, {}, b"welcome"), "it is not a file of statements"),
        ((200, {}, b"\n<!DOCTYPE html><title>Sign in</title>"), "the answer is a web page (HTML), and not the store's"),
        ((200, {}, b""), "it is not a file of statements"),
        ((200, {}, b"x" * (5 << 20)), "it has 5242880 bytes, and at most 4194304 were expected"),
        ((200, {}, b'{"format":1,"items":[\n' + b'{"item":{},"signatures":[]},\n' * 10_000 + b"]}\n"), "more than 256"),
        ((403, {}, b"no"), "the server answered 403 Forbidden"),
        ((302, {"Location": "http://127.0.0.2:9/elsewhere"}, b""), "redirects to 'http://127.0.0.2:9', and not within"),
        ((302, {"Location": "file:///etc/passwd"}, b""), "redirects to 'file://', and not within its host"),
    ],
    ids=[
        "garbage",
        "a network's login page",
        "empty",
        "endless",
        "ten thousand offers",
        "forbidden",
        "another host",
        "file",
    ],
)
def test_a_bad_answer_is_one_warning_and_nothing_is_installed(nodes, server, builder, answer, problem, caplog):
    Handler.answer = answer
    with caplog.at_level(logging.WARNING, "opforge"):
        match, rejected = nodes.fetch(builder)
    assert match is None
    assert problem in reasons(rejected)
    assert len([record for record in caplog.records if record.name == "opforge"]) == 1
    store = nodes.enter("node")
    assert not listing.entries(store.layout)
    assert builder.build().origin == "built"


def test_a_blob_that_is_cut_or_replaced_is_not_installed(nodes, server, builder, entry, caplog):
    blob = nodes.blob_file(entry)
    content = blob.read_bytes()
    size = len(content)
    for damaged, problem in (
        (content[:-100], f"it has {size - 100} bytes, and {size} were expected"),
        (content + b"more", f"it has {size + 4} bytes, and {size} were expected"),
        (b"x" * size, "the blob's digest differs from that in its statement"),
        (b"", f"it has 0 bytes, and {size} were expected"),
    ):
        blob.write_bytes(damaged)
        match, rejected = nodes.fetch(builder, f"node-{len(damaged)}-{damaged[:1].hex()}")
        assert match is None
        assert problem in caplog.text and problem in reasons(rejected), (caplog.text, rejected)
        caplog.clear()
    blob.write_bytes(content)
    assert nodes.fetch(builder, "last")[0].key == entry.key
