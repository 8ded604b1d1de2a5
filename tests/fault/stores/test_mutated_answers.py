"""Answers with random changes: a store returns what it got, or raises StoreError, and nothing else."""

from __future__ import annotations

import io
import random
import time

from support import tiers
from support.remote import servers
from support.remote.scripted import response, serve

from opforge.errors import StoreError
from opforge.remote.stores.web.store import WebStore
from opforge.remote.stores.web.timing import Timing

QUICK = Timing(connect=0.5, idle=0.1, grace=0.2, pauses=())
SECONDS = 3
ANSWERS = (
    response(body=b"x" * 50, ETag='"1"'),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" + response(body=b"abc"),
    response("302 Found", Location="/a"),
    response("429 Slow", Retry_After="0", Date="Thu, 01 Jan 2060 00:00:00 GMT"),
    response("206 Partial", b"abc", Content_Range="bytes 1-3/4"),
)
PARTS = (b"\r\n", b"\n", b"\0", b"\xff", b":", b" ", b"-1", b"9" * 20, b"chunked", b"gzip", b"W/", b'"', b"http://[")


def mutated(chance: random.Random) -> bytes:
    data = bytearray(chance.choice(ANSWERS))
    for _ in range(chance.randint(1, 5)):
        place = chance.randrange(len(data) + 1)
        data[place : place + chance.choice((0, 0, 1, 3))] = chance.choice((b"", *PARTS, chance.randbytes(1)))
    return bytes(data)


def test_an_answer_with_random_changes_is_returned_or_is_an_error():
    seed = tiers.seed()
    chance, answer = random.Random(seed), b""
    end = time.monotonic() + SECONDS
    with servers.without_proxies(), serve(lambda request, number: answer, keep=False) as script:
        store = WebStore(script.url, timing=QUICK)
        while time.monotonic() < end:
            answer = mutated(chance)
            for operation in (
                lambda: store.get("v1/x", 100),
                lambda: store.download("v1/x", io.BytesIO(), 50),
                lambda: store.delete("v1/x"),
                lambda: store._put("v1/x", b"abc", "If-Match", '"1"'),
            ):
                try:
                    operation()
                except StoreError:
                    continue
                except Exception as error:
                    raise AssertionError(f"seed {seed}: {answer!r}") from error
