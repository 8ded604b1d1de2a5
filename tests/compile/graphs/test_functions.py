"""`opforge.compile`: a function starts without tracing, unless anything that it follows from is another."""

from __future__ import annotations

import importlib
import linecache
import logging
import os
import sys
import threading

import pytest
from support import sample_ops, text_files
from support.compiled_graphs import double, flat

import opforge
from opforge.errors import CompileForbiddenError, SettingError
from opforge.fast_path import library
from opforge.graphs import functions

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile
EDITED = """
import torch
SCALE = {scale}
LIST = [1.0] * {length}
N = 2
def inner(x): return x.view({shape})
def other(x): return x.view(3, 2)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shape = inner
    def forward(self, x, n=N):
        return self.shape(x) if SCALE > 2 and n > 1 and len(LIST) > 1 else x.view(2, 3)
"""
SAME = {"scale": 3.0, "length": 2, "shape": "1, -1"}


@pytest.fixture(autouse=True)
def no_other_ops(monkeypatch):
    """The ops of other tests are registered in this process."""
    for known in ("defined", "python_fakes"):
        monkeypatch.setattr(library, known, {})


@pytest.fixture
def never_traced(monkeypatch):
    """Returns a function after which tracing fails."""

    def begin():
        from torch._dynamo import aot_compile

        def fail(*_arguments, **_named):
            raise AssertionError("it was traced")

        monkeypatch.setattr(aot_compile, "aot_compile_fullgraph", fail)
        monkeypatch.setattr(torch, "compile", fail)

    return begin


