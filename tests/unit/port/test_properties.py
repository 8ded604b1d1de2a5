"""What holds for every text that `opforge port` is given: the rest stays to the byte, and a second run does nothing."""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("libcst", reason="pip install 'opforge[port]'")

from opforge.errors import PortError
from opforge.port.analysis import ties
from opforge.port.findings import CONVERTED, LEFT
from opforge.port.rewriting import port
from opforge.port.syntax import Syntax

TIED = (
    "torch.cuda.synchronize()",
    "torch.cuda.memory_allocated(device=i)",
    "x.cuda(non_blocking=True)",
    "x.cuda(i + 1)",
    "x.is_cuda",
    "x.to('cuda:1')",
    "torch.device('cuda', i)",
    "torch.zeros(2, device=f'cuda:{i}')",
    "(yield x.cuda)",
    "torch.cuda.amp.autocast(False)",
    "x.device.type == 'cuda'",
    "torch.cuda.get_device_name(0)",
    "'cuda'",
    "x.cpu().pin_memory()",
    "torch.cuda.set_rng_state(x, device='cuda')",
)
PLAIN = (
    "x",
    "'a string'",
    "f'{x}: {i!r:>3}'",
    "x[1:]",
    "-x",
    "not x",
    "lambda: x",
    "[x for x in x]",
    "x  . y",
    "{**x}",
)
AROUND = (
    "{}",
    "({} )",
    "g({},{})",
    "{} if {} else{}",
    "[{}\n  , {}]",
    "f'{{{}}}'",
    "g(  {} , k  = {})  # a comment with 'cuda'",
    "{}if x else(x)",
    "{{1: {}}}",
    "g(*{}, **{})",
    "not {}",
    "not({}).is_cuda",
    "await_or(x) if x else({}).is_cuda",
    "{}\\\n  . y",
)
FRAMES = (
    "    {}\n",
    "    if x:\n\n      {}  \n",
    "    with open(x) as y:  # why\n        {}\n    # end\n",
    "    z = \\\n        {}\n",
    "    try: {}\n    finally: pass ; pass\n",
    "    @g\n    def h(\n      a,b = 1 ,\n    ): {}\n",
)


@st.composite
def expressions(draw):
    around = draw(st.sampled_from(AROUND))
    holes = around.replace("{{", "").replace("}}", "").count("{}")
    inner = [draw(st.sampled_from(TIED + PLAIN)) for _ in range(holes)]
    return around.format(*inner)


@st.composite
def modules(draw):
    heads = ["import torch\n", '"""Doc."""\nimport os, torch  # both\n', "# no docstring\n\nimport torch\n"]
    head = draw(st.sampled_from(heads))
    statements = draw(st.lists(st.tuples(st.sampled_from(FRAMES), expressions()), min_size=1, max_size=5))
    text = head + "\n\ndef f(x, i: int):\n" + "".join(frame.format(inner) for frame, inner in statements)
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


def parses(text):
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


@settings(max_examples=40, deadline=None)
@given(modules())
def test_the_rest_stays_and_a_second_run_does_nothing(text):
    assume(parses(text))
    try:
        done = port(text)
    except PortError as error:
        assume("libcst cannot read it" not in str(error))
        raise
    assert parses(done.text)
    again = port(done.text)
    assert again.text == done.text and not [one for one in again.findings if one.kind == CONVERTED]
    before = [one.text for one in done.findings if one.kind == LEFT]
    assert [one.text for one in again.findings if one.kind == LEFT] == before
    ours = "from opforge import get_accelerator" + ("\r\n" if "\r" in text else "\n")
    pattern = "(?s:.+)".join(re.escape(kept) for kept in untouched(text))
    assert re.fullmatch(pattern, done.text.replace(ours, "", 1))


def untouched(text):
    """The stretches of the text between those places that are converted."""
    syntax = Syntax(text)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    spans = []
    for tie in ties(syntax)[1]:
        where = syntax.position(tie.node)
        if tie.convert is not None:
            spans.append(tuple(starts[at.line - 1] + at.column for at in (where.start, where.end)))
    kept, done = [], 0
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start >= done:
            kept.append(text[done:start])
            done = end
    return [*kept, text[done:]]
