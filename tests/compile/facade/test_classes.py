"""Classes and enumerations of a facade module, compared with what torch's own headers gave."""

import json
import os
import re
import subprocess
from pathlib import Path

import torch
from facade.compiling import compile_library
from support.processes import forked_python

SUPPORT = Path(__file__).parents[2] / "support" / "facade"
RECORDED_WITH = "2.13"
MODULE = "facade_classes."


def _plain(outcome: list[object]) -> str:
    """Returns an outcome without addresses. In the texts of Python's own errors a class has no module's name."""
    text = re.sub(r"0x[0-9a-f]*", "0x", json.dumps(outcome))
    own = ("object has no attribute", "unhashable", "'<'", "unsupported operand", "can't multiply")
    is_pythons = outcome[0] == "error" and any(part in text for part in own)
    return text.replace(f"'{MODULE}", "'") if is_pythons else text


def test_classes_and_enumerations_give_what_pybind11s_give(tmp_path: Path) -> None:
    library = tmp_path / "facade_classes.so"
    compile_library("facade", "facade_classes", [SUPPORT / "classes_source.cpp"], library, ["-O0"])
    command = [forked_python.python(), str(SUPPORT / "class_cases.py"), str(library)]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"FACADE_CLASSES_FAIL": "1"})
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout)
    recorded = json.loads((SUPPORT / "class_outcomes.json").read_text())
    assert len(recorded) > 200 and found.keys() == recorded.keys()
    if not torch.__version__.startswith(RECORDED_WITH):
        found, recorded = ({name: [outcome[0]] for name, outcome in part.items()} for part in (found, recorded))
    assert {name: outcome for name, outcome in found.items() if _plain(outcome) != _plain(recorded[name])} == {}


def test_a_subclass_has_another_metaclass_where_it_is_a_subclass_of_the_classs_own(tmp_path: Path) -> None:
    (tmp_path / "op.cpp").write_text("""#include <pybind11/operators.h>
#include <pybind11/numpy.h>
#include <torch/extension.h>
struct Box { int64_t n; explicit Box(int64_t size) : n(size) {} int64_t twice() const { return 2 * n; } };
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<Box>(m, "Box").def(py::init<int64_t>()).def("twice", &Box::twice);
}
""")
    # the facade's headers are found by -I, and a project may ask for all warnings as errors
    options = ["-O0", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wold-style-cast", "-Werror"]
    compile_library("facade", "box", [tmp_path / "op.cpp"], tmp_path / "box.so", options)
    (tmp_path / "use.py").write_text("""import abc, torch, box
class Named(type(box.Box)):
    def __call__(cls, *given):
        made = super().__call__(*given)
        made.name = cls.__name__
        return made
class Part(box.Box, metaclass=Named):
    pass
class Unmade(box.Box, metaclass=Named):
    def __init__(self):
        pass
def another():
    class Abstract(box.Box, metaclass=abc.ABCMeta):
        pass
print(Part(3).twice(), Part(3).name, isinstance(Part(3), box.Box))
for call in (Unmade, another):
    try:
        call()
    except TypeError as error:
        print(error)
""")
    ended = subprocess.run([forked_python.python(), str(tmp_path / "use.py")], capture_output=True, text=True)
    assert ended.stdout.splitlines() == [
        "6 Part True",
        "box.Box.__init__() must be called when overriding __init__",
        "metaclass conflict: the metaclass of a derived class must be a (non-strict) subclass of the metaclasses of "
        "all its bases",
    ], ended.stderr
