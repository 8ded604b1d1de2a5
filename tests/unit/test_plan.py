"""Plans and commands, with a compiler that is only pretended."""

from __future__ import annotations

import os
import re
import sys

import fakes
import pytest

import opforge
from opforge.builders import diagnostics, ninja, roots
from opforge.builders.plan import Step
from opforge.builders.toolchains import host, identity
from opforge.cache.disk import Disk
from opforge.cache.layout import Layout, prepare
from opforge.errors import (
    BuilderError,
    OpIncompatibleError,
    SettingError,
    SourceNotFoundError,
    ToolchainError,
    ToolchainNotFoundError,
)

ANSWERS = """\
echo "$@" >> "$(dirname "$0")/asked"
case "$*" in
  *--version*) echo "g++ (Fake) 12.2";;
  *-dumpmachine*) echo {machine};;
  *-print-prog-name=*) n="${{*##*=}}"; p="$COMPILER_PATH/$n"
        if [ -x "$p" ]; then echo "$p"; else echo "$n"; fi;;
  *-v*) printf '#include <...> search starts here:\\n' >&2
        [ -n "$CPATH" ] && printf ' %s\\n' "$CPATH" >&2
        printf ' {include}\\nEnd of search list.\\n' >&2;;
esac
"""


@pytest.fixture
def bin(tmp_path, monkeypatch):
    """A folder that is all of PATH, with a g++ that answers questions about itself."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "include").mkdir()
    fakes.compiler(folder, "g++", ANSWERS.format(machine="x86_64-linux-gnu", include=tmp_path / "include"))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(host, "CANDIDATES", ("g++",))
    return folder


def toolchain(tmp_path, store="store"):
    root = str(tmp_path / store)
    prepare(root, frozenset({0, os.geteuid()}))
    return host.HostToolchain(Layout(root), fakes.LaterDisk())


def asked(bin):
    path = bin / "asked"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_the_compiler_is_asked_once_and_remembered_across_processes(tmp_path, bin):
    first = toolchain(tmp_path).identity()
    questions = asked(bin)
    assert questions > 0
    identity._asked.clear()  # as a new process would begin
    assert toolchain(tmp_path).identity() == first
    assert asked(bin) == questions


def test_the_identity_has_no_path_of_the_compiler(tmp_path, bin):
    said = toolchain(tmp_path).identity()
    assert str(bin) not in str(said)
    assert dict(said)["version"] == "g++ (Fake) 12.2"


def test_a_compiler_replaced_in_place_is_another(tmp_path, bin):
    first = toolchain(tmp_path).identity()
    fakes.compiler(bin, "g++", ANSWERS.format(machine="x86_64-linux-gnu", include=tmp_path / "include") + "# newer")
    second = toolchain(tmp_path).identity()
    assert dict(first)["g++ sha256"] != dict(second)["g++ sha256"]


def test_a_linker_replaced_in_place_is_another(tmp_path, bin):
    fakes.compiler(bin, "ld", "exit 0")
    first = toolchain(tmp_path).identity()
    fakes.compiler(bin, "ld", "exit 1")
    assert dict(toolchain(tmp_path).identity())["ld sha256"] != dict(first)["ld sha256"]


def test_another_linker_earlier_on_path_is_another(tmp_path, bin, monkeypatch):
    fakes.compiler(bin, "ld", "exit 0")
    first = toolchain(tmp_path).identity()
    (tmp_path / "earlier").mkdir()
    fakes.compiler(tmp_path / "earlier", "ld", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/earlier:{os.environ['PATH']}")
    for _process in range(2):
        assert dict(toolchain(tmp_path).identity())["ld sha256"] != dict(first)["ld sha256"]
        identity._asked.clear()


def test_programs_that_compiler_path_names_are_in_the_identity(tmp_path, bin, monkeypatch):
    first = toolchain(tmp_path).identity()
    (tmp_path / "tools").mkdir()
    fakes.compiler(tmp_path / "tools", "ld", "exit 1")
    monkeypatch.setenv("COMPILER_PATH", str(tmp_path / "tools"))
    assert dict(toolchain(tmp_path).identity())["ld sha256"] != dict(first).get("ld sha256")


def test_the_identity_does_not_depend_on_what_was_set_when_it_was_first_asked(tmp_path, bin, monkeypatch):
    monkeypatch.setenv("CPATH", "/somewhere/else")
    toolchain(tmp_path).identity()
    monkeypatch.delenv("CPATH")
    said = []
    for store in ("store", "another store"):
        identity._asked.clear()
        one = toolchain(tmp_path, store)
        said.append((one.identity(), one.search_folders()))
    assert said[0] == said[1]


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
def test_a_garbled_record_of_a_compiler_is_asked_anew(tmp_path, bin, text):
    first = toolchain(tmp_path)
    said = first.identity()
    folder = tmp_path / "store" / "v1" / "toolchains"
    (record,) = folder.iterdir()
    record.write_text(text)
    identity._asked.clear()
    assert toolchain(tmp_path).identity() == said


def test_no_compiler_says_which_packages_to_install(tmp_path, bin):
    (bin / "g++").unlink()
    os.environ["PATH"] = str(bin)
    message = (
        "No C++ compiler was found. Looked for:\n  - g++ on PATH\n"
        "Install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or set CXX to its path."
    )
    with pytest.raises(ToolchainNotFoundError, match=re.escape(message)):
        toolchain(tmp_path)


def test_a_cxx_that_is_not_there_is_named(tmp_path, bin, monkeypatch):
    monkeypatch.setenv("CXX", "/no/such/g++ -m32")
    with pytest.raises(
        ToolchainNotFoundError, match=r"Looked for:\n  - CXX=/no/such/g\+\+ -m32\nCorrect CXX, or unset it"
    ):
        toolchain(tmp_path)


def test_cxx_may_carry_arguments_which_are_in_the_identity(tmp_path, bin, monkeypatch):
    plain = toolchain(tmp_path).identity()
    monkeypatch.setenv("CXX", f"{bin}/g++ -stdlib=libc++")
    chosen = toolchain(tmp_path)
    assert chosen.argv == (f"{bin}/g++", "-stdlib=libc++")
    assert dict(chosen.identity())["arguments"] == "-stdlib=libc++"
    assert chosen.identity() != plain


@pytest.mark.parametrize("name", ["CXX", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"])
def test_flags_with_an_open_quote_are_a_setting_error(tmp_path, bin, monkeypatch, name):
    monkeypatch.setenv(name, "-DA='1")
    with pytest.raises(
        SettingError, match=re.escape(f'{name}="-DA=\'1" cannot be used: expected flags with balanced quotes')
    ):
        toolchain(tmp_path).flags()


def test_a_compiler_that_fails_is_reported_with_its_own_words(tmp_path, bin, monkeypatch):
    fakes.compiler(bin, "g++", "echo 'licence expired' >&2; exit 3")
    message = (
        f"The compiler {bin}/g++ cannot be used: `{bin}/g++ --version` ended with 3: licence expired."
        " Set CXX to a C++ compiler that works, such as g++ or clang++"
    )
    with pytest.raises(ToolchainError, match=re.escape(message)):
        toolchain(tmp_path).identity()


def test_a_compiler_that_is_no_program_is_reported(tmp_path, bin):
    (bin / "g++").write_bytes(b"\0\0not a program")
    (bin / "g++").chmod(0o755)
    with pytest.raises(ToolchainError, match=r"`\S+ --version` gave no answer \(.*Exec format error"):
        toolchain(tmp_path).identity()


def test_a_target_of_another_machine_is_refused_with_both_named(tmp_path, bin):
    objection = toolchain(tmp_path).objection("cpu", ("aarch64",))
    assert objection == f"{bin}/g++ compiles for x86_64, not for aarch64"
    assert toolchain(tmp_path).objection("cuda", ()) == f"{bin}/g++ compiles for the CPU, not for cuda"
    assert toolchain(tmp_path).objection("cpu", ("x86-64-v3",)) is None
    assert toolchain(tmp_path).objection("cpu", ()) is None


def plan_of(builder, tmp_path):
    return builder.plan(toolchain(tmp_path))


@pytest.mark.parametrize("name", [*host.OBEYED, "LD_RUN_PATH"])
def test_variables_that_compilers_obey_are_in_the_key(tmp_path, bin, monkeypatch, name):
    cls = fakes.plain_op(tmp_path / "src")
    before = plan_of(cls(), tmp_path).key
    monkeypatch.setenv(name, str(tmp_path / "tools"))
    assert plan_of(cls(), tmp_path).key != before


@pytest.mark.parametrize("name", ["CXXFLAGS", "CPPFLAGS", "LDFLAGS"])
def test_flags_from_the_environment_are_in_the_key_and_in_the_commands(tmp_path, bin, monkeypatch, name):
    cls = fakes.plain_op(tmp_path / "src")
    before = plan_of(cls(), tmp_path).key
    monkeypatch.setenv(name, "-DFROM='the environment'")
    plan = plan_of(cls(), tmp_path)
    assert plan.key != before
    steps = toolchain(tmp_path).steps(plan, cls().places(), "plain.so")
    step = steps[-1] if name == "LDFLAGS" else steps[0]
    assert "-DFROM=the environment" in step.argv


def test_the_commands_end_with_one_library(tmp_path, bin):
    builder = fakes.plain_op(tmp_path / "src", libraries=["m"], link_flags=["-s"], defines={"A": "1", "B": ""})()
    compile_, link = toolchain(tmp_path).steps(plan_of(builder, tmp_path), builder.places(), "plain.so")
    assert compile_.title == "compile plain.cpp" and link.title == "link plain"
    assert compile_.argv[1:3] == ("-DA=1", "-DB")
    assert "-fno-gnu-unique" in compile_.argv and "-Wl,-Bsymbolic" in link.argv
    assert compile_.depfile and "-MD" in compile_.argv and "-MMD" not in compile_.argv
    assert link.argv[-2:] == ("-o", "plain.so") and "-lm" in link.argv and "-s" in link.argv
    assert all(isinstance(part, str) for step in (compile_, link) for part in step.argv)


def test_two_sources_of_one_name_have_two_objects(tmp_path, bin):
    for folder in ("a", "b"):
        (tmp_path / "src" / folder).mkdir(parents=True)
        fakes.write(tmp_path / "src" / folder, "x.cpp", "")
    builder = fakes.plain_op(tmp_path / "src", sources=["a/x.cpp", "b/x.cpp"])()
    steps = toolchain(tmp_path).steps(plan_of(builder, tmp_path), builder.places(), "x.so")
    assert len({step.output for step in steps}) == 3


def test_debugging_keeps_the_folders_in_the_binary_and_otherwise_they_are_mapped_away(tmp_path, bin):
    cls = fakes.plain_op(tmp_path / "src")
    for builder, mapped in ((cls(), True), (cls(debug=True), False), (cls(sanitize="address"), False)):
        step = toolchain(tmp_path).steps(plan_of(builder, tmp_path), builder.places(), "x.so")[0]
        assert any(part.startswith("-ffile-prefix-map=") for part in step.argv) is mapped
        assert ("-g" in step.argv) is not mapped


# -- what a builder may declare ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"name": "no good"}, "TestedBuilder: name='no good'. Expected an identifier of at most 200 bytes, such as"),
        ({"sources": []}, "TestedBuilder: it names no sources. Give it at least one file in `sources`"),
        ({"abi": "rust"}, "plain: abi='rust'. Expected one of 'torch-stable', 'c', 'torch'"),
    ],
)
def test_a_builder_that_is_declared_wrongly_says_how(tmp_path, bin, attributes, message):
    cls = fakes.plain_op(tmp_path / "src")
    wrong = type("TestedBuilder", (cls,), {"__module__": cls.__module__, **attributes})
    for act in (lambda: wrong().describe(), lambda: plan_of(wrong(), tmp_path)):
        with pytest.raises(BuilderError, match=re.escape(message)):
            act()


def test_a_missing_source_names_every_folder_that_was_searched(tmp_path, bin):
    cls = fakes.plain_op(tmp_path / "src", sources=["plain.cpp", "gone.cpp"])
    message = (
        "The op 'plain' names 'gone.cpp', which does not exist. Looked in:"
        f"\n  - {tmp_path}/src\n  - {roots.OPFORGE.path}\n"
        "Correct the name, or add the folder that holds it."
    )
    for act in (lambda: cls().describe(), lambda: plan_of(cls(), tmp_path)):
        with pytest.raises(SourceNotFoundError, match=re.escape(message)):
            act()


def test_a_missing_include_folder_is_named(tmp_path, bin):
    for folder in ("headers", str(tmp_path / "headers")):
        cls = fakes.plain_op(tmp_path / "src", include_dirs=[folder])
        with pytest.raises(SourceNotFoundError, match=re.escape(f"names {folder!r}, which does not exist")):
            plan_of(cls(), tmp_path)


def test_an_earlier_root_overrides_a_later_one(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        fakes.write(tmp_path / name, "b.cpp", "")
    fakes.write(tmp_path / "second", "c.cpp", "")
    places = [roots.KernelRoot(name, str(tmp_path / name)) for name in ("first", "second")]
    assert roots.locate("op", ["b.cpp", "c.cpp"], places) == (("first", "b.cpp"), ("second", "c.cpp"))


def test_an_absolute_name_is_placed_below_the_nearest_root(tmp_path):
    (tmp_path / "inner").mkdir()
    path = fakes.write(tmp_path / "inner", "a.cpp", "")
    places = [roots.KernelRoot("outer", str(tmp_path)), roots.KernelRoot("inner", str(tmp_path / "inner"))]
    assert roots.locate("op", [path], places) == (("inner", "a.cpp"),)
    assert roots.locate("op", [path], places[:1]) == (("outer", "inner/a.cpp"),)
    assert roots.locate("op", [path], []) == (("system", path[1:]),)
    with pytest.raises(SourceNotFoundError):
        roots.locate("op", [str(tmp_path / "gone.cpp")], places)


def test_a_package_that_is_not_installed_is_called_so():
    with pytest.raises(SourceNotFoundError, match=r"\(the package no_such_package_here is not installed\)"):
        roots.package_root("x", "no_such_package_here")
    with pytest.raises(SourceNotFoundError, match=r"names 'json/csrc', which does not exist"):
        roots.package_root("x", "json")


# -- whether it can be used --------------------------------------------------------------------------------------------


def test_an_op_for_another_device_is_not_compatible_and_says_so(tmp_path, bin):
    found = fakes.plain_op(tmp_path / "src", devices=["cuda"])("cpu").is_compatible()
    assert not found and str(found) == "it is an op for cuda, not for cpu"


def test_a_level_that_this_processor_lacks_is_a_reason(tmp_path, bin, monkeypatch):
    from opforge.builders import requirements

    monkeypatch.setattr(requirements, "cpu_level", lambda: "x86-64-v2")
    found = fakes.plain_op(tmp_path / "src")("cpu:x86-64-v3").is_compatible()
    assert found.reasons == ("it is built for x86-64-v3, and this processor offers x86-64-v2",)
    with pytest.raises(
        OpIncompatibleError, match=r"The op 'plain' cannot be used for cpu:x86-64-v3:\n  - it is built for"
    ):
        fakes.plain_op(tmp_path / "src")("cpu:x86-64-v3").load()


def test_a_machine_without_a_compiler_is_a_reason_not_an_exception(tmp_path, bin):
    (bin / "g++").unlink()
    os.environ["PATH"] = str(bin)
    found = fakes.plain_op(tmp_path / "src")().is_compatible()
    assert not found and "No C++ compiler was found" in str(found)


@pytest.mark.parametrize("harm", ["compiler", "source", "include", "cxx"])
def test_whatever_keeps_an_op_from_loading_is_a_reason_not_an_exception(tmp_path, bin, monkeypatch, harm):
    cls = fakes.plain_op(tmp_path / "src", include_dirs=["gone"] if harm == "include" else [])
    if harm == "compiler":
        fakes.compiler(bin, "g++", "exit 3")
    if harm == "source":
        (tmp_path / "src" / "plain.cpp").unlink()
    if harm == "cxx":
        monkeypatch.setenv("CXX", "/no/such/compiler")
    found = cls().is_compatible()
    assert not found and found.reasons


def test_a_compatible_op_has_no_reason(tmp_path, bin):
    found = fakes.plain_op(tmp_path / "src")().is_compatible()
    assert found and str(found) == "compatible" and found.reasons == ()


# -- ninja -------------------------------------------------------------------------------------------------------------


def test_awkward_names_reach_the_commands_unharmed(tmp_path):
    names = ["with space", "dollar$HOME", "colon:", "quote'\"", "ünïcode", "semi;colon", "star*"]
    steps = [
        Step(f"{number}.out", (), ("sh", "-c", 'printf %s "$1" > "$0"', f"{number}.out", name), name)
        for number, name in enumerate(names)
    ]
    ninja.write_build_file(str(tmp_path), steps)
    seen = []
    outcome = ninja.run(str(tmp_path), 2, lambda done, total, title: seen.append((done, total, title)))
    assert outcome.status == 0, outcome.output
    assert [(tmp_path / f"{number}.out").read_text() for number in range(len(names))] == names
    assert [(done, total) for done, total, _title in seen] == [(number + 1, len(names)) for number in range(len(names))]
    assert sorted(title for _done, _total, title in seen) == sorted(names)


def test_a_failed_command_is_explained_from_ninjas_real_output(tmp_path):
    failing = fakes.compiler(tmp_path, "g++", "echo 'x.cpp:3:4: error: bad' >&2; exit 1")
    steps = [Step("x.o", (), (failing, "-c", "x.cpp"), "compile x.cpp")]
    ninja.write_build_file(str(tmp_path), steps)
    outcome = ninja.run(str(tmp_path), 1)
    error = diagnostics.explain("x", outcome.status, outcome.output, "/log")
    assert str(error).startswith(f"x: compile x.cpp failed: x.cpp:3:4: error: bad\ncommand: {failing} -c x.cpp\n")


def test_the_environment_and_the_folder_are_left_alone(tmp_path):
    before, folder = dict(os.environ), os.getcwd()
    ninja.write_build_file(str(tmp_path), [Step("x", (), ("sh", "-c", "echo $LC_ALL $TMPDIR > x"), "x")])
    assert ninja.run(str(tmp_path), 1).status == 0
    assert (tmp_path / "x").read_text() == f"C {tmp_path}\n"
    assert dict(os.environ) == before and os.getcwd() == folder


def test_no_ninja_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainNotFoundError, match=re.escape("  - ninja on PATH\nInstall it: pip install ninja.")):
        ninja.find_ninja()


def test_a_compiler_for_another_system_says_so(tmp_path, bin):
    fakes.compiler(bin, "g++", ANSWERS.format(machine="arm64-apple-darwin23", include=tmp_path / "include"))
    objection = toolchain(tmp_path).objection("cpu", ("aarch64",))
    assert objection == f"{bin}/g++ builds for apple-darwin23, and this version builds libraries for Linux"


def test_a_compiler_that_has_just_been_installed_is_asked_again(tmp_path, bin):
    """Its stamp could stay as it is when it is replaced once more."""
    root = str(tmp_path / "store")
    prepare(root, frozenset({0, os.geteuid()}))
    host.HostToolchain(Layout(root), Disk()).identity()
    questions = asked(bin)
    host.HostToolchain(Layout(root), Disk()).identity()
    assert asked(bin) == 2 * questions


@pytest.mark.parametrize(("variable", "spelling"), [("LDFLAGS", "-B{}"), ("CXXFLAGS", "-B {}")])
def test_a_program_that_a_flag_names_is_part_of_the_compilers_identity(tmp_path, bin, monkeypatch, variable, spelling):
    """The fake compiler finds programs by COMPILER_PATH, as a real one does by -B."""
    before = toolchain(tmp_path).identity()
    folder = tmp_path / "other"
    folder.mkdir()
    fakes.compiler(folder, "as", "echo another assembler")
    monkeypatch.setenv(variable, spelling.format(folder))
    said = fakes.ANSWERS.replace("@VERSION@", "12.2")
    search = (
        'for word in "$@"; do case "$word" in'
        ' -B?*) COMPILER_PATH="${word#-B}";; -B) ;; /*) COMPILER_PATH="$word";; esac; done\n'
    )
    fakes.compiler(bin, "g++", f'echo "$@" >> "{bin}/asked"\n{search}{said}')
    after = toolchain(tmp_path).identity()
    changed = {name for name, value in after if dict(before).get(name) != value}
    assert "as sha256" in changed


def test_pythons_headers_are_found_where_sysconfig_says(tmp_path, monkeypatch):
    import sysconfig

    from opforge.builders import abis

    abis.python_include.cache_clear()
    try:
        assert abis.python_include() == os.path.realpath(sysconfig.get_path("include"))
        abis.python_include.cache_clear()
        monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
        monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / f"its-{name}"))
        assert abis.python_include() == str(tmp_path / "its-include"), "where no header lies at the usual place"
    finally:
        abis.python_include.cache_clear()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extra_cflags": "-O2 -g"}, "extra_cflags='-O2 -g'. Expected a list of strings, each a word of its own"),
        ({"extra_cflags": [None]}, r"extra_cflags=\[None\]. Expected a list"),
        ({"extra_ldflags": 3}, "extra_ldflags=3. Expected a list"),
        ({"extra_include_paths": [None]}, r"extra_include_paths=\[None\]. Expected a list"),
        ({"sources": None}, "sources=None. Expected a list"),
        ({"name": None}, "name=None. Expected an identifier of at most 200 bytes"),
        ({"name": "n" * 201}, "Expected an identifier of at most 200 bytes"),
        ({"name": "größe", "abi": "torch"}, "name='größe'. Expected ASCII: it is a Python module's"),
        ({"torch_target": 2.10, "abi": "torch-stable"}, 'torch_target=2.1. Expected "MAJOR.MINOR"'),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused(tmp_path, changes, message):
    fakes.plain_op(tmp_path)
    with pytest.raises(BuilderError, match=message):
        opforge.load(**{"name": "plain", "sources": [str(tmp_path / "plain.cpp")], **changes})


def test_a_string_is_no_list_of_flags(tmp_path):
    with pytest.raises(BuilderError, match=r"TestedBuilder: cxx_flags='-O2'. Expected a list of strings"):
        fakes.plain_op(tmp_path, cxx_flags="-O2")().describe()
