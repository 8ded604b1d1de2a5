"""A load sets what `opforge tune` has found for the op on such a machine, and says why it does not use a result."""

from __future__ import annotations

import logging
import os
import shutil

import pytest
from support import child_processes, tuned_ops
from support.tuned_ops import FLOAT16, FLOAT32, row

from opforge.builders.declaration.tunable import candidates
from opforge.builders.lookup import tuned, tuning_results
from opforge.cache.current_store import PLACEHOLDER_ROOT, own_store
from opforge.errors import BuilderError
from opforge.fast_path import library

pytestmark = pytest.mark.compile


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A store, and the builder class of an op that is built in it once."""
    folder = tmp_path_factory.mktemp("tuned")
    return folder / "store", tuned_ops.tuned_op(folder / "op")


@pytest.fixture
def root(shared, monkeypatch):
    """The store, without a result."""
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(shared[0]))
    shutil.rmtree(shared[0] / "v2" / "tuned", ignore_errors=True)
    tuned.reset()
    return own_store().layout.root


@pytest.fixture
def op_class(shared, root):
    """The builder class of an op that returns what it was set."""
    return shared[1]


def set_values(op_class, root, *rows, **fields):
    """Stores a result, and returns the op as a load then gives it."""
    entry = op_class().load().__entry__
    tuned_ops.store(root, tuned_ops.result(entry, *rows, **fields))
    return op_class().load()


def test_an_op_without_a_result_has_its_defaults(op_class):
    op = op_class().load()
    assert (op.block(FLOAT32, 1000), op.threads(FLOAT32, 1000)) == (256, 0)


def test_a_load_sets_what_was_found(op_class, root):
    op = set_values(op_class, root, row({"block": 512, "threads": 1}))
    assert (op.block(FLOAT32, 1000), op.threads(FLOAT32, 1000)) == (512, 1)


def test_what_a_config_does_not_name_keeps_its_default(op_class, root):
    op = set_values(op_class, root, row({"threads": 1}))
    assert (op.block(FLOAT32, 1000), op.threads(FLOAT32, 1000)) == (256, 1)


def test_a_call_takes_the_nearest_size_of_its_dtype(op_class, root):
    rows = row({"block": 128}, 1000), row({"block": 512}, 16_000), row({"block": 512}, 1000, "float16")
    op = set_values(op_class, root, *rows)
    sizes = (124, 125, 1000, 4000, 4001, 16_000, 128_000, 128_001)
    assert [op.block(FLOAT32, size) for size in sizes] == [256, 128, 128, 128, 512, 512, 512, 256]
    assert (op.block(FLOAT16, 4000), op.block(FLOAT16, 8001), op.block(15, 1000)) == (512, 256, 256)


def test_the_default_may_be_the_nearest(op_class, root):
    op = set_values(op_class, root, row({"block": 128}, 1000), row({}, 16_000))
    assert (op.block(FLOAT32, 4000), op.block(FLOAT32, 4001)) == (128, 256)


def test_a_result_for_all_dtypes(op_class, root):
    op = set_values(op_class, root, row({"block": 128}, dtype="any"))
    assert op.block(FLOAT16, 1000) == op.block(0, 1000) == 128


def test_a_result_that_is_removed_leaves_the_defaults(op_class, root):
    op = set_values(op_class, root, row({"block": 512}))
    os.unlink(tuned.wanted(op.__name__, op.__entry__).path(root))
    assert op_class().load().block(FLOAT32, 1000) == 256


def test_a_hit_in_another_process_sets_it_and_reads_no_result(tmp_path, root):
    """Without a module more than a hit without it."""
    op_class = tuned_ops.tuned_op(tmp_path / "op", "tuned_hit")
    entry = op_class().load().__entry__
    tuned_ops.store(root, tuned_ops.result(entry, row({"block": 512})))
    tuned_ops.wait_until_remembered()
    code = f"""
import sys
import opforge
class Builder(opforge.OpBuilder):
    name, abi, folder = "tuned_hit", "c", {str(tmp_path / "op")!r}
    sources, tunable = ["tuned_hit.cpp"], {tuned_ops.TUNABLE!r}
