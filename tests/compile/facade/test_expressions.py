"""Names that the facade has by hand give what torch gives in Python: in modes, under vmap, for subclasses as well."""

import json
import subprocess
from pathlib import Path

from facade import expressions
from facade.compiling import compile_library
from support.processes import forked_python


def test_names_that_are_written_by_hand_give_what_python_gives_in_every_setting(tmp_path: Path) -> None:
    (tmp_path / "op.cpp").write_text(expressions.source([text for text, _ in expressions.EXPRESSIONS]))
    compile_library("facade", "expressions", [tmp_path / "op.cpp"], tmp_path / "expressions.so", ["-O0"])
    script = Path(expressions.__file__).with_name("__main__.py")
    ended = subprocess.run(
        [forked_python.python(), str(script), "expressions-child", str(tmp_path / "expressions.so")],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    compared, different = json.loads(ended.stdout.splitlines()[-1])
    assert compared > 3000 and different == []
