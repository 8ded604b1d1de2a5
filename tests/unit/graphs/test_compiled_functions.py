"""`opforge.compile` finds, compiles or traces a function. What torch does is a stand-in: nothing is compiled."""

from __future__ import annotations

import contextlib
import functools
import gc

import pytest

import opforge
from opforge.errors import CompileForbiddenError
from opforge.graphs import functions
from opforge.torch_internals import dynamo, inductor
from opforge.torch_internals.dynamo import AheadError, Facts, Guard

torch = pytest.importorskip("torch")
FACTS = Facts(
    *("settings", "defaults", [["code", "m", "f", "1"]], ["my::op"], "registered", [Guard("G['a']", "k", "d")], False),
    libraries=["okey"],
)


def double(x):
    return x * 2


class Compiled:
    """A function that was compiled ahead for arguments of one type."""

    def __init__(self, kind, name="here"):
        self.kind, self.name = kind, name

    def fits(self, arguments, named):
        return type(arguments[0]) is self.kind

    def __call__(self, *arguments, **named):
        return self.name, arguments

    def to_bytes(self):
        return self.kind.__name__.encode()


class Sessions:
    """Stands in for the scopes of a name: what they found, what they keep, and how they end."""

    def __init__(self):
        self.functions, self.kept, self.ends, self.claimed = {}, [], [], []
        self.arrives = {}
        """What another process has made while this one waits for it."""

    def enter(self, name):
        return self

    def leave(self, begun, by_error=False):
        self.ends.append(by_error)

    def claim(self, key):
        self.claimed.append(key)
        self.functions.update(self.arrives)
        return bool(self.arrives)

    def keep_function(self, key, content):
        self.kept.append((key, content))


class Torch:
    """What the functions of `dynamo` return, and which were called."""

    def __init__(self):
        self.calls, self.facts, self.reason, self.error = [], FACTS, "", None

    def compiled(self, function, arguments, named, options, by):
        self.calls.append("compiled")
        if self.error:
            raise self.error
        return Compiled(type(arguments[0])), self.facts

    def problem(self, facts, function, options, by):
        self.calls.append("compared")
        assert facts == FACTS and facts.guards[0].expression == "G['a']"
        return self.reason

    def load(self, pickle, function, facts, by):
        self.calls.append("loaded")
        return Compiled({"int": int, "float": float}[pickle.decode()], "found")


@pytest.fixture
def of_torch(monkeypatch):
    """The stand-in for torch."""
    stand_in = Torch()
    for name in ("compiled", "problem", "load"):
        monkeypatch.setattr(dynamo, name, getattr(stand_in, name))
    monkeypatch.setattr(dynamo, "with_hook_guards", contextlib.nullcontext)
    monkeypatch.setattr(functions, "_registrations", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda function, **_named: lambda *arguments: ("traced", arguments))
    return stand_in


@pytest.fixture
def sessions(monkeypatch):
    """The stand-in for scopes."""
    stand_in = Sessions()
    monkeypatch.setattr(functions, "session", stand_in)
    return stand_in


@pytest.fixture
def wrapped(of_torch, sessions):
    """A function of which nothing has been found."""
    return opforge.compile(double, "net")


def written(kind="int"):
    return functions._written(FACTS, kind.encode())


def test_it_is_compiled_once_and_kept_under_its_key(wrapped, of_torch, sessions):
    assert wrapped(1) == ("here", (1,)) and wrapped(2) == ("here", (2,))
    assert of_torch.calls == ["compiled"] and (wrapped.compiled, wrapped.found, wrapped.problem) == (1, 0, "")
    assert sessions.kept == [(wrapped._key(False), written())] and sessions.ends == [False]
    assert sessions.claimed == [wrapped._key(False)]


def test_what_is_found_is_compared_before_it_is_read_and_is_not_compiled(wrapped, of_torch, sessions):
    sessions.functions[wrapped._key(False)] = [written()]
    assert wrapped(1)[0] == "found" and wrapped(2)[0] == "found"
    assert of_torch.calls == ["compared", "loaded"] and (wrapped.compiled, wrapped.found) == (0, 1)
    assert sessions.claimed == [] and sessions.kept == [(wrapped._key(False), written())]  # it is in use


def test_what_follows_from_something_else_is_not_read(wrapped, of_torch, sessions):
    sessions.functions[wrapped._key(False)] = [written()]
    of_torch.reason = "torch's settings are others"
    assert wrapped(1)[0] == "here"
    assert "loaded" not in of_torch.calls and (wrapped.compiled, wrapped.found) == (1, 0)