op = Builder().load()
print(op.origin, op.block(6, 1000), "opforge.builders.lookup.tuned" in sys.modules)
"""
    assert child_processes.run_python(code).split()[1] == "512"
    assert child_processes.run_python(code).split() == ["cache", "512", "False"]
    tuned_ops.store(root, tuned_ops.result(entry, row({"block": 128})))
    assert child_processes.run_python(code).split()[1] == "128"


def test_a_machine_without_a_cache_folder_has_no_results():
    with pytest.raises(FileNotFoundError):
        tuning_results.read_stored(os.path.join(PLACEHOLDER_ROOT, "v2", "tuned", "op", "cpu-x86-64-v3-2.json"))


def test_a_layer_carries_results(op_class, root, tmp_path, monkeypatch):
    op = op_class().load()
    tuned_ops.store(tmp_path / "layer", tuned_ops.result(op.__entry__, row({"block": 512})))
    assert op_class().load().block(FLOAT32, 1000) == 256
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(tmp_path / "layer"))
    assert op_class().load().block(FLOAT32, 1000) == 512
    tuned_ops.store(root, tuned_ops.result(op.__entry__, row({"block": 128})))
    assert op_class().load().block(FLOAT32, 1000) == 128, "the user's own result is first"


class TestWhatCannotBeUsed:
    """Each costs one warning, and the defaults are used."""

    @pytest.fixture
    def loaded(self, op_class, root, caplog):
        """A function that puts bytes in a result's place and loads the op; returns the path and the warning."""
        entry = op_class().load().__entry__

        def load(data, mode=0o600):
            path = tuned_ops.write_raw(root, entry, data)
            os.chmod(path, mode)
            caplog.clear()
            with caplog.at_level(logging.WARNING, "opforge"):
                op = op_class().load()
            assert op.block(FLOAT32, 1000) == 256
            (message,) = caplog.messages
            return path, message

        load.entry = entry
        return load

    def test_damaged(self, loaded):
        path, message = loaded(b'{"format":1,"op":"tuned')
        assert message.startswith(
            f"{loaded.entry.record['op']}: the tuning result {path} is not used: it is not valid JSON ("
        )
        assert message.endswith(" The defaults are used. To time it again: opforge tune MODULE:TestedBuilder")

    def test_half_written(self, loaded):
        data = tuned_ops.text(tuned_ops.result(loaded.entry, row({"block": 512})))
        assert "is not used: it is not valid JSON (" in loaded(data[: len(data) // 2])[1]

    def test_too_large(self, loaded):
        assert "is not used: it has 65537 bytes, and at most 65536 are read." in loaded(b" " * 65537)[1]

    def test_writable_by_others(self, loaded):
        data = tuned_ops.text(tuned_ops.result(loaded.entry, row({"block": 512})))
        assert "is not used: it can be written by others (mode 666)." in loaded(data, 0o666)[1]

    def test_of_a_newer_opforge(self, loaded):
        data = tuned_ops.text(tuned_ops.result(loaded.entry, format=2))
        assert "is not used: 'format' is 2, and this opforge reads 1: update opforge." in loaded(data)[1]

    def test_for_a_config_that_the_library_lacks(self, loaded):
        data = tuned_ops.text(tuned_ops.result(loaded.entry, row({"block": 1024})))
        assert "is not used: it has the config block=1024, which the op does not have." in loaded(data)[1]
        data = tuned_ops.text(tuned_ops.result(loaded.entry, row({"unroll": 2})))
        assert "is not used: it has the config unroll=2, which the op does not have." in loaded(data)[1]

    def test_for_another_number_of_cores(self, loaded):
        cores = tuned.cores()
        data = tuned_ops.text(tuned_ops.result(loaded.entry, row({"block": 512}), cores=cores + 1))
        assert f"is not used: 'cores' is {cores + 1}, expected {cores}." in loaded(data)[1]

    def test_a_config_that_is_not_faster(self, loaded):
        data = tuned_ops.text(tuned_ops.result(loaded.entry, row({"block": 512}, high=0.99)))
        text = "its row for float32 of 1000 takes a config whose interval ends at 0.99: expected one below 0.98, or the"
        assert text in loaded(data)[1]

    def test_a_link(self, loaded, tmp_path, root):
        path = tuned_ops.write_raw(root, loaded.entry, b"")
        os.unlink(path)
        (tmp_path / "elsewhere").write_bytes(tuned_ops.text(tuned_ops.result(loaded.entry, row({"block": 512}))))
        os.symlink(tmp_path / "elsewhere", path)
        assert tuned.resolve(_spec(loaded.entry), loaded.entry).problem == "Too many levels of symbolic links"


def _spec(entry):
    from types import SimpleNamespace

    return SimpleNamespace(name=entry.record["op"], package="none", tunable=tuple(tuned_ops.TUNABLE.items()))


def test_a_library_without_the_functions(tmp_path, caplog):
    source = 'extern "C" __attribute__((visibility("default"))) int value() { return 7; }'
    op_class = tuned_ops.tuned_op(tmp_path, source=source)
    with caplog.at_level(logging.WARNING, "opforge"):
        assert op_class().load().value() == 7
    (message,) = [text for text in caplog.messages if "cannot be set" in text]
    assert "block, threads cannot be set, because its library lacks the functions of <opforge/tunable.h>" in message


@pytest.mark.parametrize(
    ("tunable", "problem"),
    [
        (("block",), r"tunable=\('block',\)"),
        ({"block": ()}, r"tunable\['block'\]=\(\)"),
        ({"block": (1.5,)}, r"tunable\['block'\]=\(1.5,\)"),
        ({"a b": (1,)}, r"tunable\['a b'\]=\(1,\)"),
        ({"block": tuple(range(300))}, "tunable has more than 256 combinations"),
        ({f"n{number}": (1,) for number in range(9)}, "tunable has 9 names"),
    ],
)
def test_a_declaration_that_is_none(tmp_path, tunable, problem):
    with pytest.raises(BuilderError, match=problem):
        tuned_ops.tuned_op(tmp_path, tunable=tunable)().spec()


def test_the_candidates_are_all_combinations():
    assert [*candidates({"a": (1, 2), "b": (3,)})] == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    assert [*candidates({})] == []


def test_tables_that_are_set_again_take_no_more_memory(op_class):
    op = op_class().load()
    for number in range(100):
        library.set_tuned(op.__entry__, [[FLOAT32, 1, 10, {"block": 128 + number % 2}]])
    assert op.block(FLOAT32, 5) == 129
    library.set_tuned(op.__entry__, [])
    assert op.block(FLOAT32, 5) == 256
