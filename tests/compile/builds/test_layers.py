"""Layers of prebuilt ops with a real compiler: when an entry of a layer is used, and why one is rejected."""

from __future__ import annotations

import os
import time

import pytest
from support import sample_ops, text_files
from support.store.fake_store import ME

from opforge.builders.declaration import machine
from opforge.builders.declaration.description import description_key
from opforge.builders.declaration.kernel_roots import KernelRoot
from opforge.builders.load_op import find
from opforge.builders.lookup import finder
from opforge.builders.run import planned_build
from opforge.cache import layer
from opforge.cache.filesystem.disk import Disk
from opforge.foundation.remembered_values import RACY_NS


@pytest.fixture
def add_to_layer(folder, tmp_path, shared_store, monkeypatch):
    """Builds an op for a target and adds it to the layer, which is then in use. The user's own store is empty."""

    def add(cls, target="cpu:x86-64"):
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(shared_store))
        monkeypatch.delenv("OPFORGE_CACHE_LAYERS", raising=False)
        builder = cls(target)
        added = layer.add(str(tmp_path / "layer"), builder.build(), description_key(builder.spec()), ME)
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "mine"))
        monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(tmp_path / "layer"))
        return added

    return add


pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="uses the levels of x86-64")


def test_an_entry_for_a_lower_cpu_level_is_used_unless_the_exact_target_is_required(folder, add_to_layer, monkeypatch):
    monkeypatch.setattr(machine, "cpu_level", lambda: "x86-64-v3")
    cls = sample_ops.plain_op(folder, value=3)
    low = add_to_layer(cls, "cpu:x86-64")
    assert find(cls("cpu:x86-64-v3").spec()).entry.library == low.library
    assert find(cls("cpu:x86-64-v3").spec(), exact=True).entry is None
    assert cls("cpu:x86-64-v3").load().value() == 3
    exact = cls("cpu:x86-64-v3").build(exact=True)
    assert exact.origin == "built" and exact.record["target"] == "cpu:x86-64-v3"
    assert find(cls("cpu:x86-64-v3").spec(), exact=True).entry.origin == "cache"
    high = add_to_layer(cls, "cpu:x86-64-v3")
    assert find(cls("cpu:x86-64-v3").spec()).entry.library == high.library, "the highest level that runs here"
    assert find(cls("cpu:x86-64-v2").spec()).entry.library == low.library, "a higher level is never used"


def test_an_entry_of_a_layer_is_rejected_if_a_header_has_changed(folder, tmp_path, add_to_layer):
    cls = sample_ops.plain_op(folder, value=3)
    added = add_to_layer(cls, None)
    assert cls().build().origin == str(tmp_path / "layer")
    sample_ops.set_value(folder, 4)
    builder = cls()
    assert builder.load().value() == 4
    (rejection,) = [rejection for rejection in builder.trace if rejection.where == added.folder]
    assert rejection.reason == f"{folder}/value.h has changed"
    sample_ops.set_value(folder, 3)
    assert cls().build().library == added.library


def test_headers_that_appear_in_an_earlier_root_reject_an_entry_of_a_layer(folder, tmp_path, add_to_layer):
    text_files.write(tmp_path, "second/include/part.h", "#define PART 2\n")
    text_files.write(folder, "op.cpp", f"#include <part.h>\n{sample_ops.EXPORT} int value() {{ return PART; }}\n")
    roots = [KernelRoot(name, str(tmp_path / name)) for name in ("first", "second")]
    cls = sample_ops.builder_class(folder, "op", abi="c", kernel_roots=roots)
    add_to_layer(cls, None)
    assert cls().build().origin == str(tmp_path / "layer")
    text_files.write(tmp_path, "first/include/part.h", "#define PART 1\n")
    assert cls().load().value() == 1
    (tmp_path / "first/include/part.h").unlink()
    (tmp_path / "first/include").rmdir()
    assert cls().build().origin == str(tmp_path / "layer")


def test_a_header_that_shadows_one_of_the_systems_rejects_an_entry_of_a_layer(folder, tmp_path, add_to_layer):
    text_files.write(
        folder, "op.cpp", f"#include <sys/param.h>\n{sample_ops.EXPORT} int value() {{ return NOGROUP; }}\n"
    )
    cls = sample_ops.builder_class(folder, "op", abi="c", include_dirs=["."])
    add_to_layer(cls, None)
    assert cls().build().origin == str(tmp_path / "layer")
    text_files.write(folder, "sys/param.h", "#define NOGROUP 2\n")
    assert cls().load().value() == 2


