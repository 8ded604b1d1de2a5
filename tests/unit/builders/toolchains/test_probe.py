"""The probe of a host compiler: it runs once, notices every change, and a compiler that does not work is reported."""

from __future__ import annotations

import os
import re
import shlex
import shutil

import pytest
from support import text_files
from support.compilers import fake_compiler
from support.compilers.fake_compiler import RECORDING_SCRIPT, run_count, toolchain

from opforge.builders.toolchains import host
from opforge.builders.toolchains.discovery import probe, search
from opforge.cache.current_store import prepare
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout
from opforge.errors import SettingError, ToolchainError, ToolchainNotFoundError


def test_a_compiler_is_probed_once_and_its_info_is_kept_across_processes(tmp_path, bin):
    first = toolchain(tmp_path).identity()
    runs = run_count(bin)
    assert runs > 0
    probe.reset()  # as in a new process
    assert toolchain(tmp_path).identity() == first
    assert run_count(bin) == runs


def test_the_identity_has_no_path_of_the_compiler(tmp_path, bin):
    identity = toolchain(tmp_path).identity()
    assert str(bin) not in str(identity)
    assert dict(identity)["version"] == "g++ (Fake) 12.2"


def test_a_compiler_that_is_replaced_in_place_has_another_identity(tmp_path, bin):
    first = toolchain(tmp_path).identity()
    text_files.write_script(
        bin, "g++", RECORDING_SCRIPT.format(machine="x86_64-linux-gnu", include=tmp_path / "include") + "# newer"
    )
    second = toolchain(tmp_path).identity()
    assert dict(first)["g++ sha256"] != dict(second)["g++ sha256"]


GCC_CHATTER = """\
Using built-in specs.
COLLECT_GCC=g++
OFFLOAD_TARGET_NAMES=nvptx-none:amdgcn-amdhsa
Target: x86_64-linux-gnu
Configured with: ../src/configure -v
Thread model: posix
Supported LTO compression algorithms: zlib zstd
gcc version 12.2.0 (Debian 12.2.0-14)
COLLECT_GCC_OPTIONS='-E' '-v'
 /usr/lib/gcc/x86_64-linux-gnu/12/cc1plus -E -quiet -v /dev/null
"""
REASON = "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus: symbol lookup of mpc_add: undefined symbol: mpfr_x"


@pytest.mark.parametrize(("program", "printed"), [("true", ""), ("echo", "-dumpmachine")])
def test_a_program_that_is_no_compiler_is_named_with_what_it_prints(tmp_path, program, printed):
    path = shutil.which(program)
    with pytest.raises(ToolchainError) as caught:
        probe.host_info([path], Layout(str(tmp_path)), Disk())
    problem = f"`{path} -dumpmachine` prints {printed!r}, not a machine such as x86_64-linux-gnu"
    assert str(caught.value) == f"The compiler {path} cannot be used: {problem}. {probe.ADVICE}"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (GCC_CHATTER + REASON, REASON),
        (REASON + "\n" + GCC_CHATTER, REASON),
        (GCC_CHATTER + "cc1plus: fatal error: no\ncompilation terminated.", "cc1plus: fatal error: no"),
        (GCC_CHATTER, " /usr/lib/gcc/x86_64-linux-gnu/12/cc1plus -E -quiet -v /dev/null"),
    ],
)
def test_a_probe_that_fails_shows_the_reason_and_not_what_gcc_says_before_it(tmp_path, monkeypatch, printed, reason):
    script = text_files.write_script(tmp_path, "g++", f"cat >&2 <<'END'\n{printed}\nEND\nexit 1")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    with pytest.raises(ToolchainError) as caught:
        probe.run([script], "-v")
    assert f"ended with 1: {reason}. " in str(caught.value)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/conda/lib")
    with pytest.raises(ToolchainError) as caught:
        probe.run([script], "-v")
    assert f"ended with 1: {reason} (LD_LIBRARY_PATH=/opt/conda/lib is set: programs take" in str(caught.value)


