"""Wheel variants: one wheel for each kind of machine, which uv chooses, and which is never mislabelled."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile

import pytest
from click.testing import CliRunner
from support.unpacked_wheel import load

from opforge.backend import project as backend
from opforge.backend import split, variant_format
from opforge.cli import group
from opforge.errors import BuilderError

pytestmark = [
    pytest.mark.compile,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for levels of x86-64"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="not run: apt install binutils"),
]
BUILDERS = """\
import ctypes
from opforge import OpBuilder

class AnswerBuilder(OpBuilder):
    name, abi, devices = "answer", "c", ("cpu", "cuda")
    sources = {"cpu": ["answer.cpp"], "cuda": ["answer.cpp", "answer.cu"]}
    extra_compile_args = FLAGS
    signatures = {"answer": (ctypes.c_int, [])}

class OnGpusBuilder(AnswerBuilder):
    name, devices = "on_gpus", ("cuda",)
    sources = ["answer.cpp", "answer.cu"]
"""
HOST = """\
extern "C" __attribute__((visibility("default"))) int answer() { return 42; }
float total(const float* x, int n) { float s = 0; for (int i = 0; i < n; i++) s += x[i]; return s; }
"""
DEVICE = """\
__global__ void kernel(float* x) { x[threadIdx.x] *= 2; }
extern "C" __attribute__((visibility("default"))) void twice(float* x) { kernel<<<1, 32>>>(x); }
"""
LOAD = """
from mine.ops import AnswerBuilder
op = AnswerBuilder().load()
print(op.answer(), op.origin)
"""
OPS = ["mine.ops:AnswerBuilder"]
LEVELS = ["cpu:x86-64", "cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"]
GPUS = ["cuda:sm_75", "cuda:sm_80", "cuda:sm_90", "cuda:sm_100f", "cuda:sm_120+ptx"]
CPU_FLAGS = {
    "v1": "fpu cx8 cmov fxsr mmx syscall sse sse2 lm",
    "v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
    "v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}
"""Level -> what /proc/cpuinfo names for it, beside what it names for the lower ones."""
SM, DRIVER = "NV_VARIANT_PROVIDER_FORCE_SM_ARCH", "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"


def write_project(folder, flags=()):
    """Writes the wheel of a project without ops into a folder. Returns its path."""
    files = {
        "mine/__init__.py": "",
        "mine/ops.py": BUILDERS.replace("FLAGS", repr(list(flags))),
        "mine/answer.cpp": HOST,
        "mine/answer.cu": DEVICE,
        "mine-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1\n",
        "mine-1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "mine-1.dist-info/RECORD": "",
    }
    path = folder / "mine-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def release(folder, flags=(), **table):
    """Builds a project's wheels into a folder. Returns the folder."""
    out = folder / "dist"
    out.mkdir()
    backend.build_into(str(write_project(folder, flags)), str(out), {"ops": OPS, "targets": LEVELS, **table})
    return out


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The wheels of a project with variants for each level of x86-64, and their index."""
    return release(tmp_path_factory.mktemp("levels"), variants=True)


def label_of(wheel):
    return wheel.name.removesuffix(".whl").rpartition("-")[2] if len(wheel.stem.split("-")) == 6 else ""


def targets_in(wheel):
    """Returns the targets of the libraries in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(json.loads(archive.read(name))["target"] for name in archive.namelist() if "record.json" in name)


def test_each_variant_holds_the_code_of_its_label_alone_and_the_plain_wheel_all(released):
    held = {label_of(wheel): targets_in(wheel) for wheel in released.glob("*.whl")}
    assert held == {
        "": LEVELS,
        "null": ["cpu:x86-64"],
        "x86_64_v2": ["cpu:x86-64-v2"],
        "x86_64_v3": ["cpu:x86-64-v3"],
        "x86_64_v4": ["cpu:x86-64-v4"],
    }
    index = json.loads((released / "mine-1-variants.json").read_text())
    assert index["variants"] == {
        "null": {},
        **{f"x86_64_{level}": {"x86_64": {"level": [level]}} for level in ("v2", "v3", "v4")},
    }


