"""Loading an op on the stable ABI again: hits, later loads in one process, edited versions, and exported graphs."""

from __future__ import annotations

import os
import time

import pytest
from support import child_processes, sample_ops, text_files

from opforge.builders import base
from opforge.foundation import remembered_values
from opforge.foundation.remembered_values import RACY_NS

torch = pytest.importorskip("torch", reason="pip install torch")
pytestmark = pytest.mark.usefixtures("precompiled")


def test_loading_the_same_entry_again_returns_the_same_module(relu_class, relu_op):
    assert relu_class().load() is relu_op


def test_a_second_load_compares_the_ops_own_files_and_the_compiler_and_none_of_torchs(relu_class, monkeypatch):
    builder = relu_class()
    builder.load()
    time.sleep(RACY_NS / 1e9 + 0.1)  # otherwise contents are compared
    module = builder.load()
    stamped, real = [], remembered_values.stamps_of
    monkeypatch.setattr(base, "COMPARE_SECONDS", 0.0)
    monkeypatch.setattr(remembered_values, "stamps_of", lambda paths: stamped.extend(paths) or real(paths))
    assert builder.load() is module
    stamped = [*dict.fromkeys(stamped)]
    assert any(path.endswith(f"/{relu_class.name}.cpp") for path in stamped)
    programs = [path for path in stamped if path in os.environ["PATH"].split(":") or path.startswith("/usr/")]
    assert len(stamped) - len(programs) < 10 and not any("/torch/" in path for path in stamped)


def test_names_may_have_the_blocks_own_namespace_before_them(tmp_path):
    """As torch's macros allow, also in the second version of an op, which is registered in another namespace."""
    text = sample_ops.STABLE_HEADERS + (
        "int64_t f(int64_t x) { return x + 1; }\n"
        'STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("@NAME@::f(int x) -> int"); }\n'
        'STABLE_TORCH_LIBRARY_IMPL(@NAME@, CompositeExplicitAutograd, m) { m.impl("@NAME@::f", TORCH_BOX(&f)); }\n'
    )
    cls = sample_ops.op_from_source(tmp_path / "op", text)
    first = cls().load()
    assert first.f(1) == getattr(torch.ops, cls.name).f(1) == 2 and f"{first!r}".endswith("f(int x) -> int>")
    text_files.write(tmp_path / "op", f"{cls.name}.cpp", text.replace("+ 1", "+ 2").replace("@NAME@", cls.name))
    assert cls().load().f(1) == 3 and first.f(1) == 2


HIT = """
import os, sys
import torch
processes, reads = [], []
op_folder = os.environ["FOLDER"]
def hook(event, arguments):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec", "os.system"):
        processes.append((event, arguments[:1]))
    elif event == "open" and isinstance(arguments[0], str):
        if arguments[0].startswith(op_folder) or "/include/" in arguments[0]:
            reads.append(arguments[0])
from support import child_processes, sample_ops, text_files
environment, working_folder = dict(os.environ), os.getcwd()
cls = sample_ops.builder_class(op_folder, os.environ["NAME"])
before = set(sys.modules)
sys.addaudithook(hook)
op = cls().load()
print(op.origin, processes, reads)
print(sorted(name for name in set(sys.modules) - before if name.split(".")[0] in
    ("filelock", "platformdirs", "click", "rich", "subprocess", "packaging")
    or name == "importlib.metadata"))
print(dict(os.environ) == environment and os.getcwd() == working_folder)
"""


def test_a_hit_in_a_fresh_process_starts_no_process_reads_no_input_and_imports_nothing_heavy(tmp_path):
    folder = tmp_path / "op"
    cls = sample_ops.stable_op(folder)
    time.sleep(RACY_NS / 1e9 + 0.1)  # a source that was written just before the build would be hashed by each look-up
    cls().build()
    env = {"FOLDER": str(folder), "NAME": cls.name}
    child_processes.run_with_torch(HIT, env=env)  # the first look-up after a build compares contents, and is remembered
    lines = child_processes.run_with_torch(HIT, env=env).splitlines()
    assert lines == ["cache [] []", "[]", "True"]


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


def test_two_versions_in_one_process_have_separate_state(tmp_path):
    folder = tmp_path / "op"
    folder.mkdir()
    text_files.write(folder, "step.h", "#define STEP 1\n")
    builder = sample_ops.op_from_source(folder, COUNTER)()
    first = builder.load()
    text_files.write(folder, "step.h", "#define STEP 10\n")
    second = builder.load()
    assert first is not second and first.path != second.path
    for name in ("by_inline", "by_template", "by_function"):
        old, new = getattr(first, name), getattr(second, name)
        assert [old(0), new(0), old(0), new(0)] == [1, 10, 2, 20], name
    namespace = first.__name__
    assert getattr(torch.ops, namespace).by_inline(0) == 3, "the first version keeps the public name"
    assert second.by_inline.namespace == f"{namespace}{second.__entry__.suffix}"
    text_files.write(
        folder, "step.h", "#define STEP 10  // an edit after which the library is the same, byte for byte\n"
    )
    third = builder.load()
    assert third is not second and [third.by_inline(0), second.by_inline(0)] == [10, 30]
    text_files.write(folder, "step.h", "#define STEP 1\n")
    assert builder.load() is first


EXPORT = """
import os, sys, torch
from support import sample_ops
name = os.environ["NAME"]
op = sample_ops.builder_class(os.environ["FOLDER"], name, fakes={"relu": sample_ops.relu_fake})().load()
if sys.stdin.read() == "save":
    class Model(torch.nn.Module):
        def forward(self, x):
            return getattr(torch.ops, name).relu(x) + 1
    torch.export.save(torch.export.export(Model(), (torch.zeros(3),)), os.environ["GRAPH"])
else:
    graph = torch.export.load(os.environ["GRAPH"]).module()
    print(graph(torch.tensor([-1.0, 0.0, 2.0])).tolist(), op.origin)
"""


@pytest.mark.long("builds and exports for 10 s")
def test_an_exported_graph_runs_after_the_op_was_rebuilt_with_other_flags(tmp_path):
    cls = sample_ops.stable_op(tmp_path / "op")
    env = {"NAME": cls.name, "FOLDER": str(tmp_path / "op"), "GRAPH": str(tmp_path / "graph.pt2")}
    for text, changes in (("save", {}), ("load", {"CXXFLAGS": "-O1", "OPFORGE_CACHE_DIR": str(tmp_path / "cleared")})):
        text_files.write(tmp_path, "stdin", text)
        with open(tmp_path / "stdin") as stdin:
            output = child_processes.run_python(EXPORT, env={**env, **changes}, stdin=stdin)
    assert output == "[1.0, 1.0, 3.0] built\n"
