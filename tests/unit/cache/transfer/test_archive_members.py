"""No member of an archive is trusted: what no export writes is refused, and nothing is written outside the store."""

from __future__ import annotations

import os
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import text_files
from support.store.fake_archives import KEY, held, is_whole, member, members, refused, rewrite
from support.store.fake_store import ME

from opforge.cache import current
from opforge.cache.layout import Layout
from opforge.cache.transfer import archive
from opforge.errors import ArchiveError


def sparse_in_the_way_of_pax():
    made = member(f"{KEY}/a.so")
    made.pax_headers = {"GNU.sparse.map": "0,0"}
    return made


HOSTILE = {
    "an absolute name": member("/etc/opforge-was-here"),
    "a way up": member(f"{KEY}/../../../../outside"),
    "a name that is a way up": member(f"{KEY}/.."),
    "a symlink": member(f"{KEY}/manifest.json", tarfile.SYMTYPE, "/etc/passwd"),
    "a hard link": member(f"{KEY}/manifest.json", tarfile.LNKTYPE, "../../outside"),
    "a device": member(f"{KEY}/null.so", tarfile.CHRTYPE),
    "a block device": member(f"{KEY}/disk.so", tarfile.BLKTYPE),
    "a pipe": member(f"{KEY}/pipe.so", tarfile.FIFOTYPE),
    "a folder": member(KEY, tarfile.DIRTYPE),
    "another name": member("plans/x"),
    "a hidden name": member(f"{KEY}/.hidden"),
    "a name with a folder": member(f"{KEY}/folder/a.so"),
    "a short key": member("entries/abc/a.so"),
    "a line break": member(f"{KEY}/a.so\n"),
    "a sparse file": member(f"{KEY}/a.so", tarfile.GNUTYPE_SPARSE),
    "a sparse file in the way of pax": sparse_in_the_way_of_pax(),
    "an unknown kind": member(f"{KEY}/a.so", b"Z"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_a_member_that_no_export_writes_is_refused_and_what_came_before_stays(packed, fresh, name, first, tmp_path):
    path, results = packed
    good = members(path)
    bad = [(HOSTILE[name], b"")]
    rewrite(path, [*bad, *good] if first else [*good[:2], *bad, *good[2:]])
    before = text_files.tree(tmp_path)
    error = refused(fresh, path)
    assert "is no file of an entry" in str(error) or "is damaged" in str(error), error
    # The entry before the bad member is published once the next member has shown that it is complete.
    assert held(fresh) <= set(results[:1]) and (not first or not held(fresh))
    assert {at: files for at, files in text_files.tree(tmp_path).items() if not at.startswith("fresh")} == {
        at: files for at, files in before.items() if not at.startswith("fresh")
    }


def test_the_error_names_the_archive_what_is_wrong_and_what_was_imported(packed, fresh):
    path, results = packed
    good = members(path)
    rewrite(path, [*good, (member(f"entries/{'f' * 32}/x.so"), b""), (member("else/where"), b"")])
    error = refused(fresh, path)
    assert str(error) == (
        f"The archive {path} was refused: 'else/where' is no file of an entry. 2 of its entries were imported before"
        " that. Export it again with `opforge cache export`."
    )
    assert error.kept == 2 and is_whole(fresh) == set(results)


def test_a_member_that_is_there_twice_is_refused(packed, fresh):
    path, _results = packed
    good = members(path)
    rewrite(path, [good[0], good[0], *good[1:]])
    assert "is in it twice" in str(refused(fresh, path))


def test_an_entry_that_comes_back_is_refused(packed, fresh):
    path, results = packed
    good = members(path)
    rewrite(path, [*good, *good[:2]])
    error = refused(fresh, path)
    assert "is in it twice" in str(error)
    assert is_whole(fresh) == set(results)


@pytest.mark.parametrize(
    ("bound", "value", "text"),
    [
        ("MOST_FILES", 3, "it holds more than 3 files or"),
        ("MOST_BYTES", 2000, "files or 2000 bytes"),
        ("MOST_MANIFEST", 10, "manifest.json' is larger than any manifest"),
        ("MOST_LIBRARY", 10, ".so' is larger than any library"),
    ],
)
def test_what_is_too_many_or_too_large_is_refused(packed, fresh, monkeypatch, bound, value, text):
    monkeypatch.setattr(archive, bound, value)
    assert text in str(refused(fresh, packed[0]))


def test_a_member_that_claims_a_huge_or_a_negative_size_is_refused_at_once(packed, fresh):
    path, _results = packed
    for size in (-512, -1, 1 << 62):
        with open(path, "wb") as file:
            huge = member(f"{KEY}/a.so")
            huge.size = size
            file.write(huge.tobuf(tarfile.GNU_FORMAT) + b"x" * 512)
        said = "is no file of an entry" if size < 0 else "it holds more than"
        assert said in str(refused(fresh, path))


def test_a_long_name_of_any_size_is_not_read_into_memory(packed, fresh):
    path, _results = packed
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE):
        long = member("././@LongLink", kind)
        long.size = 1 << 40
        with open(path, "wb") as file:
            file.write(long.tobuf(tarfile.GNU_FORMAT) + b"x" * 512)
        assert "@LongLink" in str(refused(fresh, path))


NAMES = st.sampled_from(["manifest.json", "relu.so", "..", ".", "/", "a/../../../b", "", "a\0b", "x" * 300, "é.so"])
KINDS = st.sampled_from(
    [
        *(tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE),
        *(tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"9"),
    ]
)
MEMBERS = st.builds(
    lambda prefix, name, kind, link, content: (member((prefix + name).replace("\0", ""), kind, link), content),
    st.sampled_from([f"{KEY}/", f"entries/{'b' * 32}/", "", "/tmp/", "../", "entries/", "plans/"]),
    NAMES,
    KINDS,
    st.sampled_from(["", "/etc/passwd", "../../../outside", "manifest.json"]),
    st.binary(max_size=40) | st.sampled_from([b"{}", b'{"binary":{}}']),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_archive_writes_outside_the_store_or_leaves_half_an_entry(packed, tmp_path, data):
    path, results = packed
    parts = members(path)
    hostile = data.draw(st.lists(MEMBERS, max_size=4))
    for one in hostile:
        parts.insert(data.draw(st.integers(0, len(parts))), one)
    parts = [part for part in parts if data.draw(st.integers(0, 5)) or part in hostile]
    place = Layout(str(tmp_path / "hostile" / "store"))
    current.prepare(place.root, ME)
    target = tmp_path / "hostile.tar"
    rewrite(target, parts)
    flips = data.draw(st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 255)), max_size=3))
    content = bytearray(target.read_bytes())
    for at, change in flips:
        if at < len(content):
            content[at] ^= change
    target.write_bytes(content)
    before = text_files.tree(tmp_path)
    try:
        archive.unpack(place, str(target), ME)
    except ArchiveError:
        pass
    assert is_whole(place) <= set(results)
    after = text_files.tree(tmp_path)
    inside = os.path.join("hostile", "store")
    assert [at for at in after if at not in before and not at.startswith(inside)] == []
    for at, files in before.items():
        if not at.startswith(inside):
            assert after[at] == files
    assert not os.path.lexists("/tmp/manifest.json") and not os.path.lexists("/tmp/relu.so")