def test_variantlib_reads_the_index_and_each_wheels_own_metadata(released):
    library = pytest.importorskip("variantlib", reason="not run: pip install variantlib")
    from variantlib.variant_dist_info import VariantDistInfo
    from variantlib.variants_json import VariantsJson

    assert library.__package_name__ == "variantlib"
    index = VariantsJson(json.loads((released / "mine-1-variants.json").read_text()))
    labels = set()
    for wheel in released.glob("*-*-*-*-*-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            own = VariantDistInfo(archive.read("mine-1.dist-info/variant.json"), label_of(wheel))
        assert own.variant_desc == index.variants[label_of(wheel)]
        labels.add(label_of(wheel))
    assert labels == set(index.variants)


def test_the_same_wheel_is_split_twice_into_the_same_bytes(released, tmp_path):
    (plain,) = (wheel for wheel in released.glob("*.whl") if not label_of(wheel))
    split.split(str(plain), str(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in released.iterdir()
    }


@pytest.mark.parametrize("label", ["null", "x86_64_v3"])
def test_the_op_of_a_variant_is_loaded_without_a_compiler(released, tmp_path, label):
    (wheel,) = (wheel for wheel in released.glob("*.whl") if label_of(wheel) == label)
    answer, origin = load(str(wheel), tmp_path / "site", LOAD).split()
    assert (answer, origin) == ("42", str(tmp_path / "site" / "mine" / "_opforge_ops"))


# -- uv chooses --------------------------------------------------------------------------------------------------------


def uv_install(source, target, level="v4", preview=True, **machine):
    """Installs `mine` on a machine of this level and these devices, by uv. Returns the label of what was installed."""
    uv = pytest.importorskip("uv", reason="not run: pip install uv").find_uv_bin()
    flags = " ".join(words for name, words in CPU_FLAGS.items() if name <= level)
    cpuinfo = target.parent / f"{target.name}-cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: {flags}\n\n")
    command = [uv, "pip", "install", "-q", "--no-deps", "--no-cache", "--no-config", "--target", str(target)]
    command += ["--python", sys.executable, *(["--preview-features", "wheel-variants"] if preview else []), *source]
    script = 'mount --bind "$0" /proc/cpuinfo && exec "$@"'  # uv asks this file what the processor can do
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, str(cpuinfo), *command, "mine"],
        capture_output=True,
        text=True,
        env={**os.environ, **machine},
        timeout=120,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"not run: no namespace of its own can be had here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return installed(target)


def installed(target):
    """Returns the label of the variant that is installed in a folder, and an empty text for a plain wheel."""
    described = target / "mine-1.dist-info" / "variant.json"
    return next(iter(json.loads(described.read_text())["variants"])) if described.exists() else ""


def folder_of(wheels):
    return ["--no-index", "--find-links", str(wheels)]


@pytest.mark.parametrize("level", CPU_FLAGS)
def test_uv_takes_the_variant_of_the_processors_level(released, tmp_path, level):
    expected = "null" if level == "v1" else f"x86_64_{level}"
    assert uv_install(folder_of(released), tmp_path / "site", level) == expected


def test_uv_takes_the_same_variant_from_an_index_on_a_server(released, tmp_path):
    files = "".join(f'<a href="/{path.name}">{path.name}</a>\n' for path in released.iterdir())
    page = tmp_path / "served" / "simple" / "mine"
    page.mkdir(parents=True)
    (page / "index.html").write_text(f"<!DOCTYPE html><html><body>{files}</body></html>")
    for path in released.iterdir():
        shutil.copyfile(path, tmp_path / "served" / path.name)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            source = ["--index-url", f"http://127.0.0.1:{server.server_port}/simple"]
            assert uv_install(source, tmp_path / "site", "v3") == "x86_64_v3"
        finally:
            server.shutdown()