def test_the_second_one_is_taken_if_the_first_does_not_fit(wrapped, sessions):
    sessions.functions[wrapped._key(False)] = [written("float"), written("int")]
    assert wrapped(1)[0] == "found" and wrapped.found == 1
    assert wrapped(1.5)[0] == "found" and wrapped.found == 2
    assert wrapped("text")[0] == "here"


def test_what_another_process_has_made_meanwhile_is_found(wrapped, of_torch, sessions):
    sessions.arrives = {wrapped._key(False): [written()]}
    assert wrapped(1)[0] == "found" and "compiled" not in of_torch.calls


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no JSON\npickle",
        b"[]\npickle",
        b'{"guards": []}\nint',
        b'{"settings": "s"}\nint',
        written().replace(b'"guards":[[', b'"guards":[["more",'),
        written().replace(b'"ops":', b'"others":'),
    ],
)
def test_what_cannot_be_read_is_compiled(wrapped, of_torch, sessions, content):
    sessions.functions[wrapped._key(False)] = [content]
    assert wrapped(1)[0] == "here" and of_torch.calls == ["compiled"]


def test_a_line_that_is_too_long_is_not_parsed(wrapped, of_torch, sessions, monkeypatch):
    monkeypatch.setattr(functions, "MAX_LINE", len(written().partition(b"\n")[0]))
    assert functions._read(written()) == (FACTS, b"int")
    monkeypatch.setattr(functions, "MAX_LINE", functions.MAX_LINE - 1)
    with pytest.raises(AheadError):
        functions._read(written())


class TestKeys:
    """Which artifacts a function may find."""

    def test_each_option_and_function_has_its_own(self, of_torch, sessions):
        class Base(torch.nn.Module):
            def forward(self, x):
                return x

        class Other(Base):
            pass

        ways = [
            {},
            {"mode": "max-autotune"},
            {"dynamic": True},
            {"dynamic": False},
            {"options": {"trace.enabled": True}},
        ]
        keys = [opforge.compile(double, "net", **way)._key(False) for way in ways]
        keys += [opforge.compile(of, "net")._key(False) for of in (written, Base(), Other())]
        assert len({*keys}) == len(keys)
        assert opforge.compile(Base(), "other")._key(False) == keys[-2]  # the name is that of the page

    def test_ranks_share_one_if_torch_makes_such_and_the_rank_is_not_read(
        self, wrapped, of_torch, sessions, monkeypatch
    ):
        monkeypatch.setattr(dynamo, "is_for_all_ranks", lambda: True)
        monkeypatch.setattr(dynamo, "ranks", lambda is_for_all=False: "2" if is_for_all else "2 1")
        all_ranks, own = wrapped._keys()
        assert all_ranks == wrapped._key(True) != own == wrapped._key(False)
        wrapped(1)
        of_torch.facts = FACTS._replace(is_of_rank=True)
        wrapped(1.5)
        assert [key for key, _ in sessions.kept] == [all_ranks, own]
        assert sessions.claimed == [all_ranks, all_ranks]


