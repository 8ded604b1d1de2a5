"""Ops on the stable ABI: registered at load, two versions at once, fakes, exported graphs, errors."""

from __future__ import annotations

import os
import re
import shutil
from functools import partial

import pytest
from support import child_processes, sample_ops, text_files

import opforge
from opforge.errors import BuilderError, CompileError, LoadError, NamespaceClashError

torch = pytest.importorskip("torch", reason="pip install torch")

COUNTER = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include "step.h"
struct Inline { static inline int64_t count = 0; };
template <typename T> struct Template { static T count; };
template <typename T> T Template<T>::count = 0;
inline int64_t& in_function() { static int64_t count = 0; return count; }
int64_t by_inline(int64_t) { return Inline::count += STEP; }
int64_t by_template(int64_t) { return Template<int64_t>::count += STEP; }
int64_t by_function(int64_t) { return in_function() += STEP; }
STABLE_TORCH_LIBRARY(@NAME@, m) {
  m.def("by_inline(int x) -> int");
  m.def("by_template(int x) -> int");
  m.def("by_function(int x) -> int");
}
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CompositeExplicitAutograd, m) {
  m.impl("by_inline", TORCH_BOX(&by_inline));
  m.impl("by_template", TORCH_BOX(&by_template));
  m.impl("by_function", TORCH_BOX(&by_function));
}
"""
HEAD = "#include <torch/csrc/stable/library.h>\n#include <torch/csrc/stable/tensor.h>\n"


def source_of(folder, text, **attributes):
    name = sample_ops.unique_name("op")
    os.makedirs(folder, exist_ok=True)
    text_files.write(folder, f"{name}.cpp", text.replace("@NAME@", name))
    return sample_ops.builder_class(folder, name, **attributes)


def relu_fake(x):
    return torch.empty_like(x)


@pytest.fixture(scope="module")
def relu(tmp_path_factory):
    """The class of a built relu with a fake kernel, in a store of the module's own."""
    folder = tmp_path_factory.mktemp("relu")
    return sample_ops.stable_op(folder / "op", fakes={"relu": relu_fake}), str(folder / "store")


@pytest.fixture
def loaded(relu, monkeypatch):
    cls, store = relu
    monkeypatch.setenv("OPFORGE_CACHE_DIR", store)
    return cls().load()


def test_it_computes_and_has_a_stable_public_name(loaded):
    x = torch.tensor([-1.0, 0.0, 2.0])
    assert loaded.relu(x).tolist() == [0.0, 0.0, 2.0]
    name = loaded.__name__
    assert getattr(torch.ops, name).relu(x).tolist() == [0.0, 0.0, 2.0]
    assert "relu" in dir(loaded)
    assert re.fullmatch(rf"<op '{name}' \((built|cache)\) from \S+{name}-[0-9a-f]{{16}}\.so>", repr(loaded))


def test_a_failing_check_is_a_python_error(loaded):
    with pytest.raises(RuntimeError, match="relu: float32 expected"):
        loaded.relu(torch.zeros(2, dtype=torch.float64))


def test_a_function_that_is_not_there_is_named_with_those_that_are(loaded):
    with pytest.raises(AttributeError, match=rf"the op '{loaded.__name__}' has no function 'gelu'; it has: relu"):
        loaded.gelu


def test_opcheck_passes(loaded):
    torch.library.opcheck(loaded.relu, (torch.randn(5),))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_traces_it_whole(loaded, backend):
    function = torch.compile(lambda x: loaded.relu(x) + 1, fullgraph=True, backend=backend)
    assert function(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 3.0]


def test_the_library_exports_nothing_but_its_two_entry_points(relu, monkeypatch):
    cls, store = relu
    monkeypatch.setenv("OPFORGE_CACHE_DIR", store)
    binary = cls().build().binary
    assert binary["exports"] == ["opforge_describe", "opforge_register"]
    assert "libtorch_cpu.so" in binary["needs"] and not any("python" in name for name in binary["needs"])


def test_it_is_linked_without_torch_and_built_for_the_oldest_one(relu, monkeypatch):
    cls, store = relu
    monkeypatch.setenv("OPFORGE_CACHE_DIR", store)
    binary = cls().build().binary
    assert binary["torch_target"] == "2.10" and binary["requires"] == {}
    assert "GLIBC" in binary["floors"]