def test_an_installer_that_knows_no_variants_takes_the_plain_wheel(released, tmp_path):
    assert uv_install(folder_of(released), tmp_path / "by-uv", preview=False) == ""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path / "by-pip")]
    subprocess.run([*command, *folder_of(released), "mine"], check=True, timeout=120)
    assert installed(tmp_path / "by-pip") == ""


# -- what is refused ---------------------------------------------------------------------------------------------------

REFUSED = {
    "a label that the format forbids": (
        {"variants": {"labels": {"cpu:x86-64-v3": "With-Dash"}}},
        r"the label 'With-Dash' has other characters than a-z, 0-9, '\.' and '_'",
    ),
    "the label of the null variant": (
        {"variants": {"labels": {"cpu:x86-64-v3": "null"}}},
        "the label 'null' is that of the variant without properties",
    ),
    "one label for two targets": (
        {"variants": {"labels": {"cpu:x86-64-v3": "fast", "cpu:x86-64-v4": "fast"}}},
        "cpu:x86-64-v3 and cpu:x86-64-v4 have the label 'fast'.*--label TARGET=LABEL",
    ),
    "a label for what is not built": (
        {"variants": {"labels": {"cuda:sm_90": "hopper"}}},
        "a label is given to cuda:sm_90, for which nothing is built.*The targets are cpu:x86-64, ",
    ),
    "an op for GPUs alone": (
        {"ops": [*OPS, "mine.ops:OnGpusBuilder"], "targets": [*LEVELS[:1], "cuda:sm_90"]},
        "mine.ops:OnGpusBuilder is built for cuda:sm_90 alone: the variant 'null' would lack it.*Give the op code for",
    ),
    "an architecture that the compiler cannot build": (
        {"targets": ["cpu:x86-64", "cuda:sm_300"]},
        "mine.ops:AnswerBuilder for cuda:sm_300: ",
    ),
    "code for one chip alone": (
        {"targets": ["cpu:x86-64", "cuda:sm_100a"]},
        "code for sm_100a runs on this chip alone .nvcc's for sm_100f or sm_100 runs on more, Triton's does not.*Build",
    ),
    "another value of the option": ({"variants": "each"}, "variants='each': expected true, or a table of labels"),
}
SPLIT_ALONE = ("an op for GPUs alone", "code for one chip alone")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long("asks nvcc for 3 s; the split is refused below without it"))
        if name in SPLIT_ALONE
        else name
        for name in REFUSED
    ],
)
def test_what_cannot_be_split_is_an_error_before_anything_is_built(own_store, tmp_path, name):
    table, text = REFUSED[name]
    if any("cuda" in target for target in table.get("targets", ())) and not shutil.which("nvcc"):
        pytest.skip("not run: nvcc is not here")
    with pytest.raises(BuilderError, match=rf"(?s){text}"):
        release(tmp_path, **{"variants": True, **table})
    assert not [*tmp_path.rglob("entries/*")] and not [*(tmp_path / "dist").iterdir()]


def test_ops_with_different_levels_are_refused_and_may_be_left_out(own_store):
    from opforge.accelerator.target import Target

    ops = {"first": [*map(Target.parse, LEVELS[:2])], "second": [Target.parse(LEVELS[0])]}
    with pytest.raises(BuilderError, match="first is built for cpu:x86-64, cpu:x86-64-v2, and second for cpu:x86-64:"):
        split.variants_of(ops)
    assert [variant.label for variant in split.variants_of(ops, partial=True)] == ["null", "x86_64_v2"]


def test_an_op_for_gpus_alone_is_refused_and_may_be_left_out():
    from opforge.accelerator.target import Target

    ops = {"on_gpus": [Target.parse("cuda:sm_90")]}
    with pytest.raises(BuilderError, match="on_gpus is built for cuda:sm_90 alone: the variant 'null' would lack it"):
        split.variants_of(ops)
    assert [variant.label for variant in split.variants_of(ops, partial=True)] == ["null", "sm90"]


def test_code_for_one_chip_alone_is_refused():
    from opforge.accelerator.target import Target

    ops = {"answer": [*map(Target.parse, ["cpu:x86-64", "cuda:sm_100a"])]}
    with pytest.raises(BuilderError, match=REFUSED["code for one chip alone"][1]):
        split.variants_of(ops)


