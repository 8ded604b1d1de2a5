"""Which branches by torch's version are the same for every torch that a library of the facade serves.

The facade states the version of the oldest torch. A condition such as `TORCH_VERSION_MINOR >= 6` has one answer for all
of them. One that a later torch would answer otherwise would compile one torch's branch into the binary for all.
"""

import ast
import itertools
import re
from collections.abc import Iterator, Mapping

from opforge.fast_path.library import OLDEST_TORCH

NAMES = ("TORCH_VERSION_MAJOR", "TORCH_VERSION_MINOR", "TORCH_VERSION_PATCH")
NAME = re.compile(rf"\b(?:{'|'.join(NAMES)})\b")
MAJOR, OLDEST_MINOR = map(int, OLDEST_TORCH.split("."))
VERSIONS = [(MAJOR, minor, patch) for minor in range(OLDEST_MINOR, OLDEST_MINOR + 50) for patch in range(4)]
"""The versions of torch that a condition is tried with."""
DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(if|elif|ifdef|ifndef)\b((?:[^\n]*\\\n)*[^\n]*)")
TOKEN = re.compile(
    r"defined\s*\(\s*(\w+)\s*\)|defined\s+(\w+)|(\d+)[uUlL]*\b|([A-Za-z_]\w*)|(&&|\|\||[!=<>]=|[!<>()+*-])"
)
IN_PYTHON = {"&&": " and ", "||": " or ", "!": "~"}
"""Python's operator for each of C's that is written otherwise. `not` would bind less tightly than `!`."""
MOST_OTHERS = 6
"""How many conditions on other macros are tried with both answers."""


def differing(plain: str) -> Iterator[tuple[int, str]]:
    """Yields each use of torch's version that a later torch may answer otherwise: where it begins, and the macro.

    Args:
        plain: C++ without comments.
    """
    if "TORCH_VERSION_" not in plain:
        return
    same = [
        match.span()
        for match in DIRECTIVE.finditer(plain)
        if (match.start() == 0 or plain[match.start() - 1] == "\n")
        and (match[1] in ("ifdef", "ifndef") or has_one_answer(match[2].replace("\\\n", " ")))
    ]
    for match in NAME.finditer(plain):
        if not any(start <= match.start() < end for start, end in same):
            yield match.start(), match[0]


def has_one_answer(condition: str) -> bool:
    """Returns whether the condition of an `#if` has the same answer for every torch, False if that is not known."""
    try:
        tree = ast.parse(_python(condition), mode="eval").body
        others = list(dict.fromkeys(_others(tree)))
        if len(others) > MOST_OTHERS:
            return False
        for answers in itertools.product((0, 1), repeat=len(others)):
            known = dict(zip(others, answers, strict=True))
            if len({bool(_value(tree, version, known)) for version in VERSIONS}) > 1:
                return False
    except (SyntaxError, ValueError):
        return False
    return True


def _python(condition: str) -> str:
    """Returns the condition in Python's words. Raises ValueError for a token that it may not have."""
    words, rest = list[str](), condition.strip()
    while rest:
        match = TOKEN.match(rest)
        if not match:
            raise ValueError(rest)
        rest = rest[match.end() :].lstrip()
        if defined := match[1] or match[2]:
            words.append("1" if defined in NAMES else f"defined_{defined}")
        else:
            words.append(match[3] or match[4] or IN_PYTHON.get(match[5], match[5]))
    return " ".join(words)


def _is_of_version(tree: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id in NAMES for node in ast.walk(tree))


def _others(tree: ast.expr) -> Iterator[str]:
    """Yields the conditions on other macros. Raises ValueError for one that depends on torch's version too."""
    if isinstance(tree, ast.BoolOp):
        for part in tree.values:
            yield from _others(part)
    elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Invert):
        yield from _others(tree.operand)
    elif any(isinstance(node, ast.Name) and node.id not in NAMES for node in ast.walk(tree)):
        if _is_of_version(tree):
            raise ValueError(ast.dump(tree))
        yield ast.dump(tree)


def _value(tree: ast.AST, version: tuple[int, ...], known: Mapping[str, int]) -> int:
    """Returns the value of a condition for a torch. Raises ValueError for an operator that it may not have."""
    if isinstance(tree, ast.expr) and ast.dump(tree) in known:
        return known[ast.dump(tree)]
    match tree:
        case ast.BoolOp(op=ast.And(), values=parts):
            return int(all(_value(part, version, known) for part in parts))
        case ast.BoolOp(values=parts):
            return int(any(_value(part, version, known) for part in parts))
        case ast.UnaryOp(op=ast.Invert(), operand=part):
            return int(not _value(part, version, known))
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            a, b = _value(left, version, known), _value(right, version, known)
            answers = {
                ast.Eq: a == b,
                ast.NotEq: a != b,
                ast.Lt: a < b,
                ast.LtE: a <= b,
                ast.Gt: a > b,
                ast.GtE: a >= b,
            }
            return int(answers[type(operator)])
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = _value(left, version, known), _value(right, version, known)
            return {ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b}[type(operator)]
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return version[NAMES.index(name)]
    raise ValueError(ast.dump(tree))
