"""Every file that a build has read is its input: if one changes, or a new file would shadow one, the op is rebuilt."""

from __future__ import annotations

import threading
import time

from support import child_processes, gate, polling, sample_ops, text_files

from opforge.builders.run.reads.provenance import Provenance
from opforge.cache.filesystem.disk import Disk
from opforge.foundation.remembered_values import RACY_NS


def test_an_edited_header_rebuilds_the_op_and_undoing_the_edit_is_a_hit(folder):
    cls = sample_ops.plain_op(folder, value=1)
    first = cls().build()
    sample_ops.set_value(folder, 2)
    builder = cls()
    second = builder.build()
    assert second.origin == "built" and second.key != first.key
    assert [rejection.reason for rejection in builder.trace] == [f"{folder}/value.h has changed"]
    sample_ops.set_value(folder, 1)
    third = cls().build()
    assert third.origin == "cache" and third.key == first.key


def test_what_a_dangling_link_leads_to_is_detected_when_it_appears(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Disk, "now_ns", lambda _disk: time.time_ns() + 10 * RACY_NS)  # so that stamps are trusted
    cls = sample_ops.plain_op(
        folder, source=sample_ops.PLAIN_SOURCE.replace('"value.h"', "<inner.h>"), include_dirs=["early", "late"]
    )
    for name in ("early", "late"):
        (folder / name).mkdir()
    text_files.write(folder / "late", "inner.h", "#define VALUE 1\n")
    (folder / "early" / "inner.h").symlink_to(tmp_path / "mounted.h")
    assert [cls().load().origin for _load in range(2)] == ["built", "built"], "one object for each entry"
    text_files.write(tmp_path, "mounted.h", "#define VALUE 2\n")
    assert cls().load().value() == 2


def test_an_edited_header_outside_every_root_is_detected(folder, tmp_path):
    (tmp_path / "outside").mkdir()
    text_files.write(tmp_path / "outside", "value.h", "#define VALUE 1\n")
    cls = sample_ops.plain_op(folder, source=sample_ops.PLAIN_SOURCE.replace('"value.h"', '"../outside/value.h"'))
    assert cls().load().value() == 1
    text_files.write(tmp_path / "outside", "value.h", "#define VALUE 2\n")
    assert cls().load().value() == 2


def test_an_edited_header_beyond_a_symlinked_folder_is_detected(folder, tmp_path):
    """`link/../value.h` is in the parent of the folder that `link` points to, not in the parent of `link`."""
    (tmp_path / "away" / "inc").mkdir(parents=True)
    text_files.write(tmp_path / "away", "value.h", "#define VALUE 1\n")
    cls = sample_ops.plain_op(folder, source=sample_ops.PLAIN_SOURCE.replace('"value.h"', '"link/../value.h"'), value=9)
    (folder / "link").symlink_to(tmp_path / "away" / "inc")
    assert cls().load().value() == 1
    text_files.write(tmp_path / "away", "value.h", "#define VALUE 2\n")
    assert cls().load().value() == 2


def test_an_include_folder_inside_the_ops_folder_does_not_cause_misses(folder, monkeypatch):
    cls = sample_ops.plain_op(
        folder, include_dirs=[str(folder / "inc")], source='#include "inc/x.h"\n' + sample_ops.PLAIN_SOURCE
    )
    (folder / "inc").mkdir()
    text_files.write(folder / "inc", "x.h", "")
    cls().build()
    monkeypatch.setenv("OPFORGE_PARANOID", "1")
    builder = cls()
    assert builder.build().origin == "cache", builder.trace


def test_a_file_that_changes_while_it_is_compiled_is_compiled_again(folder):
    cls = sample_ops.plain_op(folder, source=gate.SOURCE, value=1)
    gate.close_gate(folder)

    def edit():
        polling.wait_for(lambda: child_processes.compilers_in(folder))
        sample_ops.set_value(folder, 2)
        gate.open_gate(folder)

    thread = threading.Thread(target=edit)
    thread.start()
    op = cls().load()
    thread.join()
    assert op.value() == 2
    assert cls().build().origin == "cache"


def test_a_file_that_changes_while_it_is_hashed_is_compiled_again(folder, monkeypatch):
    cls, collect, changed = sample_ops.plain_op(folder, value=1), Provenance.collect, []

    def change_after(*arguments):
        inputs = collect(*arguments)
        if not changed:
            changed.append(sample_ops.set_value(folder, 2))
        return inputs

    monkeypatch.setattr(Provenance, "collect", change_after)
    assert cls().load().value() == 2
    assert cls().build().origin == "cache"


def test_headers_with_white_space_of_any_kind_are_inputs(folder):
    names = ["no\u00a0break.h", "wide\u3000space.h", "line\u2028end.h", "next\u0085line.h", "form\x0cfeed.h"]
    names += ["two\\\\slashes.h", "slash\\:colon.h"]
    lines = "".join(f'#include "{name}"\n' for name in names)
    terms = " + ".join(f"VALUE{number}" for number in range(len(names)))
    cls = sample_ops.plain_op(folder, source=f"{lines}{sample_ops.EXPORT} int value() {{ return {terms}; }}\n")
    for number, name in enumerate(names):
        text_files.write(folder, name, f"#define VALUE{number} 1\n")
    for edited, name in enumerate(names):
        assert cls().load().value() == len(names) + edited
        assert cls().build().origin == "cache"
        text_files.write(folder, name, f"#define VALUE{edited} 2\n")
    assert cls().load().value() == 2 * len(names)
