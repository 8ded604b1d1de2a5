"""What Python registers for an op, and an edit of it between two processes: a compiled graph is found, or not stale.

Each op is a kind of value that its fake kernel depends on, or a way to register something. The first process compiles a
function with each op, the second one finds them all, and the third one runs after an edit of all of them.
"""

from __future__ import annotations

import json
import os

import pytest
from support import child_processes, text_files
from support.processes import forked_python

pytest.importorskip("torch")
pytestmark = pytest.mark.compile

VALUES = {
    "an_int": "V = @1@\ndef n(): return V",
    "some_code": "def n(): return @1@",
    "a_namedtuple": "import collections\nV = collections.namedtuple('T', 'a')(@1@)\ndef n(): return V.a",
    "an_ordered_dict": "import collections\nV = collections.OrderedDict(a=@1@)\ndef n(): return V['a']",
    "an_enum": "import enum\nclass E(enum.Enum):\n    A = @1@\ndef n(): return E.A.value",
    "a_range": "V = range(@1@)\ndef n(): return len(V)",
    "an_array": "import array\nV = array.array('i', [@1@])\ndef n(): return V[0]",
    "a_deque": "import collections\nV = collections.deque([@1@])\ndef n(): return V[0]",
    "a_namespace": "import types\nV = types.SimpleNamespace(a=@1@)\ndef n(): return V.a",
    "a_fraction": "import fractions\nV = fractions.Fraction(@1@)\ndef n(): return V.numerator",
    "of_numpy": "import numpy\nV = numpy.array([@1@])\ndef n(): return int(V[0])",
    "with_slots": "class C:\n    __slots__ = ('a',)\nV = C()\nV.a = @1@\ndef n(): return V.a",
    "imported_inside": "def n():\n    from inner import V\n    return V",
}
"""Modules with a function that a fake kernel calls: how often the result has the numbers of the argument."""
WAYS = """
import torch
from torch import Tensor
library = torch.library.Library("edited", "DEF")
schema = "(Tensor x, float by) -> Tensor"
scaled = torch.library.custom_op("edited::scaled", lambda x, by: x * by, mutates_args=(), schema=schema)
scaled.register_fake(lambda x, by: torch.empty_like(x))
def scale(x): return torch.ops.edited.scaled(x, @1@.0)

def define(name):
    library.define(name + "(Tensor x) -> Tensor")
    library.impl(name, lambda x: x.clone(), "CPU")
    torch.library.register_fake("edited::" + name, lambda x: torch.empty_like(x), lib=library)

define("by_register_autograd")
torch.library.register_autograd("edited::by_register_autograd", lambda ctx, grad: scale(grad), lib=library)

define("by_the_dispatcher")
class OfDispatcher(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.edited.by_the_dispatcher(x)
    @staticmethod
    def backward(ctx, grad): return scale(grad)
library.impl("by_the_dispatcher", OfDispatcher.apply, "Autograd")

@torch.library.custom_op("edited::by_custom_op", mutates_args=())
def by_custom_op(x: Tensor) -> Tensor: return x.clone()
by_custom_op.register_fake(lambda x: torch.empty_like(x))
by_custom_op.register_autograd(lambda ctx, grad: scale(grad))

@torch.library.custom_op("edited::by_a_fake", mutates_args=())
def by_a_fake(x: Tensor) -> Tensor: return x.repeat(@1@)
by_a_fake.register_fake(lambda x: x.new_empty(x.numel() * @1@))

library.define("by_composition(Tensor x) -> Tensor")
library.impl("by_composition", scale, "CompositeImplicitAutograd")

define("by_what_its_backward_calls")
def calls(ctx, grad): return torch.ops.edited.by_custom_op(grad) if False else torch.ops.edited.inner(grad)
library.define("inner(Tensor x) -> Tensor")
library.impl("inner", scale, "CompositeImplicitAutograd")
torch.library.register_autograd("edited::by_what_its_backward_calls", calls, lib=library)
"""
BACKWARD = ("by_register_autograd", "by_the_dispatcher", "by_custom_op", "by_what_its_backward_calls")
NAMES = (*BACKWARD, "by_a_fake", "by_composition")
RUN = """
import importlib, json, os, sys
sys.path.insert(0, os.environ["FOLDER"])
import torch, opforge, torch._inductor.config
torch._inductor.config.fallback_by_default = True  # torch's own kernels: no C++ is compiled
with opforge.compiled("before"):  # what is registered from now on is seen
    pass
import ways
values = json.loads(os.environ["VALUES"])
for name in values:
    function = importlib.import_module(name).n
    ways.library.define(name + "(Tensor x) -> Tensor")
    ways.library.impl(name, lambda x, n=function: x.repeat(n()), "CPU")
    torch.library.register_fake("edited::" + name, lambda x, n=function: x.new_empty(x.numel() * n()), lib=ways.library)
outcome = {}
with opforge.compiled("edited") as graphs:
    for name in [*values, *json.loads(os.environ["NAMES"])]:
        torch.compiler.reset()
        before = len(graphs.compiled)
        text = f"def {name}(x): return torch.ops.edited.{name}(x).view(1, -1)"
        exec(compile(text, name + ".py", "exec"), globals())
        results = []
        for function in (globals()[name], torch.compile(globals()[name], fullgraph=True)):
            x = torch.ones(3, requires_grad=name in os.environ["BACKWARD"])
            y = function(x)
            if y.requires_grad:
                y.backward(torch.full_like(y.detach(), 1.0))
            results.append((y.detach(), x.grad))
        same = all(a is b or torch.equal(a, b) for a, b in zip(*results))
        outcome[name] = [len(graphs.compiled) - before > 0, same]
print(json.dumps([outcome, graphs.found]))
"""


class Processes:
    """Processes with one store, and modules that are written anew between them."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, number, values, ways):
        """Returns for each op whether its function was compiled, and whether its results are right."""
        for name, text in values.items():
            text_files.write(self.folder, f"{name}.py", text.replace("@1@", str(number)))
        text_files.write(self.folder, "inner.py", f"V = {number}")
        text_files.write(self.folder, "ways.py", WAYS.replace("@1@", str(number)))
        env = {
            "FOLDER": str(self.folder),
            "VALUES": json.dumps([*values]),
            "NAMES": json.dumps(ways),
            "BACKWARD": " ".join(BACKWARD),
            "OPFORGE_CACHE_DIR": str(self.folder / "store"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        python = os.path.join(forked_python.commands(compiling=True), "python")
        outcome, found = json.loads(child_processes.run_python(RUN, python, timeout=280, env=env))
        assert all(is_right for _is_compiled, is_right in outcome.values()), outcome
        return {name: is_compiled for name, (is_compiled, _is_right) in outcome.items()}, found

    def check(self, values, ways):
        """Runs the three processes."""
        names = [*values, *ways]
        assert self.run(2, values, ways) == (dict.fromkeys(names, True), 0)
        assert self.run(2, values, ways) == (dict.fromkeys(names, False), 1)
        assert self.run(3, values, ways) == (dict.fromkeys(names, True), 1)


def test_an_edit_of_a_fake_and_of_a_backward_is_compiled_and_what_is_not_edited_is_found(tmp_path):
    Processes(tmp_path).check({"a_range": VALUES["a_range"]}, ["by_register_autograd"])


@pytest.mark.long("three processes compile twenty graphs each")
def test_an_edit_of_each_kind_of_value_and_of_registration(tmp_path):
    Processes(tmp_path).check(VALUES, NAMES)