def test_a_processor_without_levels_has_the_null_variant_alone():
    from opforge.accelerator.target import Target

    assert [variant.label for variant in split.variants_of({"answer": [Target.parse("cpu:aarch64")]})] == ["null"]


def test_targets_that_no_property_tells_apart_are_refused():
    from opforge.accelerator.target import Target

    ops = {"answer": [*map(Target.parse, ["cpu:x86-64", "cuda:sm_90", "cuda:sm_90a"])]}
    with pytest.raises(BuilderError, match="no property tells code for cuda:sm_90 from code for cuda:sm_90a"):
        split.variants_of(ops)


def test_the_driver_of_a_variant_is_the_newest_that_its_libraries_need():
    from opforge.accelerator.target import Target

    def built(cuda):
        record = {"target": "cuda:sm_90", "requires": {"cuda": cuda}}
        return split.Built("", "", "answer", Target.parse("cuda:sm_90"), record)

    assert split._drivers([built("13.0"), built("12.8")]) == {"cuda:sm_90": "13.0"}


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"variants": []}',
        '{"variants": {"avx512": []}}',
        '{"variants": {"avx512": {"x86_64": {"level": "v4"}}}}',
        '{"variants": {"avx512": {}, "avx512": {}}}',
    ],
)
def test_metadata_of_a_variant_that_is_not_as_declared_is_refused(tmp_path, content):
    path = tmp_path / "x-1.0-py3-none-any-avx512.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"x-1.0.dist-info/{variant_format.METADATA}", content)
    with pytest.raises(BuilderError, match="it is not a variant that can be read"):
        split._properties(str(path), "avx512")