def test_what_a_dangling_link_leads_to_appears_although_a_layer_has_the_op(folder, tmp_path, add_to_layer, monkeypatch):
    # Otherwise nothing that was just written is remembered.
    monkeypatch.setattr(Disk, "now_ns", lambda _self: time.time_ns() + 2 * RACY_NS)
    lines = "#if __has_include(<opt.h>)\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n"
    text_files.write(folder, "op.cpp", f"{lines}{sample_ops.EXPORT} int value() {{ return VALUE; }}\n")
    (folder / "opt.h").symlink_to(tmp_path / "opt.h")
    cls = sample_ops.builder_class(folder, "op", abi="c", include_dirs=["."])
    add_to_layer(cls, None)
    assert cls().build().origin == cls().build().origin == str(tmp_path / "layer")
    text_files.write(tmp_path, "opt.h", "")
    assert cls().load().value() == 2


@pytest.mark.parametrize("is_in_layer", [True, False], ids=["during a hit", "during a build"])
def test_a_source_that_appears_while_an_op_is_looked_up_is_used_at_the_next_load(
    folder, tmp_path, add_to_layer, monkeypatch, is_in_layer
):
    text_files.write(tmp_path, "second/op.cpp", f"{sample_ops.EXPORT} int value() {{ return 1; }}\n")
    roots = [KernelRoot(name, str(tmp_path / name)) for name in ("first", "second")]
    cls = sample_ops.builder_class(folder, "op", abi="c", kernel_roots=roots)
    if is_in_layer:
        add_to_layer(cls, None)
    stamp = Disk.now_ns
    monkeypatch.setattr(Disk, "now_ns", lambda disk: stamp(disk) + 2 * RACY_NS)

    def describe_and_add(spec):
        key = description_key(spec)
        text_files.write(tmp_path, "first/op.cpp", f"{sample_ops.EXPORT} int value() {{ return 2; }}\n")
        return key

    with monkeypatch.context() as during:
        for module in (finder, planned_build):
            during.setattr(module, "description_key", describe_and_add)
        cls().load()
    assert (tmp_path / "first/op.cpp").exists()
    assert cls().load().value() == 2


@pytest.mark.parametrize(
    ("name", "include_dirs"), [("../value.h", []), ("../../value.h", ["headers"]), ("sub/near.h", ["../other"])]
)
def test_a_header_above_the_ops_folders_rejects_an_entry_of_a_layer(folder, tmp_path, add_to_layer, name, include_dirs):
    text = f'#include "{name}"\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n'
    text_files.write(folder, "own/op.cpp", text)
    text_files.write(folder, "own/headers/none.h", "")
    text_files.write(folder, "own/sub/near.h", '#include "../value.h"\n')  # in the folder above other/, not beside it
    text_files.write(folder, "other/none.h", "")
    sample_ops.set_value(folder, 3)
    cls = sample_ops.builder_class(os.path.join(folder, "own"), "op", abi="c", include_dirs=include_dirs)
    add_to_layer(cls, None)
    assert cls().build().origin == str(tmp_path / "layer")
    sample_ops.set_value(folder, 4)
    builder = cls()
    assert builder.load().value() == 4
    assert any(str(rejected).endswith("value.h has changed") for rejected in builder.trace)


def test_a_builder_that_has_loaded_from_a_layer_detects_an_edited_header(folder, add_to_layer):
    cls = sample_ops.plain_op(folder, value=3)
    add_to_layer(cls, None)
    builder = cls()
    first = builder.load()
    assert first.value() == 3 and builder.load() is first
    sample_ops.set_value(folder, 4)
    assert builder.load().value() == 4
    sample_ops.set_value(folder, 3)
    assert builder.load() is first


def test_a_damaged_entry_of_a_layer_is_rejected_and_not_changed(folder, add_to_layer):
    cls = sample_ops.plain_op(folder, value=3)
    added = add_to_layer(cls, None)
    os.chmod(added.library, 0o700)
    os.truncate(added.library, 4096)
    os.chmod(added.library, 0o555)
    builder = cls()
    assert builder.load().value() == 3
    reasons = [rejection.reason for rejection in builder.trace if rejection.where == added.folder]
    assert any("4096 bytes instead of" in reason for reason in reasons)
    assert os.path.exists(added.library)


