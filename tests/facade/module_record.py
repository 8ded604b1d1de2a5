"""`python tests/facade record`: makes tests/support/facade/module_outcomes.json anew, from torch's own headers."""

import importlib.util
import json
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

from facade.compiling import compile_library
from facade.outcomes import Outcome, of_call

SUPPORT = Path(__file__).parent.parent / "support" / "facade"
NAME = "facade_cases"


def load(library: Path, name: str = NAME) -> ModuleType:
    """Returns the extension module in a library."""
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcomes(library: Path) -> dict[str, Outcome]:
    """Returns the outcome of each case of module_cases.py with a library."""
    path = SUPPORT / "module_cases.py"
    spec = importlib.util.spec_from_file_location("module_cases", path)
    assert spec and spec.loader
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name: of_call(call) for name, call in cases.cases(load(library))}
    plain: dict[str, Outcome] = json.loads(json.dumps(found))
    return plain


def build(kind: str, folder: Path) -> Path:
    """Returns the library of module_source.cpp on the facade or on torch's headers."""
    library = folder / kind / f"{NAME}.so"
    compile_library(kind, NAME, [SUPPORT / "module_source.cpp"], library, ["-O0"])
    return library


def record(folder: Path) -> int:
    """Builds on torch's headers, and writes what the cases give."""
    library = build("torch", folder / "module")
    # In a process of its own: the other builds of this source have the same name.
    child = [sys.executable, str(Path(__file__).parent), "record-child", str(library)]
    text = subprocess.run(child, check=True, capture_output=True, text=True).stdout
    # Where the source was compiled is no outcome.
    recorded = json.loads(text.replace(str(SUPPORT) + "/", ""))
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(recorded[name])}" for name in recorded)
    (SUPPORT / "module_outcomes.json").write_text("{\n" + lines + "\n}\n")
    return 0
