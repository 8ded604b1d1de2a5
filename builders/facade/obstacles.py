"""Finds every line of a source that keeps it from one binary for all versions of torch and Python.

The facade's headers refuse a source at its first line that they do not have. This is the whole list: each line, its
construct, and whether it can never be supported, needs a newer torch, or is not supported yet.
"""

import bisect
import dataclasses
import enum
import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from . import torch_versions
from .flags import INCLUDE, OF_TORCH


class Kind(enum.Enum):
    """Whether a construct can be supported."""

    NEVER = "never"
    NEWER = "needs torch 2.13"
    LATER = "not yet"


@dataclasses.dataclass(frozen=True, order=True)
class Obstacle:
    """One line that keeps a source from one binary."""

    path: Path
    line: int
    construct: str
    kind: Kind = dataclasses.field(compare=False)
    reason: str = dataclasses.field(compare=False)
    is_method: bool = dataclasses.field(default=False, compare=False)
    """Whether it is a method by its name alone: it may be one of another class than torch's."""

    @property
    def header(self) -> str | None:
        """Returns the header of torch's that the line includes, None if it is another construct."""
        match = INCLUDED.match(self.construct)
        return match[2] if match else None

    def __str__(self) -> str:
        """Returns the obstacle's line in reports."""
        return f"{self.path}:{self.line}: {self.construct}: {self.kind.value}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Rule:
    """A construct, and the text by which it is found."""

    pattern: str
    kind: Kind
    reason: str


