"""Tells torch.compile's caches about the ops of a graph. Imported when torch computes the key of a graph.

Torch's keys contain the names of ops. A graph that was compiled for an earlier schema, from an earlier fake kernel or
with an earlier backward has the same key, and gives wrong results. So all that Python registers for an op is described,
with what it depends on: see `described`. Kernels that run when a graph runs are not part of the graph.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from opforge.fast_path import library
from opforge.foundation.lazy_torch import torch

from .described import Description, UndescribedError

SHAPES = ("Meta", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")
"""Dispatch keys whose kernels torch runs to learn the shapes and dtypes of results."""
TRACED = ("CompositeImplicitAutograd", "Autograd", "AutogradCPU", "AutogradCUDA", "Functionalize")
"""Dispatch keys whose kernels torch.compile traces through, so that a graph holds what they call."""
DEVICES = "CPU|CUDA|HIP|XLA|MPS|IPU|XPU|HPU|VE|Lazy|MTIA|MAIA|PrivateUse[123]"
RUN = re.compile(rf"(Sparse|SparseCsr|Quantized|NestedTensor)?({DEVICES})|BackendSelect")
"""Dispatch keys whose kernels run when a graph runs: it only calls them."""
TORCHS = frozenset(
    [
        "aten",
        "prims",
        "prim",
        "inductor",
        "quantized",
        "quantized_decomposed",
        "rngprims",
        "higher_order",
        "c10d",
        "_c10d_functional",
        "_c10d_functional_autograd",
        "_dtensor",
        "symm_mem",
        "fsdp",
        "onednn",
        "mkldnn",
        "mkl",
        "sparse",
        "debugprims",
        "static_runtime",
        "profiler",
    ]
)
"""Namespaces of torch's own: what it has registered there before anybody looked is of its version."""
OWN_TAG = re.compile(r"\|opforge:[0-9a-f]{32}")
UNKNOWN = "no compiled graph that depends on %s is found or kept: %s"
BEFORE = (
    "its kernel for %s was registered by Python before opforge could see it: load an op, or enter opforge.compiled,"
    " before the module that registers it is imported"
)
log = logging.getLogger("opforge")
_random = os.urandom(16).hex()
_said: set[str] = set()
_unknown: list[UndescribedError] = []
"""Why the tag that was composed last is one that no other process has."""


def behind(tag: str, ops: Mapping[str, Iterable[str]], fakes: Mapping[str, Callable[..., Any]]) -> str:
    """Returns the tag of a user with a digest of the ops behind it; `tag` itself if no op has a fake.

    `ops` are public names, `namespace::name` with `.overload` where there are several, `namespace::` for all of one, or
    `::` for ops of others, by the entry that defines them or has kernels for them.
    `fakes` are the Python fakes by public name. A digest that is in the tag already is replaced. If an op cannot be
    described, the tag is one that no other process has, and a warning says so.
    """
    own = OWN_TAG.sub("", tag)
    registry = _Registry(fakes, ops)
    try:
        lines = registry.all_lines(registry.defined)
        lines |= registry.all_lines(registry.by_python({name.partition("::")[0] for name in registry.defined} - TORCHS))
        _unknown.clear()
    except UndescribedError as error:
        say(error)
        _unknown[:] = [error]
        return f"{own}|opforge:{_random}"
    if not lines:
        return own
    text = "\n".join(sorted(lines))
    return f"{own}|opforge:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def of_graph(module: Any) -> str:
    """Returns a digest of what a graph has from the ops that it calls: from Python, and from our libraries.

    Empty if that is nothing. Raises UndescribedError, also if no graph of the process can be found again.
    """
    return of_ops(ops_of(module))


def ops_of(module: Any) -> list[str]:
    """Returns the public names of the ops that a graph calls."""
    kinds, graph_module = (torch._ops.OpOverload, torch._ops.OpOverloadPacket), torch.fx.GraphModule
    graphs = [each.graph for each in module.modules() if isinstance(each, graph_module)]
    return sorted({_public(node.target) for graph in graphs for node in graph.nodes if isinstance(node.target, kinds)})


def of_ops(names: Iterable[str]) -> str:
    """Returns a digest of what a graph has from ops of these public names, as `of_graph` does."""
    if _unknown:
        raise _unknown[0]
    lines = _Registry(library.python_fakes, {**library.defined}).all_lines(names)
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest() if lines else ""


def say(error: ValueError) -> None:
    """Logs once in a process why graphs are not found."""
    if str(error) not in _said:
        _said.add(str(error))
        log.warning("%s", error)


def _public(op: Any) -> str:
    name = op._qualified_op_name if hasattr(op, "_qualified_op_name") else op.name()
    return str(name).partition(".")[0]


