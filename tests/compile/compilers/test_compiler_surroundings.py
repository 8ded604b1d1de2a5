"""What identifies a compiler besides its programs: PATH, the variables of wrappers, files of flags that it reads."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess

import pytest
from support import child_processes, sample_ops, text_files

from opforge.builders.toolchains.host import HostToolchain
from opforge.cache.current_store import current_store
from opforge.cache.filesystem.disk import Disk

VALUE = "#ifndef VALUE\n#define VALUE 0\n#endif\n" + sample_ops.EXPORT + " int value() { return VALUE; }\n"
LOAD = """
import os, subprocess
from support import sample_ops
from opforge.cache.filesystem.disk import Disk
Disk.now_ns = lambda self, real=Disk.now_ns: real(self) + 10**10
if "FORBID" in os.environ:
    def forbidden(*arguments, **options):
        raise AssertionError("no process may be started")
    subprocess.Popen = forbidden
op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
print(op.value(), op.origin)
"""
CLANG_HOME = "/usr/lib/llvm-14"


@pytest.fixture
def load(folder, load_anew):
    """Loads the op as a new process does; returns its value and where it came from."""
    text_files.write(folder, "plain.cpp", VALUE)
    return load_anew


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Builds an op in this process; returns its value and the entry's origin."""
    text_files.write(tmp_path, "plain.cpp", VALUE)

    def run(**attributes):
        entry = sample_ops.builder_class(tmp_path, "plain", abi="c", **attributes)().build()
        return ctypes.CDLL(entry.library).value(), entry.origin

    return run


@pytest.mark.parametrize(
    "compiler", ["g++", pytest.param("clang++", marks=pytest.mark.long("asks another compiler nothing"))]
)
def test_another_path_that_finds_the_same_programs_asks_the_compiler_nothing(folder, tmp_path, own_store, compiler):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    text_files.write(folder, "plain.cpp", VALUE)

    def load(**env):
        return child_processes.run_python(LOAD, env={"FOLDER": str(folder), **env}).strip()

    assert load(CXX=compiler) == "0 built"
    for number in range(2):  # as pip's build environments do, and jobs under Slurm
        before = tmp_path / f"pip-build-env-{number}" / "bin"
        before.mkdir(parents=True)
        text_files.write_script(before, "cmake")
        assert load(CXX=compiler, PATH=f"{before}:{os.environ['PATH']}", FORBID="1") == "0 cache"
    records = {path.name for path in (own_store / "v2" / "toolchains").iterdir()} - {"packages.json"}
    assert len(records) == 1


@pytest.mark.parametrize(
    ("variable", "listed"),
    [
        ("OMPI_CXXFLAGS", ""),
        pytest.param("NIX_CFLAGS_COMPILE", "", marks=pytest.mark.long("is in the same list as the one before")),
        ("MY_WRAPPER_FLAGS", "OTHER,MY_WRAPPER_FLAGS"),
    ],
)
def test_a_variable_that_a_wrapper_reads_is_in_the_key(tmp_path, load, variable, listed):
    wrapper = text_files.write_script(tmp_path, "mpicxx", f'exec g++ ${variable} "$@"')
    for value in ("1", "2"):
        env = {"CXX": wrapper, "OPFORGE_COMPILER_ENV": listed, variable: f"-DVALUE={value}"}
        assert load(**env) == f"{value} built"
        assert load(**env) == load(**env) == f"{value} cache"
    assert load(CXX=wrapper, OPFORGE_COMPILER_ENV=listed) == "0 built"


def test_a_wrapper_that_is_found_by_its_compilers_name_is_still_a_wrapper(tmp_path, load):
    """Nix and Spack put a script named g++ on PATH."""
    (tmp_path / "bin").mkdir()
    text_files.write_script(tmp_path / "bin", "g++", f'exec {shutil.which("g++")} $SPACK_TARGET_ARGS "$@"')
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    for value in ("1", "2"):
        assert load(PATH=path, SPACK_TARGET_ARGS=f"-DVALUE={value}") == f"{value} built"


def test_a_compiler_itself_does_not_depend_on_the_variables_of_wrappers(load):
    assert load(OMPI_CXXFLAGS="-DVALUE=1") == "0 built"
    assert load(OMPI_CXXFLAGS="-DVALUE=2") == "0 cache"


@pytest.mark.parametrize("masquerades", [True, False])
def test_a_compiler_that_a_variable_names_for_ccache_is_in_the_key(tmp_path, load, masquerades):
    chosen = "exec ${CCACHE_COMPILER:-" + str(shutil.which("g++")) + '} "$@"'
    wrapper = text_files.write_script(
        tmp_path, "g++" if masquerades else "ccache", chosen if masquerades else f"shift\n{chosen}"
    )
    env = {"CXX": wrapper if masquerades else f"{wrapper} g++"}
    assert load(**env) == load(**env, CCACHE_COMPILERCHECK="content").replace("cache", "built") == "0 built"
    for value in ("1", "2"):  # the second is put in the place of the first
        named = {**env, "CCACHE_COMPILER": text_files.write_script(tmp_path, "other", f'exec g++ -DVALUE={value} "$@"')}
        assert load(**named) == f"{value} built"
        assert load(**named) == f"{value} cache"
    assert load(**env) == "0 cache"


