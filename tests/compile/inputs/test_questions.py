"""What a source asks the preprocessor without reading a file: is there such a header, and what is the date?"""

from __future__ import annotations

import ctypes
import os
import shutil
import time

import pytest
from support import sample_ops, text_files

import opforge
from opforge.builders.run import compilers

VALUE = f"{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"
ASKS = "#if __has_include(@)\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n" + VALUE
NEEDS_CLANG = pytest.mark.skipif(not shutil.which("clang++"), reason="needs clang++ (apt install clang)")
ONE = f"{sample_ops.EXPORT} int value() {{ return 1; }}\n"
OFTEN = pytest.mark.parametrize("load", ["g++", pytest.param("clang++", marks=NEEDS_CLANG)], indirect=True)
RARELY = pytest.mark.long("asks the same with another compiler, whose own answers the first tests compare")
COMPILERS = ["g++", pytest.param("clang++", marks=[NEEDS_CLANG, RARELY])]


@pytest.fixture(params=COMPILERS)
def load(request, tmp_path, monkeypatch):
    """Builds the op in tmp_path as a fresh process does; returns its value and the entry's origin."""
    monkeypatch.setenv("CXX", request.param)
    (tmp_path / "inc").mkdir()

    def run(**attributes):
        attributes = {"include_dirs": ["inc"], **attributes}
        entry = sample_ops.builder_class(tmp_path, "plain", abi="c", **attributes)().build()
        return ctypes.CDLL(entry.library).value(), entry.origin

    return run


@pytest.fixture
def load_below(tmp_path):
    """Builds the op in tmp_path / "op", in which nothing else changes; returns its value and the entry's origin."""

    def run():
        entry = sample_ops.builder_class(tmp_path / "op", "plain", abi="c", include_dirs=["inc"])().build()
        return ctypes.CDLL(entry.library).value(), entry.origin

    text_files.write(tmp_path / "op" / "inc" / "sub", "other.h", "")
    return run


def toggle(load, folder, path, **attributes):
    """Lets a header that is only asked for appear, disappear and appear again."""
    assert load(**attributes) == (1, "built")
    text_files.write(folder, path, "#error it is not included\n")
    assert load(**attributes) == (2, "built")
    assert load(**attributes) == (2, "cache")
    (folder / path).unlink()
    assert load(**attributes) == (1, "cache")
    assert load(**attributes) == (1, "cache")
    text_files.write(folder, path, "#error it is not included\n")
    assert load(**attributes) == (2, "cache")


@OFTEN
@pytest.mark.parametrize("query", ["<opt.h>", '"opt.h"', "/* which? */ <opt.h>", '"inc/opt.h"'])
def test_a_header_that_is_only_asked_for_appears_and_disappears(tmp_path, load, query):
    text_files.write(tmp_path, "plain.cpp", ASKS.replace("@", query))
    toggle(load, tmp_path, "inc/opt.h")


@pytest.mark.parametrize(
    "lines",
    [
        "#define OPT <opt.h>\n",
        '#define OPT "opt.h"\n',
        "#define OPT <STEM.h>\n#define STEM opt\n",
        "#define TEXT(x) #x\n#define QUOTE(x) TEXT(x)\n#define OPT QUOTE(opt.h)\n",
        "#define CAT(a, b) a##b\n#define STEM CAT(o, pt)\n#define OPT <STEM.h>\n",
    ],
)
def test_a_macro_may_name_the_header_that_is_asked_for(tmp_path, load, lines):
    text_files.write(tmp_path, "plain.cpp", lines + ASKS.replace("@", "OPT"))
    toggle(load, tmp_path, "inc/opt.h")


def test_a_macro_that_is_undefined_later_may_name_the_header(tmp_path, load):
    text = "#define OPT <opt.h>\n" + ASKS.replace("@", "OPT") + "#undef OPT\n#define OPT <other.h>\n"
    text_files.write(tmp_path, "plain.cpp", text)
    toggle(load, tmp_path, "inc/opt.h")


