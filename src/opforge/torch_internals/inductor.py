"""The private parts of torch.compile that opforge uses: all of them are in this file, for TORCH alone.

The functions of torch and Triton by which a compile passes are wrapped when their modules are imported. Observers learn
what is recorded, compiled and loaded, and may offer C++ libraries. Refusals are asked before anything is compiled. With
neither, a wrapped function calls the original and does nothing else.

- `CacheArtifactManager.record_artifact`: torch calls it for each artifact that it makes, or finds in its cache. What it
  records is for the whole process, and an artifact that it has seen is not recorded again for a second scope.
  `populate_caches`: artifacts that were made elsewhere are put into the cache.
- `FxGraphCachePickler`: torch's key of a graph is a digest of a pickle. In it a memory format has the name of whichever
  module was the first to import torch, so two programs with one model would not share a graph.
- `FxGraphHashDetails`: what torch's key of a graph is a digest of, before and after autograd: ops by their names.
- `CppCodeCache.load_async`: C++ of inductor becomes a library. torch names it by a digest of its source and of the
  compiler's command, which holds absolute paths, and starts the compiler to learn that command.
- `fx_codegen_and_compile`: a graph is lowered, after a miss.
- `CppBuilder.build`: a compiler is started. `make_ir`: Triton compiles a kernel that is in no cache.
- `install_callbacks`: torch traces in it. Its own callbacks know nothing of threads, and `reset` forgets them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from opforge.errors import CompileForbiddenError
from opforge.fast_path import library
from opforge.fast_path.machine import python_tag
from opforge.foundation import opforge_version, remembered_values, remembered_values_writer
from opforge.foundation.after_import import call_after_import
from opforge.foundation.fork_lock import ForkLock

TORCH = ("2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
"""The releases of torch whose functions these are."""
FLAGS = ("cpp.", "aot_inductor.", "cpp_")
"""How the settings of inductor begin that shape a command of the C++ compiler."""
COMPILER_ALONE = ("cpp.cxx", "cpp_cache_precompile_headers", "aot_inductor.output_path")
"""Those of them that say which compiler is started, or where: its library and its graph fit whatever they are."""
CAPABILITY = "ATEN_CPU_CAPABILITY"
"""The variable that chooses among the vector instructions that a processor has."""
LINE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
"""A frame in the stack trace of a node."""
CHOICES = ("device_type", "needs_vec_isa", "kernel_needs_vec_isa")
"""The arguments of a compile of C++ that choose its flags; releases of torch before 2.13 have the first alone."""
MAX_INPUTS = 4
"""How many inputs of a graph a message names."""
log = logging.getLogger("opforge")


class Observer:
    """A listener to the compiles of this process."""

    def artifact(self, kind: str, key: str, content: bytes) -> None:
        """Receives each artifact that torch makes or finds."""

    def given(self, kind: str, key: str, content: bytes) -> None:
        """Receives each artifact that is put into torch's caches, and was not made by them."""

    def library(self, key: str, path: str) -> None:
        """Receives each C++ library of inductor that is loaded; `key` follows from no absolute path."""

    def library_path(self, key: str) -> str:
        """Returns the path of a library that fits; empty if there is none."""
        return ""

    def depends_on(self, graph: Any) -> str:
        """Returns a digest of what a graph depends on that torch's key of it leaves out; empty if there is none.

        Raises ValueError if that cannot be known: then the graph is neither found nor kept.
        """
        return ""

    def lowered(self, what: str) -> None:
        """Receives each graph that inductor lowers, after a miss."""

    def traced(self, began: float, ended: float) -> None:
        """Receives when a thread has traced, and looked up or compiled what it traced, by time.perf_counter."""


observers: list[Observer] = []
refusals: list[Callable[[], bool]] = []
"""Functions that return whether nothing may be compiled now."""
_loaded: dict[tuple[str, str], Any] = {}
"""The libraries that observers have offered, by key and path: pages of two signers may have one key."""
_patched: set[str] = set()


tried = ""
"""The version that `opforge check compiled` is trying in this process."""


def version_problem(version: str) -> str:
    """Returns why compiled graphs of this torch do not travel; empty if they do."""
    if is_known(version) or version == tried or has_passed(version):
        return ""
    return (
        f"torch {version} is not known here: expected torch {' or '.join(TORCH)}, or another that has passed"
        " `opforge check compiled`"
    )


def is_known(version: str) -> bool:
    """Returns whether the functions below were compared with those of this torch."""
    return any(version == known or version.startswith(f"{known}.") for known in TORCH)


# -- a torch that is not known -----------------------------------------------------------------------------------------


def has_passed(version: str) -> bool:
    """Returns whether `opforge check compiled` has passed with this torch, as it and opforge are now."""
    return remembered_values.recall(_remembered_name(version)) is not None


