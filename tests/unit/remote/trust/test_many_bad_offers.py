"""A remote with many bad offers is one warning, which says how many there are and why."""

from __future__ import annotations

import logging

from support.remote import op_offers

from opforge.cache.records.entry import with_record_key
from opforge.remote import topics
from opforge.remote.op_statements import OP
from opforge.remote.signatures import keys, signing
from opforge.remote.statements import Signed


def texts(nodes, builder, caplog):
    with caplog.at_level(logging.WARNING, "opforge"):
        assert nodes.fetch(builder)[0] is None
    return [record.getMessage() for record in caplog.records]


def test_signatures_that_are_not_accepted(nodes, builder, entry, caplog):
    (item,) = topics.read_frame(nodes.offers_file(entry).read_bytes())
    lab = signing.new_secret("lab")
    bad = [item._replace(signatures=()), item._replace(signatures=(signing.sign(item.data, lab),))] * 128
    nodes.offers_file(entry).write_bytes(topics.frame(bad))
    (text,) = texts(nodes, builder, caplog)
    assert text.startswith(
        f"plain: each of 256 offers of {nodes.url} is rejected: it has no signature (128 times);"
        " the key lab is not in the trust file (128 times). Get a public key from its holder"
    )


def test_libraries_that_are_not_there(nodes, builder, entry, caplog):
    (item,) = topics.read_frame(nodes.offers_file(entry).read_bytes())
    nodes.blob_file(entry).unlink()
    offer, bad = OP.parse(item.data), []
    for number in range(40):
        record = with_record_key({**offer.facts["record"], "seconds": float(number)})
        data = op_offers.statement(record, record["description"], offer.tree).data()
        bad.append(Signed(data, (signing.sign(data, keys.read("ci")),)))
    nodes.offers_file(entry).write_bytes(topics.frame(bad))
    (text,) = texts(nodes, builder, caplog)
    assert text.startswith(f"plain: what {nodes.url} offers cannot be used: ") and text.endswith(" (40 times)")
