"""Properties of `opforge port` for generated texts: other code stays byte for byte, and a second run does nothing."""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("libcst", reason="pip install 'opforge[port]'")

from opforge.errors import PortError
from opforge.port.analysis import find_references
from opforge.port.findings import CONVERTED, LEFT
from opforge.port.rewriting import port_text
from opforge.port.syntax.module import Syntax

VENDOR_CODE = (
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
    inner = [draw(st.sampled_from(VENDOR_CODE + PLAIN)) for _ in range(holes)]
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
def test_other_code_stays_and_a_second_run_does_nothing(text):
    assume(parses(text))
    try:
        ported = port_text(text)
    except PortError as error:
        assume("libcst cannot read it" not in str(error))
        raise
    assert parses(ported.text)
    again = port_text(ported.text)
    assert again.text == ported.text and not [finding for finding in again.findings if finding.kind == CONVERTED]
    left = [finding.text for finding in ported.findings if finding.kind == LEFT]
    assert [finding.text for finding in again.findings if finding.kind == LEFT] == left
    added = "from opforge import get_accelerator" + ("\r\n" if "\r" in text else "\n")
    pattern = "(?s:.+)".join(re.escape(stretch) for stretch in unconverted(text))
    assert re.fullmatch(pattern, ported.text.replace(added, "", 1))


def unconverted(text):
    """Returns the stretches of the text between the places that are converted."""
    syntax = Syntax(text)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    spans = []
    for reference in find_references(syntax)[1]:
        position = syntax.position(reference.node)
        if reference.convert is not None:
            spans.append(tuple(starts[end.line - 1] + end.column for end in (position.start, position.end)))
    stretches, last_end = [], 0
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start >= last_end:
            stretches.append(text[last_end:start])
            last_end = end
    return [*stretches, text[last_end:]]