def remember(version: str, before: tuple[remembered_values.FlatStamps, int]) -> bool:
    """Remembers that a torch has passed; returns whether that could be. `before` is what `stamps` returned."""
    return is_known(version) or remembered_values_writer.remember(_remembered_name(version), before[0], True, before[1])


def stamps() -> tuple[remembered_values.FlatStamps, int]:
    """Returns the stamps of the files that are wrapped and of this one, and when they were taken."""
    folder = os.path.dirname(getattr(importlib.util.find_spec("torch"), "origin", None) or "")
    names = [name.replace(".", os.sep) for name in PATCHES if name.startswith("torch.")]
    paths = [os.path.join(os.path.dirname(folder), f"{name}.py") for name in names]
    paths += [os.path.join(folder, "version.py"), __file__]
    return remembered_values.FlatStamps(paths, remembered_values.stamps_of(paths)), time.time_ns()


def _remembered_name(version: str) -> str:
    return remembered_values.name_of(["compiled", version, opforge_version.VERSION])


def watch() -> None:
    """Wraps the functions of the modules that are imported, and those of the others when they are imported."""
    call_after_import(PATCHES, _patch_after)
    for name in PATCHES:
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            _patch(name, module)


# -- torch's folders ---------------------------------------------------------------------------------------------------

FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "", "TRITON_CACHE_DIR": "triton"}
"""The variables that say where inductor and Triton keep their caches, and the folder of each below a private one."""
_folders: list[str] = []
"""The private folders that are in use; the last one is torch's."""
_folders_before: dict[str, str | None] = {}
_folders_lock = ForkLock()


@contextmanager
def caches_in(folder: str) -> Iterator[None]:
    """Makes torch keep its caches in a folder. What torch has elsewhere is not found meanwhile.

    This is for the whole process and for those that it starts. Of folders that are in use at the same time the one that
    was entered last is torch's.
    """
    with _folders_lock:
        if not _folders:
            _folders_before.update({name: os.environ.get(name) for name in FOLDERS})
        _folders.append(folder)
        _set_folders()
    try:
        yield
    finally:
        with _folders_lock:
            _folders.remove(folder)
            _set_folders()


def _set_folders() -> None:
    for name, below in FOLDERS.items():
        value = os.path.join(_folders[-1], below).rstrip(os.sep) if _folders else _folders_before[name]
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# -- refusals ----------------------------------------------------------------------------------------------------------


def is_forbidden() -> bool:
    """Returns whether nothing may be compiled now."""
    return any(refuses() for refuses in refusals)


def check_allowed(what: str) -> None:
    """Raises CompileForbiddenError if nothing may be compiled now. `what` names what would be."""
    if is_forbidden():
        raise CompileForbiddenError(what)


# -- wrapping ----------------------------------------------------------------------------------------------------------


def _patch_after(module: ModuleType) -> None:
    _patch(module.__name__, module)


def _patch(name: str, module: ModuleType) -> None:
    if name in _patched:
        return
    _patched.add(name)
    torch = sys.modules.get("torch")
    problem = version_problem(str(getattr(torch, "__version__", ""))) if name.startswith("torch.") else ""
    if not problem:
        try:
            PATCHES[name](module)
            return
        except AttributeError as error:  # another build of this release
            problem = f"{name} is another than expected ({error})"
    # A scope of `opforge.compiled` has said so for itself.
    is_news = bool(refusals) and problem not in problems
    log.log(logging.WARNING if is_news else logging.DEBUG, NOT_REFUSED, problem)
    problems.append(problem)


NOT_REFUSED = "opforge.no_builds() does not refuse what torch.compile compiles: %s"
problems: list[str] = []
"""Why some of the functions are not wrapped."""


def _record_artifact(module: Any) -> None:
    manager = module.CacheArtifactManager
    original = manager.record_artifact.__func__

    def record_artifact(cls: Any, artifact_type: str, key: str, content: Any) -> None:
        if observers:
            encoded = module.CacheArtifactFactory.encode_create(artifact_type, key, content).content
            for observer in tuple(observers):
                observer.artifact(artifact_type, key, encoded)
        original(cls, artifact_type, key, content)

    manager.record_artifact = classmethod(functools.wraps(original)(record_artifact))
    populate = manager.populate_caches

    def populate_caches(artifacts: Any) -> Any:
        for kind, each in _listed(artifacts) if observers else ():
            for observer in tuple(observers):
                observer.given(kind, each.key, each.content)
        return populate(artifacts)

    manager.populate_caches = staticmethod(functools.wraps(populate)(populate_caches))


def _listed(artifacts: Any) -> list[tuple[str, Any]]:
    return [(kind, each) for kind, group in artifacts.items() for each in group]