class Edited:
    """A module that is written anew."""

    def __init__(self, folder):
        self.folder = folder
        sys.path.insert(0, str(folder))

    def net(self, **changes):
        """Returns a model of the module as it is after these changes."""
        text_files.write(self.folder, "edited_model.py", EDITED.format(**{**SAME, **changes}))
        sys.modules.pop("edited_model", None)
        importlib.invalidate_caches()
        linecache.clearcache()
        self.module = importlib.import_module("edited_model")
        return self.module.Net()


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """A module that tests edit."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield Edited(tmp_path)
    sys.modules.pop("edited_model", None)


def called(function, *arguments, compiled=0, found=0):
    """Calls a function by `opforge.compile`, and compares the result and how it came about."""
    wrapped = opforge.compile(function, "net")
    assert torch.allclose(wrapped(*arguments), function(*arguments))
    assert (wrapped.compiled, wrapped.found, wrapped.problem) == (compiled, found, "")
    return wrapped


class TestFound:
    def test_another_process_neither_traces_nor_compiles_and_has_the_same_gradients(self, machines, never_traced):
        torch.manual_seed(1)
        model, x = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.GELU()), torch.ones(2, 6)
        own = machines.enter("first")
        called(model, x, compiled=1)
        machines.enter("second", own)
        never_traced()
        with opforge.no_builds():
            wrapped = opforge.compile(model, "net")
            wrapped(x).sum().backward()
        mine = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
        assert wrapped.found == 1 and wrapped.compiled == 0
        assert all(torch.allclose(a, parameter.grad) for a, parameter in zip(mine, model.parameters(), strict=True))
        assert repr(wrapped) == "<CompiledFunction net: 1 found, 0 compiled>"

    def test_what_is_compiled_while_there_are_gradients_is_found_too(self, machines, never_traced):
        model, x = torch.nn.Linear(6, 1), torch.ones(2, 6)
        model(x).sum().backward()
        gradient = model.weight.grad
        own = machines.enter("first")
        called(model, x, compiled=1)
        assert model.weight.grad is gradient
        machines.enter("second", own)
        never_traced()
        called(model, x, found=1)

    def test_other_arguments_are_compiled_and_both_are_found(self, machines, never_traced):
        own = machines.enter("first")
        wrapped = opforge.compile(flat, "net", dynamic=False)
        for count in (6, 8, 6):
            assert wrapped(torch.ones(count)).shape == (1, count)
        assert wrapped.compiled == 2
        machines.enter("second", own)
        never_traced()
        wrapped = opforge.compile(flat, "net", dynamic=False)
        for count in (8, 6):
            assert wrapped(torch.ones(count)).shape == (1, count)
        assert (wrapped.found, wrapped.compiled) == (2, 0)

    def test_threads_compile_once(self, machines):
        machines.enter("first")
        wrapped = opforge.compile(flat, "net")
        threads = [threading.Thread(target=wrapped, args=(torch.ones(6),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrapped.compiled == 1


class TestNotStale:
    @pytest.mark.parametrize("change", [{"length": 1}, {"shape": "-1, 1"}], ids=str)
    def test_an_edit_between_two_processes_is_compiled(self, machines, edited, change):
        own = machines.enter("first")
        x = torch.ones(6)
        called(edited.net(), x, compiled=1)
        again = machines.enter("second", own)
        called(edited.net(), x, found=1)
        machines.enter("third", again)
        called(edited.net(**change), x, compiled=1)

    def test_a_change_in_the_process_is_noticed_at_the_next_call(self, machines, edited):
        machines.enter("first")
        model, x = edited.net(), torch.ones(6)
        wrapped = opforge.compile(model, "net")
        for change in (
            lambda: None,
            lambda: setattr(edited.module, "SCALE", 1.0),
            lambda: setattr(edited.module, "SCALE", 3.0),
            lambda: setattr(model, "shape", edited.module.other),
            lambda: edited.module.LIST.pop(),
        ):
            change()
            assert torch.equal(wrapped(x), model(x))
        assert wrapped.problem == ""

    def test_another_setting_of_torch_is_compiled(self, machines, monkeypatch):
        from torch._inductor import config

        own = machines.enter("first")
        called(flat, torch.ones(6), compiled=1)
        machines.enter("second", own)
        with config.patch(epilogue_fusion=not config.epilogue_fusion):
            called(flat, torch.ones(6), compiled=1)

    def test_another_fake_kernel_is_compiled(self, machines, edited):
        def define(times):
            kept = torch.library.Library("ahead", "DEF")
            kept.define("repeat(Tensor x) -> Tensor")
            kept.impl("repeat", lambda x: x.repeat(times), "CPU")
            torch.library.register_fake("ahead::repeat", lambda x: x.new_empty(x.numel() * times), lib=kept)
            return kept

        own = machines.enter("first")
        with opforge.compiled("before"):  # what is registered from now on is seen
            pass
        kept = define(2)
        called(repeated, torch.ones(3), compiled=1)
        machines.enter("second", own)
        called(repeated, torch.ones(3), found=1)
        kept._destroy()
        kept = define(3)
        machines.enter("third", own)
        called(repeated, torch.ones(3), compiled=1)
        kept._destroy()

    def test_a_damaged_page_is_not_read(self, machines, monkeypatch, warnings_of_the_cache):
        own = machines.enter("first")
        called(flat, torch.ones(6), compiled=1)
        again = machines.enter("second", own)
        for path in (again / "v2" / "jit").glob("*/tree/objects/*"):
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
        monkeypatch.setattr("opforge.torch_internals.dynamo.load", None)
        called(flat, torch.ones(6), compiled=1)
        assert "is damaged, or was changed" in warnings_of_the_cache()[0]


class Read:
    """A program in two files, whose model reads all that may be edited."""

    MODEL = """
import functools
import torch
import read_callee
SCALE = {scale}
def through(function):
    @functools.wraps(function)
    def inner(*arguments):
        return function(*arguments)
    return inner
class Config:
    rows = {rows}
class Base(torch.nn.Module):
    depth = {depth}
    def part(self, x): return x.view(-1)
    @property
    def sign(self): return {sign}
class Net(Base):
    def __init__(self):
        super().__init__()
        self.linear, self.config = torch.nn.Linear(6, 6), Config()
    {override}
    @through
    def outer(self, x): return {outer}
    def forward(self, x, n={default}):
        x = self.outer(torch.nn.functional.linear(self.linear(x), self.linear.weight)) * self.sign
        x = self.part(x).view(self.config.rows, -1).repeat(self.depth, n)
        return read_callee.callee(x) * SCALE if self.training else x
"""
    CALLEE = """
def callee(x):
    return x + {added}