def test_a_name_in_folders_of_several_roots_makes_no_second_build(tmp_path, load, tmp_path_factory, monkeypatch):
    first = tmp_path_factory.mktemp("0")  # sorted before the op's folder by its path, and after it by its root
    monkeypatch.setenv("CPATH", str(first))
    monkeypatch.setenv("OPFORGE_PARANOID", "1")  # no look-up is remembered
    text_files.write(first, "read.h", "")
    text_files.write(first, "opt.h", "")
    text_files.write(tmp_path, "plain.cpp", "#include <read.h>\n" + ASKS.replace("@", "<opt.h>"))
    assert load() == (2, "built")
    text_files.write(tmp_path, "opt.h", "")
    assert load()[0] == 2
    with opforge.no_builds():
        assert load() == (2, "cache")


@OFTEN
def test_a_flag_may_name_the_header_that_is_asked_for(tmp_path, load):
    text_files.write(tmp_path, "plain.cpp", ASKS.replace("@", "OPT"))
    toggle(load, tmp_path, "inc/opt.h", define_macros={"OPT": "<opt.h>"})


@pytest.mark.parametrize("wrapper", ["#define HAS(name) __has_include(name)\n", "#define HAS __has_include\n"])
def test_a_macro_of_the_sources_may_ask(tmp_path, load, wrapper):
    text_files.write(tmp_path, "has.h", wrapper)
    text_files.write(tmp_path, "plain.cpp", '#include "has.h"\n' + ASKS.replace("__has_include(@)", "HAS(<opt.h>)"))
    toggle(load, tmp_path, "inc/opt.h")


@pytest.mark.parametrize(
    "text",
    [
        "#if __has_inc\\\nlude /* in */ ( /* several */ <o\\ \npt.h> /* pieces\n */)\n",
        "#define OPT <opt.h>\n#define HAS_OPT (defined(__has_include) && __has_include(OPT))\n#if HAS_OPT\n",
        "#define HAS(x) HAS_NAMED(x)\n#define HAS_NAMED(x) __has_include(x)\n#if 1 && HAS(<opt.h>)\n",
        "#define HAS(x) __has_include(<x.h>)\n#if defined __has_include && HAS(opt)\n",
        "#define HEADER(a, b) <a##b.h>\n#define HAS(a, b) __has_include(HEADER(a, b))\n#if HAS(o, pt)\n",
        "#define HAS __has_include\n#define OPT (<opt.h>)\n#if HAS OPT\n",
    ],
    ids=["pieces", "condition", "nested", "part of a name", "put together", "without parentheses"],
)
def test_a_question_may_have_any_form(tmp_path, load, text):
    text_files.write(tmp_path, "plain.cpp", text + ASKS.partition("\n")[2])
    toggle(load, tmp_path, "inc/opt.h")


@pytest.mark.parametrize(
    ("flag", "query"),
    [
        ("-DHAS_OPT=__has_include(<opt.h>)", "HAS_OPT"),
        ("-DHAS(x)=__has_include(<x.h>)", "HAS(opt)"),
        ("-DHAS=__has_include", "HAS(OPT)"),
    ],
)
def test_a_definition_of_the_command_may_ask(tmp_path, load, flag, query):
    lines = "#define OPT <opt.h>\n" + ASKS.replace("__has_include(@)", query)
    text_files.write(tmp_path, "plain.cpp", lines)
    toggle(load, tmp_path, "inc/opt.h", extra_compile_args=[flag])


def test_a_condition_that_does_not_fit_the_macros_ends_no_build(tmp_path, load_below):
    """It is passed over by the compiler, and expanded with macros of other numbers of parameters."""
    lines = "#define HAS(a) __has_include(a)\n#if 0 && HAS(1, 2)\n#endif\n"
    lines = lines.replace("#if 0 &&", "#if 0\n#elif 1\n#elif")
    text_files.write(tmp_path / "op", "plain.cpp", lines + ASKS.replace("@", "<opt.h>"))
    toggle(load_below, tmp_path / "op", "inc/opt.h")


