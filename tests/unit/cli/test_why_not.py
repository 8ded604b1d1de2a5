"""`opforge why-not`: every line that keeps sources from one binary, the exit code, and the line to write."""

import io
import json
import os
import shutil
import tarfile
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opforge.cli import group, why_not
from opforge.errors import ToolchainNotFoundError

GOOD = """
#include <torch/extension.h>
#ifdef WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif
torch::Tensor twice(torch::Tensor x) { return x * 2; }
"""
BAD = """#include <torch/extension.h>
#include "own/helper.h"
at::DispatchKeySet keys;
auto g = at::detail::createCPUGenerator();
auto n = x.use_count();
"""


OF_CUDA = "#include <torch/extension.h>\nvoid f() { c10::cuda::CUDACachingAllocator::emptyCache(); }\n"


def why(*arguments: str | Path) -> Result:
    return CliRunner().invoke(group, ["why-not", "--no-compile", *map(str, arguments)])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name, text in {
        "setup.py": "raise SystemExit('a project is never executed')  # BuildExtension",
        "csrc/good.cpp": GOOD,
        "csrc/plain.cpp": "#include <vector>\n",
        "csrc/cuda/op.cu": OF_CUDA,
        "build/copy.cpp": BAD,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_every_line_is_listed_with_its_construct_and_class(tmp_path: Path) -> None:
    (tmp_path / "bad.cpp").write_text(BAD)
    done = why(tmp_path / "bad.cpp")
    lines = done.output.splitlines()
    assert done.exit_code == 1
    assert [line.removeprefix(f"{tmp_path}/bad.cpp:").split(": ")[:3] for line in lines[:-1]] == [
        ["3", "DispatchKeySet", "never"],
        ["4", "createCPUGenerator", "needs torch 2.13"],
        ["5", "use_count", "never"],
    ]
    assert lines[-1] == "3 lines: 2 never, 1 needs torch 2.13"


def test_a_file_that_nothing_keeps_gets_the_line_to_write(tmp_path: Path) -> None:
    path = tmp_path / "good.cpp"
    path.write_text(GOOD)
    done = why("--cpu", path)
    assert done.exit_code == 0
    assert done.output == (
        "nothing found that keeps these sources from one binary for every torch and Python\n"
        f'1 source. To build them so:\n  opforge.load("good", ["{path}"], abi="torch-facade")\n'
    )


def test_a_source_on_the_stable_abi_is_one_binary_already(project: Path) -> None:
    path = project / "csrc" / "stable.cpp"
    path.write_text("#include <torch/csrc/stable/library.h>\n// not with torch/extension.h\n")
    done = why("--cpu", path)
    assert done.output == (
        "nothing found that keeps these sources from one binary for every torch and Python\n"
        "1 source, on torch's stable ABI already. To build them so:\n"
        f'  opforge.load("stable", ["{path}"], abi="torch-stable")\n'
    )
    assert "already" not in why("--cpu", path, project / "csrc" / "good.cpp").output
    (project / "csrc" / "good.cpp").unlink()
    (project / "kernel.toml").write_text("")
    assert f'abi = "torch-stable"  # in {project}/kernel.toml\n' in why("--cpu", project).output


def test_a_project_is_read_without_being_executed_and_cudas_lines_can_be_left_out(project: Path) -> None:
    done = why(project / "setup.py")
    assert done.exit_code == 1
    assert "op.cu:2: c10::cuda::CUDACachingAllocator: not yet: the facade's headers for CUDA do not have this" in (
        " ".join(done.output.split())
    )
    assert "1 line is for CUDA: --cpu leaves out such lines" in done.output and "copy.cpp" not in done.output
    done = why("--cpu", project)
    assert done.exit_code == 0
    assert f"OPFORGE_CPP_EXTENSION=torch-facade pip wheel --no-build-isolation --no-deps {project}\n" in done.output


def test_a_project_with_a_kernel_toml_gets_its_line(project: Path) -> None:
    (project / "kernel.toml").write_text("")
    assert f'abi = "torch-facade"  # in {project}/kernel.toml\n' in why("--cpu", project).output


def test_a_header_is_found_in_the_project_without_its_include_folder(project: Path) -> None:
    (project / "include" / "own").mkdir(parents=True)
    (project / "include" / "own" / "helper.h").write_text("\nvoid f(c10::intrusive_ptr<A> a);\n")
    (project / "csrc" / "bad.cpp").write_text(BAD)
    assert f"{project}/include/own/helper.h:2: intrusive_ptr: never: " in why("--cpu", project).output


@pytest.mark.parametrize("name", [".", "setup.py"])
def test_a_header_below_the_working_folder_is_found(project: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(project)
    (project / "own").mkdir()
    (project / "own" / "helper.h").write_text("\nvoid f(c10::intrusive_ptr<A> a);\n")
    (project / "csrc" / "bad.cpp").write_text(BAD)
    assert "own/helper.h:2: intrusive_ptr: never: " in why("--cpu", name).output.splitlines()[3]


def test_the_nearest_of_two_headers_of_one_name_is_the_one_that_is_included(project: Path) -> None:
    for part, text in (("cpu", "// nothing"), ("gpu", "auto keys = c10::DispatchKeySet();")):
        (project / part / "include").mkdir(parents=True)
        (project / part / "include" / "checks.h").write_text(text)
        (project / part / "src").mkdir()
        (project / part / "src" / "op.cpp").write_text('#include <torch/extension.h>\n#include "checks.h"\n')
    done = why("--cpu", project / "setup.py")
    assert "gpu/include/checks.h:1: DispatchKeySet: never" in done.output
    assert "cpu/include" not in done.output
    (project / "gpu" / "include" / "checks.h").write_text("")
    assert why("--cpu", project / "setup.py").exit_code == 0


def test_a_source_that_needs_cudas_headers_is_left_out_and_named_so(project: Path) -> None:
    text = '#include <torch/extension.h>\n#include "kernels.h"\nat::CPUGeneratorImpl g;\n'
    (project / "csrc" / "host.cpp").write_text(text)
    (project / "csrc" / "kernels.h").write_text("#include <cuda_runtime_api.h>\n")
    done = why("--cpu", project)
    assert done.exit_code == 0
    assert "csrc/host.cpp is left out: it includes cuda_runtime_api.h, which a build without CUDA" in done.output
    found = json.loads(why("--cpu", "--json", project).output)
    assert [Path(entry["path"]).name for entry in found["left_out"]] == ["host.cpp"]
    assert "createCPUGenerator" not in why(project).output and why(project).exit_code == 1


def test_a_macro_of_the_build_decides_which_headers_a_source_needs(project: Path) -> None:
    text = "#include <torch/extension.h>\n#ifndef CPU_ONLY\n#include <cuda_runtime_api.h>\nx.use_count();\n#endif\n"
    (project / "csrc" / "host.cpp").write_text(text)
    assert "host.cpp is left out" in why("--cpu", project).output
    assert "host.cpp" not in why("--cpu", "-D", "CPU_ONLY=1", project).output


@pytest.mark.parametrize(
    ("defined", "used"),
    [
        ("define_macros=[('CPU_ONLY', None), ('UNUSED', '1')]", "#if !defined(CPU_ONLY)\nint g;\n#endif"),
        ("extra_compile_args=['-O3', '-DCPU_ONLY']", "#ifdef CPU_ONLY\nint g;\n#endif"),
        ("""define_macros=[("CPU_ONLY", '"1"'), ("g", "UNUSED")]""", "int g = sizeof(CPU_ONLY);"),
    ],
)
def test_a_macro_that_the_build_files_define_and_the_sources_use_is_advised(
    project: Path, defined: str, used: str
) -> None:
    (project / "setup.py").write_text(f"CppExtension({defined})\n")
    assert "-D" not in why(project).stderr
    (project / "csrc" / "host.cpp").write_text(f"#include <torch/extension.h>\n{used}\n")
    advice = "macros that its sources use: name those that it does, with their values: -D CPU_ONLY\n"
    assert advice in why(project).stderr
    assert "CPU_ONLY" not in why("-D", "CPU_ONLY", project).stderr


def test_sources_in_cuda_are_only_read_where_there_is_no_nvcc(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise ToolchainNotFoundError("CUDA compiler", ["PATH"], "")

    monkeypatch.setattr("opforge.builders.toolchains.nvcc.find", none)
    monkeypatch.setattr("opforge.builders.toolchains.host.find_compiler", lambda: ["/bin/true"])
    (project / "csrc" / "cuda" / "op.cu").write_text("#include <torch/extension.h>\nnothing f();\n")
    done = CliRunner().invoke(group, ["why-not", str(project)])
    assert done.exit_code == 0, done.output
    assert "note: 1 source in CUDA was only read, and not compiled: there is no nvcc" in done.output


def test_an_archive_is_unpacked_and_its_paths_are_its_own(project: Path, tmp_path: Path) -> None:
    (project / "csrc" / "bad.cpp").write_text(BAD)
    archive = tmp_path / "op-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(project, "op-1.0")
    document = json.loads(why("--json", "--cpu", archive).output)
    assert document["sources"] == ["op-1.0/csrc/bad.cpp", "op-1.0/csrc/good.cpp"]
    assert [(entry["path"], entry["line"], entry["kind"]) for entry in document["obstacles"]] == [
        ("op-1.0/csrc/bad.cpp", 3, "never"),
        ("op-1.0/csrc/bad.cpp", 4, "needs torch 2.13"),
        ("op-1.0/csrc/bad.cpp", 5, "never"),
    ]
    assert document["write"] == [] and document["not_judged"] == []


def test_an_archive_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "op.tar.gz", "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("../../outside.cpp"), io.BytesIO())
    done = why(tmp_path / "op.tar.gz")
    assert done.exit_code == 1 and "op.tar.gz cannot be inspected: it cannot be unpacked: " in done.output
    (tmp_path / "op.tar.gz").write_bytes(b"no archive")
    assert "it cannot be unpacked: " in why(tmp_path / "op.tar.gz").output


def test_an_archive_that_would_fill_the_disk_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(tmp_path / "op.tar.gz", "w:gz") as packed:
        packed.add(project, "op-1.0")
    monkeypatch.setattr(why_not, "MOST_BYTES", 10)
    output = why(tmp_path / "op.tar.gz").output
    assert "bytes when it is unpacked, more than 10" in output and "hint: Unpack it, and name the folder" in output


def test_a_package_without_sources_is_named_with_what_to_do() -> None:
    done = why("click")
    assert done.exit_code == 1 and "was installed without its C++ sources" in done.output
    assert "hint: Name its source distribution: pip download --no-deps --no-binary :all: click" in done.output


@pytest.mark.parametrize("text", ["[]", "{", '{"url": 3}'])
def test_an_installers_damaged_note_of_a_url_counts_as_none(text, monkeypatch):
    read_text = metadata.PathDistribution.read_text
    damaged = lambda own, name: text if name == "direct_url.json" else read_text(own, name)  # noqa: E731
    monkeypatch.setattr(metadata.PathDistribution, "read_text", damaged)
    done = why("click")
    assert done.exit_code == 1 and "was installed without its C++ sources" in done.output


@pytest.mark.parametrize("name", ["no-such-package", os.path.join("no", "such.cpp"), "none-1.0.tar.gz"])
def test_what_is_not_there_is_an_error(name: str) -> None:
    done = why(name)
    assert done.exit_code == 1 and f"error: {name} cannot be inspected: there is no such file" in done.output


@pytest.mark.parametrize(
    ("build", "line"),
    [
        ({}, 'opforge.load("NAME", [SOURCES], abi="torch-facade")  # its build does not use torch\'s BuildExtension'),
        (
            {"setup.py": "from torch.utils.cpp_extension import BuildExtension"},
            "OPFORGE_CPP_EXTENSION=torch-facade pip",
        ),
        (
            {"setup.py": "setup(packages=['p'])", "p/ops.py": "from torch.utils.cpp_extension import load"},
            'opforge.compat.cpp_extension.install(abi="torch-facade")  # before it compiles',
        ),
    ],
    ids=["another build", "BuildExtension", "at its import"],
)
def test_a_project_gets_the_line_for_the_way_in_which_it_is_built(
    build: dict[str, str], line: str, tmp_path: Path
) -> None:
    for name, text in {"csrc/op.cpp": GOOD, **build}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = why("--cpu", "--no-compile", tmp_path)
    assert done.exit_code == 0 and f"To build them so:\n  {line}" in done.output


def test_a_folder_without_sources_is_an_error(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "project"), "gztar", tmp_path)
    for named in (str(tmp_path), archive):
        done = why(named)
        assert done.exit_code == 1
        assert f"error: {named} cannot be inspected: it has no C++ or CUDA source that includes torch" in done.output


def test_what_is_no_source_is_refused(tmp_path):
    (tmp_path / "x.whl").write_bytes(b"\0\1")
    done = CliRunner().invoke(group, ["why-not", "--no-compile", str(tmp_path / "x.whl")])
    assert done.exit_code == 1 and "it is neither a C++ or CUDA source nor a header" in done.output
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(group, ["why-not", "--no-compile", "--cpu", str(tmp_path / "empty")])
    assert done.exit_code == 1 and "it has no C++ source for the CPU that includes torch" in done.output


def test_a_header_alone_has_no_line_to_write(tmp_path):
    (tmp_path / "e.h").write_text("#include <torch/extension.h>\n")
    done = CliRunner().invoke(group, ["why-not", "--no-compile", str(tmp_path / "e.h")])
    assert done.exit_code == 0 and "To build them so" not in done.output


def test_a_compiler_that_is_killed_judges_nothing(tmp_path, monkeypatch):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'g++: fatal error: Killed signal terminated program cc1plus' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(why_not, "_compilers", lambda cpu: why_not.Compilers((str(compiler),)))
    (tmp_path / "n.cpp").write_text("#include <torch/extension.h>\n")
    done = CliRunner().invoke(group, ["why-not", str(tmp_path / "n.cpp")])
    assert done.exit_code == 1 and "the compiler fails: g++: fatal error: Killed signal" in done.output


def test_a_source_in_c_is_read_and_compiled_only_if_it_includes_torch(tmp_path, monkeypatch):
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\necho "$@" >> "$(dirname "$0")/compiled"\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(why_not, "_compilers", lambda cpu: why_not.Compilers((str(compiler),)))
    (tmp_path / "part.c").write_text('#include "part.h"\nint twice(int new) { return 2 * new; }\n')
    (tmp_path / "op.c").write_text("#include <torch/extension.h>\nauto y = at::native::relu(x);\n")
    done = CliRunner().invoke(group, ["why-not", str(tmp_path / "part.c")])
    assert done.exit_code == 0 and done.output.startswith("nothing found that keeps these sources from one binary")
    assert not (tmp_path / "compiled").exists()
    (tmp_path / "setup.py").write_text("CUDAExtension(extra_compile_args={'nvcc': ['-U__CUDA_NO_HALF_OPERATORS__']})\n")
    done = CliRunner().invoke(group, ["why-not", str(tmp_path)])
    assert done.exit_code == 1 and f"{tmp_path}/op.c:2: at::native::relu: never" in done.output
    compiled = (tmp_path / "compiled").read_text().splitlines()
    assert [line.split()[-1] for line in compiled] == [str(tmp_path / "op.c")]
    assert " -U__CUDA_NO_HALF_OPERATORS__ " in compiled[0]