# As torch 2.10 and 2.11 leave it: their version.h ends before 2.12, and the preprocessor takes an unknown name for 0.
OLDER = """\
#define TORCH_EXTENSION_NAME
#include <torch/csrc/stable/library.h>
#undef TORCH_EXTENSION_NAME
#undef TORCH_VERSION_2_12_0
#include <opforge/registration.h>
int64_t same(int64_t x) { return x; }
OPFORGE_BLOCK(@NAME@, nullptr, m, 1) { m.def("same(int x) -> int"); }
OPFORGE_BLOCK(@NAME@, "CompositeExplicitAutograd", m, 2) { m.impl("same", TORCH_BOX(&same)); }
"""


def test_it_compiles_with_the_headers_of_a_torch_that_knows_no_later_version(tmp_path):
    assert source_of(tmp_path, OLDER)().load().same(7) == 7


def test_two_versions_live_side_by_side_each_with_its_own_state(tmp_path):
    folder = tmp_path / "op"
    folder.mkdir()
    text_files.write(folder, "step.h", "#define STEP 1\n")
    cls = source_of(folder, COUNTER)
    builder = cls()
    first = builder.load()
    text_files.write(folder, "step.h", "#define STEP 10\n")
    second = builder.load()
    assert first is not second and first.path != second.path
    for name in ("by_inline", "by_template", "by_function"):
        old, new = getattr(first, name), getattr(second, name)
        assert [old(0), new(0), old(0), new(0)] == [1, 10, 2, 20], name
    namespace = first.__name__
    assert getattr(torch.ops, namespace).by_inline(0) == 3, "the first version keeps the public name"
    assert second.by_inline.namespace == f"{namespace}_{second.result[:8]}"
    text_files.write(folder, "step.h", "#define STEP 1\n")
    assert builder.load() is first


def test_a_namespace_that_another_library_holds_is_a_clash_not_a_crash(tmp_path):
    cls = sample_ops.stable_op(tmp_path / "op")
    foreign = torch.library.Library(cls.name, "DEF")
    foreign.define("relu(Tensor x) -> Tensor")
    with pytest.raises(NamespaceClashError) as caught:
        cls().load()
    assert str(caught.value) == (
        f"{cls.name}: torch.ops.{cls.name}.relu is registered already, by another library."
        " Rename the namespace in the source's STABLE_TORCH_LIBRARY, or do not load both."
    )
    foreign._destroy()
    assert cls().load().relu(torch.tensor([-1.0])).tolist() == [0.0]


def test_other_ops_of_the_same_namespace_are_no_clash(tmp_path):
    cls = sample_ops.stable_op(tmp_path / "op")
    foreign = torch.library.Library(cls.name, "FRAGMENT")
    foreign.define("gelu(Tensor x) -> Tensor")
    assert cls().load().relu(torch.tensor([-1.0])).tolist() == [0.0]


def test_a_clash_over_an_overload_is_called_a_clash(tmp_path):
    text = HEAD + (
        "int64_t f(int64_t x) { return x; }\n"
        'STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("f.special(int x) -> int"); }\n'
        'STABLE_TORCH_LIBRARY_IMPL(@NAME@, CompositeExplicitAutograd, m) { m.impl("f.special", TORCH_BOX(&f)); }\n'
    )
    cls = source_of(tmp_path / "op", text)
    foreign = torch.library.Library(cls.name, "FRAGMENT")
    foreign.define("f.special(int x) -> int")
    with pytest.raises(NamespaceClashError, match=rf"torch.ops.{cls.name}.f is registered already, by another library"):
        cls().load()
    foreign._destroy()
    assert cls().load().f.special(3) == 3


def test_a_schema_that_torch_cannot_read_is_shown_with_the_reason(tmp_path):
    cls = source_of(tmp_path / "op", HEAD + 'STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("f(Tensr x) -> Tensor"); }\n')
    for _time in range(2):
        with pytest.raises(LoadError) as caught:
            cls().load()
        text = str(caught.value)
        assert f"The schema '{cls.name}::f(Tensr x) -> Tensor' cannot be read: " in text
        assert "torch refused the definition f(Tensr x) -> Tensor" in text


@pytest.mark.parametrize("schema", ["f(tensor x) -> Tensor", "f(Tensor x, int64_t[] n) -> Tensor", "f() -> double"])
def test_a_type_that_torch_takes_for_a_variable_is_named(tmp_path, schema):
    cls = source_of(tmp_path / "op", HEAD + f'STABLE_TORCH_LIBRARY(@NAME@, m) {{ m.def("{schema}"); }}\n')
    with pytest.raises(LoadError, match=r"'(tensor|int64_t|double)' in the schema '.*' is no type. Write Tensor, int "):
        cls().load()