def test_a_variant_of_an_earlier_run_is_refused_before_anything_is_written(released, tmp_path):
    (plain,) = (wheel for wheel in released.glob("*.whl") if not label_of(wheel))
    split.split(str(plain), str(tmp_path), {"cpu:x86-64-v4": "avx512"})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(BuilderError, match=r"-avx512\.whl: it is in .*, and is not a variant of this wheel. Remove it"):
        split.split(str(plain), str(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_smaller_plain_wheel_does_not_replace_the_one_that_is_split(released, tmp_path):
    (plain,) = (wheel for wheel in released.glob("*.whl") if not label_of(wheel))
    copy = shutil.copyfile(plain, tmp_path / plain.name)
    with pytest.raises(BuilderError, match="a smaller plain wheel would replace it"):
        split.split(str(copy), str(tmp_path), plain="null")
    assert copy.read_bytes() == plain.read_bytes() and len([*tmp_path.iterdir()]) == 1


def test_a_library_with_instructions_above_its_label_is_refused_by_name(own_store, tmp_path):
    text = "answer: it is for x86-64, and .*total.* has '.*zmm.*', which is of x86-64-v4"
    with pytest.raises(BuilderError, match=text):
        release(tmp_path, ["-march=x86-64-v4", "-ffast-math"], variants=True, targets=LEVELS[:1])
    assert not [*(tmp_path / "dist").iterdir()]


def test_a_wheel_without_ops_and_a_variant_are_refused_by_the_command(released, tmp_path):
    pure = write_project(tmp_path)
    done = CliRunner().invoke(group, ["split-wheel", str(pure), "-w", str(tmp_path / "out")])
    assert done.exit_code == 1 and "it holds no built op" in done.output and "backend" not in done.output
    (variant,) = released.glob("*-null.whl")
    done = CliRunner().invoke(group, ["split-wheel", str(variant), "-w", str(tmp_path / "out")])
    assert done.exit_code == 1 and "it is a variant already" in done.output
    assert not (tmp_path / "out").exists()


def test_the_command_names_each_wheel_and_takes_labels_and_a_small_plain_wheel(released, tmp_path):
    (plain,) = (wheel for wheel in released.glob("*.whl") if not label_of(wheel))
    options = ["-w", str(tmp_path), "--label", "cpu:x86-64-v4=avx512", "--plain", "null", "--json"]
    done = CliRunner().invoke(group, ["split-wheel", str(plain), *options])
    assert done.exit_code == 0, done.output
    written = {each["label"]: tmp_path / each["name"] for each in json.loads(done.stdout)["wheels"]}
    assert {*written} == {"", "null", "x86_64_v2", "x86_64_v3", "avx512"}
    assert targets_in(written[""]) == ["cpu:x86-64"] and targets_in(written["avx512"]) == ["cpu:x86-64-v4"]
    done = CliRunner().invoke(group, ["split-wheel", str(plain), "--label", "hopper"])
    assert done.exit_code == 2 and "--label hopper: expected TARGET=LABEL, such as cuda:sm_90=hopper" in done.output


# -- GPUs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def for_gpus(tmp_path_factory):
    """The wheels of a project with variants for GPUs, which nvcc compiles and nothing here runs."""
    if not shutil.which("nvcc"):
        pytest.skip("not run: nvcc is not here")
    return release(tmp_path_factory.mktemp("gpus"), targets=[LEVELS[0], LEVELS[2], *GPUS], variants=True)


MACHINES = {
    "7.5": "sm75",
    "8.0": "sm80",
    "8.6": "sm80",
    "8.9": "sm80",
    "9.0": "sm90",
    "10.0": "sm100f",
    "10.3": "sm100f",
    "12.0": "sm120_ptx120",
    "12.1": "sm120_ptx120",
    "11.0": "",
}
"""Compute capability -> the variant for it; empty if there is none."""


@pytest.mark.long("nvcc compiles for five architectures, and uv installs 20 times: 90 s")
def test_uv_takes_the_variant_of_the_gpu_if_the_driver_is_new_enough(for_gpus, tmp_path):
    found, expected = {}, {}
    index = json.loads((for_gpus / "mine-1-variants.json").read_text())["variants"]
    (needed,) = {each["nvidia"]["cuda_version_lower_bound"][0] for each in index.values() if "nvidia" in each}
    older = f"{int(needed.partition('.')[0]) - 1}.0"
    for capability, name in MACHINES.items():
        for driver, fits in ((needed, True), (older, False)):
            target = tmp_path / f"site-{capability}-{driver}"
            found[capability, driver] = uv_install(
                folder_of(for_gpus), target, "v3", **{SM: capability, DRIVER: driver}
            )
            label = next((each for each in index if name and each.endswith(name)), "") if fits else ""
            expected[capability, driver] = label or "x86_64_v3"
    assert found == expected and len(set(found.values())) == 1 + len(GPUS)


@pytest.mark.long("nvcc compiles for five architectures: 60 s")
def test_the_variant_of_a_gpu_holds_its_code_and_that_of_every_level(for_gpus):
    held = {label_of(wheel): targets_in(wheel) for wheel in for_gpus.glob("*.whl")}
    (label,) = (each for each in held if each.endswith("_sm90"))
    assert held[label] == [LEVELS[0], LEVELS[2], "cuda:sm_90"]
    assert held["x86_64_v3"] == [LEVELS[2]]


def test_each_group_of_architectures_has_its_properties():
    from opforge.accelerator.target import Target

    texts = {
        "cuda:sm_80+sm_90": ["80_real", "90_real"],
        "cuda:sm_90a": ["90_real"],
        "cuda:sm_120+ptx": ["120_real", "120_virtual"],
        "cuda:compute_90": ["90_virtual"],
    }
    for text, values in texts.items():
        found = variant_format.properties(Target.parse(text), "13.0")
        assert found == {"nvidia": {"cuda_version_lower_bound": ["13.0"], "sm_arch": values}}, text
    assert variant_format.default_label(Target.parse("cuda:sm_80+sm_90+ptx"), "13.0") == "cu13_sm80_sm90_ptx90"
    assert "no installer knows a property for hip:gfx942" in variant_format.target_problem(Target.parse("hip:gfx942"))
