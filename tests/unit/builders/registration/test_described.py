"""Digests of Python values: they change with what a function does, and are the same in every process."""

from __future__ import annotations

import builtins
import importlib.util
import json
import os
import sys
import types

import pytest
from support import child_processes, text_files

from opforge.builders.registration import described
from opforge.builders.registration.described import Description, UndescribedError

HEAD = "import functools, types\n"
KINDS = {
    "int": ("V = @1@", "V"),
    "float": ("V = @1@.5", "V"),
    "a large int": ("V = 10 ** 30 + @1@", "V"),
    "code": ("def V(): return @1@", "V()"),
    "a default": ("def V(x=@1@): return x", "V()"),
    "a closure": ("def made(x):\n    def inner(): return x\n    return inner\nV = made(@1@)", "V()"),
    "an attribute of a function": ("def V(): return V.size\nV.size = @1@", "V()"),
    "a global with the name of an attribute": ("size = @1@\ndef V(): return size + V.size\nV.size = 1", "V()"),
    "a variable of a closure with the name of a global": (
        "size = 1\nclass C: size = 1\ndef made(size):\n    return lambda: size + C.size\nV = made(@1@)",
        "V()",
    ),
    "a list": ("V = [0, @1@]", "V[1]"),
    "a set": ("V = {'a', 'b', @1@}", "V"),
    "a dict": ("V = {'a': @1@}", "V['a']"),
    "a mapping proxy": ("V = types.MappingProxyType({'a': @1@})", "V['a']"),
    "range": ("V = range(@1@)", "len(V)"),
    "array": ("import array\nV = array.array('i', [@1@])", "V[0]"),
    "deque": ("import collections\nV = collections.deque([@1@])", "V[0]"),
    "a counter": ("import collections\nV = collections.Counter({'a': @1@})", "V['a']"),
    "an ordered dict": ("import collections\nV = collections.OrderedDict(a=@1@)", "V['a']"),
    "a namedtuple": ("import collections\nV = collections.namedtuple('T', 'a')(@1@)", "V.a"),
    "SimpleNamespace": ("V = types.SimpleNamespace(a=@1@)", "V.a"),
    "Fraction": ("import fractions\nV = fractions.Fraction(@1@, 7)", "V"),
    "Decimal": ("import decimal\nV = decimal.Decimal(@1@)", "V"),
    "a date": ("import datetime\nV = datetime.date(2020, 1, @1@)", "V"),
    "a pattern": ("import re\nV = re.compile('a{@1@}')", "V.pattern"),
    "Enum": ("import enum\nclass E(enum.Enum):\n    A = @1@\nV = E.A", "V.value"),
    "numpy": ("import numpy\nV = numpy.array([@1@])", "V[0]"),
    "a number of numpy": ("import numpy\nV = numpy.int32(@1@)", "V"),
    "a structured dtype": ("import numpy\nV = numpy.dtype([('a', 'i4', @1@)])", "V.itemsize"),
    "an object": ("class C:\n    def __init__(self): self.a = @1@\nV = C()", "V.a"),
    "an object with __slots__": ("class C:\n    __slots__ = ('a',)\nV = C()\nV.a = @1@", "V.a"),
    "slots of a base": ("class B:\n    __slots__ = ('a',)\nclass C(B): pass\nV = C()\nV.a = @1@", "V.a"),
    "an object that hides its state": (
        "class C:\n    def __getstate__(self): return {}\n    def __reduce__(self): return C, ()\nV = C()\nV.a = @1@",
        "V.a",
    ),
    "a dataclass": ("import dataclasses\n@dataclasses.dataclass\nclass C:\n    a: int = @1@\nV = C()", "V.a"),
    "a list with attributes": ("class C(list): pass\nV = C()\nV.a = @1@", "V.a"),
    "a float with attributes": ("class C(float): pass\nV = C(@1@)", "V * 1"),
    "a class that answers for any attribute": ("class C(dict): __getattr__ = dict.__getitem__\nV = C(a=@1@)", "V.a"),
    "one that answers with a name": (
        "class C:\n    def __getattr__(self, name): return {'__module__': 'math', '__qualname__': 'pi'}[name]\n"
        "    def __eq__(self, _): return True\nV = C()\nV.a = @1@",
        "V.a",
    ),
    "what sets its state by a function": (
        "import copyreg\nclass C(list): pass\ndef restore(made, state): return @1@\n"
        "copyreg.dispatch_table[C] = lambda value: (C, (), None, None, None, restore)\nV = C()",
        "V",
    ),
    "an int with a method": ("class C(int):\n    def more(self): return self + @1@\nV = C(1)", "V.more()"),
    "a method": ("class C:\n    def m(self): return @1@\nV = C()", "V.m()"),
    "a method of a base": ("class B:\n    def m(self): return @1@\nclass C(B): pass\nV = C()", "V.m()"),
    "a metaclass": ("class M(type):\n    def m(cls): return @1@\nclass V(metaclass=M): pass", "V.m()"),
    "a property": ("class C:\n    @property\n    def p(self): return @1@\nV = C()", "V.p"),
    "a builtin in a class": ("class C:\n    pick = [0, 1, max, min][@1@]", "C.pick(1, 2)"),
    "an operator in a class": (
        "import operator\nclass C:\n    f = [0, 1, operator.add, operator.mul][@1@]",
        "C.f(1, 2)",
    ),
    "a method of a builtin type in a class": ("class C:\n    f = [0, 1, str.upper, str.lower][@1@]", "C().f('a')"),
    "a second name of a slot": ("class C:\n    __slots__ = ('a', 'b')\nC.s = [0, 1, C.a, C.b][@1@]", "C().s"),
    "a bound method": (
        "class C:\n    def __init__(self): self.a = @1@\n    def m(self): return self.a\nV = C().m",
        "V()",
    ),
    "a method of a value": ("V = ['x', @1@].index", "V(@1@)"),
    "partial": ("V = functools.partial(max, @1@)", "V(0)"),
    "a cached function": ("@functools.lru_cache\ndef V(): return @1@", "V()"),
    "a function that says it is another's": ("@functools.wraps(len)\ndef V(x): return @1@", "V(())"),
    "a chain": ("def a(): return @1@\ndef b(): return a()\ndef V(): return b()", "V()"),
    "a weak reference": ("import weakref\nclass C: pass\nK = C()\nK.a = @1@\nV = weakref.ref(K)", "V().a"),
    "a context variable": ("import contextvars\nV = contextvars.ContextVar('v')\nV.set(@1@)", "V.get()"),
    "the default of a context variable": (
        "import contextvars\nV = contextvars.ContextVar('v', default=@1@)",
        "V.get()",
    ),
    "a context variable without a value": (
        "import contextvars\nV = [contextvars.ContextVar('v'), @1@]",
        "V[0].get(V[1])",
    ),
    "an attribute of a partial": ("V = functools.partial(max, 1)\nV.a = @1@", "V.a"),
    "a partial of a method": (
        "class C:\n    def m(self, x): return self.a + x\nK = C()\nK.a = @1@\nV = functools.partial(K.m, 1)",
        "V()",
    ),
    "an attribute of a cached function": ("@functools.lru_cache\ndef V(): return 1\nV.a = @1@", "V.a"),
    "the size of a cache": ("@functools.lru_cache(@1@)\ndef V(): return 1", "V.cache_parameters()"),
    "the function that a wrapper hides": ("def f(): return @1@\n@functools.wraps(f)\ndef V(): pass", "V.__wrapped__()"),
    "a property of a class of its own": (
        "class P(property):\n    def __get__(self, *_): return @1@\nclass C:\n    p = P(lambda self: 1)\nV = C()",
        "V.p",
    ),
    "a static method of a class of its own": (
        "class S(staticmethod): pass\nclass C:\n    m = S(lambda: @1@)\nV = C()",
        "V.m()",
    ),
    "what was registered in an abstract class": (
        "import abc\nclass V(abc.ABC): pass\nV.register([0, 1, int, str][@1@])",
        "isinstance(1, V)",
    ),
    "a method of a logger's class": (
        "import logging\nclass C(logging.Logger):\n    def size(self): return @1@\nV = C('a')",
        "V.size()",
    ),
    "a builtin of the program": ("import builtins\nbuiltins.SIZE_OF_ALL = @1@", "SIZE_OF_ALL"),
    "a module's own __getattr__": ("V = types.ModuleType('of_v')\nV.__getattr__ = lambda name: @1@", "V.size"),
    "a module of a class of its own": (
        "class M(types.ModuleType):\n    size = property(lambda self: self.a)\nV = M('of_v')\nV.a = @1@",
        "V.size",
    ),
    "a type of typing": ("import typing\nV = [0, 1, typing.List[int], typing.Optional[int]][@1@]", "V"),
    "an array of objects": ("import numpy\nV = numpy.array([lambda: @1@], dtype=object)", "V[0]()"),
    "a function of numpy": ("import numpy\nV = [0, 1, numpy.add, numpy.multiply][@1@]", "V(1, 2)"),
    "a function in a container": ("import collections\nV = collections.defaultdict(lambda: @1@)", "V['a']"),
    "a weak method": (
        "import weakref\nclass C:\n    def m(self): return @1@\nK = C()\nV = weakref.WeakMethod(K.m)",
        "V()()",
    ),
    "a descriptor": (
        "class D:\n    def __init__(self, a): self.a = a\n    def __get__(self, *_): return self.a\n"
        "class C:\n    p = D(@1@)\nV = C()",
        "V.p",
    ),
    "a slot that a derived class has again": (
        "class B:\n    __slots__ = ('a',)\nclass C(B):\n    __slots__ = ('a',)\nV = C()\nB.a.__set__(V, @1@)",
        "B.a.__get__(V)",
    ),
    "an item of a set": ("V = frozenset({(1, (2, @1@))})", "V"),
}
"""What a function may depend on: a module's text with a number, and the expression in which the function uses it."""
OF_TORCH = {
    "an attribute of a tensor": ("import torch\nV = torch.ones(2)\nV.a = @1@", "V.a"),
    "a tensor that is conjugated by a flag": (
        "import torch\nK = torch.ones(2) * 1j\nV = [0, 1, K, K.conj()][@1@]",
        "V",
    ),
    "a tensor that is negative by a flag": (
        "import torch\nK = torch.ones(2) * 1j\nV = [0, 1, K.imag, K.conj().imag][@1@]",
        "V",
    ),
    "a size of torch": ("import torch\nV = torch.Size([@1@])", "V[0]"),
    "a function that torch must not trace": ("import torch\n@torch.compiler.disable\ndef V(): return @1@", "V()"),
}
KINDS |= OF_TORCH if importlib.util.find_spec("torch") else {}
IMPORTS = {
    "a function that is imported inside": ("def f(): return @1@", "from values_of import f\n    return f()"),
    "a module that is imported inside": ("A = @1@", "import values_of\n    return values_of.A"),
    "a module of a package": ("A = @1@", "import package.values_of as v\n    return v.A"),
    "one by its place": ("A = @1@", "from .values_of import A\n    return A"),
    "one that is passed on": ("A = @1@", "import values_of\n    return read(values_of)"),
    "one of a package that is passed on": ("A = @1@", "import package.values_of as v\n    return read(v)"),
    "one that is passed on with its package": ("A = @1@", "import package.values_of\n    return read2(package)"),
    "one of a package without a file": ("A = @1@", "import spaced.values_of\n    return read2(spaced)"),
    "one that has another name first": ("A = @1@", "import values_of\n    v = values_of\n    return read(v)"),
    "one that an inner function passes on": (
        "A = @1@",
        "from package import values_of\n    return (lambda: read(values_of))()",
    ),
    "one by the text of its attribute": ("A = @1@", "import values_of\n    return getattr(values_of, 'A')"),
    "one by a name that is computed": ("A = @1@", "import values_of\n    return getattr(values_of, 'AB'[:1])"),
    "an attribute that a passed one has from another": (
        "A = @1@",
        "import values_of\n    import passes\n    return read(passes)",
    ),
    "one after many names": (
        "A = @1@",
        "; ".join(f"x.a{number}" for number in range(300)) + "\n    from values_of import A\n    return A",
    ),
    "one in a branch": ("A = @1@", "if x:\n        from values_of import A\n        return A"),
}


