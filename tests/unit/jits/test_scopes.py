"""Scopes: labels, adapters of other packages, a whole job, and what differs where nothing is found."""

from __future__ import annotations

import json
import logging
import os
import sys
import types
from types import MappingProxyType

import pytest
from click.testing import CliRunner
from support import child_processes, paths, text_files
from support.jits import pages

import opforge
from opforge.cache.current_store import current_store, writable_store
from opforge.cli import group
from opforge.errors import SettingError
from opforge.jits import adapter, store
from opforge.jits import kind as jit_kind
from opforge.jits.adapter import Adapter
from opforge.jits.explain import explain
from opforge.jits.page import PageTopic
from opforge.testing import JitContract
from opforge.testing.jits import Edit

MODULE = "toy_jit"
TOY = """\
import os
from opforge.jits.adapter import Adapter


class Toy(Adapter):
    name, module, package, versions, holds, carries = "toy", "toy_jit", "toy-jit", ("1.0",), "gpu", "code"

    def version(self):
        return os.environ.get("TOY_VERSION", "1.0.3")

    def install(self):
        import toy_jit

        original = toy_jit.compiled
        toy_jit.compiled = lambda text: self.entries.made_once(text, text, lambda: {"code": original(text)})["code"]
        return lambda: setattr(toy_jit, "compiled", original)


TOY = Toy()
"""
JIT = """\
def compiled(text):
    print("compiling", text)
    return text.encode()
"""


@pytest.fixture
def toy(tmp_path, own_store):
    """A JIT of another package with its adapter, for other processes; returns the folder."""
    text_files.write(tmp_path / "site", "toy_jit.py", JIT)
    text_files.write(tmp_path / "site", "toy_adapter.py", TOY)
    info = tmp_path / "site" / "toy_jit-1.0.3.dist-info"
    text_files.write(info, "METADATA", "Metadata-Version: 2.1\nName: toy-jit\nVersion: 1.0.3\n")
    text_files.write(info, "entry_points.txt", "[opforge.jits]\ntoy = toy_adapter:TOY\n")
    return tmp_path / "site"


def run(code, site, **env):
    code = f"import sys; sys.path.insert(0, {str(site)!r})\n{code}"
    process = child_processes.start_python(code, env=env)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.splitlines(), err


USE = """
import opforge
with opforge.warm("label", jits=["toy"]) as scope:
    import toy_jit
    print(toy_jit.compiled("a"))
print(toy_jit.compiled.__name__, scope.hits, scope.compiled)
"""


def test_the_adapter_of_another_package_begins_when_its_jit_is_imported(toy):
    assert run(USE, toy)[0] == ["compiling a", "b'a'", "compiled {'toy': 0} {'toy': ('a',)}"]
    assert run(USE, toy)[0] == ["b'a'", "compiled {'toy': 1} {'toy': ()}"]


def test_a_release_that_the_adapter_does_not_know_is_left_alone(toy):
    out, err = run(USE, toy, TOY_VERSION="2.0")
    assert out == ["compiling a", "b'a'", "compiled {} {}"]
    assert "jit:toy/label: toy-jit 2.0: its compiled code is neither found nor kept: opforge's adapter was tried" in err


@pytest.mark.parametrize(("setting", "is_kept"), [("label", True), ("label:toy", True), ("label:triton", False)])
def test_a_setting_begins_a_scope_for_a_whole_job(toy, setting, is_kept):
    code = "import opforge\nimport toy_jit\nprint(toy_jit.compiled('a'))"
    assert run(code, toy, OPFORGE_WARM=setting)[0] == ["compiling a", "b'a'"]
    again = run(code, toy, OPFORGE_WARM=setting)[0]
    assert again == (["b'a'"] if is_kept else ["compiling a", "b'a'"])


def test_a_setting_that_cannot_be_one_is_a_warning(toy):
    out, err = run("import opforge; print(1)", toy, OPFORGE_WARM="a/b")
    assert out == ["1"] and "OPFORGE_WARM: name='a/b' cannot be used" in err


def test_without_the_setting_the_import_brings_nothing(own_store):
    out, _err = run("import opforge; print([name for name in sys.modules if 'jits' in name])", "/nowhere")
    assert out == ["[]"]


