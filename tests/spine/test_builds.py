"""Building and loading an op: each promise once, with the real compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time

import pytest
from support import child_processes, sample_ops, text_files
from support.paths import CHECKOUT

import opforge
from opforge.errors import BuildError

pytestmark = pytest.mark.compile
LOAD = """
import os, opforge
flags = os.environ.get("FLAGS", "").split()
op = opforge.load("plain", [os.environ["FOLDER"] + "/plain.cpp"], abi="c", extra_cflags=flags)
print(op.value(), op.origin)
"""


def load(folder, **changes):
    """Loads the plain op in another process; returns what its function returns and its origin."""
    return child_processes.run_python(LOAD, env={"FOLDER": str(folder), **changes}).strip()


def entries(store):
    """Returns the bytes of each file of each entry."""
    files = [path for path in (store / "v2" / "entries").rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files}


def readmes(language):
    """Returns the first block of README in a language."""
    with open(os.path.join(CHECKOUT, "README.md")) as file:
        return re.findall(rf"```{language}\n(.*?)```", file.read(), re.DOTALL)[0]


def test_the_op_of_the_readme_is_edited_and_loaded_beside_the_old_one(tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    source = readmes("cpp").replace("my_ops", sample_ops.unique_name("ops"))
    (tmp_path / "relu.cpp").write_text(source)
    code, _, _ = readmes("python").partition("print")
    first: dict = {}
    exec(code, first)
    x = torch.tensor([-2.0, 0.0, 3.0])
    assert first["relu"].relu(x).tolist() == [0.0, 0.0, 3.0]
    assert torch.compile(lambda x: first["relu"].relu(x), backend="eager", fullgraph=True)(x).tolist() == [0, 0, 3]
    (tmp_path / "relu.cpp").write_text(source.replace("? in[i] : 0", "? 2 * in[i] : 0"))
    second: dict = {}
    exec(code, second)
    assert second["relu"].relu(x).tolist() == [0.0, 0.0, 6.0]
    assert first["relu"].relu(x).tolist() == [0.0, 0.0, 3.0], "the old version is as it was"


def test_an_error_in_the_source_is_one_diagnostic_with_its_lines(folder):
    lines = [f"// line {number}" for number in range(30)]
    lines[14] = "int broken( { return 1; }"
    (folder / "plain.cpp").write_text("\n".join(lines))
    with pytest.raises(BuildError) as caught:
        opforge.load("plain", [str(folder / "plain.cpp")], abi="c")
    text = str(caught.value)
    assert text.count("int broken( { return 1; }") == 1 and text.count("error:") == 1
    assert all(f"// line {number}" in text for number in (10, 11, 12, 13, 15, 16, 17, 18)) and "// line 4\n" not in text


def test_a_source_for_pybind_and_aten_works_unchanged(tmp_path):
    import torch

    # torch/extension.h includes these and takes twice as long: tests/compile/load/test_torch.py.
    (tmp_path / "twice.cpp").write_text("""
