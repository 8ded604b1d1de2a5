"""What is reported while blobs are sent and received."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from opforge.cli import group, output
from opforge.cli.kernels import transfers
from opforge.packages.form import version
from opforge.packages.registry import install_release, publish, selection
from opforge.remote import mirror
from opforge.remote.signatures import keys
from opforge.remote.stores import open_store


@pytest.fixture
def large(registry):
    """The folder of a package of some megabytes that do not compress."""
    return registry.packed(text="VALUE = 1\nTEXT = '" + os.urandom(2 << 20).hex() + "'\n")


def test_bytes_are_reported_from_0_to_all(registry, large):
    sent, received = [], []
    done = publish.publish(registry.store, large, keys.signer("ci"), report=lambda *report: sent.append(report))
    choice = selection.choose("acme/plain", version.ANY, registry.sources())
    install_release.install_release(registry.root, choice, lambda *report: received.append(report))
    copied, other = [], registry.scratch / "mirror"
    other.mkdir()
    list(mirror.copy(registry.store, open_store(f"file://{other}"), report=lambda *report: copied.append(report)))
    assert {label.rpartition(" ")[0] for label, _done, _total in copied} == {"acme/plain 1"}
    copied = [("torch-universal", *numbers) for _label, *numbers in copied]
    for reports in (sent, received, copied):
        assert {(label, total) for label, _done, total in reports} == {("torch-universal", done.size)}
        counts = [count for _label, count, _total in reports]
        assert counts == sorted(counts) and (counts[0], counts[-1]) == (0, done.size) and len(set(counts)) > 2


@pytest.mark.parametrize(("words", "is_shown"), [((), True), (("--json",), False), (("-q",), False)])
def test_a_terminal_shows_bytes_and_the_time_left(registry, large, monkeypatch, capsys, words, is_shown):
    for module in (transfers, output):
        monkeypatch.setattr(module, "is_terminal", lambda stream=None: True)
    shown = []
    update = transfers.Transfers.__call__

    def watched(self, label, done, total):
        update(self, label, done, total)
        if self._bars:
            (task,) = self._bars.tasks
            columns = [column.render(task) for column in self._bars.columns[2:]]
            shown.append((task.completed, task.total, [str(text) for text in columns]))

    monkeypatch.setattr(transfers.Transfers, "__call__", watched)
    done = CliRunner().invoke(group, ["publish", registry.url, large, "--key", "ci", *words])
    assert done.exit_code == 0, done.output
    assert bool(shown) == is_shown
    if shown:
        first, last = shown[0], shown[-1]
        assert first[0] == 0 and last[0] == last[1] and "MiB" in last[2][0] and ":" in last[2][1]