NO_BRANCH = "one torch's branch would be compiled into the binary for all"
NO_DISPATCH = (
    "the facade has no sets of dispatch keys: call the op by findSchemaOrThrow(...).typed<...>().call() below a guard, "
    "such as at::AutoDispatchBelowADInplaceOrView"
)
NO_AUTOCAST = "of autocast the facade has cached_cast, its dtypes and whether it is on"
NO_CLASS = "the stable ABI has no classes of TorchScript and no intrusive pointers"
NO_IMPL = "the stable ABI shows a tensor's sizes, dtype and memory, and nothing of its storage or implementation"
NO_GRAPH = "the stable ABI has no nodes of autograd's graph: a torch::autograd::Function works"
NO_FRONTEND = "this part of torch's C++ API is outside of the stable ABI: call operators instead"
NO_CUDA = "the facade's headers for CUDA do not have this"
NO_TH = "torch has had no TH and THC since 1.11: include <ATen/ATen.h>, <ATen/cuda/CUDAContext.h>, <ATen/ceil_div.h>"
OF_CUDA_NAMES = (
    r"getCurrentCUDAStream|getCurrentCUDABlasHandle|getDefaultCUDAStream|getStreamFromPool|getStreamFromExternal"
    r"|setCurrentCUDAStream"
    r"|CUDAStream|CUDAGuard|OptionalCUDAGuard|CUDAStreamGuard|current_device|(?:Maybe)?[sS]et_?[dD]evice|device_count"
    r"|device_synchronize|getDeviceProperties|getCurrentDeviceProperties|is_available|getNumGPUs|warp_size"
    r"|CUDAEvent|CUDACachingAllocator(?=::(?:get|raw_alloc|raw_delete)\b)|getCUDADeviceAllocator"
    r"|ATenCeilDiv|check_device|compat|philox|detail::(?:CUDA_NUM_THREADS|GET_BLOCKS|TensorInfo|IndexToOffset"
    r"|getTensorInfo|canUse32BitIndexMath|getDefaultCUDAGenerator)"
)
"""The names of at::cuda and c10::cuda that the facade has."""
PYTHON_TYPES = "the facade has Python's objects, numbers, strings, containers and functions, and not this"
NO_SCALAR = "torch's stable ABI passes no Scalar: use tensors, or another operator"
RULES = (
    Rule(r"\b(?:TORCH_VERSION|TORCH_ABI_VERSION|AT_CUDA_VERSION)\b", Kind.NEVER, NO_BRANCH),
    Rule(
        r"\bDispatchKeySet\b|\bredispatch\b|\bcallBoxed\b|\bDispatcher::singleton\s*\(\s*\)\s*\.\s*(?!findSchemaOrThrow\b)\w+",
        Kind.NEVER,
        NO_DISPATCH,
    ),
    Rule(
        r"\bautocast::(?!cached_cast\b|is_(?:autocast_|cpu_)?enabled\b|get_autocast_(?:gpu_|cpu_)?dtype\b)\w+",
        Kind.NEVER,
        NO_AUTOCAST,
    ),
    Rule(
        r"\bCustomClassHolder\b|\btorch::class_\s*<|\bm\.class_\s*<|\bintrusive_ptr\b|\bmake_intrusive\b",
        Kind.NEVER,
        NO_CLASS,
    ),
    Rule(
        r"\btorch::(?:nn(?!\s*::\s*functional\b)|optim|data|serialize|monitor|profiler)::|\btorch::(?:save|load|pickle_\w+)\s*\(",
        Kind.NEVER,
        NO_FRONTEND,
    ),
    Rule(r"\btorch::jit::(?!RegisterOperators\b)\w+", Kind.NEVER, NO_FRONTEND),
    Rule(r"\b(?:at|torch)::native::(?!fastAtomicAdd\b)\w+|\bTensorIterator\w*\b|\bc10d::\w+", Kind.NEVER, NO_FRONTEND),
    Rule(
        r"\bglobalContext\s*\(\s*\)\s*\.\s*(?!deterministic(?:Algorithms(?:WarnOnly)?|CuDNN|Mkldnn"
        r"|FillUninitializedMemory)\b|alertNotDeterministic\b|lazyInit(?:Device|CUDA)\b)\w+",
        Kind.NEVER,
        "the stable ABI has no function that reads torch's settings, and the facade reads those of determinism alone",
    ),
    Rule(
        r"\.\s*(?:storage\s*\(\s*\)\s*\.\s*(?!nbytes\b)\w+|use_count|weak_use_count|unsafeGetTensorImpl"
        r"|getIntrusivePtr|is_alias_of|record_stream|key_set|is_same)\s*\(",
        Kind.NEVER,
        NO_IMPL,
    ),
    Rule(r"\.\s*(?:grad_fn|mutable_grad|remove_hook)\s*\(", Kind.NEVER, NO_GRAPH),
    Rule(r"\bautograd::(?:Node|Edge|collect_next_edges|create_gradient_edge)\b", Kind.NEVER, NO_GRAPH),
    Rule(
        r"\bc10::Sym(?:Float|Bool)\w*\b|\b(?:at|torch)::\w+_symint\s*\(",
        Kind.NEVER,
        "the stable ABI has no symbolic sizes",
    ),
    Rule(r"\bDimname(?:List)?\b", Kind.NEVER, "the stable ABI has no names of dimensions"),
    Rule(
        r"\bmake_generator\b|\bCPUGeneratorImpl\b|\b(?:getDefaultCPU|createCPU|createCUDA)Generator\b",
        Kind.NEWER,
        "generators are on the stable ABI of torch 2.13: draw numbers by an operator, as in at::rand(sizes, options), "
        "or take a seed as an integer",
    ),
    Rule(r"\btoDLPack\b|\bfromDLPack\b", Kind.LATER, "Python's torch.utils.dlpack does the same"),
    Rule(
        r"\bat::cuda::getCurrentCUDA(?:BlasLt|Sparse|SolverDn)\w*Handle\b",
        Kind.NEVER,
        "torch's handle belongs to the library that torch was built with, which need not be this source's: make one",
    ),
    Rule(
        rf"\b(?:at|c10)::cuda::(?!(?:{OF_CUDA_NAMES})\b)\w+|\bCUDACachingAllocator\b(?!::(?:get|raw_alloc|raw_delete)\b)|\bCUDAMultiStreamGuard\b",
        Kind.LATER,
        NO_CUDA,
    ),
    Rule(
        r"\bpy::bind_(?:vector|map)\b",
        Kind.LATER,
        "declare the container by PYBIND11_MAKE_OPAQUE, and register it by py::class_ with the methods that are called",
    ),
    Rule(
        r"\bpy::buffer_protocol\b|\.\s*def_buffer\b",
        Kind.LATER,
        "the facade's classes are no buffers: add a method that returns a py::array_t of the memory, or a tensor by "
        "torch::from_blob",
    ),
    Rule(
        r"\bpy::(?:metaclass|custom_type_setup)\b",
        Kind.LATER,
        "the facade's classes have constructors, methods, properties and bases",
    ),
    Rule(
        r"\bPYBIND11_NUMPY_DTYPE\w*|\bpy::(?:recarray|record)\b",
        Kind.LATER,
        "the facade's arrays are of numbers: pass one array for each field of the structure",
    ),
    Rule(
        r"\bpy::(?:staticmethod|vectorize|nodelete|scoped_ostream_redirect)\b(?!\s*::)",
        Kind.LATER,
        PYTHON_TYPES,
    ),
)
HEADER_ENDINGS = (".h", ".hh", ".hpp", ".hxx", ".inl", ".inc", ".cuh")
UNIT_ENDINGS = (".c", ".cc", ".cpp", ".cxx", ".c++", ".C", ".cu")
NOT_SOURCES = ("build", "dist", "node_modules", "__pycache__")
"""Folders of a project without its sources, besides folders whose names begin with a dot."""
OF_TORCH_BY_NAME = re.compile(r"^(?:ATen|c10|torch|caffe2|pybind11|THC|TH)/")
INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
TOKENS = re.compile(
    r'\b\d(?:\'?[\w.])*|//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'',
    re.S,
)


