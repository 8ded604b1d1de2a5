"""After a link: a symbol that no library has which will be loaded with the new one."""

from __future__ import annotations

import ctypes
import glob
import itertools
import logging
import os
import subprocess
import sysconfig

import pytest
from support import sample_ops

from opforge.builders.base import OpBuilder
from opforge.builders.declaration import machine
from opforge.builders.inspection import elf, symbol_scope
from opforge.errors import CompileError

CALLS = f'extern "C" int given(int);\n{sample_ops.EXPORT} int value() {{ return given(1); }}\n'
DEFINES = "int given(int x) { return x; }\n"


def extension_class(folder, source=CALLS, **attributes):
    """Returns the builder of a plain op that is built as for a setup script."""
    kind = sample_ops.plain_op(folder, source=source, **attributes)
    kind.spec = lambda self: OpBuilder.spec(self)._replace(extension_libraries=())
    return kind


def linked(folder, name, text, *flags):
    (folder / f"{name}.c").write_text(text)
    command = ["gcc", "-shared", "-fPIC", f"{name}.c", "-o", f"lib{name}.so", "-Wl,--no-as-needed", *flags]
    subprocess.run(command, cwd=folder, check=True)
    return folder / f"lib{name}.so"


def test_a_setup_script_gets_an_error_that_names_the_symbol_and_the_setting(tmp_path, monkeypatch):
    with pytest.raises(CompileError) as caught:
        extension_class(tmp_path)().build()
    assert str(caught.value).startswith(
        "plain: undefined symbol: given: none of the libraries that it needs has it, nor has Python or torch.\n"
        "hint: name the source or the library that defines it in sources or libraries; or set OPFORGE_ALLOW_UNDEFINED=1"
    )
    monkeypatch.setenv("OPFORGE_ALLOW_UNDEFINED", "1")
    assert extension_class(tmp_path)().build().origin == "built"


def test_elsewhere_it_is_a_warning(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "opforge")
    cls = sample_ops.plain_op(tmp_path / "one", source=CALLS, extra_link_args=["-Llib -lgiven"])
    assert cls().build().origin == "built"
    assert "plain: undefined symbol: given: none of the libraries" in caplog.text
    assert (
        f"plain: built, but '-L{tmp_path}/one/lib -lgiven' is one argument to the compiler: write each flag as"
        in caplog.text
    )
    caplog.clear()
    monkeypatch.setenv("OPFORGE_ALLOW_UNDEFINED", "1")
    sample_ops.plain_op(tmp_path / "two", source=CALLS + "// another\n")().build()
    assert not caplog.text


@pytest.mark.parametrize("flags", [["-Llib", "-lgiven"], ["lib/libgiven.so"], ["-Wl,-rpath,@/lib", "-Llib", "-lgiven"]])
def test_a_library_that_the_link_names_has_its_symbols(tmp_path, flags):
    (tmp_path / "lib").mkdir()
    linked(tmp_path / "lib", "given", DEFINES)
    flags = [flag.replace("@", str(tmp_path)) for flag in flags]
    assert extension_class(tmp_path, extra_link_args=flags)().build().origin == "built"


def test_nothing_is_known_if_a_needed_library_cannot_be_found(tmp_path):
    linked(tmp_path, "given", "int other(void) { return 1; }\n", "-Wl,-soname,libgiven_elsewhere.so.1")
    assert extension_class(tmp_path, extra_link_args=["-L.", "-lgiven"])().build().origin == "built"


def test_a_weak_symbol_may_be_missing(tmp_path):
    source = CALLS.replace("int given(int)", "__attribute__((weak)) int given(int)").replace(
        "given(1)", "given ? 1 : 2"
    )
    assert extension_class(tmp_path, source)().build().origin == "built"


def test_the_answer_is_the_dynamic_linkers_for_every_choice_of_libraries(tmp_path):
    """The libraries need each other: a needs nothing, b needs a, c needs what none has unless it is linked with d."""
    rpath = f"-Wl,-rpath,{tmp_path}"
    linked(tmp_path, "a", "int fa(void) { return 1; }\n")
    linked(tmp_path, "b", "int fa(void); int fb(void) { return fa(); }\n", "-L.", "-la", rpath)
    linked(tmp_path, "d", "int fd(void) { return 1; }\nint fe(void) { return 1; }\n", "-Wl,--hash-style=sysv")
    linked(tmp_path, "c", "int fd(void); int fc(void) { return fd(); }\n", "-L.", "-ld", rpath)
    calls = "int fa(void), fb(void), fc(void), fd(void);\nint all(void) { return fa() + fb() + fc() + fd(); }\n"
    for count in range(4):
        for names in itertools.combinations("abc", count):
            path = linked(tmp_path, "all", calls, "-L.", *(f"-l{name}" for name in names), rpath)
            missing = symbol_scope.missing_symbols(elf.open_library(str(path)), [])
            path = path.rename(tmp_path / f"lib{count}{''.join(names)}.so")  # dlopen knows libraries by name
            try:
                ctypes.CDLL(str(path), os.RTLD_NOW)
                assert missing == []
            except OSError as error:
                assert any(name in str(error) for name in missing), (names, missing)


def test_libraries_that_can_be_loaded_here_lack_nothing():
    torch = machine.torch_folder()
    folder = os.path.join(torch, "lib") if torch else ""
    paths = glob.glob(os.path.join(sysconfig.get_path("platstdlib"), "lib-dynload", "*.so"))
    paths += glob.glob(os.path.join(folder, "libtorch_python.so")) + glob.glob(os.path.join(folder, "libc10.so"))
    assert paths
    for path in paths:
        assert symbol_scope.missing_symbols(elf.open_library(path), [], folder) == [], path