#include <torch/csrc/utils/pybind.h>
#include <ATen/ops/mul.h>
at::Tensor twice(const at::Tensor& x) { return at::mul(x, 2); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice); }
""")
    flags = {"abi": "torch", "extra_cflags": ["-O0"]}
    op = opforge.load(sample_ops.unique_name("twice"), [str(tmp_path / "twice.cpp")], **flags)
    assert op.twice(torch.ones(2)).tolist() == [2.0, 2.0]


DECLARED = "from plain_ops import Plain; op = Plain().load(); print(op.value(), op.origin, Plain().load() is op)"


def test_load_takes_what_is_loaded_then_a_layers_then_the_caches_and_builds_otherwise(declared, tmp_path):
    layer = str(tmp_path / "layer")
    assert child_processes.run_python(DECLARED, env=declared) == "1 built True\n"
    assert child_processes.run_python(DECLARED, env=declared) == "1 cache True\n"
    done = child_processes.run_command("build-ops", "plain_ops:Plain", "--out", layer, **declared)
    assert done.returncode == 0, done.stderr
    env = {**declared, "OPFORGE_CACHE_LAYERS": layer}
    assert child_processes.run_python(DECLARED, env=env) == f"1 {layer} True\n"


def test_a_layer_works_without_the_compiler_and_compares_the_ops_own_files(folder, declared, tmp_path):
    layer = str(tmp_path / "layer")
    assert child_processes.run_command("build-ops", "plain_ops:Plain", "--out", layer, **declared).returncode == 0
    other = {"OPFORGE_CACHE_LAYERS": layer, "PATH": str(tmp_path), "OPFORGE_CACHE_DIR": str(tmp_path / "empty")}
    assert child_processes.run_python(DECLARED, env={**declared, **other}) == f"1 {layer} True\n"
    sample_ops.set_value(folder, 2)
    process = child_processes.start_python(DECLARED, env={**declared, **other})
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and f"{folder}/value.h has changed" in err


# -- what an entry is valid for ----------------------------------------------------------------------------------------


def test_a_header_that_changed_and_has_an_old_time_stamp_is_noticed(folder):
    before = (folder / "value.h").stat()
    assert load(folder) == "1 built" and load(folder) == "1 cache"
    sample_ops.set_value(folder, 2)
    os.utime(folder / "value.h", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load(folder) == "2 built"
    sample_ops.set_value(folder, 1)
    assert load(folder) == "1 cache", "the same contents are the same entry"


def test_the_files_the_compiler_and_the_flags_are_compared(folder, tmp_path):
    assert load(folder, FLAGS="-DX=1") == "1 built"
    assert load(folder, FLAGS="-DX=2") == "1 built" and load(folder, FLAGS="-DX=1") == "1 cache"
    compiler = text_files.write_script(tmp_path / "bin", "my-g++", 'exec g++ "$@"')
    assert load(folder, CXX=compiler) == "1 built"
    assert load(folder, CXX=compiler) == "1 cache"
    text_files.write_script(tmp_path / "bin", "my-g++", 'exec g++ "$@" -DNOTHING')
    assert load(folder, CXX=compiler) == "1 built", "another compiler of this name"
    assert load(folder, CXX=compiler, CPPFLAGS="-DMORE") == "1 built"
    assert load(folder, CXX=compiler) == "1 cache"


def test_a_file_that_appears_before_one_that_was_read_is_noticed(folder):
    (folder / "plain.cpp").write_text(sample_ops.PLAIN_SOURCE.replace('"value.h"', "<inner.h>"))
    text_files.write(folder / "late", "inner.h", "#define VALUE 1\n")
    (folder / "early").mkdir()
    flags = f"-I{folder}/early -I{folder}/late"
    assert load(folder, FLAGS=flags) == "1 built" and load(folder, FLAGS=flags) == "1 cache"
    text_files.write(folder / "early", "inner.h", "#define VALUE 2\n")
    assert load(folder, FLAGS=flags) == "2 built"


def test_an_archive_that_is_linked_is_compared(folder, tmp_path):
    def archive(value):
        text_files.write(tmp_path, "dep.c", f"int dep(void) {{ return {value}; }}\n")
        subprocess.run(["gcc", "-fPIC", "-c", "dep.c"], cwd=tmp_path, check=True)
        subprocess.run(["ar", "rcs", "libdep.a", "dep.o"], cwd=tmp_path, check=True)

    source = f'extern "C" int dep(void);\n{sample_ops.EXPORT} int value() {{ return dep(); }}\n'
    cls = sample_ops.plain_op(folder, source=source, libraries=["dep"], extra_link_args=[f"-L{tmp_path}"])
    archive(1)
    assert cls().load().value() == 1
    archive(2)
    assert cls().load().value() == 2


def test_paranoid_hashes_each_file_that_an_op_was_built_from(folder):
    (folder / "plain.cpp").write_text("#include <stddef.h>\n" + sample_ops.PLAIN_SOURCE)
    assert load(folder) == "1 built"
    time.sleep(2.1)  # a file that was written in the last two seconds is hashed anyway
    assert load(folder) == "1 cache"
    opened = """
import os, sys
seen = []
sys.addaudithook(lambda event, arguments: seen.append(str(arguments[0])) if event == "open" else None)
"""
    code = f"{opened}{LOAD}print(any(path.endswith('/stddef.h') for path in seen))"
    outputs = [
        child_processes.run_python(code, env={"FOLDER": str(folder), "OPFORGE_PARANOID": value}).split()
        for value in ("0", "1")
    ]
    assert outputs == [["1", "cache", "False"], ["1", "cache", "True"]]


def test_an_entry_is_never_changed_and_its_name_is_that_of_what_was_read(folder, own_store):
    assert load(folder) == "1 built"
    first = entries(own_store)
    sample_ops.set_value(folder, 2)
    assert load(folder) == "2 built"
    second = entries(own_store)
    assert {path: second[path] for path in first} == first and len(second) == 2 * len(first)
    assert len({path.parent.name for path in second}) == 2


def test_a_store_and_the_sources_can_be_moved(folder, tmp_path, own_store):
    assert load(folder) == "1 built"
    shutil.copytree(own_store, tmp_path / "moved" / "store")
    shutil.copytree(folder, tmp_path / "moved" / "op")
    shutil.rmtree(own_store)
    moved = {"OPFORGE_CACHE_DIR": str(tmp_path / "moved" / "store")}
    assert load(tmp_path / "moved" / "op", **moved) == "1 cache"


def test_one_library_on_the_stable_abi_serves_each_torch(tmp_path):
    """It needs functions of torch's C interface alone: no name of torch's C++, and no library of Python."""
    entry = sample_ops.stable_op(tmp_path / "op")().build()
    assert entry.record["abi"] == "torch-stable"
    done = subprocess.run(["nm", "-D", "--undefined-only", entry.library], capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in done.stdout.splitlines()]
    of_torch = [name for name in names if "aoti_torch" in name or "torch_" in name]
    assert of_torch and not [name for name in names if re.search(r"^_ZNK?(2at|3c10|5torch)|^Py", name)]