def without_comments(text: str) -> str:
    """Returns C++ without its comments and the contents of its strings: every line stays where it is."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        if found[0].isdigit():  # its apostrophes begin no character
            return found
        lines = "\n" * found.count("\n")
        return lines or (" " if found[0] == "/" else found[0] * 2)

    names = INCLUDED.sub(lambda match: match[0].replace('"', "\0"), text)
    return TOKENS.sub(blank, names).replace("\0", '"')


@functools.cache
def refused_operators(of: str) -> frozenset[str]:
    """Returns the operators that the facade refuses in each of their forms, for their Scalars.

    Args:
        of: `functions` for those of at:: and torch::, `methods` for those of a tensor.
    """
    kept: set[str] = set()
    refused: set[str] = set()
    text = (INCLUDE / "opforge" / "facade" / "generated" / f"{of}.inc").read_text()
    for match in re.finditer(r"^template <int Used = 0> .+? (\w+)\(.*\)(?: const)? \{ (static_assert|\w+)", text, re.M):
        (refused if match[2] == "static_assert" else kept).add(match[1])
    return frozenset(refused - kept)


def torch_includes(path: Path, plain: str) -> Iterator[re.Match[str]]:
    """Yields the includes of torch's headers in a file: a header of such a name beside the file is the project's."""
    for match in INCLUDED.finditer(plain):
        if OF_TORCH_BY_NAME.match(match[2]) and not (match[1] == '"' and (path.parent / match[2]).is_file()):
            yield match


def covered(name: str) -> bool:
    """Returns whether the facade's include tree has torch's header `name`."""
    return (INCLUDE / name).is_file() or name.startswith(tuple(f"{folder}/" for folder in OF_TORCH))


def _header_obstacle(name: str) -> tuple[Kind, str]:
    if name.startswith(("THC/", "TH/")):
        return Kind.NEVER, NO_TH
    if "cuda" in name.lower():
        return Kind.LATER, NO_CUDA
    if name.startswith(("torch/nn/", "torch/csrc/jit", "torch/csrc/distributed", "ATen/native/", "torch/csrc/api/")):
        return Kind.NEVER, NO_FRONTEND
    if name == "torch/custom_class.h":
        return Kind.NEVER, NO_CLASS
    return Kind.LATER, "the facade does not have this header: leave it out if nothing of it is used"


NEVER_TRUE = r"_WIN32|_WIN64|WIN32|_MSC_VER|0"
"""Macros of Windows, and `#if 0`."""
OF_CUDA = (
    r"\w*(?:WITH|USE|HAVE|ENABLE)_(?:CUDA|HIP|ROCM|GPU)\w*"
    r"|__CUDACC__|__HIPCC__|__HIP_PLATFORM_\w+__|__NVCC__|__CUDA_ARCH__"
)
CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b(.*)$")


def without_regions(plain: str, macros: str) -> str:
    """Returns C++ without what is compiled only if one of these macros is defined. Lines stay where they are.

    Args:
        plain: C++ without comments.
        macros: A regular expression of their names.
    """
    one = rf"(?:defined\s*\(?\s*)?(?:{macros})\s*\)?"
    return _without_branches(
        plain,
        re.compile(rf"\s*{one}(?:\s*\|\|\s*{one})*(?:\s*&&[^|]*)?\s*$"),
        re.compile(rf"\s*!\s*{one}(?:\s*&&\s*!\s*{one})*\s*$"),
    )


def with_defined(plain: str, macros: str) -> str:
    """Returns C++ without what is compiled only if one of these macros is not defined. Lines stay where they are.

    Args:
        plain: C++ without comments.
        macros: A regular expression of their names.
    """
    one = rf"(?:defined\s*\(?\s*(?:{macros})\s*\)?|(?:{macros})\b)"
    return _without_branches(
        plain, re.compile(rf"\s*!\s*{one}\s*(?:&&[^|]*)?$"), re.compile(rf"\s*{one}\s*(?:\|\|.*)?$")
    )


def _without_branches(plain: str, first: re.Pattern[str], others: re.Pattern[str]) -> str:
    """Returns C++ without the first branch of each #if whose condition is like `first`, or the others of `others`."""
    kept, left_out = list[str](), list[bool]()  # of each #if: whether the branch that is read is left out
    without_first = list[bool | None]()  # of each #if: whether its first branch is, or the others; None: neither
    for line in plain.split("\n"):
        match = CONDITION.match(line)
        word = match[1] if match else ""
        if match and word in ("if", "ifdef", "ifndef"):
            name = match[2].strip()
            condition = {"if": match[2], "ifdef": f"defined({name})", "ifndef": f"!defined({name})"}[word]
            without_first.append(False if others.match(condition) else (True if first.match(condition) else None))
            left_out.append(without_first[-1] is True)
        elif word == "endif" and left_out:
            without_first.pop()
            left_out.pop()
        elif word in ("elif", "else") and left_out:
            left_out[-1] = without_first[-1] is False
        kept.append("" if any(left_out) else line)
    return "\n".join(kept)