def test_a_kernel_for_an_op_that_is_not_defined_twice_over_is_undone_whole(tmp_path):
    """The definition before the bad one is taken back, so that a corrected library can be loaded."""
    bad = HEAD + 'STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("good(int x) -> int"); m.def("bad(Oops x) -> int"); }\n'
    cls = source_of(tmp_path / "op", bad)
    with pytest.raises(LoadError, match=r"bad\(Oops x\) -> int' cannot be read"):
        cls().load()
    with pytest.raises(AttributeError, match="good"):
        getattr(torch.ops, cls.name).good
    good = HEAD + (
        "int64_t good(int64_t x) { return x + 1; }\n"
        f'STABLE_TORCH_LIBRARY({cls.name}, m) {{ m.def("good(int x) -> int"); }}\n'
        f'STABLE_TORCH_LIBRARY_IMPL({cls.name}, CompositeExplicitAutograd, m) {{ m.impl("good", TORCH_BOX(&good)); }}\n'
    )
    text_files.write(tmp_path / "op", f"{cls.name}.cpp", good)
    assert cls().load().good(1) == 2


@pytest.mark.parametrize("linker", ["bfd", "gold", "lld", "mold"])
@pytest.mark.parametrize("text", [HEAD, ""], ids=["with the header", "without it"])
def test_a_source_that_registers_nothing_is_told_how(tmp_path, own_store, linker, text):
    if shutil.which(f"ld.{linker}") is None:
        pytest.skip(f"needs ld.{linker} (apt install {'binutils' if linker in ('bfd', 'gold') else linker})")
    cls = source_of(tmp_path / "op", text + "long f(long x) { return x; }\n", extra_link_args=[f"-fuse-ld={linker}"])
    with pytest.raises(CompileError) as caught:
        cls().load()
    assert str(caught.value) == (
        f"{cls.name}: no source registers an op. Write a STABLE_TORCH_LIBRARY({cls.name}, m) block after"
        " #include <torch/csrc/stable/library.h>, or choose abi='c' for plain functions, abi='torch' for pybind."
    )
    assert os.listdir(own_store / "v1" / "staging") == []


def test_a_fake_for_a_function_that_is_not_there_says_what_is_each_time(tmp_path):
    cls = sample_ops.stable_op(tmp_path / "op", fakes={"gelu": relu_fake})
    for _time in range(3):
        with pytest.raises(BuilderError, match=rf"{cls.name}: fakes names 'gelu'. The library defines: relu"):
            cls().load()


def test_a_fake_given_later_takes_the_place_of_the_one_before(tmp_path):
    cls = sample_ops.stable_op(tmp_path / "op")
    x = torch.empty(3, device="meta")
    load = partial(opforge.load, cls.name, tmp_path / "op" / f"{cls.name}.cpp")
    op = load()
    with pytest.raises(NotImplementedError):
        op.relu(x)
    assert load(fakes={"relu": relu_fake}) is op and op.relu(x).shape == (3,)
    assert load(fakes={"relu": lambda x: x.new_empty(5)}) is op and op.relu(x).shape == (5,)
    with pytest.raises(BuilderError, match=r"fakes names 'gelu'. The library defines: relu"):
        load(fakes={"gelu": relu_fake})


def test_blocks_in_several_units_make_one_library(tmp_path):
    folder = tmp_path / "op"
    name = sample_ops.unique_name("split")
    folder.mkdir()
    text_files.write(
        folder,
        "defs.cpp",
        HEAD + f'STABLE_TORCH_LIBRARY({name}, m) {{ m.def("f(int x) -> int"); }}\n'
        f'STABLE_TORCH_LIBRARY_FRAGMENT({name}, m) {{ m.def("g(int x) -> int"); }}\n',
    )
    for function, number in (("f", 1), ("g", 2)):
        text_files.write(
            folder,
            f"{function}.cpp",
            HEAD + f"static int64_t run(int64_t x) {{ return x + {number}; }}\n"
            f"STABLE_TORCH_LIBRARY_IMPL({name}, CompositeExplicitAutograd, m) "
            f'{{ m.impl("{function}", TORCH_BOX(&run)); }}\n',
        )
    op = sample_ops.builder_class(folder, name, sources=["defs.cpp", "f.cpp", "g.cpp"])().load()
    assert (op.f(1), op.g(1)) == (2, 3)


