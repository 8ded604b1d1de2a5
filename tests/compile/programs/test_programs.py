"""Exported programs that bring their ops along: signed, checked before torch opens them, loaded without a compiler."""

from __future__ import annotations

import base64
import json
import os
import shutil
import struct
import zipfile

import pytest
from support import child_processes, sample_ops
from support.processes import forked_python

import opforge
from opforge.builders.declaration import machine
from opforge.cache.records.fetched_offer import FetchedOffer
from opforge.errors import ProgramError, SignatureError
from opforge.fast_path import library
from opforge.jits import features
from opforge.programs import form, load, origins, save
from opforge.programs.archive import Archive
from opforge.remote.signatures import keys, trust_file

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile
ELSEWHERE = """
import os, sys, torch, opforge
program = opforge.load_program(os.environ["FILE"])
print(program.module()(torch.tensor([-1.0, 2.0])).tolist(), torch.__file__)
from opforge.fast_path import library
((op, _),) = library.by_entry.values()
assert os.path.isfile(op.path), op.path
opforge.save_program(os.environ["FILE"] + ".again.pt2", program, signed=False)
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
    trust_file.write(trust_file.read()._replace(keys=(trust_file.TrustedKey(public, ("program:block*",)),)))
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
    def test_elsewhere_without_a_compiler_and_a_store(self, file, tmp_path):
        with zipfile.ZipFile(file) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        contents = [base64.b64decode(text) if name.endswith(".library") else text for name, text in members.items()]
        assert any(content.startswith(b"\x7fELF") for content in contents)
        where = os.path.dirname(torch.__file__).encode()
        assert not any(where in content for content in contents), "torch may lie elsewhere"
        (tmp_path / "empty").mkdir()
        env = {"PATH": str(tmp_path / "empty"), "OPFORGE_CACHE_DIR": str(tmp_path / "none"), "FILE": file}
        python = os.path.join(
            forked_python.commands(compiling=True), "python"
        )  # torch opens programs with its compiler
        out = child_processes.run_python(ELSEWHERE, python, timeout=250, env=env)
        assert out.startswith("[1.0, 3.0] ") and not (tmp_path / "none").exists()
        again = f"{file}.again.pt2"  # saved after it was loaded, where no store has its ops
        shutil.move(again, tmp_path / "again.pt2")
        program = opforge.load_program(str(tmp_path / "again.pt2"), unsigned=True)
        assert program.module()(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 3.0]

    @pytest.mark.long(
        "a process that imports another torch; the test above asserts that a program names no folder of it"
    )
    def test_with_torch_in_another_folder(self, file, tmp_path):
        (tmp_path / "site").mkdir()
        for name in ("torch", "torchgen"):
            package = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), name)
            (tmp_path / "site" / name).symlink_to(package)
        env = {"PATH": str(tmp_path), "OPFORGE_CACHE_DIR": str(tmp_path / "none"), "FILE": file}
        env["PYTHONPATH"] = f"{tmp_path}/site:{child_processes.environment()['PYTHONPATH']}"
        out = child_processes.run_python(ELSEWHERE, timeout=250, env=env)
        assert out.strip() == f"[1.0, 3.0] {tmp_path}/site/torch/__init__.py"

    def test_one_that_was_saved_with_an_op_of_which_a_look_up_was_remembered(
        self, exported, key, tmp_path, monkeypatch
    ):
        """The record that is remembered leaves out what no load needs."""
        op, program = exported
        short = {name: value for name, value in op.__entry__.record.items() if name not in ("inputs", "shims")}
        monkeypatch.setattr(op, "__entry__", op.__entry__._replace(record=short))
        path = str(tmp_path / "block.pt2")
        opforge.save_program(path, program)
        assert opforge.load_program(path).module()(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 3.0]

    @pytest.mark.long("four processes with torch")
    def test_each_of_four_processes_saves_what_the_next_one_opens(self, tmp_path):
        """As docs/programs.md has it: the op's look-up is remembered from the second process on."""
        name = sample_ops.unique_name("saved")
        (tmp_path / "source").mkdir()
        (tmp_path / "source" / "relu.cpp").write_text(sample_ops.STABLE_SOURCE.replace("@NAME@", name))
        code = """
import os, torch, opforge
if os.path.exists(os.environ["FILE"]):
    opforge.load_program(os.environ["FILE"], unsigned=True)
op = opforge.load(os.environ["NAME"], os.environ["SOURCE"], fakes={"relu": torch.empty_like})
class Model(torch.nn.Module):
    def forward(self, x): return op.relu(x) + 1
opforge.save_program(os.environ["FILE"], torch.export.export(Model(), (torch.ones(2),)), signed=False)
"""
        env = {"FILE": str(tmp_path / "block.pt2"), "NAME": name, "SOURCE": str(tmp_path / "source" / "relu.cpp")}
        env["OPFORGE_CACHE_DIR"] = str(tmp_path / "store")
        for _process in range(4):
            child_processes.run_python(code, timeout=250, env=env)

    def test_torch_opens_it_where_the_op_is_loaded(self, file):
        assert torch.export.load(file).module()(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 3.0]

    def test_an_op_that_is_loaded_already_is_used(self, file):
        assert opforge.load_program(file).module()(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 3.0]

    def test_its_ops_are_those_that_its_graph_calls(self, file, exported):
        with zipfile.ZipFile(file) as archive:
            libraries = [name for name in archive.namelist() if name.endswith(".library")]
        assert [name.rpartition("/")[2] for name in libraries] == [f"{exported[0].__entry__.key}.library"]


