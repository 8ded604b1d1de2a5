"""The `torch` ABI: ATen and pybind sources, tied to one torch and one Python. One module, built once a session."""

from __future__ import annotations

import os

import fakes
import pytest

from opforge.builders import requirements

torch = pytest.importorskip("torch")
PYBIND = """\
#include <torch/csrc/utils/pybind.h>
static int64_t twice(int64_t x) { return 2 * x; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice, "Twice a number."); }
"""


@pytest.fixture(scope="session")
def module(tmp_path_factory, shared_store):
    """The class, loaded once; the build takes some fifteen seconds."""
    folder = tmp_path_factory.mktemp("pybind")
    fakes.write(folder, "twice.cpp", PYBIND)
    cls = fakes.builder_class(folder, "twice", abi="torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(shared_store))
        entry = cls().obtain()
        return cls, entry, cls().load()


def test_a_pybind_module_is_built_and_imported(module):
    _cls, entry, loaded = module
    assert entry.origin == "built"
    assert loaded.twice(21) == 42
    assert loaded.twice.__doc__.strip().endswith("Twice a number.")
    assert loaded.__file__ == entry.library


def test_it_is_tied_to_this_torch_and_this_python(module):
    _cls, entry, _loaded = module
    assert entry.binary["requires"] == {"python": f"cpython-3{os.sys.version_info.minor}", "torch": torch.__version__}
    assert entry.binary["python_module"] is True
    assert requirements.unfit(entry.binary) is None


@pytest.mark.parametrize(
    ("requires", "reason"),
    [
        ({"torch": "2.11.0"}, f"it was built for torch 2.11.0, and torch {torch.__version__} is installed"),
        ({"python": "cpython-399"}, "it was built for cpython-399, and this is cpython-3"),
    ],
)
def test_under_another_torch_or_python_it_does_not_fit_and_says_so(module, requires, reason):
    _cls, entry, _loaded = module
    binary = {**entry.binary, "requires": {**entry.binary["requires"], **requires}}
    assert requirements.unfit(binary).startswith(reason)


def test_a_hit_in_a_fresh_process_gives_the_module(module, shared_store):
    cls, _entry, _loaded = module
    code = """
import os, torch, fakes
op = fakes.builder_class(os.environ["FOLDER"], "twice", abi="torch")().load()
print(op.twice(4))
"""
    folder = os.path.dirname(os.sys.modules[cls.__module__].__file__)
    assert fakes.python(code, env={"FOLDER": folder, "OPFORGE_CACHE_DIR": str(shared_store)}) == "8\n"