def _each(names: Iterable[str]) -> Iterator[str]:
    """Yields the names of ops, for a namespace those of its ops."""
    for name in names:
        if name.endswith("::"):
            yield from (op for op in torch._C._dispatch_get_all_op_names() if op.startswith(name))
        else:
            yield name


def _digest(function: Any) -> str:
    """Returns a digest of what a function does: its code, and all that it takes from elsewhere."""
    description = Description()
    description.add(function)
    return description.digest


class _Registry:
    """The registrations of ops by Python code and by our libraries, at one moment."""

    def __init__(self, fakes: Mapping[str, Callable[..., Any]], ops: Mapping[str, Iterable[str]]) -> None:
        self._torch, self._fakes = torch, fakes
        self.defined: dict[str, list[str]] = {}
        """The entries of the libraries that define an op, or have kernels for it, by its public name."""
        for entry, names in sorted(ops.items()):
            for name in dict.fromkeys(each.partition(".")[0] for each in _each(names)):
                self.defined.setdefault(name, []).append(entry)
        self._unnamed = {entry for entry, names in ops.items() if "::" in names}
        """Those of libraries that have kernels for ops of others, nobody knows for which."""
        self._keys: dict[tuple[str, str], dict[str, str]] = {}
        """The dispatch keys for which Python has registered a kernel, each with torch's name of it, by op."""
        for text in torch.library._impls:
            space, name, key = text.split("/")
            op, _, overload = name.partition(".")
            keys = self._keys.setdefault((f"{space}::{op}", "" if overload == "default" else overload), {})
            keys[key or "CompositeImplicitAutograd"] = text

    def by_python(self, spaces: Iterable[str]) -> list[str]:
        """Returns the public names of the ops in namespaces for which Python has registered something."""
        from torch._library import custom_ops, simple_registry

        names = {op for op, _overload in self._keys} | {*custom_ops.OPDEFS}
        names |= {name.partition(".")[0] for name in [*simple_registry.singleton._data]}
        return sorted(name for name in names if name.partition("::")[0] in spaces)

    def all_lines(self, names: Iterable[str]) -> set[str]:
        """Returns a line for each overload of ops of these names: all that a graph with them depends on.

        Raises UndescribedError.
        """
        return self._unnamed | {line for name in names for line in self._lines(name)}

    def _lines(self, name: str) -> Iterator[str]:
        namespace, _, function = name.partition("::")
        packet = getattr(getattr(self._torch.ops, namespace), function, None)
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            has_python, digest, inside = self._described(op)
            # torch traces what returns nothing without a fake
            if has_python or inside or (name in self.defined and not op._schema.returns):
                yield f"{op._schema} {sorted(map(str, op.tags))} {digest} {' '.join(inside)}"

    def _inside(self, op: Any, has_fake: bool) -> list[str]:
        """Returns the libraries' entries if a graph depends on kernels in them. A key of an entry changes with a build.

        Those that Python has registered are not the library's.
        """
        entries, by_python = self.defined.get(_public(op), []), self._keys_of(op)
        keys = TRACED if has_fake else (*SHAPES, *TRACED)
        has_kernel = self._torch._C._dispatch_has_kernel_for_dispatch_key
        is_inside = entries and any(key not in by_python and has_kernel(op.name(), key) for key in keys)
        return entries if is_inside else []

    def _keys_of(self, op: Any) -> dict[str, str]:
        name, _, overload = op.name().partition(".")
        return self._keys.get((name, overload), {})

    def _described(self, op: Any) -> tuple[bool, str, list[str]]:
        """Returns whether Python has registered anything for an op, its digest, and the entries that it depends on.

        What it calls is in the digest with what is registered for that, and with its entries. Raises UndescribedError.
        """
        description, has_python, own = Description(), False, list[str]()
        waiting, described = [op], {op.name()}
        for one in waiting:
            has_fake = False
            for what, value in self._registered(one):
                has_python |= one is op
                has_fake |= what == "fake kernel"
                place = f"the {what} of {_public(one)}"
                try:
                    description.add(one.name(), what, value, name=place)
                except UndescribedError as error:
                    raise UndescribedError(UNKNOWN % (_public(op), error)) from error
            inside = self._inside(one, has_fake)
            if one is op:
                own = inside
            else:
                description.add(*inside)
            for name in sorted(description.ops):
                for other in self._overloads(name):
                    if other.name() not in described:
                        described.add(other.name())
                        waiting.append(other)
        return has_python, description.digest if has_python else "", own

    def _overloads(self, name: str) -> list[Any]:
        namespace, _, function = name.partition("::")
        if not function or namespace in TORCHS:
            return []
        packet = getattr(getattr(self._torch.ops, namespace), function.partition(".")[0], None)
        return [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []

    def _registered(self, op: Any) -> Iterator[tuple[str, Any]]:
        """Yields the registrations of Python for an op that torch uses when it traces, each with its name in messages.

        Raises UndescribedError for what cannot be read any more.
        """
        from torch._library import custom_ops, simple_registry

        name, public = op.name(), _public(op)
        if public in self._fakes:
            yield "fake kernel", self._fakes[public]
        for each in dict.fromkeys((name, public)):
            entry = simple_registry.singleton._data.get(each)
            if entry is None:
                continue
            kernel = getattr(entry.fake_impl, "kernel", None)
            if kernel is not None and public not in self._fakes:
                yield "fake kernel", kernel.func
            rules = getattr(getattr(entry, "torch_dispatch_rules", None), "_data", {})
            for kind, rule in sorted(rules.items(), key=lambda item: str(item[0])):
                yield f"rule for {kind.__qualname__}", rule
            if (effect := getattr(getattr(entry, "effect", None), "effect", None)) is not None:
                yield "effect", str(effect)
        own = custom_ops.OPDEFS.get(public)
        if own is not None:
            for attribute in CUSTOM:
                if getattr(own, attribute, None):
                    yield CUSTOM[attribute], getattr(own, attribute)
        yield from self._kernels(op, public, own)
        yield from self._rewritten(op)

    def _kernels(self, op: Any, public: str, own: Any) -> Iterator[tuple[str, Any]]:
        for key, text in sorted(self._keys_of(op).items()):
            if RUN.fullmatch(key):
                continue
            kernel = library.python_kernels.get(text)
            if kernel is not None:
                yield f"kernel for {key}", kernel
            elif own is None and public.partition("::")[0] not in TORCHS:  # a custom_op was read as such
                raise UndescribedError(UNKNOWN % (public, BEFORE % key))
        for key, kernel in sorted(op.py_kernels.items(), key=lambda item: str(item[0])):
            if not RUN.fullmatch(str(key).rpartition(".")[2]):
                yield f"kernel for {key}", kernel
        for kind, rule in sorted(op.python_key_table.items(), key=lambda item: item[0].__qualname__):
            yield f"rule for {kind.__qualname__}", rule

    def _rewritten(self, op: Any) -> Iterator[tuple[str, Any]]:
        """Yields the entries in torch's tables of fakes, decompositions and lowerings for an op of another library."""
        decompositions = getattr(sys.modules.get("torch._decomp"), "global_decomposition_table", {})
        tables = [(f"decomposition ({name})", table) for name, table in decompositions.items()]
        tables += [(what, getattr(sys.modules.get(module), name, {})) for what, module, name in TABLES]
        of_torch = op.namespace in TORCHS
        for what, table in tables:
            value = table.get(op)
            of_kernel = isinstance(value, functools.partial) and value.keywords.get("kernel") is op  # torch's, for each
            if value is not None and not (((of_torch or what in LATE) and _is_torchs(value)) or of_kernel):
                yield what, value
        for check, rule in getattr(sys.modules.get("torch._subclasses.fake_impls"), "op_implementations_checks", ()):
            if not _is_torchs(rule) and check(op):
                yield "rule for fake tensors by a check", rule


def _is_torchs(value: Any) -> bool:
    """Returns whether a function is torch's own, in all that wraps it; any other value, whether its class is."""
    while isinstance(value, functools.partial):
        value = value.func
    return str(inspect.unwrap(value).__module__).startswith("torch.")


TABLES = (
    ("rule for fake tensors", "torch._subclasses.fake_impls", "op_implementations_dict"),
    ("decomposition (inductor)", "torch._inductor.decomposition", "decompositions"),
    ("lowering", "torch._inductor.lowering", "lowerings"),
    ("lowering of the user", "torch._inductor.lowering", "user_lowerings"),
    ("layout constraint", "torch._inductor.lowering", "_maybe_layout_constraints"),
    ("form that changes its argument", "torch._inductor.fx_passes.reinplace", "inplaceable_ops"),
)
"""Tables by op, in which a module of torch looks when it compiles: what messages call it, the module, its name."""
LATE = ("lowering", "layout constraint")
"""Tables to which torch adds functions of its own for each op that it meets."""

CUSTOM = {
    "_abstract_fn": "fake kernel",
    "_setup_context_fn": "setup_context",
    "_backward_fn": "backward",
    "_vmap_fn": "vmap",
    "_torch_dispatch_fns": "rules",
    "_autocast_dtype": "autocast",
}
"""Attribute of a custom_op of torch.library -> the registration that it holds."""
