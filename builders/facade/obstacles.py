"""Finds every line of a source that keeps it from one binary for all versions of torch and Python.

The facade's headers refuse a source at its first line that they do not have. This is the whole list: each line, its
construct, and whether it can never be supported, needs a newer torch, or is not supported yet.
"""

import dataclasses
import enum
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .flags import INCLUDE, OF_TORCH


class Kind(enum.Enum):
    """Whether a construct can be supported."""

    NEVER = "never"
    NEWER = "needs a newer torch"
    LATER = "not yet"


@dataclasses.dataclass(frozen=True, order=True)
class Obstacle:
    """One line that keeps a source from one binary."""

    path: Path
    line: int
    construct: str
    kind: Kind = dataclasses.field(compare=False)
    reason: str = dataclasses.field(compare=False)

    def __str__(self) -> str:
        """Returns the obstacle's line in reports."""
        return f"{self.path}:{self.line}: {self.construct}: {self.kind.value}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Rule:
    """A construct by the text that it is written as."""

    pattern: str
    kind: Kind
    reason: str


NO_DISPATCH = "the stable ABI has no guards of dispatch keys, and without them a kernel would call itself for ever"
NO_CLASS = "the stable ABI has no classes of TorchScript and no intrusive pointers"
NO_IMPL = "the stable ABI shows a tensor's sizes, dtype and memory, and nothing of its storage or implementation"
NO_GRAPH = "the stable ABI has no nodes of autograd's graph: a torch::autograd::Function works"
NO_FRONTEND = "this part of torch's C++ API is outside of the stable ABI: call operators instead"
CUDA = "the facade has no headers for CUDA yet"
PYTHON_TYPES = "the facade converts numbers, strings, tensors and std containers of them: take one of those"
RULES = (
    Rule(
        r"\bTORCH_VERSION_(?:MAJOR|MINOR|PATCH)\b",
        Kind.NEVER,
        "one torch's branch would be compiled into the binary for all",
    ),
    Rule(
        r"\b(?:AutoDispatchBelow\w+|AutoNonVariableTypeMode|(?:Exclude|Include)DispatchKeyGuard)\b",
        Kind.NEVER,
        NO_DISPATCH,
    ),
    Rule(r"\bDispatchKeySet\b|\bc10::Dispatcher\b|\bfindSchemaOrThrow\b|\bredispatch\b", Kind.NEVER, NO_DISPATCH),
    Rule(r"\bautocast::\w+|\bcached_cast\b|\bInferenceMode\b", Kind.NEVER, NO_DISPATCH),
    Rule(
        r"\bCustomClassHolder\b|\btorch::class_\s*<|\bm\.class_\s*<|\bintrusive_ptr\b|\bmake_intrusive\b",
        Kind.NEVER,
        NO_CLASS,
    ),
    Rule(
        r"\btorch::(?:nn|optim|data|serialize|monitor|profiler)::|\btorch::(?:save|load|pickle_\w+)\s*\(",
        Kind.NEVER,
        NO_FRONTEND,
    ),
    Rule(r"\btorch::jit::(?!RegisterOperators\b)\w+", Kind.NEVER, NO_FRONTEND),
    Rule(r"\b(?:at|torch)::native::\w+|\bTensorIterator\w*\b|\bc10d::\w+", Kind.NEVER, NO_FRONTEND),
    Rule(r"\bglobalContext\b", Kind.NEVER, "the stable ABI has no function that reads torch's settings"),
    Rule(
        r"\.\s*(?:storage|use_count|weak_use_count|unsafeGetTensorImpl|getIntrusivePtr|is_alias_of|record_stream"
        r"|key_set|is_same)\s*\(",
        Kind.NEVER,
        NO_IMPL,
    ),
    Rule(r"\.\s*(?:grad_fn|mutable_grad|register_hook|retain_grad|backward|grad)\s*\(", Kind.NEVER, NO_GRAPH),
    Rule(r"\bautograd::(?:grad|backward|Node|Edge|collect_next_edges|create_gradient_edge)\b", Kind.NEVER, NO_GRAPH),
    Rule(
        r"\b\w*[Pp]hilox\w*\b",
        Kind.NEVER,
        "the stable ABI gives no seed and offset of a generator: take them as integers",
    ),
    Rule(r"\bc10::Sym(?:Int|Float|Bool)\w*\b|_symint\s*\(", Kind.NEVER, "the stable ABI has no symbolic sizes"),
    Rule(r"\bDimname(?:List)?\b", Kind.NEVER, "the stable ABI has no names of dimensions"),
    Rule(
        r"\b(?:at|torch)::Generator\b|\bcheck_generator\b|\bget_generator_or_default\b",
        Kind.NEWER,
        "generators are on the stable ABI of torch 2.13",
    ),
    Rule(r"\bset_python_module\b|\bimpl_abstract_pystub\b", Kind.NEWER, "it is on the stable ABI of torch 2.13"),
    Rule(r"\btoDLPack\b|\bfromDLPack\b", Kind.LATER, "Python's torch.utils.dlpack does the same"),
    Rule(r"\b(?:at::)?vec::\w+|\bVectorized\s*<", Kind.LATER, "the facade has no vectors of the CPU yet"),
    Rule(
        r"\bat::cuda::\w+|\bc10::cuda::\w+|\bCUDAGuard\b|\bOptionalCUDAGuard\b|\bC10_CUDA_\w+|\bAT_CUDA_\w+",
        Kind.LATER,
        CUDA,
    ),
    Rule(r"\bpy::(?:class_|enum_)\s*<", Kind.LATER, "the facade has functions alone: classes and enums come next"),
    Rule(
        r"\bpy::(?:dict|list|tuple|str|function|array\w*|buffer|iterable|iterator|args|kwargs|type|capsule|set"
        r"|exec|eval|import|print|implicitly_convertible|register_exception\w*|exception)\b(?!\s*::)",
        Kind.LATER,
        PYTHON_TYPES,
    ),
    Rule(r"\bpy::module_?::import\b|\.attr\s*\([^)]*\)\s*\(", Kind.LATER, PYTHON_TYPES),
)
SOURCE_ENDINGS = (".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".cu", ".cuh")
OF_TORCH_BY_NAME = re.compile(r"^(?:ATen|c10|torch|caffe2|pybind11|THC|TH)/")
INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
TOKENS = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S
)