def text_of(kind, number):
    text, use = KINDS[kind]
    return f"{HEAD}{text}\ndef fake(): return {use}\n".replace("@1@", str(number))


def digest_of(text):
    """Returns the digest of the function `fake` in a module's text."""
    module = sys.modules["shapes"] = types.ModuleType("shapes")
    try:
        exec(compile(text, "<shapes>", "exec"), vars(module))
        description = Description()
        description.add(module.fake)
        return description.digest
    finally:
        del sys.modules["shapes"]
        vars(builtins).pop("SIZE_OF_ALL", None)


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_of_what_a_function_depends_on_is_seen(kind):
    assert digest_of(text_of(kind, 2)) == digest_of(text_of(kind, 2)) != digest_of(text_of(kind, 3))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The digests of all kinds in another process, with another seed for hashes and more that was imported before."""
    folder = tmp_path_factory.mktemp("elsewhere")
    texts = {kind: text_of(kind, 2) for kind in KINDS}
    text_files.write(folder, "texts.json", json.dumps(texts))
    code = (
        "import json, sys, xml.dom.minidom\n"
        f"sys.path.insert(0, {__file__.rpartition('/')[0]!r})\n"
        "import test_described\n"
        f"texts = json.load(open({str(folder / 'texts.json')!r}))\n"
        "digests = {kind: test_described.digest_of(text) for kind, text in reversed(texts.items())}\n"
        "print(json.dumps([hash('a'), digests]))"
    )
    return json.loads(child_processes.run_with_torch(code))


def test_it_is_the_same_in_another_process(elsewhere):
    hash_of_text, digests = elsewhere
    assert hash_of_text != hash("a") or "PYTHONHASHSEED" in os.environ, "it has another seed"
    assert {kind: digest_of(text_of(kind, 2)) for kind in KINDS} == digests


@pytest.mark.parametrize("kind", IMPORTS)
def test_what_a_function_imports_when_it_runs_is_seen(kind, tmp_path, monkeypatch):
    text, body = IMPORTS[kind]
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    digests = []
    for number in (2, 2, 3):
        (tmp_path / "package").mkdir(exist_ok=True)
        text_files.write(tmp_path / "package", "__init__.py", "")
        (tmp_path / "spaced").mkdir(exist_ok=True)
        for folder in (tmp_path, tmp_path / "package", tmp_path / "spaced"):
            text_files.write(folder, "values_of.py", text.replace("@1@", str(number)))
        text_files.write(tmp_path, "passes.py", "from values_of import A")
        for name in ("values_of", "package", "package.values_of", "passes", "spaced", "spaced.values_of"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        module = {"__name__": "package.shapes", "__package__": "package"}
        readers = "def read(m): return m.A\ndef read2(m): return m.values_of.A\n"
        exec(compile(f"{readers}def fake(x=1):\n    {body}\n", "<shapes>", "exec"), module)
        description = Description()
        description.add(module["fake"])
        digests.append(description.digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_module_that_is_used_by_its_attributes_is_no_more_than_these(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    bodies = ("return values_of.A + sum(values_of.A for _ in 'ab')", "v = lambda: values_of.A.real\n    return v()")
    for body in bodies:
        digests = set()
        for text in ("A = 1", "A = 1; B = 2", "A = 2"):
            text_files.write(tmp_path, "values_of.py", text)
            monkeypatch.delitem(sys.modules, "values_of", raising=False)
            digests.add(digest_of(f"import values_of\ndef fake():\n    {body}"))
            digests.add(digest_of(f"import values_of\ndef fake():\n    {body}"))
        assert len(digests) == 2


def test_ops_of_a_namespace_that_is_passed_on_are_noted():
    torch = pytest.importorskip("torch")
    for argument, read in (("torch", "t.ops.aten.relu"), ("torch.ops", "t.aten.relu"), ("torch.ops.aten", "t.relu")):
        module = {"__name__": "shapes", "torch": torch}
        exec(f"def read(t): return {read}\ndef fake(): return read({argument})", module)
        description = Description()
        description.add(module["fake"])
        assert "aten::relu" in description.ops, argument


def test_a_module_that_cannot_be_found_is_the_same_everywhere_and_one_that_fails_is_said(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "def fake():\n    try:\n        import missing_of_all\n    except ImportError: return 1\n"
    assert digest_of(text) == digest_of(text)
    (tmp_path / "fails_when_imported.py").write_text("1 / 0")
    expected = r"the module fails_when_imported cannot be imported \(ZeroDivisionError: division by zero\)"
    with pytest.raises(UndescribedError, match=expected):
        digest_of("def fake():\n    import fails_when_imported\n")


def test_a_module_of_the_program_with_a_name_of_pythons_library_is_described(tmp_path, monkeypatch):
    module = types.ModuleType("queue")
    module.__file__ = str(tmp_path / "queue.py")
    monkeypatch.setitem(sys.modules, "queue", module)
    monkeypatch.setattr(described, "_version_of", described._version_of.__wrapped__)
    digests = set()
    for number in (2, 3):
        exec(compile(f"def size(): return {number}", module.__file__, "exec"), vars(module))
        digests.add(digest_of("import queue\ndef fake(): return queue.size()"))
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("V = (x for x in ())\ndef fake(): return next(V)", "a value of generator has no description"),
        (
            "import io\nV = io.TextIOWrapper(io.BytesIO())\ndef fake(): return V.read()",
            "a value of _io.TextIOWrapper has no description",
        ),
        ("V = memoryview(b'1')\ndef fake(): return V[0]", "a value of memoryview has no description"),
        (
            "class C(list):\n    def __reduce_ex__(self, _): return C, ()\nV = C()\ndef fake(): return V",
            "a value of shapes.C has a __reduce_ex__ of its own, which may leave something out",
        ),
        (
            "class C(list):\n    def __getstate__(self): raise KeyError('a')\nV = C()\ndef fake(): return V",
            "a value of shapes.C has no description ('a')",
        ),
        (
            "class C:\n    @property\n    def __dict__(self): raise KeyError('a')\nV = C()\ndef fake(): return V",
            "a value's own code failed when the value was described (KeyError: 'a')",
        ),
        (
            "import numpy\nV = numpy.frompyfunc(lambda x: x, 1, 1)\ndef fake(): return V(1)",
            "a value of numpy.ufunc has no description (no installed package has <lambda> (vectorized))",
        ),
        ("V = [[] for _ in range(1001)]\ndef fake(): return V", "it depends on more than 1000 values"),
        ("V = bytes((1 << 20) + 1)\ndef fake(): return V", "it depends on more than 1 MiB of values"),
    ],
)
def test_what_has_no_description_is_an_error_that_says_where(text, reason, monkeypatch):
    monkeypatch.setattr(described, "MAX_VALUES", 1000)
    monkeypatch.setattr(described, "MAX_BYTES", 1 << 20)
    with pytest.raises(UndescribedError) as caught:
        digest_of(text)
    assert reason in str(caught.value) and ", in " in str(caught.value) and "fake" in str(caught.value)


@pytest.mark.parametrize("managed", [-1, -32])
def test_a_value_in_c_beside_attributes_that_python_manages_is_not_left_out(managed):
    """As of `class C(float)`: its offsets of `__dict__` and `__weakref__` are negative from Python 3.12 on."""
    pointer = object.__basicsize__ // 2
    kind = types.SimpleNamespace(
        __itemsize__=0,
        __basicsize__=object.__basicsize__ + pointer,
        __dictoffset__=-1,
        __weakrefoffset__=managed,
    )
    assert described._has_more(kind, 0)
    assert not described._has_more(types.SimpleNamespace(**{**vars(kind), "__weakrefoffset__": pointer * 2}), 0)


def test_locks_and_logs_do_not_count_and_long_chains_end():
    digest_of("import logging, threading\nV = [logging.getLogger('a'), threading.Lock()]\ndef fake(): return V")
    digest_of("import threading\nclass C(threading.local): pass\nV = C()\ndef fake(): return V")
    chain = "\n".join(f"def f{number}(): return f{number + 1}()" for number in range(3000))
    digest_of(f"{chain}\ndef f3000(): return 1\ndef fake(): return f0()")


def test_an_installed_package_is_its_name_and_its_list_of_files(monkeypatch):
    text = "import pytest\ndef fake(): return pytest.raises"
    before = digest_of(text)
    original = described._version_of
    monkeypatch.setattr(described, "_version_of", lambda name: "9" if name == "pytest" else original(name))
    assert digest_of(text) != before