@OFTEN
def test_a_header_of_the_compilers_own_folders_is_asked_for(tmp_path, load, monkeypatch):
    """The folder takes the place of one of the system's, in which a package puts a new header."""
    (tmp_path / "late").mkdir()
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path / "late"))
    text_files.write(tmp_path, "plain.cpp", ASKS.replace("@", "<opt.h>"))
    toggle(load, tmp_path, "late/opt.h")


def test_a_file_asks_that_another_unit_embeds(tmp_path):
    """What a unit embeds is not read as its source, as it may be a model's weights."""
    text_files.write(tmp_path, "asks.h", ASKS.replace("@", '"late.h"'))
    text_files.write(tmp_path, "includes.cpp", '#include "asks.h"\n')
    embedding = f'asm(".section .rodata\\n.incbin \\"{tmp_path}/asks.h\\"\\n.previous\\n");\n'
    text_files.write(tmp_path, "embeds.cpp", embedding)
    cls = sample_ops.builder_class(tmp_path, "op", abi="c", sources=["includes.cpp", "embeds.cpp"])
    assert cls().load().value() == 1
    text_files.write(tmp_path, "late.h", "")
    assert cls().load().value() == 2


def test_an_object_is_not_reused_if_an_answer_has_changed(tmp_path, load):
    text_files.write(tmp_path, "plain.cpp", ASKS.replace("@", "<opt.h>"))
    assert load() == (1, "built")
    text_files.write(tmp_path, "inc/opt.h", "")
    assert load(version="2") == (2, "built")
    (tmp_path / "inc" / "opt.h").unlink()
    assert load(version="3") == (1, "built")


def test_a_reused_objects_questions_are_those_of_the_op_too(tmp_path, load):
    text_files.write(tmp_path, "plain.cpp", "#define OPT <opt.h>\n" + ASKS.replace("@", "OPT"))
    assert load() == (1, "built")
    attributes = {"version": "2", "extra_link_args": ["-s"]}
    assert load(**attributes) == (1, "built")
    text_files.write(tmp_path, "inc/opt.h", "")
    assert load(**attributes) == (2, "built")


def test_a_nearer_header_by_a_relative_path_is_detected(tmp_path, load):
    text_files.write(tmp_path, "x.h", "#define VALUE 1\n")
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    text_files.write(tmp_path, "sub/deep/a.h", '#include "../x.h"\n')
    text_files.write(tmp_path, "plain.cpp", '#include "sub/deep/a.h"\n' + VALUE)
    assert load() == (1, "built")
    text_files.write(tmp_path, "sub/x.h", "#define VALUE 2\n")
    assert load() == (2, "built")
    (tmp_path / "sub" / "x.h").unlink()
    assert load() == (1, "cache")


def test_a_switched_link_before_dots_is_detected(tmp_path, load):
    for name, value in (("first", 1), ("second", 2)):
        (tmp_path / name / "inc").mkdir(parents=True)
        text_files.write(tmp_path, f"{name}/value.h", f"#define VALUE {value}\n")
    (tmp_path / "link").symlink_to("first/inc")
    text_files.write(tmp_path, "plain.cpp", '#include "link/../value.h"\n' + VALUE)
    assert load() == (1, "built")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("second/inc")
    assert load() == (2, "built")


DATED = f"{sample_ops.EXPORT} int value() {{ return __DATE__[10] - '0'; }}\n"
"""The last digit of the year."""
takes_a_date = pytest.mark.parametrize("load", ["g++"], indirect=True)
"""Older releases of clang ignore the variable."""
IN_1971, IN_1972 = str(400 * 86400), str(800 * 86400)


@takes_a_date
def test_the_variable_that_replaces_the_date_is_an_input_of_dated_sources(tmp_path, load, monkeypatch):
    text_files.write(tmp_path, "dated.h", DATED)
    text_files.write(tmp_path, "plain.cpp", '#include "dated.h"\n')
    for date, value in ((IN_1971, 1), (IN_1972, 2)):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
        assert load() == (value, "built")
        assert load() == (value, "cache")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", IN_1971)
    assert load() == (1, "cache")