def without_comments(text: str) -> str:
    """Returns C++ without its comments and the contents of its strings: every line stays where it is."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        lines = "\n" * found.count("\n")
        return lines or (" " if found[0] == "/" else found[0] * 2)

    names = INCLUDED.sub(lambda match: match[0].replace('"', "\0"), text)
    return TOKENS.sub(blank, names).replace("\0", '"')


@functools.cache
def refused_operators() -> frozenset[str]:
    """Returns the names of operators that the facade refuses in each of their forms, for their Scalars."""
    kept: set[str] = set()
    refused: set[str] = set()
    for name in ("functions.inc", "methods.inc"):
        text = (INCLUDE / "opforge" / "facade" / "generated" / name).read_text()
        for match in re.finditer(
            r"^template <int Used = 0> .+? (\w+)\(.*\)(?: const)? \{ (static_assert|\w+)", text, re.M
        ):
            (refused if match[2] == "static_assert" else kept).add(match[1])
    return frozenset(refused - kept)


def covered(name: str) -> bool:
    """Returns whether the facade's include tree has torch's header `name`."""
    return (INCLUDE / name).is_file() or name.startswith(tuple(f"{folder}/" for folder in OF_TORCH))


def _header_obstacle(name: str) -> tuple[Kind, str]:
    if "cuda" in name.lower() or name.startswith(("THC/", "TH/")):
        return Kind.LATER, CUDA
    if name.startswith(("torch/nn/", "torch/csrc/jit", "torch/csrc/distributed", "ATen/native/", "torch/csrc/api/")):
        return Kind.NEVER, NO_FRONTEND
    if name == "torch/custom_class.h":
        return Kind.NEVER, NO_CLASS
    return Kind.LATER, "the facade does not have this header: leave it out if nothing of it is used"


def _in_text(path: Path, text: str) -> Iterator[Obstacle]:
    plain = without_comments(text)
    for number, line in enumerate(plain.splitlines(), 1):
        include = INCLUDED.match(line)
        if include:
            name = include[2]
            if OF_TORCH_BY_NAME.match(name) and not covered(name):
                yield Obstacle(path, number, f"#include <{name}>", *_header_obstacle(name))
            continue
        for rule in RULES:
            for match in re.finditer(rule.pattern, line):
                yield Obstacle(path, number, match[0].strip(" .("), rule.kind, rule.reason)
        for match in re.finditer(r"(?:\b(?:at|torch)::|\.|->)\s*(\w+)\s*\(", line):
            if match[1] in refused_operators():
                yield Obstacle(
                    path,
                    number,
                    match[1],
                    Kind.LATER,
                    "torch's stable ABI passes no Scalar: use tensors, or another operator",
                )


def scan(paths: Iterable[Path], include_folders: Sequence[Path] = ()) -> list[Obstacle]:
    """Returns every obstacle in sources, and in the files of theirs that they include.

    Args:
        paths: The sources. One that is written in CUDA is an obstacle by itself.
        include_folders: Where their own headers are found, beside the folder of the file that includes them.

    Raises:
        OSError: A source cannot be read.
    """
    found: dict[Obstacle, None] = {}
    pending, seen = [Path(path) for path in paths], set()
    while pending:
        path = pending.pop(0)
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix in (".cu", ".cuh"):
            found[Obstacle(path, 1, path.name, Kind.LATER, CUDA)] = None
        found.update(dict.fromkeys(_in_text(path, text)))
        for match in INCLUDED.finditer(text):
            if not OF_TORCH_BY_NAME.match(match[2]):
                folders = [*([path.parent] if match[1] == '"' else []), *include_folders]
                pending += [folder / match[2] for folder in folders if (folder / match[2]).is_file()][:1]
    return sorted(found)


def report(obstacles: Sequence[Obstacle]) -> str:
    """Returns the text for people: a line for each obstacle, and how many there are of each kind."""
    if not obstacles:
        return "nothing found that keeps these sources from one binary for every torch and Python"
    counts = ", ".join(
        f"{count} {kind.value}" for kind in Kind if (count := sum(entry.kind is kind for entry in obstacles))
    )
    return "\n".join([*map(str, obstacles), f"{len(obstacles)} lines: {counts}"])