def _in_text(path: Path, plain: str) -> Iterator[Obstacle]:
    starts = [0, *(match.end() for match in re.finditer("\n", plain))]

    def line_of(match: re.Match[str]) -> int:
        return bisect.bisect_right(starts, match.start())

    for match in torch_includes(path, plain):
        if not covered(match[2]):
            yield Obstacle(path, line_of(match), f"#include <{match[2]}>", *_header_obstacle(match[2]))
    code = INCLUDED.sub(lambda match: " " * len(match[0]), plain)  # of the same length: `starts` counts in it
    for rule in RULES:
        for match in re.finditer(rule.pattern, code):
            is_method = match[0].startswith(".")
            yield Obstacle(path, line_of(match), match[0].strip(" .("), rule.kind, rule.reason, is_method)
    for start, name in torch_versions.differing(code):
        yield Obstacle(path, bisect.bisect_right(starts, start), name, Kind.NEVER, NO_BRANCH)
    for match in re.finditer(r"(?:\b(?:at|torch)::|(\.|->))\s*(\w+)\s*\(", code):
        if match[2] in refused_operators("methods" if match[1] else "functions"):
            yield Obstacle(path, line_of(match), match[2], Kind.LATER, NO_SCALAR)


@dataclasses.dataclass(frozen=True)
class Sources:
    """The sources of a project that use torch."""

    units: tuple[Path, ...]
    """The files that a compiler is started for."""
    files: Mapping[Path, str]
    """The sources and the project's own files that they include, with their text without comments."""
    named_folders: tuple[Path, ...] = ()
    """Where headers are found first, as the user says."""
    own_folders: tuple[Path, ...] = ()
    """Where the project's own headers were found."""
    left_out: tuple[tuple[Path, str], ...] = ()
    """Sources that only a build with CUDA can compile, each with the header of CUDA that it includes."""

    def found_folders(self, unit: Path) -> list[Path]:
        """Returns where the project's own headers were found, nearest to a source first.

        A project's build need not name them: one may hold a header with a name of the standard library's.
        """
        return sorted(self.own_folders, key=lambda folder: -_shared_parents(folder, unit))