@takes_a_date
def test_a_flag_may_hold_the_date(tmp_path, load, monkeypatch):
    text_files.write(tmp_path, "plain.cpp", DATED.replace("__DATE__", "WHEN"))
    for date, value in ((IN_1971, 1), (IN_1972, 2)):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
        assert load(define_macros={"WHEN": "__DATE__"}) == (value, "built")


@takes_a_date
def test_an_object_with_another_date_is_not_reused(tmp_path, load, monkeypatch):
    text_files.write(tmp_path, "plain.cpp", DATED)
    for date, value in ((IN_1971, 1), (IN_1972, 2)):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
        assert load(version=date) == (value, "built")


@takes_a_date
@pytest.mark.parametrize("place", ["plain.cpp", "dated.h", "a flag"])
def test_a_new_day_is_noticed_where_a_file_of_the_ops_own_has_the_date(tmp_path, load, monkeypatch, place):
    today, real = ["2026-11-28"], time.strftime
    monkeypatch.setattr(time, "strftime", lambda form, *rest: real(form, *rest) if rest else today[0])
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    text_files.write(tmp_path, "dated.h", "#define WHEN __DATE__\n" if place == "dated.h" else "")
    when = "__DATE__" if place == "plain.cpp" else "WHEN"
    text_files.write(tmp_path, "plain.cpp", f'#include "dated.h"\nextern const char when[] = {when};\n' + ONE)
    attributes = {"define_macros": {"WHEN": "__DATE__"}} if place == "a flag" else {}
    assert [load(**attributes), load(**attributes)] == [(1, "built"), (1, "cache")]
    today[0] = "2026-11-29"
    assert [load(**attributes), load(**attributes)] == [(1, "built"), (1, "cache")]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", IN_1971)
    assert load(**attributes) == (1, "built")
    today[0] = "2026-11-30"
    assert load(**attributes) == (1, "cache")


@takes_a_date
def test_a_build_with_the_date_that_crosses_midnight_is_run_again(tmp_path, load, monkeypatch):
    today, real, runs, run = ["2026-11-28"], time.strftime, [], compilers.run_steps
    monkeypatch.setattr(time, "strftime", lambda form, *rest: real(form, *rest) if rest else today[0])
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)

    def run_until_midnight(*arguments):
        outcome, today[0] = run(*arguments), "2026-11-29"
        runs.append(today[0])
        return outcome

    monkeypatch.setattr(compilers, "run_steps", run_until_midnight)
    text_files.write(tmp_path, "plain.cpp", f"extern const char when[] = __DATE__;\n{ONE}")
    assert load() == (1, "built") and len(runs) == 2
    assert load() == (1, "cache")


@takes_a_date
def test_a_new_time_of_a_file_that_holds_its_own_is_noticed(tmp_path, load):
    path = text_files.write(tmp_path, "dated.h", f"extern const char when[] = __TIMESTAMP__;\n{ONE}")
    text_files.write(tmp_path, "plain.cpp", '#include "dated.h"\n')
    for seconds in (10**9, 10**9 + 5):
        os.utime(path, (seconds, seconds))
        assert [load(), load()] == [(1, "built"), (1, "cache")]


def test_a_header_that_a_condition_asks_for_before_its_macro_changes_form_is_noticed(tmp_path, load_below):
    """The condition cannot be expanded at the end of the file: then any name in the op's folders counts."""
    before = "#define NAME <opt.h>\n#define ASKS_FOR(name) __has_include(name)\n"
    after = "#undef ASKS_FOR\n#define ASKS_FOR(one, two) 0\n"
    asks = ASKS.replace("__has_include(@)", "ASKS_FOR(NAME)")
    text_files.write(tmp_path / "op", "plain.cpp", before + asks + after)
    toggle(load_below, tmp_path / "op", "inc/opt.h")


