"""Archives of entries: the same entries give the same bytes, and nothing that an archive says is trusted."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile

import fakes
import made_up_store
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_store import ME, MadeUpStore

from opforge.cache import archive, layout, verification
from opforge.cache.store import Store
from opforge.cli import group
from opforge.errors import ArchiveError


@pytest.fixture
def made(tmp_path):
    return MadeUpStore(tmp_path / "store", tmp_path / "src")


@pytest.fixture
def packed(made, tmp_path):
    """The path of an archive of two entries, and their results in the order in which they lie in it."""
    results = sorted([made.add("relu"), made.add("adam")])
    path = str(tmp_path / "ops.tar")
    archive.export(made.layout, results, path)
    return path, results


@pytest.fixture
def fresh(tmp_path):
    """An empty store."""
    place = layout.Layout(str(tmp_path / "fresh"))
    layout.prepare(place.root, ME)
    return place


def members(path):
    """(TarInfo, bytes) of everything in an archive."""
    with tarfile.open(path) as file:
        return [(one, file.extractfile(one).read()) for one in file]


def rewrite(path, parts):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as file:
        for member, content in parts:
            member.size = len(content) if member.isreg() else 0
            file.addfile(member, io.BytesIO(content))


def held(place):
    return set(os.listdir(place.path("entries")))


def is_whole(place):
    checked = verification.verify(place, ME)
    assert not [one for one in checked if one.problem]
    assert os.listdir(place.path("staging")) == []
    return {one.result for one in checked}


def refused(place, path):
    with pytest.raises(ArchiveError) as caught:
        archive.unpack(place, str(path), ME)
    is_whole(place)
    return caught.value


# -- out and in --------------------------------------------------------------------------------------------------------


def test_the_same_entries_give_the_same_bytes(made, packed, tmp_path):
    path, results = packed
    for place, _folders, names in os.walk(made.layout.path("entries")):
        for name in names:
            os.utime(os.path.join(place, name), (1, 1))
    archive.export(made.layout, reversed(results), str(tmp_path / "again.tar"))
    with open(path, "rb") as one, open(tmp_path / "again.tar", "rb") as other:
        assert one.read() == other.read()
    assert sorted(os.listdir(tmp_path)) == ["again.tar", "ops.tar", "src", "store"], "no draft is left"


def test_an_entry_that_is_gone_or_not_whole_is_left_out(made, tmp_path):
    bad, good = made.add("relu"), made.add("adam")
    os.unlink(os.path.join(made.layout.entry(bad), "manifest.json"))
    moved = archive.export(made.layout, [bad, good, "0" * 32], str(tmp_path / "ops.tar"))
    assert [one.result for one in moved] == [good]


def test_a_name_of_any_length_is_exported(made, fresh, tmp_path):
    name = "x" * 120
    result = made.add(name)
    archive.export(made.layout, [result], str(tmp_path / "ops.tar"))
    assert [one.op for one in archive.unpack(fresh, str(tmp_path / "ops.tar"), ME)] == [name]


def test_an_import_is_a_hit_for_the_same_sources_and_not_for_others(tmp_path, own_store, monkeypatch):
    fakes.answering_compiler(tmp_path / "bin")
    monkeypatch.setenv("CXX", str(tmp_path / "bin" / "g++"))
    cls = fakes.plain_op(tmp_path / "op")
    store = Store(str(own_store), ME)
    result = made_up_store.publish(cls(), store)
    archive.export(store.layout, [result], str(tmp_path / "ops.tar"))
    other = Store(str(tmp_path / "other"), ME)
    layout.prepare(str(other.layout), ME)
    (moved,) = archive.unpack(other.layout, str(tmp_path / "ops.tar"), ME)
    assert (moved.result, moved.op, moved.news) == (result, "plain", True)
    assert cls().find(other).result == result
    assert cls().find(other).ticket, "the second look-up is answered by stamps"
    (again,) = archive.unpack(other.layout, str(tmp_path / "ops.tar"), ME)
    assert not again.news
    fakes.set_value(tmp_path / "op", 2)
    assert cls().find(other) is None


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=lambda one: one.__module__)
def test_a_compressed_archive_is_taken(packed, fresh, compress):
    path, results = packed
    with open(path, "rb") as file:
        content = file.read()
    with open(path, "wb") as file:
        file.write(compress(content))
    assert [one.result for one in archive.unpack(fresh, path, ME)] == results
    assert is_whole(fresh) == set(results)


def test_an_imported_library_cannot_be_written(packed, fresh):
    path, results = packed
    archive.unpack(fresh, path, ME)
    for result in results:
        folder = fresh.entry(result)
        modes = {name: os.stat(os.path.join(folder, name)).st_mode & 0o777 for name in os.listdir(folder)}
        assert {mode for name, mode in modes.items() if name.endswith(".so")} == {0o500}
        assert os.stat(folder).st_mode & 0o077 == 0 and modes["manifest.json"] == 0o600


# -- what is refused ---------------------------------------------------------------------------------------------------


def member(name, kind=tarfile.REGTYPE, link=""):
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


KEY = "entries/" + "a" * 32
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
    "an unknown kind": member(f"{KEY}/a.so", b"Z"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_a_member_that_no_export_writes_is_refused_and_what_came_before_stays(packed, fresh, name, first, tmp_path):
    path, results = packed
    good = members(path)
    bad = [(HOSTILE[name], b"")]
    rewrite(path, [*bad, *good] if first else [*good[:2], *bad, *good[2:]])
    before = fakes.tree(tmp_path, "fresh")
    error = refused(fresh, path)
    assert "is no file of an entry" in str(error) or "is damaged" in str(error), error
    # The entry before the bad member is published once the next member has shown that it is complete.
    assert held(fresh) <= set(results[:1]) and (not first or not held(fresh))
    assert {at: files for at, files in fakes.tree(tmp_path).items() if not at.startswith("fresh")} == {
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


def test_an_archive_that_is_cut_short_anywhere_is_refused_unless_only_padding_is_missing(packed, tmp_path):
    path, results = packed
    with open(path, "rb") as file:
        content = file.read()
    needed = len(content.rstrip(b"\0")) // 512 * 512 + 512
    for length in [*range(0, needed, 256), needed]:
        with open(path, "wb") as file:
            file.write(content[:length])
        place = layout.Layout(str(tmp_path / f"cut-{length}"))
        layout.prepare(place.root, ME)
        error = refused(place, path)
        assert held(place) == set(results[: error.kept])
    with open(path, "wb") as file:
        file.write(content[: needed + 512])
    place = layout.Layout(str(tmp_path / "enough"))
    layout.prepare(place.root, ME)
    assert len(archive.unpack(place, path, ME)) == 2


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=lambda one: one.__module__)
def test_a_compressed_archive_that_is_damaged_is_refused(packed, fresh, compress):
    path, _results = packed
    with open(path, "rb") as file:
        content = compress(file.read())
    for damaged in (content[: len(content) // 2], content[:40] + b"\xff\x00\xff" * 9 + content[67:], content[:10]):
        with open(path, "wb") as file:
            file.write(damaged)
        refused(fresh, path)


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\0" * 511, os.urandom(2048), b"\x1f\x8b", b"BZh9"])
def test_what_is_no_archive_is_refused(tmp_path, fresh, content):
    (tmp_path / "ops.tar").write_bytes(content)
    assert refused(fresh, tmp_path / "ops.tar").kept == 0


def test_an_archive_of_nothing_is_nothing(made, fresh, tmp_path):
    archive.export(made.layout, [], str(tmp_path / "ops.tar"))
    assert archive.unpack(fresh, str(tmp_path / "ops.tar"), ME) == []


def test_an_archive_that_is_not_there_is_called_so(tmp_path, fresh):
    assert "it cannot be opened (No such file or directory)" in str(refused(fresh, tmp_path / "gone.tar"))


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
        refused(fresh, path)


def test_a_long_name_of_any_size_is_not_read_into_memory(packed, fresh):
    path, _results = packed
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE):
        long = member("././@LongLink", kind)
        long.size = 1 << 40
        with open(path, "wb") as file:
            file.write(long.tobuf(tarfile.GNU_FORMAT) + b"x" * 512)
        assert "@LongLink" in str(refused(fresh, path))


def with_manifest(path, change):
    """Change the manifest of the archive's first entry."""
    parts = members(path)
    index = next(number for number, (one, _content) in enumerate(parts) if one.name.endswith("manifest.json"))
    manifest = json.loads(parts[index][1])
    change(manifest)
    parts[index] = (parts[index][0], json.dumps(manifest).encode())
    rewrite(path, parts)