def test_a_linker_that_a_flag_names_and_that_is_missing_is_named(tmp_path):
    script = text_files.write_script(tmp_path, "g++", "echo \"error: unrecognized option '-fuse-ld=nope'\" >&2; exit 1")
    with pytest.raises(ToolchainError, match="Install the linker that -fuse-ld=nope names, or remove that flag"):
        probe.run([script, "-fuse-ld=nope"], "-v")


@pytest.mark.parametrize(
    "printed",
    [
        "Cannot create temporary file in ./: Read-only file system",
        "clang: error: unable to make temporary file: Read-only file system",
        "nvcc fatal   : Could not open output file '/tmp/tmpxft_00007eea_0000000a'",
    ],
)
def test_a_compiler_that_can_make_no_temporary_file_is_not_called_broken(tmp_path, printed):
    script = text_files.write_script(tmp_path, "g++", f'echo "{printed}" >&2; exit 1')
    with pytest.raises(ToolchainError) as caught:
        probe.run([script], "-Wl,--version")
    assert str(caught.value).endswith(f"{printed}. Set TMPDIR to a folder that you can write")


ODD_NAMES = ["line\u2028end", "next\u0085line", "form\x0cfeed", "no\u00a0", "\u3000wide"]


def test_folders_whose_names_hold_unicode_white_space_are_searched(tmp_path, monkeypatch):
    folders = [str(tmp_path / name) for name in ODD_NAMES]
    for folder in folders:
        os.mkdir(folder)
    monkeypatch.setenv("CPATH", os.pathsep.join(folders))
    report = probe.try_run(["g++"], "-E", "-v", "-x", "c++", os.devnull)[2]
    assert search.header_folders(report)[: len(folders)] == folders
    linked = search.linked_folders([f"g++ {shlex.join(f'-L{folder}' for folder in folders)} -Lbeside -lpart", "'"])
    assert linked == folders


def test_a_linker_that_is_replaced_in_place_changes_the_identity(tmp_path, bin):
    text_files.write_script(bin, "ld", "exit 0")
    first = toolchain(tmp_path).identity()
    text_files.write_script(bin, "ld", "exit 1")
    assert dict(toolchain(tmp_path).identity())["ld sha256"] != dict(first)["ld sha256"]


