"""Exported programs that bring their ops along: signed, checked before torch opens them, loaded without a compiler."""

from __future__ import annotations

import json
import os
import shutil
import zipfile

import pytest
from support import child_processes, sample_ops

import opforge
from opforge.builders.declaration import machine
from opforge.errors import ProgramError, SignatureError
from opforge.graphs import topic
from opforge.programs import form, save
from opforge.remote.signatures import keys, trust

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile
ELSEWHERE = """
import os, sys, torch, opforge
program = opforge.load_program(os.environ["FILE"])
print(program.module()(torch.tensor([-1.0, 2.0])).tolist(), torch.__file__)
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory, shared_store):
    """An op in torch.ops, and a program that calls it."""
    name = sample_ops.unique_name("exported")
    folder = tmp_path_factory.mktemp("op")
    (folder / "relu.cpp").write_text(sample_ops.STABLE_SOURCE.replace("@NAME@", name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(shared_store))
        op = opforge.load(name, str(folder / "relu.cpp"), fakes={"relu": torch.empty_like})

    class Model(torch.nn.Module):
        def forward(self, x):
            return op.relu(x) + 1

    return op, torch.export.export(Model(), (torch.ones(2),))


@pytest.fixture
def key(own_store):
    """A key that may sign programs whose names begin with `block`."""
    public = keys.create("ci")
    trust.write(trust.read()._replace(keys=(trust.TrustedKey(public, ("program:block*",)),)))
    return public


@pytest.fixture
def file(exported, key, tmp_path):
    path = str(tmp_path / "block.pt2")
    opforge.save_program(path, exported[1])
    return path


def changed(path, name, content):
    """Writes a file anew with another content of one member; None leaves it out."""
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    (full,) = (member for member in members if member.endswith(name)) if content is None else [_named(members, name)]
    members[full] = content
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            if data is not None:
                archive.writestr(member, data)


def _named(members, name):
    found = [member for member in members if member.endswith(name)]
    return found[0] if found else f"{next(iter(members)).partition('/')[0]}/{name}"


class TestLoaded:
    def test_elsewhere_without_a_compiler_a_store_and_with_torch_in_another_folder(self, file, tmp_path):
        (tmp_path / "site").mkdir()
        for name in ("torch", "torchgen"):
            package = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), name)
            (tmp_path / "site" / name).symlink_to(package)
        env = {"PATH": str(tmp_path), "OPFORGE_CACHE_DIR": str(tmp_path / "none"), "FILE": file}
        env["PYTHONPATH"] = f"{tmp_path}/site:{child_processes.environment()['PYTHONPATH']}"
        out = child_processes.run_python(ELSEWHERE, timeout=250, env=env)
        assert out.strip() == f"[1.0, 3.0] {tmp_path}/site/torch/__init__.py"
        assert not (tmp_path / "none").exists()

    def test_torch_opens_it_where_the_op_is_loaded(self, file):
        assert torch.export.load(file).module()(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 3.0]

    def test_an_op_that_is_loaded_already_is_used(self, file):
        assert opforge.load_program(file).module()(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 3.0]

    def test_its_ops_are_those_that_its_graph_calls(self, file, exported):
        with zipfile.ZipFile(file) as archive:
            libraries = [name for name in archive.namelist() if name.endswith(".library")]
        assert [name.rpartition("/")[2] for name in libraries] == [f"{exported[0].__entry__.key}.library"]


class TestRefused:
    def refused(self, path, error=ProgramError, **options):
        with pytest.raises(error) as caught:
            opforge.load_program(path, **options)
        return str(caught.value).removeprefix(f"{path}: ").removeprefix(f"{path} is rejected: ")

    def test_a_changed_part(self, file, monkeypatch):
        monkeypatch.setattr(torch.export, "load", lambda *_: pytest.fail("torch must not open it"))
        changed(file, "models/model.json", b"{}")
        assert self.refused(file).startswith(
            "the digest of models/model.json differs from that in its statement. Get it"
        )

    def test_a_part_more_and_a_part_less(self, file):
        changed(file, "extra/more", b"x")
        assert self.refused(file).startswith("extra/more is not in its statement.")
        changed(file, "extra/more", None)
        changed(file, "models/model.json", None)
        assert self.refused(file).startswith("models/model.json is in its statement.")

    def test_no_signature(self, exported, tmp_path, key):
        path = str(tmp_path / "block.pt2")
        opforge.save_program(path, exported[1], signed=False)
        assert self.refused(path, SignatureError).startswith(
            "it has no signature. Have it signed, or pass unsigned=True"
        )
        assert opforge.load_program(path, unsigned=True) is not None

    def test_a_key_for_other_names(self, exported, tmp_path, key):
        path = str(tmp_path / "other.pt2")
        opforge.save_program(path, exported[1])
        reason = self.refused(path, SignatureError)
        assert reason.startswith("no key that signed it may sign program:other: ci may sign program:block*")

    def test_a_statement_of_another_key(self, file):
        trust.write(trust.read()._replace(keys=()))
        assert self.refused(file, SignatureError).startswith("the key ci is not in the trust file")

    def test_a_file_of_torch_alone(self, exported, tmp_path, key):
        path = str(tmp_path / "block.pt2")
        torch.export.save(exported[1], path)
        assert self.refused(path) == "it has no statement of its digests. Save it with opforge.save_program."

    def test_what_is_no_file_of_torch(self, tmp_path, key):
        path = tmp_path / "block.pt2"
        path.write_bytes(b"nonsense")
        assert self.refused(str(path)).startswith("File is not a zip file.")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a/b", "x" * 100)
        assert self.refused(str(path)).startswith("'a/b' is compressed: torch compresses nothing.")
        path.unlink()
        assert "No such file or directory" in self.refused(str(path))

    def test_an_op_that_opforge_has_not_loaded(self, exported, tmp_path, key):
        with pytest.raises(
            ProgramError, match=r"is no op in torch\.ops that opforge has loaded\. Load it with opforge"
        ):
            opforge.save_program(str(tmp_path / "block.pt2"), exported[1], ops=[torch.relu])

    def test_a_name_that_is_none(self, exported, tmp_path, key):
        with pytest.raises(ProgramError, match=r"its name 'a/b' cannot be one\. Use up to 100 letters"):
            opforge.save_program(str(tmp_path / "block.pt2"), exported[1], name="a/b")
        assert not list(tmp_path.glob("*.pt2*"))


class TestAotInductor:
    """What refuses a package needs none that was compiled: torch is asked last. A real one is in a long test."""

    @pytest.fixture
    def package(self, file, key, tmp_path, monkeypatch):
        monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda path: f"opened {os.path.basename(path)}")
        source = str(tmp_path / "compiled.pt2")
        shutil.copy(file, source)
        with zipfile.ZipFile(source) as archive:
            members = {member.filename: archive.read(member) for member in archive.infolist()}
        with zipfile.ZipFile(source, "w") as archive:
            for name, content in members.items():
                if "opforge" not in name:
                    archive.writestr(name, content)
        path = str(tmp_path / "block_aoti.pt2")
        opforge.save_program(path, source)
        return path

    def test_it_is_opened_where_it_was_compiled(self, package):
        assert opforge.load_program(package) == "opened program.pt2"

    @pytest.fixture
    def elsewhere(self, monkeypatch):
        """Makes this another machine."""

        def change(**changes):
            other = machine.this_machine()._replace(**changes)
            monkeypatch.setattr(machine, "this_machine", lambda: other)

        return change

    @pytest.fixture
    def no_features(self, monkeypatch):
        """A machine that does not say which instructions its processor has."""
        monkeypatch.setattr(topic, "features", lambda: ())

    def test_another_torch_is_refused(self, package, elsewhere):
        elsewhere(torch="2.99")
        expected = r"it was compiled with torch 2\.\d+.*, and this is torch 2\.99\. Compile it on a machine"
        with pytest.raises(ProgramError, match=expected):
            opforge.load_program(package)

    def test_a_processor_of_another_level_with_all_its_instructions_opens_it(self, package, elsewhere):
        elsewhere(level="x86-64-v9")
        assert opforge.load_program(package) == "opened program.pt2"

    def test_levels_count_where_instructions_are_not_known(self, no_features, package, elsewhere):
        assert opforge.load_program(package) == "opened program.pt2"
        elsewhere(level="x86-64-v9")
        expected = r"it was compiled for .*, and this processor offers x86-64-v9\. Compile it on"
        with pytest.raises(ProgramError, match=expected):
            opforge.load_program(package)

    def test_a_processor_with_less_is_refused(self, package, monkeypatch):
        monkeypatch.setattr(topic, "features", lambda: ("sse2",))
        with pytest.raises(
            ProgramError, match=r"the processor lacks .* and more\. Compile it on a machine such as this"
        ):
            opforge.load_program(package)

    @pytest.mark.filterwarnings("ignore:`torch.jit.script", "ignore::FutureWarning")
    @pytest.mark.long("takes 30 s")
    def test_a_real_package(self, exported, key, tmp_path):
        compiled = torch._inductor.aoti_compile_and_package(exported[1], package_path=str(tmp_path / "compiled.pt2"))
        path = str(tmp_path / "block_real.pt2")
        opforge.save_program(path, compiled, ops=[exported[0]])
        assert opforge.load_program(path)(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 3.0]


def test_the_kind_is_listed(file):
    with zipfile.ZipFile(file) as archive:
        name = f"{form.root_of(archive)}{save.EXTRA}{form.STATEMENT}"
        data = save.statements.split_file(archive.read(name)).data
    stated = save.statements.parse_as(data, "program")
    shown = form.ProgramKind().shown(stated)
    assert (shown.name, shown.label, shown.target) == ("block", "exported", f"torch {torch.__version__}")
    assert json.loads(data)["trees"] == [] and form.ProgramKind().subject(stated) == "block"