MANIFESTS = {
    "another digest": (lambda one: one["binary"].update(sha256="0" * 64), "digest differs"),
    "another size": (lambda one: one["binary"].update(size=1), "bytes instead of"),
    "another plan": (lambda one: one.update(plan="0" * 32), "has the manifest of another"),
    "another input": (lambda one: one["inputs"]["files"][0].__setitem__(2, "0" * 64), "has the manifest of another"),
    "no inputs": (lambda one: one.pop("inputs"), "inputs"),
    "no op": (lambda one: one["binary"].pop("op"), "op"),
    "no library": (lambda one: one["binary"].update(file="other.so"), "does not hold a manifest and its library"),
    "a file elsewhere": (lambda one: one["binary"].update(file="../x.so"), "does not hold a manifest and its library"),
    "a description elsewhere": (lambda one: one.update(description="../../x"), "has no proper keys"),
    "a list for a record": (lambda one: one.update(binary=[]), ""),
    "nothing": (lambda one: one.clear(), "binary"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_is_not_the_entrys_is_refused(packed, fresh, name):
    path, _results = packed
    change, text = MANIFESTS[name]
    with_manifest(path, change)
    assert text in str(refused(fresh, path))
    assert held(fresh) == set()
    assert not os.path.exists(fresh.path("plans", "0" * 32))


def test_a_manifest_of_another_entry_is_refused(packed, fresh):
    path, _results = packed
    parts = members(path)
    manifests = [content for one, content in parts if one.name.endswith("manifest.json")][::-1]
    rewrite(path, [(one, manifests.pop(0) if one.name.endswith("manifest.json") else body) for one, body in parts])
    refused(fresh, path)


def test_nested_json_is_no_crash(packed, fresh):
    path, _results = packed
    parts = members(path)
    rewrite(path, [(one, b"[" * 200_000 if one.name.endswith(".json") else body) for one, body in parts])
    refused(fresh, path)


def test_an_unwritable_store_is_an_error_not_a_traceback(packed, fresh, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "write_file", full)
    assert "No space left on device" in str(refused(fresh, packed[0]))


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
    place = layout.Layout(str(tmp_path / "hostile" / "store"))
    layout.prepare(place.root, ME)
    target = tmp_path / "hostile.tar"
    rewrite(target, parts)
    flips = data.draw(st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 255)), max_size=3))
    content = bytearray(target.read_bytes())
    for at, change in flips:
        if at < len(content):
            content[at] ^= change
    target.write_bytes(content)
    before = fakes.tree(tmp_path)
    try:
        archive.unpack(place, str(target), ME)
    except ArchiveError:
        pass
    assert is_whole(place) <= set(results)
    after = fakes.tree(tmp_path)
    inside = os.path.join("hostile", "store")
    assert [at for at in after if at not in before and not at.startswith(inside)] == []
    for at, files in before.items():
        if not at.startswith(inside):
            assert after[at] == files
    assert not os.path.lexists("/tmp/manifest.json") and not os.path.lexists("/tmp/relu.so")