@pytest.mark.parametrize(
    ("name", "jits", "text"),
    [
        ("a/b", None, "up to 100 letters, digits"),
        (123, None, "name=123 cannot be used: expected up to 100 letters, digits"),
        ("label", ["warq"], "some of triton, triton-host, "),
        ("label", "warq", "expected a list of adapters, such as "),
    ],
)
def test_a_name_that_there_cannot_be(name, jits, text, own_store):
    with pytest.raises(SettingError, match=text) as failed:
        opforge.warm(name, jits=jits)
    assert any(wrong in str(failed.value) for wrong in ("warq", "a/b", "123"))


MAIN = """\
import os, sys
sys.path.insert(0, os.getcwd())
from other import VALUE


def result():
    import toy_jit

    return toy_jit.compiled("a").decode() + {shown}
"""


class _Contract(JitContract):
    jit = "toy"
    edits = MappingProxyType({"callee": Edit("other.py", "1", "2")})

    def __init__(self, site, compiled):
        text_files.write(site, "toy_jit.py", f"def compiled(text):\n    import other\n    return {compiled}.encode()\n")
        self.files = {"main.py": MAIN.format(shown="str(VALUE)"), "other.py": "VALUE = 1\n"}
        self.environment = {"PYTHONPATH": f"{site}{os.pathsep}{paths.SOURCE_TREE}"}


def test_the_contract_passes_for_a_jit_whose_key_has_all_that_it_compiles(toy):
    _Contract(toy, "text").test_an_edit_is_a_miss()


def test_the_contract_finds_a_jit_whose_key_lacks_what_a_function_calls(toy):
    """As numba's: its stamp is of one file."""
    forgetful = _Contract(toy, "(text + str(other.VALUE))")
    forgetful.files["main.py"] = MAIN.format(shown="''")
    with pytest.raises(AssertionError, match="after an edit of the callee it is still 'a1'"):
        forgetful.test_an_edit_is_a_miss()


class _Toy(Adapter):
    name, module, package, versions, holds, carries = (
        "toy",
        MODULE,
        "pytest",
        ("0", "1", "8", "9"),
        "gpu",
        pages.CARRIES,
    )

    def install(self):
        raise AttributeError("toy_jit has no compiled")


def test_an_adapter_that_cannot_be_installed_costs_a_warning(own_store, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, MODULE, types.ModuleType(MODULE))
    monkeypatch.setattr(adapter, "every", lambda: {"toy": f"{__name__}:_TOY"})
    monkeypatch.setattr(adapter, "at", lambda path: toy_adapter)
    toy_adapter = _Toy()
    with caplog.at_level(logging.WARNING, "opforge"), opforge.warm("label", jits=["toy"]):
        assert not toy_adapter.active
    assert "its compiled code is neither found nor kept: toy_jit has no compiled" in caplog.text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("TOY = Toy", "is <class 'toy_adapter.Toy'>: expected an object of a subclass of opforge.jits.adapter.Adapter"),
        ("del Toy.module", "its module is None: expected a text"),
        ("Toy.versions = '1.0'", "its versions are '1.0': expected a tuple of releases, such as ('2.1',)"),
        ("Toy.holds = 'cpu'", "its holds is 'cpu': expected one of host, pickle, gpu"),
        ("Toy.name = 'Toy'", "its name is 'Toy': expected lower-case letters, digits and '-'"),
        ("Toy.name = 'other'", "the adapter at toy_adapter:TOY is named 'other'"),
    ],
)
def test_an_adapter_that_cannot_be_one_costs_a_warning(toy, change, problem):
    text_files.write(toy, "toy_adapter.py", f"{TOY}{change}\n")
    use = USE.partition("print(toy_jit.compiled.__name__")[0]
    for code in (use, use.replace(', jits=["toy"]', "")):
        out, err = run(code, toy)
        assert out == ["compiling a", "b'a'"] and "jit:toy cannot be used: TypeError: " in err and problem in err


