"""Reading containers of device code byte by byte, and the notes about what cannot be read."""

from __future__ import annotations

import os
import struct

import pytest
from click.testing import CliRunner
from support import text_files
from support.tiers import TESTS

from opforge.builders.inspection import cuobjdump, fatbin, shims
from opforge.builders.inspection.examine import examine
from opforge.builders.inspection.reader import FileFormatError, Reader
from opforge.cli.inspect import command

CUBIN = f"{TESTS}/fuzz/corpus/inspection/cubin/sm_80.cubin"
PTX = b".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry add() { ret; }\n"


def part(kind, arch, body, flags=0x11, compressed=0):
    """Returns the bytes of one part of a fatbin."""
    head = fatbin.PART.pack(kind, 0x101, 64, len(body), compressed, 0, 0, 9, arch, 0, 0, flags)
    return head.ljust(64, b"\0") + body


def container(*parts):
    """Returns the bytes of a fatbin."""
    content = b"".join(parts)
    return fatbin.HEADER.pack(0xBA55ED50, 1, 16, len(content)) + content


def code_of(image):
    return image.code.content(0, len(image.code), "the code")


def test_every_part_of_every_container_is_found():
    section = (
        container(part(1, 90, PTX))
        + b"\0" * 8
        + container(part(2, 100, b"\x7fELFx", 0x20_0011), part(2, 90, b"zz", 0x10_8011, 2))
    )
    images = fatbin.cuda_images(Reader(section))
    assert [image[:3] for image in images] == [
        ("PTX", "compute_90", len(PTX)),
        ("SASS", "sm_100f", 5),
        ("SASS", "sm_90a", 2),
    ]
    assert code_of(images[0]) == PTX and code_of(images[1]) == b"\x7fELFx"
    assert images[2].code is None and images[2].compression == "zstd"
    assert fatbin.cuda_images(Reader(container(part(1, 75, b"zz", 0x2011, 2))))[0].compression == "lz4"


def test_a_device_file_is_found_at_the_beginning_of_a_section_and_behind_other_bytes():
    with open(CUBIN, "rb") as file:
        cubin = file.read()
    images = fatbin.embedded(Reader(cubin + b"\0" * 8 + cubin))
    assert [image[:2] for image in images] == [("SASS", "sm_80")] * 2
    assert all(code_of(image) == cubin for image in images)


@pytest.mark.parametrize("length", [8, 30, 100])
def test_a_truncated_container_is_an_error(length):
    with pytest.raises(FileFormatError, match=r"is damaged: .* would end at byte \d+, beyond its \d+ bytes"):
        fatbin.cuda_images(Reader(container(part(1, 90, PTX))[:length]))


def test_compressed_code_without_cuobjdump_is_noted_and_not_guessed(tmp_path, monkeypatch):
    monkeypatch.setattr(cuobjdump, "find_cuobjdump", lambda: None)
    path = tmp_path / "a.fatbin"
    path.write_bytes(container(part(2, 90, b"zz", 0x8011, 2)))
    report = examine(str(path))
    assert report["kind"] == "fatbin" and report["kernels"] == []
    assert report["images"] == [{"kind": "SASS", "arch": "sm_90", "size": 2, "compression": "zstd", "bare": False}]
    (note,) = report["notes"]
    assert note.startswith("the code for sm_90 is compressed, and there is no cuobjdump to read its kernels")


def test_a_cuobjdump_that_fails_is_noted(tmp_path, monkeypatch):
    path = tmp_path / "a.fatbin"
    path.write_bytes(container(part(2, 90, b"zz", 0x8011, 2)))
    monkeypatch.setattr(cuobjdump, "find_cuobjdump", lambda: "/bin/false")
    images = cuobjdump.expand(str(path), fatbin.cuda_images(Reader(path.read_bytes())), notes := [])
    assert images[0].code is None and notes.pop().endswith("could not read the compressed code: it ended with 1")
    monkeypatch.setattr(cuobjdump, "find_cuobjdump", lambda: str(tmp_path / "gone"))
    cuobjdump.expand(str(path), fatbin.cuda_images(Reader(path.read_bytes())), notes)
    assert notes[0].startswith(f"{tmp_path}/gone could not read the compressed code: ")


def test_the_architecture_of_ptx_is_its_target(tmp_path):
    path = tmp_path / "a.ptx"
    path.write_bytes(b"// made by hand\n" + PTX)
    report = examine(str(path))
    assert report["kind"] == "PTX" and report["images"][0]["arch"] == "compute_90a"


