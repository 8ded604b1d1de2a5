"""The fuzz targets themselves, with a few inputs: valid ones, damaged ones, noise."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys

import pytest
from support import child_processes
from support.fuzzing.fuzz_targets import load
from support.paths import CHECKOUT, TESTS


@pytest.fixture
def fuzz_blobs():
    return load("fuzz_blobs")


@pytest.fixture
def blob_target(fuzz_blobs, tmp_path):
    return fuzz_blobs.BlobTarget(str(tmp_path / "fuzz"))


@pytest.fixture
def lookup_target(tmp_path, monkeypatch):
    module = load("fuzz_lookups")
    monkeypatch.setenv("CXX", "")
    return module.LookupTarget(str(tmp_path / "fuzz"))


def test_the_blob_target_unpacks_a_valid_one_and_refuses_others(fuzz_blobs, blob_target):
    assert blob_target.run(blob_target.content) == ""
    assert blob_target.run(bytes([fuzz_blobs.RECIPE])) == "", "a recipe without a step"
    assert "it is not a tar archive" in blob_target.run(b"noise" * 200)
    assert "it is cut short" in blob_target.run(blob_target.content[:700])


def test_the_blob_target_damages_a_valid_one_by_a_recipe(fuzz_blobs, blob_target):
    assert blob_target.archive_of(bytes([fuzz_blobs.RECIPE, 0, 10, 2, 65])) != blob_target.content
    assert len(blob_target.archive_of(bytes([fuzz_blobs.RECIPE, 2, 0, 0, 0]))) == 512
    chance = random.Random(5)
    for _number in range(60):
        blob_target.run(bytes([fuzz_blobs.RECIPE, *chance.randbytes(4 * chance.randrange(1, 4))]))
        blob_target.run(chance.randbytes(chance.randrange(1500)))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="bounds memory by /proc/self/statm")
def test_mutated_blobs_escape_nowhere_execute_nothing_and_take_bounded_memory_and_time():
    script = os.path.join(TESTS, "fuzz", "blobs.py")
    command = [sys.executable, script, "--count", "600", "--processes", "1", "--seed", "5"]
    done = subprocess.run(command, env=child_processes.environment(), capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith("seed 5: 600 blobs in ")


def test_the_lookup_target_finds_the_entry_of_valid_files(lookup_target):
    for number, name in enumerate(("record", "build", "remembered", "compiler")):
        assert lookup_target.run(bytes([number]) + lookup_target.contents[name]) == lookup_target.key
        assert lookup_target.run(bytes([number, 0])) == lookup_target.key
    assert lookup_target.run(b"") is None or lookup_target.run(b"") == lookup_target.key


def test_the_lookup_target_raises_nothing_for_noise_and_damage(lookup_target):
    chance = random.Random(6)
    for _round in range(12):
        for number in range(4):
            lookup_target.run(bytes([number]) + chance.randbytes(chance.randrange(40)))
            lookup_target.run(bytes([number, 0]) + chance.randbytes(3 * chance.randrange(1, 3)))
            lookup_target.run(bytes([number, 1]) + chance.randbytes(4))


@pytest.fixture
def record_target(tmp_path):
    return load("fuzz_records").RecordTarget(str(tmp_path / "fuzz"))


def test_the_record_target_reads_every_record_of_a_store(record_target):
    for number, name in enumerate(record_target.files):
        assert record_target.run(bytes([number, 0]) + record_target.contents[name]), "a valid record is read"
    _nearest, *rejected = record_target.run(bytes([1, 0]) + record_target.contents["build"])
    assert rejected == []


def test_no_damaged_record_raises_or_touches_what_is_outside_of_the_store(record_target):
    chance = random.Random(8)
    for number in range(len(record_target.files) * 30):
        record_target.run(bytes([number % len(record_target.files), number % 3]) + chance.randbytes(6))


@pytest.mark.parametrize("name", ["records", "lookups"])
def test_the_inputs_that_failed_once_do_not_fail_again(name, request):
    target = request.getfixturevalue({"records": "record_target", "lookups": "lookup_target"}[name])
    folder = os.path.join(TESTS, "fuzz", "corpus", name)
    for path in sorted(os.listdir(folder)):
        with open(os.path.join(folder, path), "rb") as file:
            target.run(file.read())


def test_the_statement_target_reads_valid_input_and_refuses_damage(tmp_path):
    (tmp_path / "fuzz").mkdir()
    module = load("fuzz_statements")
    target = module.StatementTarget(str(tmp_path / "fuzz"))
    for kind, content in target.valid.items():
        assert target.run(bytes([52 * kind]) + content) == ""
        assert target.run(bytes([52 * kind]) + b"noise")
    chance = random.Random(7)
    problems = [target.run(bytes([chance.randrange(256)]) + chance.randbytes(8)) for _number in range(600)]
    assert len(set(problems)) > 20


@pytest.mark.parametrize("parser", load("fuzz_packages").PARSERS)
def test_the_package_target_reads_valid_files_and_refuses_damage(tmp_path, parser):
    (tmp_path / "fuzz").mkdir()
    target = load("fuzz_packages").PackageTarget(str(tmp_path / "fuzz"))
    assert target.run(parser, b"\0" + target.valid[parser]) == ""
    assert target.run(parser, b"\0noise")
    chance = random.Random(9)
    problems = [target.run(parser, bytes([chance.randrange(64)]) + chance.randbytes(8)) for _number in range(150)]
    assert len(set(problems)) > (10 if parser != "installed" else 1)
    corpus = os.path.join(TESTS, "fuzz", "corpus", "packages", parser)
    for path in sorted(os.listdir(corpus)) if os.path.isdir(corpus) else ():
        with open(os.path.join(corpus, path), "rb") as file:
            target.run(parser, file.read())


def test_make_fuzz_runs_every_target():
    with open(os.path.join(CHECKOUT, "Makefile"), encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if line.startswith("FUZZ_TARGETS")]
    scripts = {name[5:-3] for name in os.listdir(os.path.join(TESTS, "fuzz")) if name.startswith("fuzz_")}
    assert scripts == {"inspection", "packages", *line.split()[-4:]}
    parsers = (*load("fuzz_inspection").PARSERS, *load("fuzz_packages").PARSERS)
    assert all(re.search(rf"[ ,]{parser}\b", line) for parser in parsers)
