"""`opforge.compile`: a function starts without tracing, unless anything that it follows from is another."""

from __future__ import annotations

import importlib
import linecache
import logging
import sys
import threading

import pytest
from support import text_files
from support.compiled_graphs import double, flat

import opforge
from opforge.errors import CompileForbiddenError, SettingError
from opforge.graphs import functions
from opforge.warm import library

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile
EDITED = """
import torch
SCALE = {scale}
LIST = [1.0] * {length}
N = {default}
def inner(x): return x.view({shape})
def other(x): return x.view(3, 2)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shape = inner
    def forward(self, x, n=N):
        return self.shape(x) if SCALE > 2 and n > 1 and len(LIST) > 1 else x.view(2, 3)
"""
SAME = {"scale": 3.0, "length": 2, "default": 2, "shape": "1, -1"}


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
    @pytest.mark.parametrize("change", [{"scale": 1.0}, {"length": 1}, {"default": 1}, {"shape": "-1, 1"}], ids=str)
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

    def test_a_damaged_bundle_is_not_read(self, machines, monkeypatch, warnings_of_the_cache):
        own = machines.enter("first")
        called(flat, torch.ones(6), compiled=1)
        again = machines.enter("second", own)
        (path,) = (again / "v2" / "graphs").glob("*/tree/artifacts")
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        monkeypatch.setattr("opforge.dynamo.load", None)
        called(flat, torch.ones(6), compiled=1)
        assert "it is damaged, or was changed" in warnings_of_the_cache()[0]


def repeated(x):
    return torch.ops.ahead.repeat(x).view(1, -1)


def broken(x):
    print(end="")
    return x.view(1, -1)


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

    def test_a_module_with_a_hook(self, machines):
        machines.enter("first")
        model, seen = torch.nn.Flatten(0), []
        handle = model.register_forward_hook(lambda *_arguments: seen.append(1))
        wrapped = opforge.compile(model, "net")
        wrapped(torch.ones(2, 3))
        assert seen == [1] and wrapped.compiled == 0
        handle.remove()
        wrapped(torch.ones(2, 3))
        assert seen == [1] and wrapped.compiled == 1
        handle = torch.nn.modules.module.register_module_forward_hook(lambda *_arguments: seen.append(2))
        with pytest.warns(UserWarning, match="global hooks on modules"):  # torch's: it traces
            wrapped(torch.ones(2, 3))
        handle.remove()
        assert 2 in seen


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


def test_libraries_of_inductor_are_the_bundles(machines, never_traced):
    own = machines.enter("first")
    called(double, torch.ones(6), compiled=1)
    machines.enter("second", own)
    never_traced()
    with opforge.no_builds():
        called(double, torch.ones(6), found=1)