def test_bundles_of_hip_are_read_and_compressed_ones_are_a_problem():
    triples = [b"host-x86_64-unknown-linux", b"hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-"]
    head = fatbin.BUNDLE + struct.pack("<Q", 2)
    for triple, (offset, size) in zip(triples, [(200, 0), (200, 4)], strict=True):
        head += struct.pack("<QQQ", offset, size, len(triple)) + triple
    (image,), problem = fatbin.hip_images(Reader(head.ljust(200, b"\0") + b"code"))
    assert image[:3] == ("HSACO", "gfx90a:xnack-", 4) and code_of(image) == b"code" and problem == ""
    assert fatbin.hip_images(Reader(b"CCOB" + b"\0" * 60)) == (
        [],
        "its HIP code is in a compressed bundle, which clang-offload-bundler reads",
    )


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x02\x01\x01" + b"\0" * 60])
def test_a_file_of_another_kind_is_an_error(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"not a library|damaged|not an ELF"):
        examine(str(path))
    done = CliRunner().invoke(command, [str(path)])
    assert done.exit_code == 1 and "cannot be inspected" in done.stderr


def test_a_missing_file_or_entry_is_an_error_with_what_to_do(tmp_path, own_store):
    done = CliRunner().invoke(command, [str(tmp_path / "none.so")])
    assert done.exit_code == 1 and "there is no such file or folder.\nhint: Correct the path" in done.stderr
    done = CliRunner().invoke(command, ["CPULionBuilder", "--json"])
    assert done.exit_code == 1 and "Build it first: build-ops CPULionBuilder" in done.stdout


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = CliRunner().invoke(command, [str(tmp_path / "pipe")])
    assert done.exit_code == 1 and "it is neither a file nor a folder.\nhint: Name a library, or an op" in done.stderr


def test_the_torch_that_added_a_function_is_read_from_its_header(tmp_path, monkeypatch):
    header = tmp_path / "include" / "torch" / "csrc" / "stable" / "c"
    header.mkdir(parents=True)
    (header / "shim.h").write_text(
        "#if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_10_0\nX int torch_old(\n#ifdef USE_CUDA\n#endif\nX torch_too();\n"
        "#endif // TORCH_FEATURE_VERSION >= TORCH_VERSION_2_10_0\nvoid torch_never();\n"
        "#if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_9_0\nX\naoti_torch_first(int);\n"
    )
    monkeypatch.setattr(shims, "torch_folder", lambda: str(tmp_path))
    floor = shims.torch_floor(["torch_too", "aoti_torch_first", "torch_never", "malloc"])
    assert floor["used"] == ["aoti_torch_first", "torch_never", "torch_too"] and floor["floor"] == "2.10"
    assert floor["by_version"] == {"2.9": ["aoti_torch_first"], "2.10": ["torch_too"]}
    assert shims.torch_floor(["malloc"])["floor"] == ""


@pytest.mark.parametrize(
    ("argument", "code", "message"),
    [
        ("deadbeef", 2, "'deadbeef' is neither an op nor a key in the cache, which holds: no entry."),
        ("3f9", 2, "'3f9' is neither an op nor a key in the cache, which holds: no entry."),
        ("CPUAdm", 2, "'CPUAdm' is not an op that is offered here. Did you mean CPUAdamBuilder"),
        ("no.so", 1, "no.so cannot be inspected: there is no such file or folder.\nhint: Correct the path"),
        ("a/b", 1, "a/b cannot be inspected: there is no such file or folder.\nhint: Correct the path"),
        (
            "CPUAdam",
            1,
            "no built entry fits it as it is declared now.\nhint: Build it first: build-ops CPUAdamBuilder. To see",
        ),
        (
            "CPUAdam --target cpu:x86-64",
            1,
            "Build it first: build-ops CPUAdamBuilder --target cpu:x86-64. To see what is built:",
        ),
    ],
)
def test_an_argument_that_names_nothing_is_an_error_with_what_to_do(argument, code, message):
    done = CliRunner().invoke(command, argument.split())
    assert done.exit_code == code and message in done.stderr


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("printf 'no such \\377 part' >&2; exit 3", "no such � part"),
        ("head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1", "x" * cuobjdump.MAX_MESSAGE),
        ("exec sleep 100", "timed out after 0.5 seconds"),
        ("truncate -s 3000000000 a.1.sm_90.cubin", None),
    ],
)
def test_a_cuobjdump_that_prints_or_writes_anything_is_noted(tmp_path, monkeypatch, script, reason):
    path = tmp_path / "a.fatbin"
    path.write_bytes(container(part(2, 90, b"zz", 0x8011, 2)))
    tool = text_files.write_script(tmp_path, "cuobjdump", script)
    monkeypatch.setattr(cuobjdump, "find_cuobjdump", lambda: str(tool))
    monkeypatch.setattr(cuobjdump, "TIMEOUT", 0.5 if "sleep" in script else 60)
    report = examine(str(path))
    (note,) = report["notes"]
    assert report["kernels"] == [] and "could not read the compressed code: " in note
    assert reason is None or note.endswith(reason)