def test_a_linker_earlier_on_path_changes_the_identity(tmp_path, bin, monkeypatch):
    text_files.write_script(bin, "ld", "exit 0")
    first = toolchain(tmp_path).identity()
    (tmp_path / "earlier").mkdir()
    text_files.write_script(tmp_path / "earlier", "ld", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/earlier:{os.environ['PATH']}")
    for _process in range(2):
        assert dict(toolchain(tmp_path).identity())["ld sha256"] != dict(first)["ld sha256"]
        probe.reset()


def named_linker(tmp_path, *flags):
    compiler = toolchain(tmp_path)
    compiler.op_flags = flags
    return compiler.identity()


@pytest.mark.parametrize("flag", ["-fuse-ld=fast", "-fuse-ld={bin}/ld.fast", "--ld-path={bin}/ld.fast"])
def test_a_linker_that_the_op_names_and_that_is_replaced_in_place_changes_the_identity(tmp_path, bin, flag):
    flag = flag.format(bin=bin)
    without = named_linker(tmp_path)
    text_files.write_script(bin, "ld.fast", "exit 0")
    first = named_linker(tmp_path, flag)
    assert named_linker(tmp_path) == without, "no linker is chosen because it is installed"
    text_files.write_script(bin, "ld.fast", "exit 1")
    assert without != first != named_linker(tmp_path, flag)
    assert str(bin) not in str(first)


def test_a_linker_that_the_op_names_is_looked_for_earlier_on_path(tmp_path, bin, monkeypatch):
    text_files.write_script(bin, "ld.fast", "exit 0")
    (tmp_path / "earlier").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/earlier:{os.environ['PATH']}")
    first = named_linker(tmp_path, "-fuse-ld=fast")
    text_files.write_script(tmp_path / "earlier", "ld.fast", "exit 1")
    for _process in range(2):
        assert named_linker(tmp_path, "-fuse-ld=fast") != first
        probe.reset()


@pytest.mark.parametrize("variable", ["CXX", "LDFLAGS"])
def test_a_linker_that_a_variable_names_is_in_the_identity(tmp_path, bin, monkeypatch, variable):
    text_files.write_script(bin, "ld.fast", "exit 0")
    monkeypatch.setenv(variable, {"CXX": "g++ "}.get(variable, "") + "-fuse-ld=fast")
    first = toolchain(tmp_path).identity()
    text_files.write_script(bin, "ld.fast", "exit 1")
    assert toolchain(tmp_path).identity() != first


@pytest.mark.parametrize("name", ["as", "ld"])
def test_a_program_that_appears_earlier_on_path_is_noticed_by_the_next_process(tmp_path, bin, monkeypatch, name):
    (tmp_path / "early").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/early:{os.environ['PATH']}")
    text_files.write_script(bin, name, "exit 0")
    first = toolchain(tmp_path).identity()
    text_files.write_script(tmp_path / "early", name, "exit 1")
    probe.reset()
    assert dict(toolchain(tmp_path).identity())[f"{name} sha256"] != dict(first)[f"{name} sha256"]


@pytest.mark.parametrize("is_new_process", [False, True])
def test_a_file_of_specs_that_appears_in_a_folder_of_b_has_the_compiler_probed_again(
    tmp_path, bin, monkeypatch, is_new_process
):
    (tmp_path / "prefix").mkdir()
    monkeypatch.setenv("CXXFLAGS", f"-B{tmp_path / 'prefix'}/")
    toolchain(tmp_path).identity()
    runs = run_count(bin)
    toolchain(tmp_path).identity()
    assert run_count(bin) == runs
    text_files.write(tmp_path / "prefix", "specs", "")
    if is_new_process:
        probe.reset()
    toolchain(tmp_path).identity()
    assert run_count(bin) > runs


def test_programs_that_compiler_path_names_are_in_the_identity(tmp_path, bin, monkeypatch):
    first = toolchain(tmp_path).identity()
    (tmp_path / "tools").mkdir()
    text_files.write_script(tmp_path / "tools", "ld", "exit 1")
    monkeypatch.setenv("COMPILER_PATH", str(tmp_path / "tools"))
    assert dict(toolchain(tmp_path).identity())["ld sha256"] != dict(first).get("ld sha256")


def test_the_identity_does_not_depend_on_variables_that_were_set_at_the_first_probe(tmp_path, bin, monkeypatch):
    monkeypatch.setenv("CPATH", "/somewhere/else")
    toolchain(tmp_path).identity()
    monkeypatch.delenv("CPATH")
    results = []
    for store in ("store", "another store"):
        probe.reset()
        compiler = toolchain(tmp_path, store)
        results.append((compiler.identity(), compiler.search_folders()))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 1, "stamps": [1], "identity": {"a": "b"}}',
        '{"format": 1, "stamps": 7, "identity": 7}',
        '{"format": 1, "stamps": {"/": 1}, "identity": [1]}',
    ],
)
def test_a_compiler_with_a_damaged_record_is_probed_again(tmp_path, bin, text):
    first = toolchain(tmp_path).identity()
    folder = tmp_path / "store" / "v2" / "toolchains"
    (record,) = folder.iterdir()
    record.write_text(text)
    probe.reset()
    assert toolchain(tmp_path).identity() == first


def test_a_compiler_whose_record_has_another_letter_is_probed_again(tmp_path, bin):
    first = toolchain(tmp_path).identity()
    (record,) = (tmp_path / "store" / "v2" / "toolchains").iterdir()
    text = record.read_text()
    record.write_text(text.replace("g++ (Fake) 12.2", "g++ (Fake) 13.2"))
    assert record.read_text() != text
    probe.reset()
    assert toolchain(tmp_path).identity() == first


def test_the_error_for_a_missing_compiler_names_packages_to_install(tmp_path, bin):
    (bin / "g++").unlink()
    os.environ["PATH"] = str(bin)
    message = (
        "No C++ compiler was found. Looked for:\n  - g++ on PATH\n"
        "Install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or set CXX to its path."
    )
    with pytest.raises(ToolchainNotFoundError, match=re.escape(message)):
        toolchain(tmp_path)


