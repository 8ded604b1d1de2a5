"""Ops of many sources: their link would be a longer command than the system accepts."""

from __future__ import annotations

import shutil
import time

import pytest
from support import sample_ops, text_files, tiers
from support.compilers import installed_compilers

from opforge.builders.declaration.build_plan import Step
from opforge.builders.run import ninja

LONG = tiers.is_long()
ODD = ["plain", "with space", "quote'", 'double"', "back\\slash", "dollar$HOME", "hash#", "at@", "tab\there", "*"]


def op_of(folder, names):
    """Writes a source for each name, each with a function, and the first with `value`; returns the builder class."""
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        called = f"int part{number + 1}(); " if number + 1 < len(names) else ""
        head = f"{sample_ops.EXPORT} int value()" if not number else f"int part{number}()"
        rest = f"part{number + 1}()" if called else "0"
        text_files.write(folder, f"{name}.cpp", f"{called}{head} {{ return 1 + {rest}; }}\n")
    return sample_ops.builder_class(folder, "many", abi="c", sources=[f"{name}.cpp" for name in names])


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_the_objects_of_a_long_link_are_named_in_a_file_whatever_they_are_called(folder, monkeypatch, compiler):
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler} (apt install {installed_compilers.INSTALL[compiler].split()[-1]})")
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setattr(ninja, "LONGEST_COMMAND", 100)
    assert op_of(folder, ODD)().load().value() == len(ODD)


def test_only_a_link_over_the_limit_gets_a_file(tmp_path):
    objects = tuple(f"{number}.o" for number in range(5_000))
    ninja.write_build_file(str(tmp_path), [Step("x.so", objects, ("cc", *objects, "-o", "x.so"), "link x")])
    assert [path.name for path in tmp_path.iterdir()] == ["build.ninja"]
    objects = tuple(f"{number}.o" for number in range(20_000))
    ninja.write_build_file(str(tmp_path), [Step("x.so", objects, ("cc", *objects, "-o", "x.so"), "link x")])
    assert (tmp_path / f"x.so{ninja.RESPONSE_SUFFIX}").read_text().split() == [*objects]
    assert "argv = cc @x.so.objects -o x.so\n" in (tmp_path / "build.ninja").read_text()


@pytest.mark.long("takes minutes")
@pytest.mark.timeout(1800)
def test_an_op_of_a_thousand_sources_is_built_and_found_again(folder):
    """With names of 200 characters its link is a command of 210 KB."""
    cls = op_of(folder, [f"source_{number:04}_{'x' * 185}" for number in range(1000)])
    began = time.perf_counter()
    assert cls().load().value() == 1000
    built = time.perf_counter()
    entry = cls().build()
    found = time.perf_counter()
    assert entry.origin == "cache"
    text_files.write(folder, "source_0999_" + "x" * 185 + ".cpp", "int part999() { return 2; }\n")
    edited = time.perf_counter()
    again = cls().build()
    assert len(again.build()["reused"]) == 999
    print(f"built in {built - began:.1f} s, found in {found - built:.3f} s,", end=" ")
    print(f"after an edit in {time.perf_counter() - edited:.1f} s")