"""
    SAME = {
        "scale": "2",
        "rows": "2",
        "depth": "1",
        "sign": "1",
        "override": "pass",
        "outer": "x + 1",
        "default": "1",
        "added": "(lambda: 1)()",
    }
    EDITS = (
        {"scale": "3"},
        {"rows": "3"},
        {"depth": "2"},
        {"sign": "-1"},
        {"override": "def part(self, x): return x.view(-1).flip(0)"},
        {"outer": "x + 2"},
        {"default": "2"},
        {"added": "(lambda: 2)()"},
    )

    def __init__(self, folder):
        self.folder = folder
        sys.path.insert(0, str(folder))

    def net(self, **changes):
        """Returns a model as another process has it after these changes."""
        for name, text in (("read_callee", self.CALLEE), ("read_model", self.MODEL)):
            text_files.write(self.folder, f"{name}.py", text.format(**{**self.SAME, **changes}))
        self.forget()
        self.module = importlib.import_module("read_model")
        torch.manual_seed(0)
        return self.module.Net()

    @staticmethod
    def forget():
        for name in ("read_callee", "read_model"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        linecache.clearcache()


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program that tests edit."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    made = Read(tmp_path)
    yield made
    made.forget()


@pytest.fixture
def eager_otherwise(monkeypatch):
    """Returns a function after which what is not found is neither compiled nor traced, but called."""

    def begin():
        from opforge.torch_internals import dynamo

        def refuse(*_arguments, **_named):
            raise dynamo.AheadError("this test compiles nothing more")

        monkeypatch.setattr(dynamo, "compiled", refuse)
        monkeypatch.setattr(torch, "compile", lambda function, **_named: function)
        monkeypatch.setattr(functions.CompiledFunction, "_refuse", lambda *_arguments: None)

    return begin


@pytest.fixture
def for_all_ranks(monkeypatch):
    """torch is asked for graphs for all ranks."""
    from opforge.torch_internals import dynamo

    monkeypatch.setattr(dynamo, "is_for_all_ranks", lambda: True)


def seven(*_arguments):
    return torch.full((2, 6), 7.0)


class TestEdits:
    """What was compiled is compared with eager after an edit; compiled again is nothing."""

    def test_in_another_process(self, machines, program, eager_otherwise, monkeypatch):
        own, x = machines.enter("first"), torch.ones(2, 6)
        called(program.net(), x, compiled=1)
        eager_otherwise()

        def check(label, model, found):
            machines.enter(label, own)
            wrapped = opforge.compile(model, "net")
            assert torch.allclose(wrapped(x), model(x)), label
            assert wrapped.found == found, label

        check("none", program.net(), 1)
        for edit in Read.EDITS:
            check("_".join(edit), program.net(**edit), 0)
        for place in ("torch.nn.Linear.forward", "torch.nn.Module.__call__", "torch.nn.functional.linear"):
            with monkeypatch.context() as patched:
                patched.setattr(place, seven)
                check(place, program.net(), 0)
        model = program.net()
        model.linear.register_forward_hook(lambda *_arguments: seven())
        check("hook", model, 0)
        check("eval", program.net().eval(), 0)
        check("again", program.net(), 1)

    def test_in_the_same_process(self, machines, program, eager_otherwise, monkeypatch):
        machines.enter("first")
        model, x = program.net(), torch.ones(2, 6)
        wrapped = called(model, x, compiled=1)
        eager_otherwise()
        kinds = program.module
        for place, name, value in (
            (kinds, "SCALE", 3),
            (kinds.Config, "rows", 3),
            (kinds.Base, "depth", 2),
            (kinds.Base, "sign", 3),
            (kinds.Net, "part", lambda _self, x: x.view(-1).flip(0)),
            (kinds.Net, "outer", lambda _self, x: x + 2),
            (kinds.Net.forward, "__defaults__", (2,)),
            (kinds.read_callee, "callee", lambda x: x + 2),
            (kinds.read_callee.callee, "__code__", (lambda x: x + 3).__code__),
            (torch.nn.Linear, "forward", seven),
            (torch.nn.functional, "linear", seven),
            (model.linear, "forward", seven),
            (model, "training", False),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(place, name, value, raising=False)
                assert torch.allclose(wrapped(x), model(x)), name
            assert torch.allclose(wrapped(x), model(x)), name
        for register in ("register_forward_hook", "register_forward_pre_hook"):
            handle = getattr(model.linear, register)(lambda *_arguments: seven())
            assert torch.allclose(wrapped(x), model(x)), register
            handle.remove()
            assert torch.allclose(wrapped(x), model(x)), register
        with_hook = torch.nn.Linear(6, 6)
        with_hook.register_forward_hook(lambda *_arguments: seven())
        model.linear = with_hook
        assert torch.allclose(wrapped(x), model(x))
        assert (wrapped.compiled, len(wrapped._ready)) == (1, 1)

    def test_the_size_of_the_job_and_the_rank(self, machines, eager_otherwise):
        own = machines.enter("first")
        check_in_job(in_job, 0, 2, (0, 1))
        eager_otherwise()
        for number, (rank, size, found) in enumerate([(0, 2, 1), (1, 2, 0), (0, 4, 0), (0, 0, 1)]):
            machines.enter(f"then{number}", own)
            check_in_job(in_job, rank, size, (found, 0))

    def test_one_function_for_all_ranks_if_torch_makes_such_and_the_rank_is_not_read(
        self, machines, eager_otherwise, for_all_ranks
    ):
        own = machines.enter("first")
        check_in_job(sized, 0, 2, (0, 1))
        eager_otherwise()
        for number, (rank, size, found) in enumerate([(1, 2, 1), (0, 2, 1), (1, 4, 0)]):
            machines.enter(f"then{number}", own)
            check_in_job(sized, rank, size, (found, 0))

    @pytest.mark.parametrize("read", ["by_name", "by_another_name", "by_a_computed_name", "as_a_constant"])
    def test_but_each_rank_its_own_if_it_is_read(self, machines, eager_otherwise, for_all_ranks, read):
        function = globals()[f"rank_{read}"]
        torch.compiler.assume_constant_result(constant_rank)  # not at the top: it imports Triton as a compiler
        own = machines.enter("first")
        check_in_job(function, 0, 2, (0, 1))
        eager_otherwise()
        for rank, found in ((1, 0), (0, 1)):
            machines.enter(f"then{rank}", own)
            check_in_job(function, rank, 2, (found, 0))

    def test_a_setting_that_names_what_is_dynamic(self, machines, eager_otherwise):
        import torch.compiler.config as of_compiler

        own = machines.enter("first")
        called(flat, torch.ones(6), compiled=1)
        eager_otherwise()
        for name, value, found in (("dynamic_sources", "L['x']", 0), ("job_id", "another", 1)):
            machines.enter(name, own)
            with of_compiler.patch(**{name: value}):
                wrapped = opforge.compile(flat, "net")
                wrapped(torch.ones(6))
                assert wrapped.found == found, name


def check_in_job(function, rank, size, expected):
    """Calls a function as a rank of a job; compares the result and how many were found and compiled."""
    from torch.testing._internal.distributed import fake_pg

    if size:
        torch.distributed.init_process_group("fake", rank=rank, world_size=size, store=fake_pg.FakeStore())
    try:
        wrapped = opforge.compile(function, "net")
        assert torch.equal(wrapped(torch.ones(6)), function(torch.ones(6)))
        assert (wrapped.found, wrapped.compiled) == expected
    finally:
        if size:
            torch.distributed.destroy_process_group()
    if size:  # the group is gone; the first time, this is compiled too
        assert torch.equal(wrapped(torch.ones(6)), function(torch.ones(6)))


def sized(x):
    return x.view(1, -1).repeat(torch.distributed.get_world_size(), 1) if torch.distributed.is_initialized() else x


another_name = torch.distributed.get_rank


def constant_rank():
    return torch.distributed.get_rank()


def rank_by_name(x):
    return x + torch.distributed.get_rank() if torch.distributed.is_initialized() else x.view(-1)


def rank_by_another_name(x):
    return x + another_name() if torch.distributed.is_initialized() else x.view(-1)


def rank_by_a_computed_name(x):
    computed = getattr(torch.distributed, "_".join(["get", "rank"]))
    return x + computed() if torch.distributed.is_initialized() else x.view(-1)


def rank_as_a_constant(x):
    return x + constant_rank() if torch.distributed.is_initialized() else x.view(-1)


def in_job(x):
    if not torch.distributed.is_initialized():
        return x.view(-1)
    return x.view(1, -1).repeat(torch.distributed.get_world_size(), 1 + torch.distributed.get_rank())


def repeated(x):
    return torch.ops.ahead.repeat(x).view(1, -1)


def broken(x):
    print(end="")
    return x.view(1, -1)


COMPOSITE = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
torch::stable::Tensor same(const torch::stable::Tensor& x) { return torch::stable::clone(x); }
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("same(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CompositeImplicitAutograd, m) { m.impl("same", TORCH_BOX(&same)); }
"""
loaded = None