def test_a_cxx_that_does_not_exist_is_named(tmp_path, bin, monkeypatch):
    monkeypatch.setenv("CXX", "/no/such/g++ -m32")
    with pytest.raises(
        ToolchainNotFoundError, match=r"Looked for:\n  - CXX=/no/such/g\+\+ -m32\nCorrect CXX, or unset it"
    ):
        toolchain(tmp_path)


def test_arguments_in_cxx_are_in_the_identity(tmp_path, bin, monkeypatch):
    plain = toolchain(tmp_path).identity()
    monkeypatch.setenv("CXX", f"{bin}/g++ -stdlib=libc++")
    chosen = toolchain(tmp_path)
    assert chosen.argv == (f"{bin}/g++", "-stdlib=libc++")
    assert dict(chosen.identity())["arguments"] == "-stdlib=libc++"
    assert chosen.identity() != plain


def test_a_path_of_a_compiler_with_spaces_needs_no_quotes(tmp_path, bin, monkeypatch):
    folder = tmp_path / "my tools"
    bin.rename(folder)
    monkeypatch.setenv("CXX", f"{folder}/g++")
    assert host.find_compiler() == (f"{folder}/g++",)
    monkeypatch.setenv("CXX", f"'{folder}/g++' -m32")
    assert host.find_compiler() == (f"{folder}/g++", "-m32")


@pytest.mark.parametrize(
    ("named", "used"),
    [
        ("clang", "clang++"),
        ("{bin}/clang", "{bin}/clang++"),
        ("x86_64-conda-linux-gnu-cc", "x86_64-conda-linux-gnu-c++"),
        ("env clang-14 -B/opt/gcc", "env clang++-14 -B/opt/gcc"),
        ("gcc-99", "gcc-99"),
    ],
)
def test_the_cxx_compiler_beside_a_c_compiler_is_used(bin, monkeypatch, named, used):
    for name in ("env", "gcc-99", "clang", "clang++", "clang-14", "clang++-14"):
        text_files.write_script(bin, name, "")
    for name in ("cc", "c++"):
        text_files.write_script(bin, f"x86_64-conda-linux-gnu-{name}", "")
    monkeypatch.setenv("CXX", named.format(bin=bin))
    words = used.format(bin=bin).split()
    assert host.find_compiler()[1:] == tuple(words[1:])
    assert host.find_compiler()[0].endswith(words[0])


def test_a_cxx_compiler_of_another_folder_is_not_beside_a_c_compiler(tmp_path, bin, monkeypatch):
    """PATH may have the system's g++ behind an environment's gcc that came alone."""
    text_files.write_script(bin, "g++", "")
    text_files.write_script(tmp_path / "alone", "gcc", "")
    monkeypatch.setenv("PATH", f"{tmp_path / 'alone'}:{bin}")
    monkeypatch.setenv("CXX", "gcc")
    assert host.find_compiler() == (f"{tmp_path / 'alone'}/gcc",)


def test_one_program_has_another_identity_by_the_name_of_a_c_compiler(tmp_path, bin, monkeypatch):
    """clang and clang++ are one program: what clang links lacks the C++ library."""
    (tmp_path / "alone").mkdir()
    os.symlink(bin / "g++", tmp_path / "alone" / "gcc")
    plain = toolchain(tmp_path).identity()
    monkeypatch.setenv("CXX", str(tmp_path / "alone" / "gcc"))
    assert set(toolchain(tmp_path).identity()) ^ set(plain) == {("language", "C")}


