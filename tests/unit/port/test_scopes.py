"""Which variable a name refers to, by Python's rules of scopes."""

from __future__ import annotations

import pytest

pytest.importorskip("libcst", reason="pip install 'opforge[port]'")

import libcst as cst

from opforge.port.syntax.module import Syntax
from opforge.port.syntax.tree import walk

CASES = {
    "an outer variable is read in a function": ("x = 1\ndef f():\n    return x\n", 1),
    "a function's own variable hides the outer one": ("x = 1\ndef f():\n    x = 2\n    return x\n", 1),
    "a class's variable is not seen in its methods": ("x = 1\nclass A:\n    x = 2\n    def f(self): return x\n", 1),
    "a class's variable is seen in its body": ("class A:\n    x = 2\n    y = x\n", 1),
    "global reaches the module": ("def f():\n    global x\n    x = 1\ny = x\n", 1),
    "nonlocal reaches the enclosing function": (
        "def f():\n    x = 1\n    def g():\n        nonlocal x\n        x = 2\n    return x\n",
        2,
    ),
    "a parameter is bound": ("def f(x): return x\n", 1),
    "a default is evaluated outside": ("x = 1\ndef f(y=x): pass\n", 1),
    "a decorator and a base are evaluated outside": ("x = 1\n@x\nclass A(x): pass\n", 1),
    "a comprehension has its own variables": ("y = [x for x in z]\n", 1),
    "the first iterable is evaluated outside": ("x = 1\ny = [1 for x in x]\n", 1),
    "a walrus in a comprehension binds outside": ("y = [(x := z) for z in w]\nv = x\n", 1),
    "loops, with and except bind": ("for x in y: pass\nwith y as x: pass\ntry: pass\nexcept E as x: pass\nz = x\n", 3),
    "targets may be nested": ("(x, [a, *x]) = y\nz = x\n", 2),
    "a pattern binds": ("match y:\n    case [x, *x] | {**x}: pass\nz = x\n", 3),
    "imports bind the first part of their name": ("import x.y\nimport z as x\nfrom q import x\nw = x\n", 3),
    "a lambda has its own parameters": ("y = lambda x: x\n", 1),
    "an attribute and a keyword are no variables": ("x = 1\ny.x = f(x=2)\nz = x\n", 1),
    "a deleted variable was bound": ("x = 1\ndel x\n", 1),
}


@pytest.mark.parametrize("name", CASES)
def test_a_name_refers_to_the_bindings_that_python_would_use(name):
    text, count = CASES[name]
    syntax = Syntax(text)
    variables = {id(variable): variable for variable in map(syntax.variable, names(syntax)) if variable}
    read = [variable for variable in variables.values() if variable.uses]
    assert [len(variable.bindings) for variable in read] == [count]
    assert all(variable.name == "x" for variable in read)


def names(syntax):
    """Returns the nodes that spell `x`."""
    return [node for node in walk(syntax.module) if isinstance(node, cst.Name) and node.value == "x"]


def test_a_name_that_is_bound_nowhere_has_no_variable():
    syntax = Syntax("y = x\n")
    assert [syntax.variable(name) for name in names(syntax)] == [None] and syntax.bindings("x") == []


def test_the_bindings_of_all_scopes_are_listed():
    syntax = Syntax("import x\ndef f():\n    x = 1\nclass A:\n    x = 2\n")
    assert [type(node) for node in syntax.bindings("x")] == [cst.Import, cst.Name, cst.Name]