EXPORTED = """
import os, sys, torch
from support import sample_ops
name = os.environ["NAME"]
def relu_fake(x): return torch.empty_like(x)
cls = sample_ops.builder_class(os.environ["FOLDER"], name, fakes={"relu": relu_fake})
op = cls().load()
if sys.stdin.read() == "save":
    class Model(torch.nn.Module):
        def forward(self, x):
            return getattr(torch.ops, name).relu(x) + 1
    torch.export.save(torch.export.export(Model(), (torch.zeros(3),)), os.environ["GRAPH"])
else:
    graph = torch.export.load(os.environ["GRAPH"]).module()
    print(graph(torch.tensor([-1.0, 0.0, 2.0])).tolist(), op.origin)
"""


def test_an_exported_graph_runs_after_the_op_was_rebuilt_with_other_flags(tmp_path):
    cls = sample_ops.stable_op(tmp_path / "op")
    env = {"NAME": cls.name, "FOLDER": str(tmp_path / "op"), "GRAPH": str(tmp_path / "graph.pt2")}
    for text, changes in (("save", {}), ("load", {"CXXFLAGS": "-O1", "OPFORGE_CACHE_DIR": str(tmp_path / "cleared")})):
        text_files.write(tmp_path, "stdin", text)
        with open(tmp_path / "stdin") as stdin:
            said = child_processes.run_python(EXPORTED, env={**env, **changes}, stdin=stdin)
    assert said == "[1.0, 1.0, 3.0] built\n"


HIT = """
import os, sys, time
import torch
events, hashed = [], []
watched = os.environ["FOLDER"]
def hook(event, arguments):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec", "os.system"):
        events.append((event, arguments[:1]))
    elif event == "open" and isinstance(arguments[0], str):
        if arguments[0].startswith(watched) or "/include/" in arguments[0]:
            hashed.append(arguments[0])
from support import child_processes, sample_ops, text_files
environment, folder = dict(os.environ), os.getcwd()
cls = sample_ops.builder_class(watched, os.environ["NAME"])
before = set(sys.modules)
sys.addaudithook(hook)
op = cls().load()
print(op.origin, events, hashed)
print(sorted(name for name in set(sys.modules) - before if name.split(".")[0] in
    ("filelock", "platformdirs", "click", "rich", "subprocess", "elftools", "packaging")
    or name == "importlib.metadata"))
print(dict(os.environ) == environment and os.getcwd() == folder)
"""


def test_a_hit_in_a_fresh_process_starts_no_process_hashes_nothing_and_imports_nothing_heavy(tmp_path):
    import time

    folder = tmp_path / "op"
    cls = sample_ops.stable_op(folder)
    time.sleep(2.1)  # the source comes of age
    cls().build()
    env = {"FOLDER": str(folder), "NAME": cls.name}
    lines = child_processes.run_python(HIT, env=env).splitlines()
    assert lines == ["cache [] []", "[]", "True"]


def test_one_result_is_one_module_in_a_process(loaded, relu):
    cls, _store = relu
    assert cls().load() is loaded


def test_a_second_load_looks_at_the_ops_own_files_only(relu, monkeypatch):
    from opforge.cache.filesystem.disk import Disk

    cls, store = relu
    monkeypatch.setenv("OPFORGE_CACHE_DIR", store)
    builder = cls()
    module = builder.load()
    looked, real = [], Disk.stamp
    monkeypatch.setattr(Disk, "stamp", lambda self, path: looked.append(path) or real(self, path))
    assert builder.load() is module
    assert [os.path.basename(path) for path in looked] == [f"{cls.name}.cpp"]


def test_two_ops_that_claim_one_public_name_clash_by_name(tmp_path):
    first = sample_ops.stable_op(tmp_path / "op")
    second = type("Second", (first,), {"name": f"{first.name}_too", "folder": str(tmp_path / "op")})
    first().load()
    with pytest.raises(NamespaceClashError) as caught:
        second().load()
    assert str(caught.value) == (
        f"{first.name}_too: torch.ops.{first.name}.relu is registered already, by the op {first.name!r}."
        " Rename the namespace in the source's STABLE_TORCH_LIBRARY, or do not load both."
    )