class TestNames:
    """A key that may sign one program cannot have another one loaded in its place."""

    def test_a_file_of_another_name_is_refused_unless_that_is_expected(self, file, tmp_path):
        other = shutil.copy(file, tmp_path / "block_other.pt2")
        with pytest.raises(SignatureError) as caught:
            opforge.load_program(str(other))
        expected = "it was signed as the program 'block', and 'block_other' is expected. Another program may be in its"
        assert expected in str(caught.value) and "pass name='block'" in str(caught.value)
        assert opforge.load_program(str(other), name="block") is not None
        with pytest.raises(SignatureError, match="'block_x' is expected"):
            opforge.load_program(file, name="block_x")

    def test_the_name_of_the_file_is_the_same_for_both(self, exported, key, tmp_path):
        path = str(tmp_path / "block-é 1.v2.pt2")
        opforge.save_program(path, exported[1])
        assert opforge.load_program(path) is not None


class TestRefused:
    def refused(self, path, error=ProgramError, **options):
        with pytest.raises(error) as caught:
            opforge.load_program(path, **options)
        return str(caught.value).removeprefix(f"{path}: ").removeprefix(f"{path} is rejected: ")

    def test_a_changed_part(self, file, monkeypatch):
        monkeypatch.setattr(torch.export, "load", lambda *_: pytest.fail("torch must not open it"))
        with zipfile.ZipFile(file) as archive:
            size = archive.getinfo("block/models/model.json".replace("block", archive.namelist()[0].split("/")[0]))
        changed(file, "models/model.json", b"{" + b" " * (size.file_size - 2) + b"}")
        assert self.refused(file).startswith(
            "the digest of models/model.json differs from that in its statement. Get it"
        )

    def test_a_part_of_another_size_before_anything_is_written(self, file, monkeypatch):
        monkeypatch.setattr(load, "_copy", lambda *_: pytest.fail("nothing must be written"))
        changed(file, "models/model.json", b"{}")
        assert self.refused(file).startswith("models/model.json has 2 bytes, and ")

    def test_an_op_whose_library_is_missing(self, exported, key, tmp_path, monkeypatch):
        path = str(tmp_path / "block.pt2")
        monkeypatch.setattr(save, "_members", lambda _entries: {})
        opforge.save_program(path, exported[1])
        monkeypatch.setattr(library, "by_entry", {})
        expected = f"extra/opforge/{exported[0].__entry__.key}.library is missing."
        assert self.refused(path).startswith(expected)

    def test_what_torch_cannot_open(self, file, monkeypatch):
        def fails(_path):
            raise RuntimeError("no such op")

        monkeypatch.setattr(torch.export, "load", fails)
        expected = f"torch {torch.__version__} cannot open it (RuntimeError: no such op). Get it again"
        assert self.refused(file).startswith(expected)

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
        trust_file.write(trust_file.read()._replace(keys=()))
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
            ProgramError, match=r"is not an op in torch\.ops that opforge has loaded\. Load it with opforge"
        ):
            opforge.save_program(str(tmp_path / "block.pt2"), exported[1], ops=[torch.relu])

    def test_an_op_that_was_edited_in_this_process(self, exported, tmp_path, key, shared_store, monkeypatch):
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(shared_store))
        name = exported[0].__name__
        (tmp_path / "relu.cpp").write_text("// edited\n" + sample_ops.STABLE_SOURCE.replace("@NAME@", name))
        second = opforge.load(name, str(tmp_path / "relu.cpp"), fakes={"relu": torch.empty_like})

        class Model(torch.nn.Module):
            def forward(self, x):
                return second.relu(x) + 1

        program = torch.export.export(Model(), (torch.ones(2),))
        with pytest.raises(ProgramError) as caught:
            opforge.save_program(str(tmp_path / "block.pt2"), program)
        expected = f"its op {name!r} was edited in this process, and no other one knows torch.ops.{name}_"
        assert expected in str(caught.value) and "Export and save it in a process that has loaded" in str(caught.value)
        assert not list(tmp_path.glob("*.pt2*"))

    @pytest.mark.parametrize("is_noted", [True, False])
    def test_an_op_that_was_fetched_is_not_signed(self, exported, tmp_path, key, monkeypatch, is_noted):
        op, program = exported
        area, record = tmp_path / "store" / "v2", op.__entry__.record
        folder = area / "entries" / op.__entry__.key
        shutil.copytree(op.__entry__.folder, folder)
        (folder / library.BUILD).unlink()
        if is_noted:
            note = area / "fetched" / record["description"] / folder.name
            note.parent.mkdir(parents=True)
            note.write_bytes(FetchedOffer("https://ops.example.org", "{}", (), "lab").to_bytes())
        monkeypatch.setattr(op, "__entry__", op.__entry__._replace(folder=str(folder)))
        path = str(tmp_path / "block.pt2")
        with pytest.raises(ProgramError) as caught:
            opforge.save_program(path, program)
        place = "https://ops.example.org" if is_noted else "a remote or a layer"
        expected = f"{path}: its op {record['op']!r} came from {place}, and was not made here. Build it here"
        assert str(caught.value).startswith(expected) and "or pass signed=False" in str(caught.value)
        assert not os.path.exists(path)
        opforge.save_program(path, program, signed=False)

    @pytest.mark.parametrize("signer", ["ci", "lab", None])
    def test_of_what_another_program_brought_ones_own_alone_is_signed(
        self, exported, tmp_path, key, monkeypatch, signer
    ):
        op, program = exported
        lab = keys.create("lab")
        trust_file.write(
            trust_file.read()._replace(keys=tuple(trust_file.TrustedKey(one, ("program:*",)) for one in (key, lab)))
        )
        brought, path = str(tmp_path / "brought.pt2"), str(tmp_path / "block.pt2")
        with monkeypatch.context() as patch:
            patch.setattr(keys, "signer", lambda signer_of=keys.signer: signer_of(signer or "ci"))
            opforge.save_program(brought, program, signed=bool(signer))
        loaded = opforge.load_program(brought, unsigned=not signer)
        monkeypatch.setattr(keys, "signer", lambda signer_of=keys.signer: signer_of("ci"))
        monkeypatch.setattr(origins, "_entries", {op.__entry__.key: origins._programs[loaded]})  # as in a new process
        problems = [f"its op {op.__name__!r}", "the program"]
        for problem, saved in zip(problems, (program, loaded), strict=True):
            if signer == "ci":
                opforge.save_program(path, saved)
                continue
            with pytest.raises(ProgramError, match=f"{problem} came from {brought}, which this key has not signed"):
                opforge.save_program(path, saved)
            opforge.save_program(path, saved, signed=False)

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
            archive.writestr(f"{name.partition('/')[0]}/data/aotinductor/model/model.so", b"a library")
        path = str(tmp_path / "block_aoti.pt2")
        opforge.save_program(path, source)
        return path

    def test_it_is_opened_where_it_was_compiled(self, package):
        assert opforge.load_program(package) == "opened program.pt2"

    def test_one_without_a_library_or_with_a_statement_is_not_saved(self, file, exported, key, tmp_path):
        path = str(tmp_path / "block_aoti.pt2")
        torch.export.save(exported[1], str(tmp_path / "plain.pt2"))
        with pytest.raises(ProgramError, match="it was not saved: it has no library of AOTInductor"):
            opforge.save_program(path, str(tmp_path / "plain.pt2"))
        with pytest.raises(ProgramError, match="extra/opforge/statement is in it already: expected a file that torch"):
            opforge.save_program(path, file)

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
        monkeypatch.setattr(features, "features", lambda: ())

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
        monkeypatch.setattr(features, "features", lambda: ("sse2",))
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