def test_a_layer_is_used_for_a_moved_tree_and_nothing_is_written(folder, tmp_path, add_to_layer):
    cls = sample_ops.plain_op(folder, value=3)
    add_to_layer(cls, None)
    before = text_files.tree(tmp_path / "layer")
    os.rename(folder, tmp_path / "moved")
    moved = sample_ops.builder_class(tmp_path / "moved", "plain", abi="c")
    assert moved().build().origin == str(tmp_path / "layer")
    assert text_files.tree(tmp_path / "layer") == before and not (tmp_path / "mine").exists()


@pytest.mark.parametrize("options", [{"force": True}, {"exact": True}], ids=["force", "exact"])
def test_a_build_that_passes_a_layer_over_does_not_hide_it_from_the_next_look_up(
    folder, add_to_layer, monkeypatch, options
):
    """What is remembered after a build is the outcome of that build, not of a look-up."""
    monkeypatch.setattr(machine, "cpu_level", lambda: "x86-64-v3")
    cls = sample_ops.plain_op(folder, value=5)
    low = add_to_layer(cls, "cpu:x86-64")
    time.sleep(RACY_NS / 1e9 + 0.1)  # otherwise nothing is remembered
    builder = cls("cpu:x86-64-v3")
    assert builder.build(**options).origin == "built"
    assert find(builder.spec()).entry.library == low.library


@pytest.mark.parametrize("source", ["../csrc/plain.cpp", "{}/csrc/plain.cpp"])
def test_an_entry_of_a_layer_is_rejected_if_a_header_beside_a_source_above_the_builder_has_changed(
    folder, tmp_path, add_to_layer, source
):
    folder.mkdir()
    (tmp_path / "csrc" / "parts").mkdir(parents=True)
    text = f'#include "parts/value.h"\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n'
    text_files.write(tmp_path / "csrc", "plain.cpp", text)
    text_files.write(tmp_path / "csrc", "parts/value.h", "#define VALUE 3\n")
    cls = sample_ops.builder_class(folder, "plain", abi="c", sources=[source.format(tmp_path)])
    add_to_layer(cls, None)
    assert cls().build().origin == str(tmp_path / "layer")
    text_files.write(tmp_path / "csrc", "parts/value.h", "#define VALUE 4\n")
    builder = cls()
    assert builder.load().value() == 4
    assert builder.trace[0].reason.endswith("csrc/parts/value.h has changed")


def test_an_entry_of_a_layer_is_rejected_if_a_header_appears_in_a_folder_above_the_builder(
    folder, tmp_path, add_to_layer
):
    for name in ("early", "late"):
        (tmp_path / name).mkdir()
    folder.mkdir()
    text_files.write(folder, "plain.cpp", f"#include <value.h>\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n")
    text_files.write(tmp_path / "late", "value.h", "#define VALUE 3\n")
    cls = sample_ops.builder_class(folder, "plain", abi="c", include_dirs=["../early", "../late"])
    add_to_layer(cls, None)
    assert cls().build().origin == str(tmp_path / "layer")
    text_files.write(tmp_path / "early", "value.h", "#define VALUE 4\n")
    assert cls().load().value() == 4


def test_the_library_of_a_source_above_the_builder_holds_no_path(folder, tmp_path):
    folder.mkdir()
    (tmp_path / "csrc").mkdir()
    source = f"{sample_ops.EXPORT} const char* where() {{ return __FILE__; }}\n"
    text_files.write(tmp_path / "csrc", "plain.cpp", source)
    cls = sample_ops.builder_class(folder, "plain", abi="c", sources=["../csrc/plain.cpp"])
    with open(cls().build().library, "rb") as file:
        assert str(tmp_path).encode() not in file.read()


@pytest.mark.parametrize("variable", ["CPATH", "CPLUS_INCLUDE_PATH"])
def test_a_header_in_a_folder_that_a_variable_names_rejects_an_entry_of_a_layer(
    folder, tmp_path, add_to_layer, monkeypatch, variable
):
    text_files.write(
        folder, "plain.cpp", f"#include <limits.h>\n{sample_ops.EXPORT} int value() {{ return SHRT_MAX; }}\n"
    )
    cls = sample_ops.builder_class(folder, "plain", abi="c")
    add_to_layer(cls, None)
    headers = tmp_path / "headers"
    headers.mkdir()
    monkeypatch.setenv(variable, str(headers))
    assert cls().build().origin == str(tmp_path / "layer"), "there is nothing in it"
    text_files.write(headers, "limits.h", "#define SHRT_MAX 7\n")
    builder = cls()
    assert builder.load().value() == 7
    assert f"{variable} names {headers}, in which a build would find limits.h: unset {variable}" in str(
        builder.trace[0]
    )