def _codecache(module: Any) -> None:
    _load_async(module)
    _pickler(module)
    _details(module)


def _details(module: Any) -> None:
    """Changes what torch's key of a graph is made of: with what the ops depend on, and without the compiler.

    A compiler that does not exist is not needed for what is found.
    """
    kind = module.FxGraphHashDetails
    original = kind.__init__

    def init(self: Any, gm: Any, *arguments: Any, **named: Any) -> None:
        original(self, gm, *arguments, **named)
        if not observers:
            return
        values = self.inductor_config.items()
        self.inductor_config = {name: value for name, value in values if name not in COMPILER_ALONE}
        try:
            parts = {part for observer in tuple(observers) if (part := observer.depends_on(gm))}
        except ValueError as error:
            raise module.BypassFxGraphCache(str(error)) from error
        if parts:
            self.opforge_parts = sorted(parts)

    kind.__init__ = functools.wraps(original)(init)


def _pickler(module: Any) -> None:
    import torch

    kind = module.FxGraphCachePickler
    original = kind.__init__

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        if observers:
            self.dispatch_table[torch.memory_format] = lambda value: (str, (str(value),))

    kind.__init__ = functools.wraps(original)(init)


def _load_async(module: Any) -> None:
    original = module.CppCodeCache.load_async.__func__
    signature = inspect.signature(original)

    def load_async(cls: Any, *arguments: Any, **named: Any) -> Any:
        if not observers and not is_forbidden():
            return original(cls, *arguments, **named)
        bound = signature.bind(cls, *arguments, **named)
        bound.apply_defaults()
        key = _library_key(cls, bound.arguments)
        if (offered := _offered(cls, key)) is not None:
            return lambda: offered
        if is_forbidden():
            bound.arguments["submit_fn"] = None  # a worker would not know that it must not compile
        return _reported(original, bound, key)

    module.CppCodeCache.load_async = classmethod(functools.wraps(original)(load_async))


def _reported(original: Callable[..., Any], bound: inspect.BoundArguments, key: str) -> Callable[[], Any]:
    """Calls the original, and returns a function that loads the library and reports it."""
    try:
        load = original(*bound.args, **bound.kwargs)
    except CompileForbiddenError:
        raise
    except Exception:  # without a compiler, torch's own error; where nothing may be compiled, that is the reason
        check_allowed("C++ of inductor")
        raise

    def loaded() -> Any:
        library = load()
        path = getattr(library, "__file__", "") or getattr(library, "_name", "")
        if key and path:
            for observer in tuple(observers):
                observer.library(key, path)
        return library

    return loaded


def _offered(cls: Any, key: str) -> Any:
    """Returns a library that an observer offers, loaded; None if there is none."""
    for observer in tuple(observers) if key else ():
        path = observer.library_path(key)
        if not path:
            continue
        if (key, path) not in _loaded:
            try:
                _loaded[key, path] = cls._load_library(path, key)
            except (ImportError, OSError) as error:
                log.warning("The library %s cannot be loaded: %s. It is compiled again.", path, error)
                continue
        for other in tuple(observers):
            other.library(key, path)
        return _loaded[key, path]
    return None


def _library_key(cls: Any, arguments: Any) -> str:
    """Returns a key of all that a library follows from but the compiler; empty if it depends on a path."""
    import torch

    flags = [str(flag) for flag in arguments["extra_flags"]]
    if any("/" in flag for flag in flags):
        return ""
    texts = [
        torch.__version__,
        python_tag(),
        cls.__name__,
        os.environ.get(CAPABILITY, ""),
        _settings(),
        repr(sorted(cls.cpp_compile_command_flags.items())),
        *flags,
        *(f"{name}={arguments[name]}" for name in CHOICES if name in arguments),
        str(arguments["optimized_code"] or ""),
        arguments["main_code"],
    ]
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return f"o{digest.hexdigest()[:40]}"


def _settings() -> str:
    """Returns inductor's settings that shape a compiler's command."""
    from torch._inductor import config

    return _settings_of(config.get_hash())


@functools.lru_cache(16)
def _settings_of(_digest: bytes) -> str:
    from torch._inductor import config

    values = config.save_config_portable(ignore_private_configs=False)
    named = {name: value for name, value in values.items() if name.startswith(FLAGS) and name not in COMPILER_ALONE}
    return repr(sorted(named.items()))


def _fx_codegen_and_compile(module: Any) -> None:
    original = module.fx_codegen_and_compile

    @functools.wraps(original)
    def fx_codegen_and_compile(gm: Any, example_inputs: Any, *arguments: Any, **named: Any) -> Any:
        if observers or is_forbidden():
            what = graph_name(gm, example_inputs)
            check_allowed(what)
            for observer in tuple(observers):
                observer.lowered(what)
        return original(gm, example_inputs, *arguments, **named)

    module.fx_codegen_and_compile = fx_codegen_and_compile


