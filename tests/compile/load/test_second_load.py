"""A second load in one process: everything that the first followed from is compared, and a change is looked up."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import time
import types

import pytest
from support import sample_ops, text_files

import opforge
from opforge.builders import base
from opforge.builders.declaration import kernel_roots
from opforge.builders.lookup import remembered_lookups
from opforge.fast_path import library
from opforge.foundation import remembered_values
from opforge.foundation.remembered_values import RACY_NS

pytestmark = pytest.mark.usefixtures("builds_are_shared")
TEXT = f"{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"
"""A plain function that returns the macro VALUE, which no file defines."""


@pytest.fixture
def look_ups(monkeypatch):
    """The names of the ops that are looked up from here on."""
    names, real = [], base.lookup.load
    monkeypatch.setattr(base.lookup, "load", lambda builder, *rest: names.append(builder.name) or real(builder, *rest))
    return names


def op_of_text(folder, text=TEXT, **attributes):
    """Writes the text as the source of a plain op, in a folder; returns its builder class."""
    os.makedirs(folder, exist_ok=True)
    name = "op"  # of one name and text, so that the tests share what is built
    text_files.write(folder, f"{name}.cpp", text)
    return sample_ops.builder_class(folder, name, abi="c", **attributes)


def settled(builder):
    """Loads, waits until no stamp is racy, and loads again; returns the op."""
    builder.load()
    time.sleep(RACY_NS / 1e9 + 0.1)
    return builder.load()


def test_nothing_is_looked_up_while_nothing_changes(tmp_path, look_ups):
    builder = sample_ops.plain_op(tmp_path / "op")()
    op = settled(builder)
    look_ups.clear()
    assert builder.load() is op and builder.load() is op
    assert look_ups == []


def test_a_builder_that_has_loaded_can_be_copied_and_the_copy_loads_the_op(tmp_path, look_ups):
    builder = op_of_text(tmp_path / "op")()
    builder.extra_compile_args = ["-DVALUE=3"]
    op = builder.load()
    look_ups.clear()
    twin = copy.deepcopy(builder)  # by what a pickle has
    assert twin.load() is op and twin.extra_compile_args == ["-DVALUE=3"] and look_ups == ["op"]


def test_while_a_stamp_is_racy_each_load_compares_contents(tmp_path, look_ups, monkeypatch):
    builder = sample_ops.plain_op(tmp_path / "op")()
    real, watched = remembered_values.stamps_of, f"{tmp_path}/op/value.h"
    clock = real([watched])
    # A clock so coarse that the second change is within the same tick: the stamp stays as it is.
    monkeypatch.setattr(
        remembered_values,
        "stamps_of",
        lambda paths, links=0: [n for path in paths for n in (clock if path == watched else real([path]))],
    )
    op = builder.load()
    sample_ops.set_value(tmp_path / "op", 3)
    assert (op.value(), builder.load().value()) == (1, 3)
    assert len(look_ups) == 2


def test_an_attribute_of_the_class_that_is_replaced(tmp_path):
    cls = op_of_text(tmp_path / "op", extra_compile_args=["-DVALUE=1"])
    builder = cls()
    first = builder.load()
    cls.extra_compile_args = ["-DVALUE=2"]
    assert (first.value(), builder.load().value()) == (1, 2)
    cls.extra_compile_args = ["-DVALUE=1"]
    assert builder.load() is first


def test_a_list_that_is_appended_to(tmp_path):
    builder = op_of_text(tmp_path / "op", extra_compile_args=["-DVALUE=1"])()
    assert settled(builder).value() == 1
    builder.extra_compile_args.append("-UVALUE")
    builder.extra_compile_args.append("-DVALUE=2")
    assert builder.load().value() == 2


@pytest.mark.parametrize(
    ("attribute", "value", "change"),
    [
        ("define_macros", {"VALUE": "1"}, lambda value: value.update(VALUE="2")),
        ("define_macros", [("VALUE", "1")], lambda value: value.__setitem__(0, ("VALUE", "2"))),
        ("extra_compile_args", {"cxx": ["-DVALUE=1"]}, lambda value: value["cxx"].__setitem__(0, "-DVALUE=2")),
    ],
)
def test_a_list_or_dict_that_is_changed_in_place(tmp_path, attribute, value, change):
    builder = op_of_text(tmp_path / "op", **{attribute: value})()
    assert settled(builder).value() == 1
    change(value)
    assert builder.load().value() == 2


def test_a_table_for_all_builders_that_is_made_later(tmp_path, monkeypatch):
    cls = op_of_text(tmp_path / "op", extra_compile_args=["-DVALUE=1"])
    builder = cls()
    first = settled(builder)
    table = {"extra_compile_args": ["-UVALUE", "-DVALUE=2"]}
    monkeypatch.setattr(sys.modules[cls.__module__], "FOR_ALL_BUILDERS", table, raising=False)
    assert builder.load().value() == cls().load().value()
    assert builder.load() is not first
    monkeypatch.undo()
    assert builder.load().value() == 1


def test_an_attribute_of_the_instance_and_of_a_base_class(tmp_path):
    base = op_of_text(tmp_path / "op", define_macros={"VALUE": "1"})
    builder = type("Derived", (base,), {"__module__": base.__module__})()
    assert settled(builder).value() == 1
    base.define_macros = {"VALUE": "2"}
    assert builder.load().value() == 2
    builder.define_macros = {"VALUE": "3"}
    assert builder.load().value() == 3
    before = builder.load()
    builder.debug = True
    assert builder.load().path != before.path


def test_an_attribute_that_only_the_builders_own_methods_read(tmp_path):
    def cxx_args(self):
        return [f"-DVALUE={self._value}"]

    builder = op_of_text(tmp_path / "op", cxx_args=cxx_args, _value=1)()
    assert settled(builder).value() == 1
    builder._value = 2
    assert builder.load().value() == 2


def test_a_table_for_all_builders_that_is_changed_in_place(tmp_path, monkeypatch):
    package = types.ModuleType("second_load_tables")
    package.FOR_ALL_BUILDERS = {"define_macros": [("VALUE", "1")]}
    monkeypatch.setitem(sys.modules, package.__name__, package)
    cls = op_of_text(tmp_path / "op")
    package.__file__, cls.__module__ = sys.modules[cls.__module__].__file__, package.__name__
    builder = cls()
    op = settled(builder)
    assert op.value() == 1 and builder.load() is op
    package.FOR_ALL_BUILDERS["define_macros"][0] = "VALUE", "2"
    assert builder.load().value() == 2


def test_an_attribute_that_cannot_be_compared_counts_as_changed(tmp_path, look_ups):
    class Odd:
        def __eq__(self, other):
            raise ValueError("ambiguous")

        __hash__ = None

    builder = op_of_text(tmp_path / "op", define_macros={"VALUE": "1"}, _odd=Odd())()
    op = settled(builder)
    look_ups.clear()
    assert builder.load() is op and look_ups == [], "it is the same object"
    builder._odd = Odd()
    assert builder.load() is op and len(look_ups) == 1


def test_kernel_roots_that_are_added(tmp_path):
    text = f'#include "given.h"\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n'
    cls = op_of_text(tmp_path / "op", text)
    for name, value in (("first", 1), ("second", 2)):
        (tmp_path / name / "include").mkdir(parents=True)
        text_files.write(tmp_path / name / "include", "given.h", f"#define VALUE {value}\n")
    first, second = (kernel_roots.KernelRoot(name, str(tmp_path / name)) for name in ("first", "second"))
    cls.kernel_roots = [first]
    builder = cls()
    assert settled(builder).value() == 1
    cls.kernel_roots.insert(0, second)
    assert builder.load().value() == 2


def test_a_header_of_a_kernel_root(tmp_path):
    (tmp_path / "root" / "include").mkdir(parents=True)
    header = tmp_path / "root" / "include" / "given.h"
    header.write_text("#define VALUE 1\n")
    text = f'#include "given.h"\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n'
    root = kernel_roots.KernelRoot("mine", str(tmp_path / "root"))
    builder = op_of_text(tmp_path / "op", text, kernel_roots=[root])()
    assert settled(builder).value() == 1
    header.write_text("#define VALUE 22\n")
    assert builder.load().value() == 22


def test_a_header_that_appears_before_the_one_that_was_read(tmp_path):
    for name in ("early", "late"):
        (tmp_path / name).mkdir()
    text_files.write(tmp_path / "late", "given.h", "#define VALUE 1\n")
    text = f"#include <given.h>\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"
    builder = op_of_text(tmp_path / "op", text, include_dirs=[str(tmp_path / "early"), str(tmp_path / "late")])()
    assert settled(builder).value() == 1
    text_files.write(tmp_path / "early", "given.h", "#define VALUE 2\n")
    assert builder.load().value() == 2
    os.unlink(tmp_path / "early" / "given.h")
    assert builder.load().value() == 1


def archive(folder, value):
    """Writes libvalue.a, whose function inner() returns the value."""
    text_files.write(folder, "inner.c", f"int inner(void) {{ return {value}; }}\n")
    subprocess.run(["g++", "-x", "c", "-fPIC", "-c", "inner.c", "-o", "inner.o"], cwd=folder, check=True)
    (folder / "libvalue.a").unlink(missing_ok=True)
    subprocess.run(["ar", "rcs", "libvalue.a", "inner.o"], cwd=folder, check=True)


def test_a_static_archive(tmp_path):
    (tmp_path / "lib").mkdir()
    archive(tmp_path / "lib", 1)
    text = f'extern "C" int inner();\n{sample_ops.EXPORT} int value() {{ return inner(); }}\n'
    flags = {"libraries": ["value"], "extra_link_args": [f"-L{tmp_path / 'lib'}"]}
    builder = op_of_text(tmp_path / "op", text, **flags)()
    assert settled(builder).value() == 1
    archive(tmp_path / "lib", 2)
    assert builder.load().value() == 2


@pytest.mark.parametrize("variable", ["CXXFLAGS", "CPPFLAGS"])
def test_flags_in_the_environment(tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, "-DVALUE=1")
    builder = op_of_text(tmp_path / "op")()
    first = settled(builder)
    monkeypatch.setenv(variable, "-DVALUE=2")
    assert (first.value(), builder.load().value()) == (1, 2)
    os.environ[variable] = "-DVALUE=1"
    assert builder.load() is first


def test_a_variable_that_is_deleted_and_one_that_changes_nothing(tmp_path, monkeypatch, look_ups):
    monkeypatch.setenv("CPATH", str(tmp_path / "headers"))
    (tmp_path / "headers").mkdir()
    text_files.write(tmp_path / "headers", "value.h", "#define VALUE 1\n")
    text = f"#if __has_include(<value.h>)\n#include <value.h>\n#else\n#define VALUE 2\n#endif\n{TEXT}"
    builder = op_of_text(tmp_path / "op", text)()
    first = settled(builder)
    look_ups.clear()
    monkeypatch.setenv("OPFORGE_TEST_UNRELATED", "1")
    assert builder.load() is first and len(look_ups) == 1
    assert builder.load() is first and len(look_ups) == 1
    monkeypatch.delenv("CPATH")
    assert builder.load().value() == 2


def test_another_cache_folder(tmp_path, monkeypatch):
    builder = op_of_text(tmp_path / "op", define_macros={"VALUE": "1"})()
    first = settled(builder)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "other"))
    assert builder.load() is first, "it has the same key"
    assert (tmp_path / "other" / "v2" / "entries").is_dir()


def test_opforges_own_files_are_compared_once_a_second(tmp_path, monkeypatch):
    folder = tmp_path / "kernels" / "include"
    folder.mkdir(parents=True)
    text_files.write(folder, "given.h", "#define VALUE 1\n")
    monkeypatch.setattr(remembered_lookups, "OWN_FOLDERS", (f"{tmp_path}/kernels/",))
    text = f'#include "given.h"\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n'
    root = kernel_roots.KernelRoot("kernels", str(tmp_path / "kernels"))
    builder = op_of_text(tmp_path / "op", text, kernel_roots=[root])()
    first, seconds = settled(builder), [time.monotonic() + base.COMPARE_SECONDS]
    monkeypatch.setattr(base.time, "monotonic", lambda: seconds[0])
    assert builder.load() is first
    text_files.write(folder, "given.h", "#define VALUE 22\n")
    assert builder.load() is first
    seconds[0] += base.COMPARE_SECONDS
    assert builder.load().value() == 22


def test_what_is_below_an_installed_package_is_not_watched(tmp_path, look_ups):
    root = tmp_path / "lib" / "python3" / "site-packages" / "kernels"
    (root / "include").mkdir(parents=True)
    text_files.write(root / "include", "given.h", "#define VALUE 1\n")
    text = f'#include "given.h"\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n'
    cls = op_of_text(tmp_path / "op", text, kernel_roots=[kernel_roots.KernelRoot("installed", str(root))])
    builder = cls()
    first = settled(builder)
    look_ups.clear()
    text_files.write(root / "include", "given.h", "#define VALUE 2\n")
    assert builder.load() is first and look_ups == []
    assert cls().load().value() == 2, "another builder looks it up"


def test_a_failed_second_load_leaves_the_first_and_is_tried_again(tmp_path):
    builder = sample_ops.plain_op(tmp_path / "op")()
    first = settled(builder)
    text_files.write(tmp_path / "op", "value.h", "#define VALUE (\n")
    for _ in range(2):
        with pytest.raises(opforge.errors.CompileError):
            builder.load()
    sample_ops.set_value(tmp_path / "op", 1)
    assert builder.load() is first and first.value() == 1


@pytest.fixture
def functions_module(monkeypatch):
    """A module with two factories of Python functions, and the ops that they were called with."""
    module = types.ModuleType(sample_ops.unique_name("functions"))
    module.ops = []
    module.doubled = lambda op: module.ops.append(op) or {"more": lambda: 2 * op.value()}
    module.tripled = lambda op: module.ops.append(op) or {"more": lambda: 3 * op.value()}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_look_up_that_leads_to_the_same_library_returns_the_same_object(tmp_path, functions_module, look_ups):
    functions = f"{functions_module.__name__}:doubled"
    builder = op_of_text(tmp_path / "op", define_macros={"VALUE": "1"}, python_functions=functions)()
    op = settled(builder)
    more = op.more
    os.utime(tmp_path / "op" / builder.sources[0])
    look_ups.clear()
    assert builder.load() is op and op.more is more and more() == 2
    assert len(look_ups) == 1 and functions_module.ops == [op]


def test_another_builder_of_the_class_replaces_no_python_function(tmp_path, functions_module):
    functions = f"{functions_module.__name__}:doubled"
    cls = op_of_text(tmp_path / "op", define_macros={"VALUE": "1"}, python_functions=functions)
    op = cls().load()
    more = op.more
    assert cls().load() is op and op.more is more


@pytest.mark.parametrize("is_again", [True, False], ids=["as it was", "loaded again"])
def test_a_python_module_gets_the_functions_of_a_module_that_was_loaded_again_alone(functions_module, is_again):
    module, where = types.ModuleType("extension"), f"{functions_module.__name__}:doubled"
    more = library.extended(module, where).more
    if not is_again:
        functions_module.doubled = functions_module.tripled
    assert (library.extended(module, where).more is more) == is_again


def test_other_python_functions_of_the_same_library(tmp_path, functions_module):
    name = functions_module.__name__
    cls = op_of_text(tmp_path / "op", define_macros={"VALUE": "1"}, python_functions=f"{name}:doubled")
    builder = cls()
    doubled = builder.load()
    assert doubled.more() == 2 and cls().load() is doubled
    cls.python_functions = f"{name}:tripled"
    assert (builder.load().more(), doubled.more()) == (3, 2)
    cls.python_functions = ""
    assert not hasattr(builder.load(), "more") and builder.load().path == doubled.path


def test_the_retry_after_an_eviction_holds_for_a_changed_file_too(tmp_path, own_store, monkeypatch):
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(own_store))
    builder = sample_ops.plain_op(tmp_path / "op")()
    first = settled(builder)
    shutil.rmtree(own_store)
    assert builder.load() is first, "nothing that it was built from has changed"
    sample_ops.set_value(tmp_path / "op", 2)
    assert (first.value(), builder.load().value()) == (1, 2)