def through_op(x):
    return loaded.same(x).view(1, -1)


def test_an_op_that_opforge_has_loaded_is_found_until_its_library_is_another(
    machines, tmp_path, monkeypatch, precompiled
):
    monkeypatch.setitem(globals(), "loaded", sample_ops.op_from_source(tmp_path / "op", COMPOSITE)().load())
    own, x = machines.enter("first"), torch.ones(6)
    called(through_op, x, compiled=1)
    machines.enter("second", own)
    called(through_op, x, found=1)
    (names,) = library.defined.values()
    monkeypatch.setattr(library, "defined", {"another": names})  # as it is in a process after an edit
    machines.enter("third", own)
    called(through_op, x, compiled=1)


class TestTraced:
    def refused(self, function, warnings_of_the_cache):
        wrapped, x = opforge.compile(function, "net"), torch.ones(6)
        assert torch.equal(wrapped(x), function(x)) and torch.equal(wrapped(x), function(x))
        (warning,) = warnings_of_the_cache()
        assert wrapped.problem and warning.startswith(f"net: {wrapped._label} is traced in each process: ")
        return warning

    def test_a_closure(self, machines, warnings_of_the_cache):
        machines.enter("first")
        rows = 1
        warning = self.refused(lambda x: x.view(rows, -1), warnings_of_the_cache)
        assert warning.endswith("it is a closure over rows.")

    def test_what_is_more_than_one_graph(self, machines, warnings_of_the_cache):
        machines.enter("first")
        assert "Unsupported: " in self.refused(broken, warnings_of_the_cache)

    def test_what_is_in_no_module(self, machines, warnings_of_the_cache):
        machines.enter("first")
        space = {}
        exec(compile("def written(x): return x.view(1, -1)", "<nowhere>", "exec"), space)
        self.refused(space["written"], warnings_of_the_cache)

    def test_a_module_with_a_hook(self, machines, monkeypatch, warnings_of_the_cache):
        machines.enter("first")
        made, original = [], torch.compile
        monkeypatch.setattr(torch, "compile", lambda *of, **named: made.append(1) or original(*of, **named))
        model, seen = torch.nn.Flatten(0), []
        handle = model.register_forward_hook(lambda *_arguments: seen.append(1))
        wrapped = opforge.compile(model, "net")
        wrapped(torch.ones(2, 3))
        assert seen == [1] and wrapped.compiled == 0
        (warning,) = warnings_of_the_cache()
        assert warning.startswith("net: Flatten is traced in each process: Flatten has hooks")
        handle.remove()
        wrapped(torch.ones(2, 3))
        assert seen == [1] and wrapped.compiled == 1
        handle = torch.nn.modules.module.register_module_forward_hook(lambda *_arguments: seen.append(2))
        with pytest.warns(UserWarning, match="global hooks on modules"):  # torch's: it traces
            wrapped(torch.ones(2, 3))
        handle.remove()
        assert 2 in seen and made == [1]


