"""Which units share a precompiled header: those that see the same text without it, and only if it saves time."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import text_files

from opforge.builders.declaration import abi as abis
from opforge.builders.declaration.build_plan import Step
from opforge.builders.declaration.machine import torch_folder
from opforge.builders.facade.flags import INCLUDE
from opforge.builders.run import attempt, object_reuse, precompiled_header
from opforge.builders.run.attempt import Attempt
from opforge.builders.run.reads.provenance import Read
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import RootedPath
from opforge.errors import BuildResourceError, CompileError

HEADER = "<torch/extension.h>"


class Plan:
    """The part of a plan that is read."""

    def __init__(self, abi, environment=()):
        self.abi, self.environment = abi, environment


def steps_of(folder, *texts):
    units = []
    for number, text in enumerate(texts):
        path = text_files.write(folder, f"unit{number}.cpp", text)
        argv = ("g++", "-O3", "-MD", "-MF", f"{number}.o.d", "-c", path, "-o", f"{number}.o")
        unit = RootedPath("own", f"unit{number}.cpp")
        units.append(Step(f"{number}.o", (path,), argv, f"compile unit{number}.cpp", f"{number}.o.d", unit))
    return [*units, Step("op.so", tuple(unit.output for unit in units), ("g++", "-shared"), "link op")]


def apply(folder, steps, abi=abis.TORCH, jobs=1, pays_for_one=False):
    return precompiled_header.apply(Plan(abi), steps, jobs, {"own": str(folder)}, str(folder), pays_for_one)


def users(steps):
    return [step.output for step in steps if precompiled_header.uses_header(step)]


def test_units_that_begin_with_the_header_wait_for_it_and_use_it(tmp_path):
    steps = apply(
        tmp_path, steps_of(tmp_path, f"#include {HEADER}\nint a;", f"// words\n/* more\n*/\n#include {HEADER}\n")
    )
    making, first, second, link = steps
    assert making.argv == (
        "g++",
        "-O3",
        "-MD",
        "-MF",
        "first.h.gch.d",
        "-x",
        "c++-header",
        "first.h",
        "-o",
        "first.h.gch",
    )
    assert (tmp_path / "first.h").read_text() == f"#include {HEADER}\n"
    assert first.argv[:5] == ("g++", "-O3", "-include", "first.h", "-MD") and first.inputs[-1] == "first.h.gch"
    assert users(steps) == [first.output, second.output] and link.argv == ("g++", "-shared")


@pytest.mark.parametrize(
    "text",
    [
        f"#define NDEBUG\n#include {HEADER}\n",
        f"#include <vector>\n#include {HEADER}\n",
        f"#if 1\n#include {HEADER}\n#endif\n",
        f"int a;\n#include {HEADER}\n",
        "#include <torch/types.h>\n",
        "",
    ],
)
def test_a_unit_whose_text_the_header_would_change_does_not_use_it(tmp_path, text):
    steps = apply(tmp_path, steps_of(tmp_path, *[f"#include {HEADER}\n"] * 2, text))
    assert users(steps) == ["0.o", "1.o"]


@pytest.mark.parametrize(("abi", "jobs", "enough"), [(abis.TORCH, 1, 2), (abis.TORCH, 3, 6), (abis.STABLE, 2, 8)])
def test_it_is_made_only_if_enough_units_use_it(tmp_path, abi, jobs, enough):
    steps = steps_of(tmp_path, *[f"#include {HEADER}\n"] * enough)
    assert len(users(apply(tmp_path, steps, abi, jobs))) == enough
    too_few = steps_of(tmp_path, *[f"#include {HEADER}\n"] * (enough - 1), "int plain;\n")
    assert apply(tmp_path, too_few, abi, jobs) == too_few


def test_the_facades_header_is_used_by_one_unit_that_is_edited_and_shared_by_modules(tmp_path):
    facade = tmp_path / "facade"
    text_files.write(facade, "torch/extension.h", "")
    (unit, link) = steps_of(tmp_path, f"#include {HEADER}\n")
    at = unit.argv.index("-MD")
    argv = (*unit.argv[:at], f"-I{facade}", "-DTORCH_EXTENSION_NAME=op", *unit.argv[at:])
    steps, roots = [unit._replace(argv=argv), link], {"own": str(tmp_path), "opforge_facade": str(facade)}
    assert precompiled_header.apply(Plan(abis.FACADE), steps, 1, roots, str(tmp_path)) == steps
    making, using, _ = precompiled_header.apply(Plan(abis.FACADE), steps, 1, roots, str(tmp_path), pays_for_one=True)
    assert making.argv[:4] == ("g++", "-O3", f"-I{facade}", "-MD")
    assert using.argv[:6] == ("g++", "-O3", f"-I{facade}", "-DTORCH_EXTENSION_NAME=op", "-include", "first.h")
    assert using.argv[6:8] == ("-include", "opforge/facade/module_entry.h")
    assert (tmp_path / "first.h").read_text() == f"#define OPFORGE_PRECOMPILED\n#include {HEADER}\n"


def test_no_header_of_the_facade_but_one_has_the_modules_name_with_which_gcc_would_not_take_it():
    files = [path for path in INCLUDE.rglob("*") if path.is_file()]
    name = precompiled_header.OF_THE_MODULE.removeprefix("-D").removesuffix("=")
    assert [path for path in files if name in path.read_text()] == [INCLUDE / precompiled_header.ENTRY]
    included = [
        path for path in files if '/module_entry.h"' in path.read_text() or '"module_entry.h"' in path.read_text()
    ]
    assert len(included) == 2 and all("#ifndef OPFORGE_PRECOMPILED" in path.read_text() for path in included)


def test_units_of_plain_functions_share_no_header(tmp_path):
    steps = steps_of(tmp_path, *["int a;\n"] * 40)
    assert apply(tmp_path, steps, abis.PLAIN) == steps


def test_a_source_that_cannot_be_read_does_not_use_it(tmp_path):
    steps = steps_of(tmp_path, *[f"#include {HEADER}\n"] * 3)
    (tmp_path / "unit1.cpp").unlink()
    assert users(apply(tmp_path, steps)) == ["0.o", "2.o"]


def test_units_with_other_flags_do_not_share_the_header(tmp_path):
    steps = steps_of(tmp_path, *[f"#include {HEADER}\n"] * 5)
    steps[1:3] = [step._replace(argv=("g++", "-O3", "-DA=2", *step.argv[2:])) for step in steps[1:3]]
    changed = apply(tmp_path, steps)
    assert changed[0].argv[:3] == ("g++", "-O3", "-MD") and users(changed) == ["0.o", "3.o", "4.o"]
    assert changed[2:4] == steps[1:3]


@pytest.mark.parametrize(
    "text",
    [
        f"// words \\\n#include {HEADER}\n",
        f"// words \\ \n#include {HEADER}\n",
        f"// words ??/\n#include {HEADER}\n",
        f"/\\\n/ words\n/\\\n* more\n#include {HEADER}\n*/\n",
    ],
)
def test_a_comment_that_goes_on_in_the_next_line_hides_the_header(tmp_path, text):
    assert users(apply(tmp_path, steps_of(tmp_path, *[text] * 8))) == []


@pytest.mark.parametrize("quotes", ["<>", '""'])
@pytest.mark.parametrize("place", ["beside the source", "-I", "-isystem", "CPATH"])
def test_a_header_of_the_ops_own_with_torchs_name_is_not_shared(tmp_path, place, quotes):
    folder = tmp_path if place == "beside the source" else tmp_path / "include"
    text_files.write(folder / "torch", "extension.h", "int another;\n")
    header = quotes[0] + "torch/extension.h" + quotes[1]
    steps = steps_of(tmp_path, *[f"#include {header}\nint a;"] * 8)
    if place.startswith("-"):
        steps = [step._replace(argv=(step.argv[0], place, str(folder), *step.argv[1:])) for step in steps]
    environment = [("CPATH", str(folder))] if place == "CPATH" else []
    plan = Plan(abis.TORCH, environment)
    changed = precompiled_header.apply(plan, steps, 1, {"own": str(tmp_path)}, str(tmp_path))
    assert bool(users(changed)) is (place == "beside the source" and quotes == "<>")


def test_torchs_own_header_is_shared_also_in_quotes(tmp_path):
    text_files.write(tmp_path / "installed" / "include" / "torch", "extension.h", "int a;\n")
    steps = steps_of(tmp_path, *['#include "torch/extension.h"\nint a;'] * 8)
    flags = ("-isystem", str(tmp_path / "installed" / "include"))
    steps = [step._replace(argv=(step.argv[0], *flags, *step.argv[1:])) for step in steps]
    roots = {"own": str(tmp_path), "torch": str(tmp_path / "installed")}
    changed = precompiled_header.apply(Plan(abis.TORCH), steps, 1, roots, str(tmp_path))
    assert len(users(changed)) == 8


@pytest.mark.parametrize(
    "flag",
    [
        "-include",
        "-imacros",
        "--include",
        "--include=/a.h",
        "--imacros",
        "--language=c++",
        "@/flags",
        "-Werror",
        "-Werror=unused",
        "--warn-error",
        "--warn-error=unused",
        "-pedantic-errors",
        "--pedantic-errors",
        "-specs=/a",
        "-DNAME=__BASE_FILE__",
    ],
)
def test_units_share_no_header_if_a_flag_may_make_it_differ_from_the_text(tmp_path, flag):
    steps = steps_of(tmp_path, *[f"#include {HEADER}\n"] * 4)
    steps = [step._replace(argv=(step.argv[0], flag, *step.argv[1:])) for step in steps]
    assert apply(tmp_path, steps) == steps


def test_units_share_a_header_if_a_flag_names_a_folder_alone(tmp_path):
    steps = steps_of(tmp_path, *[f"#include {HEADER}\n"] * 4)
    steps = [step._replace(argv=(step.argv[0], "--include-directory=/a", *step.argv[1:])) for step in steps]
    assert len(users(apply(tmp_path, steps))) == 4


@pytest.mark.parametrize(
    ("read", "is_faithful"),
    [
        (Read("/usr/include/a.h", RootedPath("system", "usr/include/a.h"), "dpkg libc6-dev"), True),
        (Read("/opt/gcc/include/a.h", RootedPath("system", "opt/gcc/include/a.h"), ""), True),
        (Read("/src/torch/include/a.h", RootedPath("torch", "include/a.h"), ""), True),
        (Read("/home/me/include/a.h", RootedPath("system", "home/me/include/a.h"), ""), False),
        (Read("/op/a.h", RootedPath("own", "a.h"), ""), False),
    ],
)
def test_a_header_with_a_file_of_the_users_in_it_may_differ_from_the_text(read, is_faithful):
    assert precompiled_header.is_faithful([read], [], ["/opt/gcc/include"]) is is_faithful


@pytest.mark.parametrize(("pragma", "is_faithful"), [("error", False), ("warning", True)])
def test_a_source_that_makes_warnings_errors_shares_no_header(tmp_path, pragma, is_faithful):
    path = text_files.write(tmp_path, "a.cpp", f'#pragma GCC diagnostic {pragma} "-Wall"\n')
    assert precompiled_header.is_faithful([], [Read(path, RootedPath("own", "a.cpp"), "")], []) is is_faithful


def test_torchs_headers_do_not_depend_on_the_file_that_includes_them_first():
    """A precompiled header is made from another file than the unit, one level below it."""
    pattern = re.compile(rb"\b__(?:BASE_FILE|INCLUDE_LEVEL|TIMESTAMP)__\b")
    include = Path(torch_folder(), "include")
    paths = [path for name in ("torch", "ATen", "c10") for path in (include / name).rglob("*.h")]
    assert [path for path in paths if pattern.search(path.read_bytes())] == [] and len(paths) > 500


@pytest.mark.parametrize(
    ("abi", "limit", "free", "keeps"),
    [
        (abis.STABLE, "10GiB", 2 << 30, True),
        (abis.STABLE, "0", 2 << 30, True),
        (abis.STABLE, "500MB", 2 << 30, False),
        (abis.STABLE, "10GiB", 500 << 20, False),
        (abis.TORCH, "10GiB", 2 << 30, False),
    ],
)
def test_a_small_store_and_a_full_disk_keep_no_header(tmp_path, monkeypatch, abi, limit, free, keeps):
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", limit)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free >> 12, f_frsize=1 << 12))
    job = SimpleNamespace(plan=Plan(abi), layout=Layout(str(tmp_path)))
    assert object_reuse.keeps_header(job) == keeps


def test_units_are_compiled_without_a_header_that_does_not_fit_on_the_disk(tmp_path, monkeypatch):
    steps = steps_of(tmp_path, f"#include {HEADER}\n", f"#include {HEADER}\n")
    job = SimpleNamespace(plan=Plan(abis.TORCH), jobs=1, roots={"own": str(tmp_path)}, reuse=True, log="")

    def fills_the_disk(job, work, steps):
        (tmp_path / steps[0].output).write_text("a part")
        raise BuildResourceError.of("op", "the disk is full", "")

    monkeypatch.setattr(attempt, "run_steps", fills_the_disk)
    assert not Attempt(job, str(tmp_path), steps, None, None, ())._run_with_header()
    assert (tmp_path / "first.h").exists() and not (tmp_path / "first.h.gch").exists()


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_unit_has_read_what_its_header_was_made_from(tmp_path, monkeypatch, is_kept):
    """gcc lists it for no unit that uses the header: an edit of it would not be seen."""
    steps = apply(tmp_path, steps_of(tmp_path, *[f"#include {HEADER}\n"] * 2))
    ran, run = [], Attempt(None, "", steps[1:], None, None, ())
    run._reused = {"first.h.gch": ()} if is_kept else {}
    monkeypatch.setattr(run, "_with_header", lambda: steps)
    monkeypatch.setattr(run, "_reads_of", lambda read: {step.output: [f"read by {step.output}"] for step in read})
    monkeypatch.setattr(attempt, "run_steps", lambda _job, _work, run: ran.extend(run) or "")
    monkeypatch.setattr(attempt, "_is_faithful", lambda *_arguments: True)
    assert run._run_with_header()
    assert (steps[0] in ran) is not is_kept
    for name in ("0.o", "1.o"):
        assert run._reads[name] == [f"read by {name}", "read by first.h.gch"]


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_an_edited_unit_does_not_wait_for_a_header_that_another_processor_can_make(tmp_path, monkeypatch, jobs):
    steps = steps_of(tmp_path, *[f"#include {HEADER}\n"] * 2)
    making, *using = apply(tmp_path, steps, abis.STABLE, pays_for_one=True)
    job = SimpleNamespace(plan=Plan(abis.STABLE), jobs=jobs, roots={"own": str(tmp_path)}, reuse=True)
    monkeypatch.setattr(object_reuse, "keeps_header", lambda _job: True)
    monkeypatch.setattr(object_reuse, "is_edited", lambda _job, step: step == steps[1])
    run = Attempt(job, str(tmp_path), steps, None, None, ())
    assert run._with_header() == [making, *(using if jobs < 3 else steps)]
    assert run._header == (making, steps[0].unit)


@pytest.mark.parametrize("failing", ["unit0.cpp", "header"])
def test_beside_a_header_a_unit_with_an_error_is_compiled_once(tmp_path, monkeypatch, failing):
    steps = steps_of(tmp_path, f"#include {HEADER}\n")
    making, *_using = apply(tmp_path, steps, abis.STABLE, pays_for_one=True)
    title, ran = f"compile {failing}" if failing == "unit0.cpp" else making.title, []

    def run(_job, _work, run):
        ran.append(run)
        raise CompileError("", step=title)

    failed = Attempt(SimpleNamespace(log=""), str(tmp_path), steps, None, None, ())
    monkeypatch.setattr(failed, "_with_header", lambda: [making, *steps])
    monkeypatch.setattr(attempt, "run_steps", run)
    if failing == "header":
        assert not failed._run_with_header()  # the unit is compiled alone
    else:
        with pytest.raises(CompileError):
            failed._run_with_header()
    assert len(ran) == 1