def find_sources(
    paths: Iterable[Path],
    include_folders: Sequence[Path] = (),
    root: Path | None = None,
    without_cuda: bool = False,
    macros: Sequence[str] = (),
) -> Sources:
    """Returns the sources that use torch, and the files of their project that they include.

    Args:
        paths: The sources.
        include_folders: Where their own headers are found, beside the folder of the file that includes them.
        root: The project's folder. A header that is found in no other way is searched there by its name.
        without_cuda: Leave out sources in CUDA, those that need its headers, and what is compiled only with CUDA.
        macros: What is defined, as NAME or NAME=VALUE: what is compiled only without one is left out.

    Raises:
        OSError: A source cannot be read.
    """
    paths = [path for path in map(Path, paths) if not (without_cuda and path.suffix == ".cu")]
    read = _read(paths, include_folders, _headers(root) if root else {}, without_cuda, macros)
    units, files, left_out = list[Path](), dict[Path, str](), list[tuple[Path, str]]()
    for unit in dict.fromkeys(paths):
        closure = _closure(unit, read.included)
        if root is not None and read.uses_torch.isdisjoint(closure):
            continue
        of_cuda = _header_of_cuda(read.texts[path] for path in closure) if without_cuda and root is not None else None
        if of_cuda:
            left_out.append((unit, of_cuda))
        else:
            units.append(unit)
            files |= {path: read.texts[path] for path in closure}
    return Sources(tuple(units), files, tuple(include_folders), tuple(read.folders), tuple(left_out))


class _Read(NamedTuple):
    """Sources, and the files of their project that they include."""

    texts: dict[Path, str]
    """The files, with their text without comments."""
    included: dict[Path, list[Path]]
    """The files that each of them includes."""
    uses_torch: set[Path]
    """Those of them that include a header of torch's."""
    folders: dict[Path, None]
    """Where headers were found that only a search of the whole project found."""


def _read(
    paths: Iterable[Path],
    include_folders: Sequence[Path],
    headers: Mapping[str, Sequence[Path]],
    without_cuda: bool,
    macros: Sequence[str],
) -> _Read:
    read = _Read({}, {}, set(), {})
    pending = list(paths)
    while pending:
        path = pending.pop(0)
        if path in read.texts:
            continue
        plain = without_regions(without_comments(path.read_text(encoding="utf-8", errors="replace")), NEVER_TRUE)
        if names := "|".join(re.escape(macro.partition("=")[0]) for macro in macros):
            plain = with_defined(plain, names)
        read.texts[path] = plain = without_regions(plain, OF_CUDA) if without_cuda else plain
        read.included[path] = []
        of_torch = {match.start() for match in torch_includes(path, plain)}
        if of_torch:
            read.uses_torch.add(path)
        for match in INCLUDED.finditer(plain):
            if match.start() in of_torch:
                continue
            searched = (*([path.parent] if match[1] == '"' else []), *include_folders)
            found = next((file for folder in searched if (file := folder / match[2]).is_file()), None)
            if found is None:
                found = _header_of_project(headers, match[2], path)
                if found is not None and not match[2].startswith("."):
                    read.folders[found.parents[len(_parts(match[2])) - 1]] = None
            if found is not None:
                read.included[path].append(_plain_path(found))
                pending.append(_plain_path(found))
    return read