@pytest.mark.parametrize("at", ["C library", "compiler's module", "toolkit", "libraries", "build's own"])
def test_a_folder_of_headers_in_which_a_build_would_find_nothing_else_rejects_no_entry(
    folder, tmp_path, add_to_layer, monkeypatch, at
):
    folder.mkdir()
    (tmp_path / "headers" / "c++").mkdir(parents=True)
    (tmp_path / "headers" / "bits").mkdir()
    names = {"toolkit": ["limits.h", "cuda_runtime.h"], "libraries": ["libc.so", "libstdc++.so"]}
    for name in names.get(at, []):
        text_files.write(tmp_path / "headers", name, "")
    text_files.write(folder, "inc/value.h", "#define VALUE 3\n")
    includes = "#include <value.h>\n#include <limits.h>\n#include <sys/types.h>\n#include <vector>\n"
    text_files.write(folder, "plain.cpp", f"{includes}{sample_ops.EXPORT} int value() {{ return VALUE; }}\n")
    cls = sample_ops.builder_class(folder, "plain", abi="c", include_dirs=["inc"])
    add_to_layer(cls, None)
    headers = {"C library": "/usr/include", "build's own": folder / "inc"}.get(at, tmp_path / "headers")
    monkeypatch.setenv("CPATH", str(headers))
    assert cls().build().origin == str(tmp_path / "layer")


def test_a_layer_that_was_built_with_a_folder_of_a_variable_serves_where_the_variable_and_the_headers_are_the_same(
    folder, tmp_path, add_to_layer, monkeypatch
):
    text_files.write(tmp_path, "late/value.h", "#define VALUE 3\n")
    text_files.write(tmp_path, "late/parts/more.h", "#define MORE 0\n")
    (tmp_path / "early").mkdir()
    folders = f"{tmp_path}/early:{tmp_path}/late"
    monkeypatch.setenv("CPATH", folders)
    function = f"{sample_ops.EXPORT} int value() {{ return VALUE + MORE; }}\n"
    folder.mkdir()
    text_files.write(folder, "plain.cpp", f"#include <value.h>\n#include <parts/more.h>\n{function}")
    cls = sample_ops.builder_class(folder, "plain", abi="c")
    add_to_layer(cls, None)
    assert cls().build().origin == str(tmp_path / "layer")
    monkeypatch.setenv("CPATH", f"{tmp_path}/late")
    builder = cls()
    assert builder.build().origin == "built", "another value"
    reason = f"it was built with CPATH='{folders}', and CPATH='{tmp_path}/late' is set here: unset CPATH, or set it to"
    assert reason in str(builder.trace[0])
    monkeypatch.delenv("CPATH")
    assert cls().build().origin == str(tmp_path / "layer"), "a machine that has no such headers"
    monkeypatch.setenv("CPATH", folders)
    (tmp_path / "early" / "parts").mkdir()
    text_files.write(tmp_path, "early/parts/more.h", "#define MORE 1\n")
    assert cls().load().value() == 4, "a header that would be found first"
    text_files.write(tmp_path, "early/parts/more.h", "#define MORE 2\n")
    assert cls().load().value() == 5
    (tmp_path / "early" / "parts" / "more.h").unlink()
    live = cls()
    assert live.build().origin == str(tmp_path / "layer") and live.load().value() == 3
    text_files.write(tmp_path, "late/value.h", "#define VALUE 7\n")
    assert live.load().value() == 7, "an edit"


@pytest.mark.parametrize("include", ["../other/more.h", "{0}/other/more.h"])
def test_a_header_that_one_in_a_folder_of_a_variable_includes_by_its_path_is_compared_too(
    folder, tmp_path, add_to_layer, monkeypatch, include
):
    text_files.write(tmp_path, "headers/value.h", f'#include "{include.format(tmp_path)}"\n')
    text_files.write(tmp_path, "other/more.h", "#define VALUE 3\n")
    monkeypatch.setenv("CPATH", f"{tmp_path}/headers")
    folder.mkdir()
    text_files.write(folder, "plain.cpp", f"#include <value.h>\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n")
    cls = sample_ops.builder_class(folder, "plain", abi="c")
    add_to_layer(cls, None)
    assert cls().build().origin == str(tmp_path / "layer"), "nothing has changed"
    text_files.write(tmp_path, "other/more.h", "#define VALUE 4\n")
    builder = cls()
    assert builder.load().value() == 4
    assert builder.trace[0].reason == f"{tmp_path}/other/more.h has changed", "with one slash at its beginning"