class TestTraced:
    """What cannot be compiled ahead is traced in each process, and a warning says why once."""

    def test_a_function_that_torch_cannot_compile_so(self, wrapped, of_torch, sessions, warnings_of_the_cache):
        of_torch.error = AheadError("it is a closure over n")
        assert wrapped(1)[0] == wrapped(2)[0] == "traced"
        assert of_torch.calls == ["compiled"] and wrapped.problem == "it is a closure over n"
        assert warnings_of_the_cache() == ["net: double is traced in each process: it is a closure over n."]
        assert sessions.ends == [True, False] and sessions.kept == []

    def test_one_whose_guards_do_not_hold_at_once(self, wrapped, of_torch, sessions, monkeypatch):
        monkeypatch.setattr(Compiled, "fits", lambda *_arguments: False)
        assert wrapped(1)[0] == "traced" and sessions.kept == []
        assert wrapped.problem == "a guard does not hold right after it was compiled"

    def test_one_for_which_too_many_were_compiled(self, wrapped, monkeypatch):
        for number in range(functions.MOST):
            kind = type(f"Kind{number}", (), {})
            assert wrapped(kind())[0] == "here"
        assert wrapped("text")[0] == "traced" and wrapped.compiled == functions.MOST
        assert wrapped.problem == "8 functions were compiled for it, and none fits"

    def test_an_error_of_anything_else_is_the_callers(self, wrapped, of_torch, sessions):
        of_torch.error = MemoryError()
        with pytest.raises(MemoryError):
            wrapped(1)
        assert sessions.ends == [True] and wrapped.problem == ""

    @pytest.mark.parametrize("where", ["forward", "inside", "all", "method"])
    def test_a_module_with_hooks_as_long_as_it_has_them(self, of_torch, sessions, where):
        class Inside(torch.nn.Module):
            def forward(self, x):
                return x

        class Outside(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inside = Inside()

            def forward(self, x):
                return self.inside(x)

        model = Outside()
        wrapped = opforge.compile(model.forward if where == "method" else model, "net")
        hook = {
            "forward": functools.partial(model.register_forward_hook, lambda *_arguments: None),
            "inside": functools.partial(model.inside.register_forward_pre_hook, lambda *_arguments: None),
            "method": functools.partial(model.inside.register_forward_hook, lambda *_arguments: None),
            "all": functools.partial(torch.nn.modules.module.register_module_forward_hook, lambda *_arguments: None),
        }[where]()
        try:
            assert wrapped(1)[0] == "traced" and of_torch.calls == []
        finally:
            hook.remove()
        assert wrapped(1)[0] == "here" and of_torch.calls == ["compiled"]


def test_nothing_is_compiled_where_that_is_forbidden(wrapped, of_torch, sessions, monkeypatch):
    monkeypatch.setattr(inductor, "is_forbidden", lambda: True)

    def refuse(what):
        raise CompileForbiddenError(what)

    monkeypatch.setattr(inductor, "check_allowed", refuse)
    with pytest.raises(CompileForbiddenError, match="double for other arguments than those that were compiled"):
        wrapped(1)
    assert of_torch.calls == [] and sessions.ends == [True]
    sessions.functions[wrapped._key(False)] = [written()]
    assert wrapped(1)[0] == "found"


def test_what_another_thread_has_compiled_meanwhile_is_taken(wrapped, of_torch):
    with wrapped._lock:
        wrapped._ready.append(Compiled(int, "of the other thread"))
    assert wrapped._obtained((1,), {}).name == "of the other thread" and of_torch.calls == []


def test_its_text_says_how_often_it_was_found_and_compiled(wrapped):
    wrapped(1)
    assert repr(wrapped) == "<CompiledFunction net: 0 found, 1 compiled>"
    assert wrapped.__name__ == "double" and wrapped.name == "net"


@pytest.fixture
def thresholds():
    before = gc.get_threshold()
    gc.unfreeze()  # what conftest.py has frozen
    yield before
    gc.set_threshold(*before)
    gc.freeze()


def test_garbage_is_looked_for_rarely_while_a_function_is_found(wrapped, of_torch, sessions, thresholds, monkeypatch):
    seen = []

    def entered(name):
        seen.append(gc.get_threshold()[0])
        return sessions

    monkeypatch.setattr(dynamo, "problem", lambda *arguments: seen.append(gc.get_threshold()[0]) or "another model")
    monkeypatch.setattr(sessions, "enter", entered)
    sessions.functions[wrapped._key(False)] = [written()]
    assert wrapped(1)[0] == "here"
    assert seen == [functions.FINDING[0]] * 2
    assert gc.get_threshold() == thresholds


def test_it_is_looked_for_less_rarely_while_a_function_is_compiled_also_beside_one_that_is_found(thresholds):
    with functions.collected_rarely():
        with functions.collected_rarely():
            functions._collect_while_compiling()
            assert gc.get_threshold() == functions.COMPILING
        assert gc.get_threshold() == functions.COMPILING, "the last call that ends sets them back"
    assert gc.get_threshold() == thresholds
    functions._collect_while_compiling()
    assert gc.get_threshold() == thresholds


def test_what_was_made_while_a_function_was_found_is_not_looked_at_at_once(thresholds):
    counts = []
    gc.collect()
    gc.callbacks.append(lambda phase, info: counts.append(info["generation"]))
    try:
        with functions.collected_rarely():
            kept = [[] for _ in range(4 * thresholds[0])]
        kept.append([])
    finally:
        gc.callbacks.pop()
    assert counts == [] and gc.get_freeze_count() == 0


def test_what_a_program_has_frozen_stays_frozen(thresholds):
    gc.freeze()
    try:
        with functions.collected_rarely():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("own", [(0, 10, 10), (100_000, 10, 10)], ids=["off", "rarer"])
def test_thresholds_that_a_program_has_set_stay(thresholds, own):
    gc.set_threshold(*own)
    with functions.collected_rarely():
        assert gc.get_threshold()[0] == own[0]
    assert gc.get_threshold()[0] == own[0]


def test_thresholds_that_are_set_while_a_function_is_found_stay(thresholds):
    with functions.collected_rarely():
        gc.set_threshold(0)
    assert gc.get_threshold()[0] == 0