def test_the_ranks_of_one_job_share_a_library(tmp_path, load, own_store):
    """mpirun sets variables that differ from rank to rank and that no wrapper reads."""
    wrapper = text_files.write_script(tmp_path, "mpicxx", 'exec g++ "$@"')
    for rank in ("0", "1", "2"):
        origin = "built" if rank == "0" else "cache"
        assert load(CXX=wrapper, OMPI_COMM_WORLD_RANK=rank, OMPI_MCA_ess_base_vpid=rank) == f"0 {origin}"
    records = {path.name for path in (own_store / "v2" / "toolchains").iterdir()} - {"packages.json"}
    assert len(records) == 1


def test_a_wrapper_that_starts_another_program_of_path_is_asked_again(tmp_path, load):
    """What a wrapper looks up is not known, so each PATH counts."""
    wrapper = text_files.write_script(tmp_path, "mpicxx", 'exec $(echo my-compiler) "$@"')
    for value in ("1", "2"):
        (tmp_path / value).mkdir()
        text_files.write_script(tmp_path / value, "my-compiler", f'exec g++ -DVALUE={value} "$@"')
        env = {"CXX": wrapper, "PATH": f"{tmp_path}/{value}:{os.environ['PATH']}"}
        assert load(**env) == f"{value} built"
        assert load(**env) == f"{value} cache"


def test_flags_that_a_wrapper_adds_identify_it(tmp_path, build, monkeypatch):
    """A file that decides them is not watched, but an op of another store is not taken for this one's."""
    identities = []
    for value in ("1", "2"):
        folder = tmp_path / value
        folder.mkdir()
        text_files.write(folder, "flags", f"-DVALUE={value}")
        monkeypatch.setenv("CXX", text_files.write_script(folder, "cxx", 'exec g++ $(cat $(dirname "$0")/flags) "$@"'))
        assert build() == (int(value), "built")
        identities.append(HostToolchain(current_store().layout, Disk()).identity())
    first, second = map(dict, identities)
    assert first["cxx sha256"] == second["cxx sha256"] and first["commands"] != second["commands"]


FROM_THE_FIRST = pytest.param(True, marks=pytest.mark.long("the other case ends with these steps"))


@pytest.mark.parametrize("where", ["-B{}", "-B {}/", "LIBRARY_PATH"])
@pytest.mark.parametrize("present", [FROM_THE_FIRST, False])
def test_a_specs_file_that_gcc_finds_is_an_input(tmp_path, load, where, present):
    folder = tmp_path / "specs-folder"
    folder.mkdir()
    env = {"CXX": "g++", "LIBRARY_PATH": str(folder)}
    if where != "LIBRARY_PATH":
        env = {"CXX": "g++", "CXXFLAGS": where.format(folder)}
    if not present:
        assert load(**env) == "0 built"
        assert load(**env) == load(**env) == "0 cache"
    for value in ("1", "2"):
        text_files.write(folder, "specs", f"*cc1plus:\n+ -DVALUE={value}\n\n")
        assert load(**env) == f"{value} built"
        assert load(**env) == load(**env) == f"{value} cache"


def test_a_specs_file_in_a_folder_of_the_ops_own_flags_is_an_input(tmp_path, build):
    attributes = {"extra_compile_args": [f"-B{tmp_path}/"]}
    assert build(**attributes) == (0, "built")
    for value in (1, 2):
        text_files.write(tmp_path, "specs", f"*cc1plus:\n+ -DVALUE={value}\n\n")
        assert build(**attributes) == (value, "built")
        assert build(**attributes) == (value, "cache")


def test_specs_that_are_named_without_a_folder_are_an_input(tmp_path, build):
    attributes = {"extra_compile_args": [f"-B{tmp_path}/", "-specs=mine.specs"]}
    for value in (1, 2):
        text_files.write(tmp_path, "mine.specs", "%include <inner.specs>\n")
        text_files.write(tmp_path, "inner.specs", f"*cc1plus:\n+ -DVALUE={value}\n\n")
        assert build(**attributes) == (value, "built")
        assert build(**attributes) == (value, "cache")


@pytest.fixture
def clang_of_its_own(tmp_path):
    """A clang in a folder that the test may write, under a name for which it reads a configuration file."""
    real = f"{CLANG_HOME}/bin/clang"
    if not os.path.isfile(real):
        pytest.skip("needs clang 14 (apt install clang-14)")
    (tmp_path / "llvm" / "bin").mkdir(parents=True)
    shutil.copy(real, tmp_path / "llvm" / "bin" / "clang")
    os.symlink(f"{CLANG_HOME}/lib", tmp_path / "llvm" / "lib")
    machine = subprocess.run([real, "-dumpmachine"], capture_output=True, text=True, check=True).stdout.strip()
    link = tmp_path / f"{machine}-clang++"
    os.symlink(tmp_path / "llvm" / "bin" / "clang", link)
    return str(link), tmp_path / "llvm" / "bin", f"{machine}-clang++.cfg"


