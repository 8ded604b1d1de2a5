"""What a load costs if the remote is bad, from end to end: one warning and a build, nothing fetched, nothing left."""

from __future__ import annotations

import logging
import os
import random
import ssl
import time

import pytest
from support import sample_ops
from support.remote import servers
from support.remote.certificates import self_signed
from support.remote.nodes import Nodes, reasons
from support.remote.scripted import response, serve

from opforge.builders.lookup import remotes as lookups
from opforge.cache.maintenance import listing
from opforge.errors import StoreError
from opforge.remote import entry_source, remotes, take
from opforge.remote.signatures import trust_file
from opforge.remote.stores.web.store import WebStore
from opforge.remote.stores.web.timing import Timing

QUICK = Timing(connect=1.0, idle=0.3, grace=0.3, bytes_per_second=1e6, pauses=(0.01, 0.02), max_retry_after=0.5)


def drip(parts):
    for part in parts:
        yield part
        time.sleep(0.02)


TRICKLE = [b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", *[b"x"] * 1000]
ANSWERS = {
    "500": (
        lambda *_request: response("500 Internal Server Error", b"no"),
        "the server answered 500 Internal Server Error (tried 3 times). Try again later.",
    ),
    "closed": (lambda *_request: None, "the server closed the connection without an answer"),
    "trickling": (lambda *_request: drip(TRICKLE), "the server did not answer in time: it sent only"),
}
"""What a server answers, and what the warning says. tests/unit/remote/test_over_http.py has answers of other bytes."""


@pytest.fixture(autouse=True)
def no_proxies():
    with servers.without_proxies():
        yield


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    begin = WebStore.__init__
    quick = lambda self, *arguments, **options: begin(self, *arguments, **{**options, "timing": QUICK})  # noqa: E731
    monkeypatch.setattr(WebStore, "__init__", quick)
    return Nodes(tmp_path / "nodes", monkeypatch)


@pytest.fixture
def builder(tmp_path):
    return sample_ops.plain_op(tmp_path / "op")()


def check(nodes, builder, caplog):
    """Builds the op on a node, which has a bad remote alone."""
    store = nodes.enter("node")
    with caplog.at_level(logging.WARNING, "opforge"):
        entry = builder.build()
    assert entry.origin == "built"
    assert len([record for record in caplog.records if record.name == "opforge"]) == 1, caplog.text
    assert [kept.op for kept in listing.entries(store.layout)] == ["plain"]
    assert not os.path.isdir(store.layout.path("fetched"))
    assert os.listdir(store.layout.path("staging")) == []


@pytest.mark.compile
@pytest.mark.parametrize(("answer", "problem"), ANSWERS.values(), ids=ANSWERS)
def test_a_bad_answer_costs_one_warning_and_a_build(nodes, builder, answer, problem, monkeypatch, caplog):
    with serve(answer) as script:
        monkeypatch.setenv("OPFORGE_REMOTES", script.url)
        check(nodes, builder, caplog)
        assert script.requests
        (warning,) = [record.getMessage() for record in caplog.records if record.name == "opforge"]
    begin = f"plain: nothing was fetched from {script.url}, which is left alone for a minute: "
    assert warning.startswith(begin) and problem in warning, warning


@pytest.mark.compile
def test_a_server_without_tls_trust_costs_one_warning_and_a_build(nodes, builder, tmp_path, monkeypatch, caplog):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*self_signed(tmp_path))
    wrap = lambda sock: context.wrap_socket(sock, server_side=True)  # noqa: E731
    with serve(ANSWERS["closed"][0], wrap=wrap) as script:
        monkeypatch.setenv("OPFORGE_REMOTES", script.url)
        check(nodes, builder, caplog)
        assert not script.requests and "certificate is not trusted" in caplog.text


@pytest.mark.compile
def test_a_flipped_byte_anywhere_in_the_remote_stops_the_fetch(nodes, builder):
    entry = nodes.built(builder)
    chance = random.Random(7)
    files = sorted(path for path in (nodes.folder / "remote" / "v1").rglob("*") if path.is_file())
    frame = ("not a file of statements", "is not a statement with signatures", "does not read", "cut short")
    signature = ("the signature by ci is not of these bytes", "is not in the trust file", "is not signed by that key")
    signature = (*signature, "expected name:base64", "the list of withdrawals is damaged")
    kinds = {"op": (*frame, *signature), "withdrawals": (*frame, *signature), "sha256": ("the blob's digest differs",)}
    assert len(files) == 3
    for path in files:
        problems = kinds["sha256" if "sha256" in path.parts else path.parent.name]
        content = path.read_bytes()
        for at in sorted({0, len(content) - 1, *(chance.randrange(len(content)) for _turn in range(14))}):
            path.write_bytes(flipped(content, at, 1 << chance.randrange(8)))
            match, rejected = nodes.fetch(builder, f"{path.name[:8]}-{at}")
            assert match is None and any(problem in reasons(rejected) for problem in problems), (path, at, rejected)
        path.write_bytes(content)
    assert nodes.fetch(builder, "last")[0].key == entry.key


def flipped(content, at, bits):
    """Returns bytes of which one was changed."""
    return content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]


@pytest.mark.parametrize("kind", ["topics/op", "withdrawals"])
def test_every_byte_of_a_small_file_matters(nodes, builder, kind, monkeypatch, tmp_path):
    """Also the name beside a signature, and the bits of a base64 text that belong to no byte of the signature."""
    nodes.built(builder)
    request = lookups.request_for(builder.spec(), nodes.enter("node"))
    remote, store, usable = remotes.parse(nodes.url), nodes.store, []
    (path,) = (nodes.folder / "remote" / "v1" / kind).iterdir()
    content = path.read_bytes()
    last = content.rindex(b"=") - 3  # from here on there are bits of the signature's text that mean nothing

    def candidates():
        try:
            return take.judged(store, remote, entry_source.WantedEntry(request), True)[0]
        except StoreError:
            return []

    assert len(candidates()) == 1
    for at in range(len(content)):
        for bit in range(8) if at >= last else (at % 8,):
            path.write_bytes(flipped(content, at, 1 << bit))
            for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):  # nothing is remembered of an earlier list
                monkeypatch.setenv(variable, f"{tmp_path}/{at}-{bit}")
            usable += [(at, bit)] if candidates() else []
    assert usable == []


@pytest.mark.compile
@pytest.mark.parametrize("days", [-400, 400])
def test_a_wrong_clock_stops_the_fetch_and_says_so(nodes, builder, days, monkeypatch):
    nodes.built(builder)
    trust_file.write(trust_file.read()._replace(withdrawal_days=30.0))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + days * 86400)
    match, rejected = nodes.fetch(builder)
    assert match is None
    assert ("more than 30 days ago" if days > 0 else "so the clock here is behind: set it") in reasons(rejected)
