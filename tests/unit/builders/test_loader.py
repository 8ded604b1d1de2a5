"""The loader's lock, which a fork must not inherit from a thread that does not exist in the child."""

from __future__ import annotations

import collections
import os
import threading

import pytest

from opforge.builders import load_advice, loader
from opforge.errors import LoadError
from opforge.fast_path import library
from opforge.fast_path.library import Entry, LoadedOp


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_that_was_forked_while_a_thread_was_loading_can_load():
    held, leave = threading.Event(), threading.Event()

    def load():
        with library.lock:
            held.set()
            leave.wait(30)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        assert held.wait(30)
        child = os.fork()
        if child == 0:
            os._exit(0 if library.lock.acquire(timeout=2) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        leave.set()
        thread.join()


def test_beside_a_library_whose_kernels_for_others_cannot_be_removed_no_other_version_is_loaded(monkeypatch):
    """The registration of the first interface takes no null, and would read there."""
    entries = [Entry(f"key {each}", "", {"abi": "c", "interface": each, "file": "x.so"}, "layer") for each in (2, 1)]
    for module, name, replacement in (
        (loader, "open_library", lambda *_: 7),
        (loader, "_others", {}),
        (loader, "_in_force", {}),
        (library, "described", lambda _handle: ([], "aten::f\t")),
        (library, "call_register", lambda *given: called.append(given) or ""),
        (library, "plain", lambda op, entry, *_: loader._schemas(op, entry, 7, ()) and LoadedOp(op, entry, None, ())),
        (loader.kernel_types, "check", lambda *_: None),
        (library, "tag_compile_caches", lambda *_: None),
        (library, "defined", collections.defaultdict(dict)),
    ):
        monkeypatch.setattr(module, name, replacement)
    called = []
    newer, older = (loader.load_entry("op", entry, {}, {}) for entry in entries)
    assert called == [(7, None, None)]  # the newer one's kernels were removed
    with pytest.raises(LoadError, match=r"kernels for aten::f, .* cannot be removed. Load it in a new process"):
        loader.load_entry("op", entries[0], {}, {})
    assert loader.load_entry("op", entries[1], {}, {}) is older is not newer and len(called) == 1


@pytest.mark.parametrize("refused", ["kernel of other::relu", "definition other::relu(Tensor x) -> Tensor"])
def test_a_name_of_another_namespace_in_a_block_is_the_reason(refused):
    advice = load_advice.schema_advice(None, [], f"torch refused the {refused}")
    assert advice.startswith("A block serves its own namespace: write the name without another one, or move")


@pytest.mark.parametrize("missing", ["GLIBCXX_3.4.32", "CXXABI_1.3.15"])
def test_a_libstdcxx_that_is_older_than_the_compilers_is_named_as_the_reason(missing):
    """The library may have been built here: the compiler of a module or of conda has a libstdc++ of its own."""
    problem = f"/lib/libstdc++.so.6: version `{missing}' not found (required by op.so)"
    assert load_advice.advice(problem).startswith(
        "This process has an older libstdc++ than the g++ that built it: set CXX"
    )