class TestForms:
    """Files in which two readers could find other members."""

    @pytest.fixture
    def plain(self, tmp_path):
        """Two members, and the bytes of their file."""
        self.path = tmp_path / "plain.pt2"
        with zipfile.ZipFile(self.path, "w") as archive:
            archive.writestr("root/one", b"1" * 100)
            archive.writestr("root/two", b"2" * 100)
        return bytearray(self.path.read_bytes())

    def refused(self, data):
        self.path.write_bytes(data)
        with pytest.raises(ValueError) as caught:
            Archive(str(self.path))
        return str(caught.value)

    def test_a_plain_one_is_read(self, plain):
        with Archive(str(self.path)) as archive:
            assert archive.root == "root/" and [*archive.members] == ["one", "two"]
            assert archive.read("two", 100) == b"2" * 100
            with pytest.raises(ValueError, match="two has 100 bytes, and at most 99 are read"):
                archive.read("two", 99)

    def test_another_name_size_method_or_flag_before_a_member(self, plain):
        expected = "'root/two' is another member than the list at the end of the file says"
        at = plain.index(b"PK\x03\x04", 4)
        for offset, value in ((30, b"x"), (18, b"\x63"), (22, b"\x63"), (8, b"\x08"), (6, b"\x01"), (0, b"X")):
            data = plain.copy()
            data[at + offset : at + offset + len(value)] = value
            assert self.refused(data) == expected, offset

    def test_an_encrypted_one(self, plain):
        for start in (b"PK\x03\x04", b"PK\x01\x02"):
            at = plain.index(start)
            plain[at + (6 if start.endswith(b"\x04") else 8)] |= 1
        assert self.refused(plain) == "'root/one' is encrypted, or has another flag that torch does not set"

    def test_many_members_that_are_one(self, plain):
        """A small file would be unpacked to a large one."""
        first, second = plain.index(b"PK\x01\x02"), plain.rindex(b"PK\x01\x02")
        plain[second + 42 : second + 46] = plain[first + 42 : first + 46]
        assert self.refused(plain) == "'root/two' lies in another member, or behind other bytes than members"

    def test_something_before_the_first_member_or_after_the_last(self, plain):
        assert "lies in another member, or behind other bytes than members" in self.refused(b"#!/bin/sh\n" + plain)
        at = plain.rindex(b"PK\x05\x06")
        commented = plain[: at + 20] + struct.pack("<H", 3) + b"abc"
        assert self.refused(commented).startswith("it is not a program that torch has saved")

    @pytest.mark.parametrize("name", ["root/../out", "root//out", "root/a\\b", "root/" + "x" * 500, "root/"])
    def test_a_name_that_is_no_path_inside(self, tmp_path, name):
        self.path = tmp_path / "named.pt2"
        with zipfile.ZipFile(self.path, "w") as archive:
            archive.writestr(name, b"1")
        assert "a package" not in self.refused(self.path.read_bytes())

    def test_one_that_needs_a_version_of_zip_that_is_not_known(self, plain):
        at = plain.index(b"PK\x01\x02")
        plain[at + 6] = 99
        assert self.refused(plain) == "zip file version 9.9"

    def test_a_file_that_is_cut_off(self, plain):
        assert self.refused(plain[:100]) == "File is not a zip file"


def test_the_kind_is_listed(file):
    with Archive(file) as archive:
        data = form.signed_in(archive).data
    stated = save.statements.parse_as(data, "program")
    offer = form.PROGRAM.offer(stated)
    assert (offer.name, offer.label, offer.target) == ("block", "exported", f"torch {torch.__version__}")
    assert json.loads(data)["trees"] == [] and offer.subject == "program:block"