def graph_name(gm: Any, inputs: Sequence[Any]) -> str:
    """Returns the name of a graph in messages: the function of its first operation, its line, and its inputs."""
    where = "a graph of torch.compile"
    for node in gm.graph.nodes:
        if lines := LINE.findall(node.meta.get("stack_trace") or ""):
            path, line, function = lines[-1]
            where = f"{function} ({os.path.basename(path)}:{line})"
            break
    shown = [_shown(value) for value in inputs if hasattr(value, "dtype")]
    more = f" and {len(shown) - MAX_INPUTS} more" if len(shown) > MAX_INPUTS else ""
    return f"{where} for {', '.join(shown[:MAX_INPUTS]) or 'no tensors'}{more}"


def _shown(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"


def _build(module: Any) -> None:
    original = module.CppBuilder.build

    def build(self: Any) -> None:
        check_allowed("C++ of inductor")
        original(self)

    module.CppBuilder.build = functools.wraps(original)(build)


def _make_ir(module: Any) -> None:
    for kind in (module.ASTSource, module.IRSource):
        original = kind.make_ir

        def make_ir(self: Any, *arguments: Any, original: Callable[..., Any] = original, **named: Any) -> Any:
            check_allowed(f"the Triton kernel {self.name}")
            return original(self, *arguments, **named)

        kind.make_ir = functools.wraps(original)(make_ir)


def _install_callbacks(module: Any) -> None:
    kind, thread = module.CompilationCallbackHandler, threading.local()
    original = kind.install_callbacks

    # Its start and end callbacks are for the first and the last of all threads that compile at the same time.
    @contextmanager
    @functools.wraps(original)
    def install_callbacks(self: Any, *arguments: Any, **named: Any) -> Iterator[Any]:
        is_outermost, thread.is_inside = not getattr(thread, "is_inside", False), True
        began = time.perf_counter()
        try:
            with original(self, *arguments, **named) as value:
                yield value
        finally:
            if is_outermost:
                thread.is_inside = False
                for observer in tuple(observers):
                    observer.traced(began, time.perf_counter())

    kind.install_callbacks = install_callbacks


PATCHES: dict[str, Callable[[Any], None]] = {
    "torch.library": library.record_kernels,
    "torch.compiler._cache": _record_artifact,
    "torch._inductor.codecache": _codecache,
    "torch._inductor.compile_fx": _fx_codegen_and_compile,
    "torch._inductor.cpp_builder": _build,
    "torch._dynamo.callback": _install_callbacks,
    "triton.compiler.compiler": _make_ir,
}
"""Module -> what wraps its functions."""


# -- torch's artifacts -------------------------------------------------------------------------------------------------


FUNCTION = "opforge_function"
"""The kind of artifacts that torch knows nothing of: functions that were compiled ahead."""


def _register_function() -> None:
    from torch.compiler import _cache

    _cache.CacheArtifactManager._ensure_cache_artifacts_registered()
    if FUNCTION in _cache.CacheArtifactFactory._artifact_types:
        return

    @_cache.CacheArtifactFactory.register
    class FunctionArtifact(_cache.CacheArtifact):
        """One that no cache of torch's takes."""

        def populate_cache(self) -> None:
            """Does nothing: who calls the function takes it from the page."""

        @staticmethod
        def type() -> str:
            """Returns the kind."""
            return FUNCTION


def unpacked(content: bytes) -> list[tuple[str, str, bytes]]:
    """Returns artifacts, each with its kind and key, from what `packed` returned. Nothing of them is unpickled.

    Raises ValueError.
    """
    from torch.compiler import _cache

    _register_function()
    kinds = _cache.CacheArtifactManager.deserialize(content)
    if kinds is None:
        raise ValueError("these are not artifacts of torch")
    return [(kind, each.key, each.content) for kind, each in _listed(kinds)]


def packed(artifacts: Iterable[tuple[str, str, bytes]]) -> bytes:
    """Returns artifacts, each with its kind and key, as `torch.compiler.save_cache_artifacts` writes them.

    That function writes all that the process has recorded: it would put other scopes' graphs into a page.
    """
    from torch.compiler import _cache
    from torch.utils._appending_byte_serializer import AppendingByteSerializer

    _register_function()
    kinds: dict[str, list[Any]] = {}
    for kind, key, content in artifacts:
        kinds.setdefault(kind, []).append(_cache.CacheArtifactFactory.create(kind, key, content))
    serializer = AppendingByteSerializer(serialize_fn=_cache._serialize_single_cache)
    serializer.extend(kinds.items())
    return bytes(serializer.to_bytes())
