"""Defects in the facade that its comparison with torch must find: `python tests/facade mutants`.

Each is one change of a copy of the headers. The comparison of operators with numbers is compiled on the copy and run: a
mutant for which it finds no difference has survived, and that is a failure.
"""

import dataclasses
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from facade.compiling import compile_library
from opforge.builders.facade import flags


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of one of the headers: a text that occurs there once, and what replaces it."""

    file: str
    text: str
    replacement: str


MUTANTS = {
    "a negative number is padded to uint8 without wrapping": Mutant("scalars.h", "value += 256;", ""),
    "pow by 3 is one call of pow": Mutant(
        "numbers.h", "exponent.equal(3) || exponent.equal(0.5)", "exponent.equal(0.5)"
    ),
    "float16 is multiplied as float16": Mutant(
        "numbers.h", "type == ScalarType::Half ? converted", "false ? converted"
    ),
    "bool is subtracted": Mutant("numbers.h", "if (self_is_bool || other_is_bool)", "if (false)"),
    "alpha is not checked": Mutant("numbers.h", "!alpha.isIntegral(true)) {", "false) {"),
    "the sign of alpha is lost": Mutant("numbers.h", "-alpha.toDouble(), &h", "alpha.toDouble(), &h"),
    "a number that does not fit is filled in": Mutant(
        "numbers.h", "t.numel() == 1)) {\n        check_fits", "t.numel() == 1) && false) {\n        check_fits"
    ),
    "a result is written into any dtype": Mutant(
        "numbers.h", "    check_cast(result.scalar_type()", "    (void)(result.scalar_type()"
    ),
    "a 0-dim tensor promotes as one with dimensions": Mutant("numbers.h", "self.dim() > 0 ? self :", "true ? self :"),
    "a bound of clamp is not checked": Mutant(
        "scalars.h", "facade::check_fits(s, t);\n    }\n    return facade::wrapped", "}\n    return facade::wrapped"
    ),
}


def mutated(mutant: Mutant, folder: Path) -> Path:
    """Returns a copy of the facade's include tree with the defect. Raises ValueError if its text is not there once."""
    include = folder / "include"
    shutil.copytree(flags.INCLUDE, include)
    path = include / "opforge" / "facade" / mutant.file
    text = path.read_text()
    if text.count(mutant.text) != 1:
        raise ValueError(f"{mutant.text!r} is {text.count(mutant.text)} times in {mutant.file}: expected once")
    path.write_text(text.replace(mutant.text, mutant.replacement))
    return include


def finds(mutant: Mutant) -> bool:
    """Returns whether the comparison finds the defect: a difference, or a call that crashes."""
    path = Path(__file__).parent.parent / "compile" / "facade" / "test_numbers.py"
    spec = importlib.util.spec_from_file_location("facade_numbers", path)
    assert spec and spec.loader
    comparison = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(comparison)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        with mock.patch.object(flags, "INCLUDE", mutated(mutant, folder)):
            (folder / "op.cpp").write_text(comparison.SOURCE)
            compile_library("facade", "numbers_op", [folder / "op.cpp"], folder / "op.so", ["-O0"])
        command = [sys.executable, "-W", "ignore", "-c", comparison.COMPARE, str(folder / "op.so")]
        ended = subprocess.run(command, capture_output=True, text=True)
    return ended.returncode != 0 or not ended.stdout.splitlines()[0].endswith(" 0")


def run(names: Sequence[str]) -> int:
    """Tries mutants. Returns how many survived."""
    survived = 0
    for name in names or MUTANTS:
        found = finds(MUTANTS[name])
        survived += not found
        print(f"{'found' if found else 'SURVIVED'}: {name}", flush=True)
    return survived