@pytest.mark.parametrize("name", ["CXX", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"])
def test_flags_with_an_unbalanced_quote_are_a_setting_error(tmp_path, bin, monkeypatch, name):
    monkeypatch.setenv(name, "-DA='1")
    with pytest.raises(
        SettingError, match=re.escape(f'{name}="-DA=\'1" cannot be used: expected flags with balanced quotes')
    ):
        toolchain(tmp_path).flags()


def test_a_compiler_that_fails_is_reported_with_its_message(tmp_path, bin, monkeypatch):
    text_files.write_script(bin, "g++", "echo 'licence expired' >&2; exit 3")
    message = (
        f"The compiler {bin}/g++ cannot be used: `{bin}/g++ --version` ended with 3: licence expired."
        " Set CXX to a C++ compiler that works, such as g++ or clang++"
    )
    with pytest.raises(ToolchainError, match=re.escape(message)):
        toolchain(tmp_path).identity()


def test_of_all_that_a_compiler_prints_the_line_of_the_error_is_reported(tmp_path, bin, monkeypatch):
    text_files.write_script(
        bin, "g++", "printf 'Configured with: --disable-werror\\ncc1plus: fatal error: no x.h\\n' >&2; exit 1"
    )
    with pytest.raises(
        ToolchainError,
        match=re.escape("`{0}/g++ --version` ended with 1: cc1plus: fatal error: no x.h".replace("{0}", str(bin))),
    ):
        toolchain(tmp_path).identity()


def test_a_compiler_that_cannot_be_executed_is_reported(tmp_path, bin):
    (bin / "g++").write_bytes(b"\0\0not a program")
    (bin / "g++").chmod(0o755)
    with pytest.raises(ToolchainError, match=r"`\S+ --version` failed \(.*Exec format error"):
        toolchain(tmp_path).identity()


def test_the_problem_with_a_target_names_it_and_the_compilers_own(tmp_path, bin):
    problem = toolchain(tmp_path).target_problem("cpu", ("aarch64",))
    advice = "Build with --portable, or set CXX to a compiler for it"
    assert problem == f"{bin}/g++ compiles for x86_64, not for aarch64. {advice}"
    assert toolchain(tmp_path).target_problem("cuda", ()) == f"{bin}/g++ compiles for the CPU, not for cuda"
    assert toolchain(tmp_path).target_problem("cpu", ("x86-64-v3",)) is None
    assert toolchain(tmp_path).target_problem("cpu", ()) is None


def test_a_compiler_for_another_system_is_a_problem(tmp_path, bin):
    text_files.write_script(
        bin, "g++", RECORDING_SCRIPT.format(machine="arm64-apple-darwin23", include=tmp_path / "include")
    )
    problem = toolchain(tmp_path).target_problem("cpu", ("aarch64",))
    assert problem == f"{bin}/g++ builds for apple-darwin23, and opforge builds libraries for Linux only"


def test_a_compiler_that_has_just_been_installed_is_probed_again(tmp_path, bin):
    """It could be replaced once more and keep its stamp."""
    root = str(tmp_path / "store")
    prepare(root, frozenset({0, os.geteuid()}))
    host.HostToolchain(Layout(root), Disk()).identity()
    runs = run_count(bin)
    host.HostToolchain(Layout(root), Disk()).identity()
    assert run_count(bin) == 2 * runs


@pytest.mark.parametrize(("variable", "spelling"), [("LDFLAGS", "-B{}"), ("CXXFLAGS", "-B {}")])
def test_a_program_that_a_flag_names_is_in_the_identity(tmp_path, bin, monkeypatch, variable, spelling):
    """The fake compiler finds programs by COMPILER_PATH, as a real one does by -B."""
    before = toolchain(tmp_path).identity()
    folder = tmp_path / "other"
    folder.mkdir()
    text_files.write_script(folder, "as", "echo another assembler")
    monkeypatch.setenv(variable, spelling.format(folder))
    replies = fake_compiler.SCRIPT.replace("@VERSION@", "12.2")
    search = (
        'for word in "$@"; do case "$word" in'
        ' -B?*) COMPILER_PATH="${word#-B}";; -B) ;; /*) COMPILER_PATH="$word";; esac; done\n'
    )
    text_files.write_script(bin, "g++", f'echo "$@" >> "{bin}/runs"\n{search}{replies}')
    after = toolchain(tmp_path).identity()
    changed = {name for name, value in after if dict(before).get(name) != value}
    assert "as sha256" in changed
