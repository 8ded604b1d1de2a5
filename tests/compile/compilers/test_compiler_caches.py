"""ccache and its like, as a launcher and as a part of CXX: what they answer is what the compiler would."""

from __future__ import annotations

import shutil

import pytest
from support import sample_ops, text_files

DIRECT = """\
case "$*" in *" -c "*) ;; *) exec "$@";; esac
for output; do :; done
if [ -z "$CCACHE_NODIRECT" ] && [ -e "{0}" ]; then cp "{0}" "$output"; cp "{0}.d" "$output.d"; exit; fi
"$@" && cp "$output" "{0}" && cp "$output.d" "{0}.d"
"""
"""Takes an object by its source alone, as ccache does that knows which headers it was compiled from."""
WITHOUT_LIST = """\
for word; do
  case "$word" in -Wa,--MD,[0-9]*) ;; *) set -- "$@" "$word";; esac
  shift
done
exec "$@"
"""
"""Writes no list of what the assembler read, as ccache does that has the object already."""
SOURCE = sample_ops.PLAIN_SOURCE.replace('"value.h"', "<inner.h>")
ASKS = f"""\
#if __has_include(<inner.h>)
#include <inner.h>
#else
#define VALUE 1
#endif
{sample_ops.EXPORT} int value() {{ return VALUE; }}
"""


@pytest.fixture(params=["ccache", DIRECT], ids=["ccache", "script"])
def launcher(request, tmp_path, monkeypatch):
    """The command of a compiler cache."""
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    if request.param != "ccache":
        return text_files.write_script(tmp_path, "cache", request.param.format(tmp_path / "object"))
    if not shutil.which("ccache"):
        pytest.skip("needs ccache (apt install ccache)")
    return "ccache"


@pytest.mark.parametrize("source", [SOURCE, ASKS], ids=["included", "asked for"])
def test_a_header_that_appears_is_compiled_although_the_cache_has_the_object(folder, monkeypatch, launcher, source):
    cls = sample_ops.plain_op(folder, source=source, include_dirs=["early", "late"])
    for name in ("early", "late"):
        (folder / name).mkdir()
    if source == SOURCE:
        text_files.write(folder / "late", "inner.h", "#define VALUE 1\n")
    monkeypatch.setenv("OPFORGE_COMPILER_LAUNCHER", launcher)
    assert cls().load().value() == 1
    text_files.write(folder / "early", "inner.h", "#define VALUE 2\n")
    assert cls().load().value() == 2


def test_an_object_of_a_cache_in_cxx_needs_no_list_of_what_was_assembled(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder, value=3)
    monkeypatch.setenv("CXX", text_files.write_script(tmp_path, "cache", WITHOUT_LIST) + " g++")
    assert cls().load().value() == 3


def test_an_op_is_built_again_behind_ccache_in_cxx(folder, tmp_path, monkeypatch):
    if not shutil.which("ccache"):
        pytest.skip("needs ccache (apt install ccache)")
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    monkeypatch.setenv("CXX", "ccache g++")
    cls = sample_ops.plain_op(folder, value=3)
    for store in ("one", "two"):
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / store))
        assert cls().build().origin == "built"


@pytest.mark.parametrize("variable", ["CCACHE_COMPILER", "CCACHE_CC"])
def test_a_launcher_starts_the_compiler_of_the_plan(folder, tmp_path, monkeypatch, variable):
    """ccache would start the one that the variable names, which is in no key."""
    script = f'compiler=${{{variable}:-$1}}; shift; exec "$compiler" "$@"'
    monkeypatch.setenv("OPFORGE_COMPILER_LAUNCHER", text_files.write_script(tmp_path, "launcher", script))
    monkeypatch.setenv(variable, text_files.write_script(tmp_path, "other", 'exec g++ -DVALUE=2 "$@"'))
    cls = sample_ops.plain_op(
        folder, source=f"#ifndef VALUE\n#define VALUE 1\n#endif\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"
    )
    assert cls().load().value() == 1