@pytest.mark.parametrize("present", [FROM_THE_FIRST, False])
def test_clangs_configuration_file_is_an_input(load, clang_of_its_own, present):
    compiler, folder, name = clang_of_its_own
    if not present:
        assert load(CXX=compiler) == "0 built"
        assert load(CXX=compiler) == load(CXX=compiler) == "0 cache"
    for value in ("1", "2"):
        text_files.write(folder, name, f"-DVALUE={value}\n")
        assert load(CXX=compiler) == f"{value} built"
        assert load(CXX=compiler) == load(CXX=compiler) == f"{value} cache"


def test_a_file_that_a_configuration_file_includes_is_an_input(load, clang_of_its_own):
    compiler, folder, name = clang_of_its_own
    text_files.write(folder, name, "@inner.cfg\n")
    for value in ("1", "2"):
        text_files.write(folder, "inner.cfg", f"-DVALUE={value}\n")
        assert load(CXX=compiler) == f"{value} built"
        assert load(CXX=compiler) == load(CXX=compiler) == f"{value} cache"


HEADER = "#include <value.h>\n" + sample_ops.EXPORT + " int value() { return VALUE; }\n"


@pytest.mark.parametrize("cxx", ["{compiler} -I{early}", "{wrapper}"])
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_a_header_that_appears_in_a_folder_that_the_compiler_is_started_with_is_seen(
    tmp_path, build, monkeypatch, cxx, compiler
):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    early, late = tmp_path / "early", tmp_path / "late"
    text_files.write(tmp_path, "plain.cpp", HEADER)
    wrapper = text_files.write_script(tmp_path, "mpicxx", f'exec {compiler} -I{early} "$@"')
    monkeypatch.setenv("CXX", cxx.format(compiler=compiler, early=early, wrapper=wrapper))
    early.mkdir()
    late.mkdir()
    for folder, number in ((late, 1), (early, 2)):
        text_files.write(folder, "value.h", f"#define VALUE {number}\n")
        assert build(include_dirs=[str(late)]) == (number, "built")


@pytest.mark.parametrize(
    ("cxx", "flags"), [("g++ -isystem {}/include", []), ("clang++ -isystem {}/include", []), ("g++", ["-B{}/"])]
)
def test_a_folder_of_headers_that_appears_among_the_compilers_own_is_searched(tmp_path, build, monkeypatch, cxx, flags):
    if shutil.which(cxx.partition(" ")[0]) is None:
        pytest.skip(f"{cxx.partition(' ')[0]} is not installed")
    text_files.write(tmp_path, "plain.cpp", HEADER)
    monkeypatch.setenv("CXX", cxx.format(tmp_path / "new"))
    flags = [*(flag.format(tmp_path / "new") for flag in flags), "-idirafter", str(tmp_path / "late")]
    for folder, number in (("late", 1), ("new/include", 2)):
        (tmp_path / folder).mkdir(parents=True)
        text_files.write(tmp_path / folder, "value.h", f"#define VALUE {number}\n")
        assert build(extra_compile_args=flags) == (number, "built")


@pytest.mark.parametrize(
    ("compiler", "flags", "folder"),
    [
        ("g++", ["-iprefix", "{}/new/", "-iwithprefixbefore", "x"], "new/x"),
        ("g++", ["--include-prefix={}/new/", "--include-with-prefix-before=x"], "new/x"),
        ("g++", ["--include-prefix", "{}/new/", "--include-with-prefix-before", "x"], "new/x"),
        ("clang++", ["-iprefix", "{}/new/", "-iwithprefix", "x"], "new/x"),
        ("g++", ["-isysroot", "{}/new", "-isystem", "=/x"], "new/x"),
        ("clang++", ["-isysroot", "{}/new", "-I=/x"], "new/x"),
        ("clang++", ["-isysroot", "{}/new", "-iwithsysroot", "/x"], "new/x"),
        ("g++", ["-isysroot", "{}/new"], "new/usr/include"),
    ],
)
def test_a_folder_of_headers_that_flags_put_together_is_searched(tmp_path, build, monkeypatch, compiler, flags, folder):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    text_files.write(tmp_path, "plain.cpp", HEADER)
    monkeypatch.setenv("CXX", compiler)
    flags = [*(flag.format(tmp_path) for flag in flags), "-idirafter", str(tmp_path / "late")]
    (tmp_path / folder).mkdir(parents=True)
    for place, number in (("late", 1), (folder, 2)):
        text_files.write(tmp_path / place, "value.h", f"#define VALUE {number}\n")
        assert build(extra_compile_args=flags) == (number, "built")