# -- the commands ------------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(group, ["cache", *arguments])


@pytest.fixture
def mine(own_store, tmp_path):
    return MadeUpStore(own_store, tmp_path / "src")


def test_export_and_import_say_what_they_moved(mine, tmp_path, monkeypatch):
    relu, _adam = mine.add("relu"), mine.add("adam")
    path = str(tmp_path / "ops.tar")
    said = run("export", path, "Relu")
    assert said.exit_code == 0
    lines = said.stdout.splitlines()
    assert lines[0].startswith(f"exported relu {relu[:12]}, ") and lines[1] == "1 entry exported"
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "other"))
    assert run("import", path).stdout.splitlines()[-1] == "1 entry imported"
    said = run("import", path).stdout.splitlines()
    assert said[0].startswith("had already relu ") and said[-1] == "0 entries imported"
    told = json.loads(run("import", path, "--json").stdout)["imported"]
    assert [(one["op"], one["result"], one["news"]) for one in told] == [("relu", relu, False)]


def test_export_takes_the_beginning_of_a_key_and_everything_without_a_name(mine, tmp_path):
    relu, _adam = mine.add("relu"), mine.add("adam")
    told = json.loads(run("export", str(tmp_path / "one.tar"), relu[:6], "--json").stdout)["exported"]
    assert [one["result"] for one in told] == [relu]
    assert len(json.loads(run("export", str(tmp_path / "all.tar"), "--json").stdout)["exported"]) == 2


def test_export_of_an_op_that_is_not_stored_names_those_that_are(mine, tmp_path):
    mine.add("relu")
    said = run("export", str(tmp_path / "ops.tar"), "gelu")
    assert said.exit_code == 2 and "the cache has no entry of 'gelu'; it holds: relu." in said.output
    assert not (tmp_path / "ops.tar").exists()


def test_import_of_what_is_no_archive_ends_with_its_reason(mine, tmp_path):
    (tmp_path / "ops.tar").write_text("no")
    said = run("import", str(tmp_path / "ops.tar"))
    assert said.exit_code == 1 and said.stderr.startswith(f"error: The archive {tmp_path}/ops.tar was refused: ")
    assert json.loads(run("import", str(tmp_path / "ops.tar"), "--json").stdout)["error"] == "ArchiveError"


def test_pin_and_unpin_take_names_and_keys(mine):
    relu, adam = mine.add("relu"), mine.add("adam")
    said = run("pin", "relu", adam[:8])
    assert said.exit_code == 0 and set(said.stdout.splitlines()) == {
        f"pinned relu {relu[:12]}",
        f"pinned adam {adam[:12]}",
    }
    assert json.loads(run("unpin", "relu", "--json").stdout) == {"unpinned": [relu]}
    assert json.loads(run("gc", "--max-size", "0", "--json").stdout)["removed"] == [], "both are young"
    assert run("pin").exit_code == 2


def test_an_archive_that_cannot_be_written_is_a_sentence(made):
    from click.testing import CliRunner

    from opforge.cli.transfer import export_command

    made.add("relu")
    done = CliRunner().invoke(export_command, [str(made.layout.root) + "/no/such/dir/x.tar"])
    assert done.exit_code == 2
    assert "x.tar cannot be written: No such file or directory. Choose another place." in done.output