HEADERS_OF_CUDA = re.compile(
    r"cuda(?:_runtime|_runtime_api|_device_runtime_api|_fp16|_bf16|_fp8)?\.h|cu(?:blas|sparse|solver|rand|fft|dnn)\w*\.h"
    r"|(?:ATen|c10)/(?:cuda|hip)/.*|(?:hip|cub|thrust)/.*|cooperative_groups\b.*|.*\.cuh"
)
"""Headers that no build without CUDA can include."""


def _parts(name: str) -> tuple[str, ...]:
    """Returns the parts of a header's name below the folder that it is found in."""
    return Path(name.lstrip("./")).parts


def _header_of_project(headers: Mapping[str, Sequence[Path]], name: str, path: Path) -> Path | None:
    """Returns the header of a project that a file includes by this name, None if there is none."""
    parts = _parts(name)
    own = [file for file in headers.get(parts[-1], ()) if file.parts[-len(parts) :] == parts] if parts else []
    # two parts of a project may have headers of the same name
    return max(own, key=lambda file: _shared_parents(file, path), default=None)


def _closure(unit: Path, included: Mapping[Path, Iterable[Path]]) -> dict[Path, None]:
    """Returns a source, and the files that it and they include, in an order."""
    closure, pending = dict[Path, None](), [unit]
    while pending:
        path = pending.pop()
        if path not in closure:
            closure[path] = None
            pending += included[path]
    return closure


def _header_of_cuda(texts: Iterable[str]) -> str | None:
    """Returns the first header of CUDA that a source or one of its headers includes, None if there is none."""
    names = (match[2] for text in texts for match in INCLUDED.finditer(text))
    return next((name for name in names if HEADERS_OF_CUDA.fullmatch(name)), None)


def _shared_parents(one: Path, other: Path) -> int:
    """Returns how many of their outermost folders two paths share."""
    pairs = zip(one.absolute().parts, other.absolute().parts, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def project_units(root: Path) -> list[Path]:
    """Returns the C++ and CUDA sources below a folder."""
    return [path for path in _files(root) if path.suffix in UNIT_ENDINGS]


def _files(root: Path) -> Iterator[Path]:
    for parent, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in NOT_SOURCES)
        yield from (Path(parent, name) for name in sorted(files))


def _headers(root: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in _files(root):
        if path.suffix not in (".py", ".md", ".txt", ".so"):
            found.setdefault(path.name, []).append(path)
    return found


def _plain_path(path: Path) -> Path:
    """Returns the path without `..` in it, so that a file that is included in two ways is read once."""
    return Path(os.path.normpath(path))


def scan(paths: Iterable[Path], include_folders: Sequence[Path] = ()) -> list[Obstacle]:
    """Returns every obstacle in sources, and in the files of theirs that they include.

    Args:
        paths: The sources, in C++ or CUDA.
        include_folders: Where their own headers are found, beside the folder of the file that includes them.

    Raises:
        OSError: A source cannot be read.
    """
    return obstacles_of(find_sources(paths, include_folders))


def obstacles_of(sources: Sources) -> list[Obstacle]:
    """Returns every obstacle that the text of these sources shows, by file and line."""
    found: dict[Obstacle, None] = {}
    for path, plain in sources.files.items():
        found.update(dict.fromkeys(_in_text(path, plain)))
    return sorted(found)


NOTHING = "nothing found that keeps these sources from one binary for every torch and Python"


def report(obstacles: Sequence[Obstacle]) -> str:
    """Returns the text for people: a line for each obstacle, and how many there are of each kind."""
    if not obstacles:
        return NOTHING
    counts = ", ".join(
        f"{count} {kind.value}" for kind in Kind if (count := sum(entry.kind is kind for entry in obstacles))
    )
    lines = "1 line" if len(obstacles) == 1 else f"{len(obstacles)} lines"
    return "\n".join([*map(str, obstacles), f"{lines}: {counts}"])
