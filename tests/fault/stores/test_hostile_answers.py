"""A server that answers as no honest one does, for each kind: a client gets what was published, or nothing.

Each behaviour replaces the answers for one group of names: topics, statements, blobs, lists of withdrawals. A short
run takes a few of each; in the third tier, as `make torture` runs it, all are tried.
"""

from __future__ import annotations

import itertools
import json
import random
import time
import zlib

import pytest
from support import tiers
from support.remote.scripted import response, serve

from opforge.remote.stores.web.store import WebStore
from opforge.remote.stores.web.timing import Timing

LONG = tiers.is_long()
QUICK = Timing(connect=1.0, idle=0.2, grace=0.2, bytes_per_second=1e6, pauses=(0.01, 0.01), max_retry_after=0.2)
SECONDS = 60
"""How long one look-up may take, whatever the server does. The machine may be busy."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
pytestmark = [pytest.mark.compile, pytest.mark.timeout(3600 if LONG else 300)]


def of_status(status, **headers):
    return lambda _body, _others: response(status, b"no", **headers)


def of_bytes(make):
    """Returns a behaviour whose answer is well-formed and has another body."""
    return lambda body, others: response(body=make(body, others))


def dripped(body, _others):
    for at in range(len(body)):
        yield HEAD % len(body) * (not at) + body[at : at + 1]
        time.sleep(0.05)


def spliced(body, others):
    """Returns the first half of this file and the second half of another."""
    other = others[0] if others else b""
    return body[: len(body) // 2] + other[len(other) // 2 :]


def edited(change):
    """Returns a behaviour that changes the JSON of a body, or the first line of it; anything else is cut."""

    def make(body, _others):
        line, newline, rest = body.partition(b"\n")
        try:
            return json.dumps(change(json.loads(line))).encode() + newline + rest
        except (ValueError, TypeError, KeyError, AttributeError):
            return body[:-1]

    return of_bytes(make)


def deeper(value):
    for _number in range(400):
        value = [value]
    return value


BEHAVIOURS = {
    **{
        status: of_status(status)
        for status in ("500 No", "503 Busy", "403 No", "401 No", "404 No", "410 Gone", "418 Tea")
    },
    **{status: of_status(status) for status in ("204 Empty", "206 Part", "300 Many", "304 Same", "100 Continue")},
    "asks to come back": of_status("429 Slow", Retry_After="3600"),
    "redirects in a loop": of_status("302 Found", Location="/v1/loop"),
    "redirects elsewhere": of_status("302 Found", Location="http://127.0.0.2:9/x"),
    "redirects to a file": of_status("302 Found", Location="file:///etc/passwd"),
    "says nothing": lambda _body, _others: None,
    "speaks no HTTP": lambda _body, _others: b"SSH-2.0-OpenSSH_9.6\r\n",
    "cuts the head": lambda _body, _others: b"HTTP/1.1 200 OK\r\nContent-Le",
    "cuts the body": lambda body, _others: response(body=body)[:-3],
    "drips": dripped,
    "never ends": lambda _body, _others: itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b"x" * 65536)),
    "never ends a chunk": lambda _body, _others: itertools.chain([CHUNKED], itertools.repeat(b"1\r\nx\r\n" * 10000)),
    "a chunk of another size": lambda body, _others: CHUNKED + b"%x\r\n" % (len(body) + 9) + body + b"\r\n0\r\n\r\n",
    "a length that is too large": lambda body, _others: HEAD % (1 << 50) + body,
    "a length that is too small": lambda body, _others: HEAD % (len(body) // 2) + body,
    "a length below zero": lambda body, _others: HEAD % -1 + body,
    "many headers": lambda body, _others: b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 5000 + b"\r\n" + body,
    "compressed": lambda body, _others: response(body=zlib.compress(body), Content_Encoding="deflate"),
    "a bomb": of_bytes(lambda _body, _others: zlib.compress(b"\0" * (64 << 20))),
    "nothing in it": of_bytes(lambda _body, _others: b""),
    "a page": of_bytes(lambda _body, _others: b"<html>sign in</html>"),
    "zeros": of_bytes(lambda body, _others: bytes(len(body))),
    "the half": of_bytes(lambda body, _others: body[: len(body) // 2]),
    "twice": of_bytes(lambda body, _others: body + body),
    "one byte more": of_bytes(lambda body, _others: body + b"\n"),
    "reversed": of_bytes(lambda body, _others: body[::-1]),
    "another file": of_bytes(lambda body, others: others[0] if others else body[1:]),
    "the last other file": of_bytes(lambda body, others: others[-1] if others else body[1:]),
    "half of another": of_bytes(spliced),
    "null": of_bytes(lambda _body, _others: b"null"),
    "a number": of_bytes(lambda _body, _others: b"1e999"),
    "a long number": of_bytes(lambda _body, _others: b"9" * 5000),
    "deep": of_bytes(lambda _body, _others: b"[" * 100_000),
    "no text": of_bytes(lambda _body, _others: b'"\xff\xfe"'),
    "half a pair": of_bytes(lambda _body, _others: b'"\\ud800"'),
    "another format": edited(lambda value: {**value, "format": 2, "statement": 2}),
    "a format that is true": edited(lambda value: {**value, "format": True, "statement": True}),
    "a new field": edited(lambda value: {**value, "new": 1}),
    "no field": edited(lambda _value: {}),
    "fields of null": edited(lambda value: dict.fromkeys(value)),
    "fields in lists": edited(lambda value: {name: [part] for name, part in value.items()}),
    "fields nested": edited(lambda value: {name: deeper(part) for name, part in value.items()}),
    "sorted otherwise": edited(lambda value: dict(reversed(value.items()))),
    "other names": edited(lambda value: {f"../{name}": part for name, part in value.items()}),
    "another kind": edited(lambda value: {**value, "kind": "note", "topic": "../../x"}),
    "a number below zero": edited(lambda value: {**value, "sequence": -1}),
    "withdrawn": edited(
        lambda value: {**value, "statements": {k: {**v, "withdrawn": 3} for k, v in value["statements"].items()}}
    ),
    "labels exchanged": edited(
        lambda value: {
            **value,
            "statements": dict(zip(value["statements"], reversed(value["statements"].values()), strict=True)),
        }
    ),
    "a label that controls": edited(
        lambda value: {**value, "statements": {"\x1b[2J": next(iter(value["statements"].values()))}}
    ),
}
GROUPS = ("topics", "statements", "blobs", "withdrawals")
CASES = [(group, name) for group in GROUPS for name in BEHAVIOURS]


def answers_of(folder, group, behave):
    """Returns what answers from a folder, but for one group of names."""
    files = {f"/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def answer(request, _number):
        body = files.get(request.target)
        if body is None or request.method != "GET":
            return response("404 Not Found")
        if request.target.split("/")[2] != group:
            return response(body=body, ETag='"1"')
        others = [part for name, part in sorted(files.items()) if name.split("/")[2] == group and part != body]
        return behave(body, others)

    return answer


def test_a_hostile_server_is_refused_or_changes_nothing(shop, monkeypatch, caplog):
    begin = WebStore.__init__
    monkeypatch.setattr(
        WebStore, "__init__", lambda self, *parts, **more: begin(self, *parts, **{**more, "timing": QUICK})
    )
    groups = {path.relative_to(shop.folder).parts[1] for path in shop.files()} & {*GROUPS}
    cases = [case for case in CASES if case[0] in groups]
    assert len(cases) > 100
    seed, served = tiers.seed(), {}
    for group, name in cases if LONG else random.Random(seed).sample(cases, 6):
        answer = answers_of(shop.folder, group, BEHAVIOURS[name])
        # A connection that an answer has spoilt is closed, as servers do.
        with serve(answer, keep=False) as script:
            began = time.monotonic()
            taken = shop.take(script.url)
            seconds = time.monotonic() - began
            assert taken is None or taken in shop.genuine, f"{group}: {name} (seed {seed})"
            assert seconds < SECONDS, f"{group}: {name} took {seconds:.0f} s (seed {seed})"
            assert script.requests
        served[group, name] = taken is not None
    assert not all(served.values())
    assert "Traceback" not in caplog.text
    with serve(answers_of(shop.folder, "", None)) as script:
        assert shop.take(script.url) in shop.genuine, "the server is at fault, and not its behaviours"