def test_an_operator_that_is_put_together_may_ask_for_any_header(tmp_path, load_below):
    text = "#define CAT(a, b) a##b\n" + ASKS.replace("__has_include(@)", "CAT(__has_, include)(<sub/opt.h>)")
    text_files.write(tmp_path / "op", "plain.cpp", text)
    toggle(load_below, tmp_path / "op", "inc/sub/opt.h")


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("own.specs", "-specs={0}/own.specs"),
        pytest.param(
            "own/specs", "-B{0}/own/", marks=pytest.mark.long("test_compiler_surroundings.py has such a file")
        ),
    ],
)
@pytest.mark.parametrize("load", ["g++"], indirect=True)
def test_a_variable_that_specs_ask_for_is_an_input(tmp_path, load, monkeypatch, name, flag):
    """Also for an object that could be reused: the version makes another plan of the same sources."""
    text_files.write(tmp_path, name, "*cc1plus:\n+ -include%:getenv(OPFORGE_TEST_FOLDER /value.h)\n\n")
    monkeypatch.setenv("OPFORGE_TEST_FOLDER", str(tmp_path / "one"))
    for name, value in (("one", 1), ("two", 2)):
        text_files.write(tmp_path, f"{name}/value.h", f"#define VALUE {value}\n")
    text_files.write(tmp_path, "plain.cpp", f"{sample_ops.EXPORT} int value() {{ return VALUE; }}\n")
    flags = {"extra_compile_args": [flag.replace("{0}", str(tmp_path))]}
    for name, value in (("one", 1), ("two", 2)):
        monkeypatch.setenv("OPFORGE_TEST_FOLDER", str(tmp_path / name))
        assert load(**flags) == (value, "built")
        assert load(**flags) == (value, "cache")
        assert load(**flags, version=f"1.{value}") == (value, "built")
    monkeypatch.setenv("OPFORGE_TEST_FOLDER", str(tmp_path / "one"))
    assert load(**flags) == (1, "cache")


@pytest.mark.parametrize(
    ("specs", "asked_for", "content"),
    [
        ("*cc1plus:\n+ -include %:if-exists-else({0}/two.h {0}/one.h)\n\n", "two.h", "#define VALUE 2\n"),
        ("*cc1plus:\n+ -include %:find-file(value.h)\n\n", "lib/value.h", "#define VALUE 2\n"),
        ("*cc1plus:\n+ -include value.h%s\n\n", "lib/value.h", "#define VALUE 2\n"),
        ("*cc1plus:\n+ -include {0}/one.h\n\n%include_noerr <{0}/more>\n", "more", "*cc1plus:\n+ -DOTHER\n\n"),
        ("*cc1plus:\n+ -include {0}/one.h\n\n%include_noerr <more>\n", "lib/more", "*cc1plus:\n+ -DOTHER\n\n"),
    ],
)
@pytest.mark.parametrize("load", ["g++"], indirect=True)
def test_a_file_that_specs_ask_for_appears_and_disappears(tmp_path, load, monkeypatch, specs, asked_for, content):
    text_files.write(tmp_path, "one.h", "#ifdef OTHER\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n")
    text_files.write(tmp_path, "later/value.h", "#define VALUE 1\n")
    (tmp_path / "lib").mkdir()
    monkeypatch.setenv("LIBRARY_PATH", f"{tmp_path}/lib:{tmp_path}/later")
    own = text_files.write(tmp_path, "own.specs", specs.replace("{0}", str(tmp_path)))
    text_files.write(tmp_path, "plain.cpp", f"{sample_ops.EXPORT} int value() {{ return VALUE; }}\n")
    flags = {"extra_compile_args": [f"-specs={own}"]}
    assert load(**flags) == (1, "built")
    assert load(**flags) == (1, "cache")
    text_files.write(tmp_path, asked_for, content)
    assert load(**flags) == (2, "built")
    (tmp_path / asked_for).unlink()
    assert load(**flags) == (1, "cache")