def test_a_forked_child_is_not_stopped_by_a_lock_that_a_thread_held(machines):
    machines.enter("first")
    wrapped = called(flat, torch.ones(6), compiled=1)
    is_held, is_over = threading.Event(), threading.Event()

    def hold():
        with wrapped._lock:
            is_held.set()
            is_over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(60)
    child = os.fork()
    if not child:
        os._exit(not wrapped._lock._lock.acquire(timeout=10))
    is_over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_nothing_is_compiled_where_that_is_forbidden(machines):
    machines.enter("first")
    with opforge.no_builds(), pytest.raises(CompileForbiddenError, match="flat for other arguments"):
        opforge.compile(flat, "net")(torch.ones(6))


def test_a_name_that_is_none():
    with pytest.raises(SettingError, match="up to 100 letters"):
        opforge.compile(flat, "a/b")


def test_what_cannot_be_read_is_compiled(machines, monkeypatch, caplog):
    own = machines.enter("first")
    monkeypatch.setattr(functions, "_written", lambda _facts, pickle: b"{}\n" + pickle)
    called(flat, torch.ones(6), compiled=1)
    machines.enter("second", own)
    with caplog.at_level(logging.INFO, "opforge"):
        called(flat, torch.ones(6), compiled=1)
    assert "its facts cannot be read ('guards')" in caplog.text


def test_libraries_of_inductor_are_the_bundles(machines, compiles_cpp, never_traced):
    own = machines.enter("first")
    called(double, torch.ones(6), compiled=1)
    machines.enter("second", own)
    never_traced()
    with opforge.no_builds():
        called(double, torch.ones(6), found=1)