class TestExplain:
    @pytest.fixture(autouse=True)
    def known(self, monkeypatch):
        toy_adapter = _Toy()
        monkeypatch.setattr(toy_adapter, "fingerprint", lambda: {"toy": "1", "python": "cp311"})
        monkeypatch.setattr(adapter, "every", lambda: {"toy": "toy"})
        monkeypatch.setattr(adapter, "at", lambda path: toy_adapter)

    def explained(self, *arguments, code):
        outcome = CliRunner().invoke(group, ["cache", "explain", *arguments])
        assert outcome.exit_code == code, outcome.output
        return outcome.output

    def test_it_names_the_part_of_the_fingerprint_that_differs(self, own_store):
        pages.keep({"key": {"code": b""}}, "label", python="cp312")
        output = self.explained("jit:toy/label", code=1)
        assert output.startswith("differs: ") and output.endswith("(1 entry)\n  python: cp312, and here cp311\n")

    def test_it_says_what_is_used(self, own_store):
        pages.keep({"key": {"code": b""}}, "label", python="cp311")
        assert self.explained("jit:toy/label", code=0).startswith("used here: ")
        assert json.loads(self.explained("jit:toy/label", "--json", code=0))[0]["differs"] == []

    def test_nothing_is_stored(self, own_store):
        assert "nothing is stored. opforge.warm('label') keeps" in self.explained("jit:toy/label", code=1)

    def test_compiled_graphs_are_named_by_the_kind_that_has_them(self, own_store):
        assert "a kind that is gone. Expected jit:inductor/pair." in self.explained("compiled:pair", code=2)

    def test_a_glob_and_the_label_of_one_page_are_understood(self, own_store):
        pages.keep({"key": {"code": b""}}, "label", python="cp311")
        (one,) = jit_kind.JIT.stored(current_store().layout)
        assert self.explained("jit:toy/*", code=0) == self.explained(f"jit:toy/label@{one.label}", code=0)

    def test_a_label_that_is_similar_is_named(self, own_store):
        pages.keep({"key": {"code": b""}}, "label", python="cp311")
        assert "Did you mean jit:toy/label?" in self.explained("jit:toy/labell", code=1)

    def test_a_page_that_is_damaged_is_not_used(self, own_store):
        pages.keep({"key": {"code": b""}}, "label", python="cp311")
        (one,) = jit_kind.JIT.stored(current_store().layout)
        text_files.write(one.path, "tree/index.json", "{}")
        assert "its list is not the one that its digest names" in self.explained("jit:toy/label", code=1)

    def test_a_name_of_no_adapter(self, own_store):
        assert "is not an adapter's label. Expected jit:ADAPTER/LABEL, of toy" in self.explained("jit:x/y", code=2)


@pytest.mark.parametrize("name", adapter.BUILT_IN)
def test_each_part_of_an_adapters_fingerprint_is_explained(own_store, name):
    one = adapter.at(adapter.BUILT_IN[name])
    here, idle = one.fingerprint(), one.version_problem()
    assert len(here) > 3 and bool(idle) == (not one.version())
    for part in here:
        where = PageTopic(name, "label", {**here, part: "another"})
        store.write(writable_store(), where, {"key": {"code": b""}}, {"holds": one.holds, "features": []})
    among = current_store()
    differs = [explained.differs for explained in explain(among, jit_kind.JIT.stored(among.layout))]
    changed = {f"{part}: another, and here {value or 'nothing'}" for part, value in here.items()}
    assert {*differs} == {((idle, text) if idle else (text,)) for text in changed}


def test_an_adapter_that_does_nothing_says_so_first(own_store, monkeypatch):
    """Also where all else is the same: a page that another adapter's release has made."""
    one = adapter.at(adapter.BUILT_IN["tvm-ffi"])
    monkeypatch.setattr(one, "version", lambda: "7.0")
    where = PageTopic("tvm-ffi", "label", one.fingerprint())
    store.write(writable_store(), where, {"key": {"code": b""}}, {"holds": one.holds, "features": []})
    outcome = CliRunner().invoke(group, ["cache", "explain", "jit:tvm-ffi/label"])
    assert outcome.exit_code == 1 and outcome.output.startswith("differs: ")
    assert "apache-tvm-ffi 7.0: its compiled code is neither found nor kept: opforge's adapter was" in outcome.output


def test_compiled_graphs_that_are_not_stored_are_kept_by_their_own_scope(own_store):
    outcome = CliRunner().invoke(group, ["cache", "explain", "jit:inductor/label"])
    assert outcome.exit_code == 1
    assert "nothing is stored. opforge.compiled('label') keeps what is compiled" in outcome.output
