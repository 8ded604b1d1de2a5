"""Triton ops are compiled ahead of time without a GPU, and launched without Triton or a compiler."""

from __future__ import annotations

import json
import os

import pytest
from support import fakes
from support.gpu import triton_parts

from opforge.builders.inspection.examine import examine
from opforge.errors import BuilderError, CompileError, OpIncompatibleError

pytestmark = [pytest.mark.compile, triton_parts.needs_triton]

LAUNCH = """
from opforge.builders.base import OpBuilder
import importlib, json, os, sys
sys.path.insert(0, os.environ["FOLDER"])
Builder = importlib.import_module(os.environ["MODULE"]).ScaleBuilder
builder = Builder(os.environ["TARGET"])
op = builder.load()
op.kernels.raw_stream = lambda device: 4242
try:
    exec(os.environ["DO"])
    print(json.dumps({"origin": op.origin, "error": ""}))
except Exception as error:
    print(json.dumps({"origin": op.origin, "error": f"{type(error).__name__}: {error}"}))
assert "triton" not in sys.modules
"""
SCALE = "op.scale(Tensor(4096), Tensor(8192), 0.5)"


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """An op that was built for three targets, in a layer; the stand-in drivers; a PATH on which no compiler works."""
    folder = tmp_path_factory.mktemp("triton")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(folder / "store"))
        builder = triton_parts.scale_op(folder / "op", "prebuilt_scale")
        from opforge.cache.transfer import layer

        for target in ("cuda:sm_80+sm_90+ptx", "hip:gfx90a+gfx942"):
            made = builder(target)
            layer.add(str(folder / "layer"), made.obtain(), made.describe().key)
    path, mark = triton_parts.forbidden_compilers(folder)
    drivers = {device: triton_parts.fake_driver(folder, device) for device in ("cuda", "hip")}
    return {"folder": folder, "path": path, "mark": mark, "drivers": drivers}


@pytest.fixture
def launch(parts, tmp_path):
    """Load the prebuilt op without Triton and where no compiler works, launch it; tells what happened."""

    def run(do: str = SCALE, target: str = "cuda:sm_90", driver: str | None = "", **settings: str):
        log = tmp_path / "driver.log"
        log.write_text("")
        found = parts["drivers"][target.partition(":")[0]] if driver == "" else driver
        env = {
            "OPFORGE_CACHE_LAYERS": str(parts["folder"] / "layer"),
            "OPFORGE_CACHE_DIR": str(tmp_path / "own"),
            "PATH": parts["path"],
            "FOLDER": str(parts["folder"] / "op"),
            "MODULE": "prebuilt_scale",
            "TARGET": target,
            "DO": do,
            "LD_LIBRARY_PATH": found,
            "FAKE_GPU_LOG": str(log),
            "FAKE_GPU_PARAMETERS": "6",
            **settings,
        }
        told = json.loads(fakes.python(triton_parts.WITHOUT_TRITON + triton_parts.TENSOR + LAUNCH, env=env))
        assert not os.path.exists(parts["mark"]), "a compiler was called"
        return told, log.read_text().splitlines()

    return run


def test_a_prebuilt_kernel_is_launched_without_triton_and_without_a_compiler(launch):
    told, calls = launch(f"{SCALE}\nop.scale(Tensor(64), Tensor(8192, 1), 2)")
    assert told["error"] == "" and told["origin"] not in ("built", "jit")
    loads = [call for call in calls if call.startswith("cuModuleLoadData")]
    assert loads == ["cuModuleLoadData ELF"], "an image is loaded once"
    assert "cuModuleGetFunction scale" in calls
    first, second = [call for call in calls if call.startswith("cuLaunchKernel")]
    # x, y, count, by (0.5 as a float32), and the two pointers that Triton appends and that are null here
    assert first == "cuLaunchKernel grid 2 1 1 threads 128 shared 0 stream 4242 1000 2000 800 3f000000 0 0"
    assert second.endswith(" 40 2000 800 40000000 0 0")


def test_the_best_image_for_the_device_is_taken(launch):
    for capability, kind in (("80", "ELF"), ("86", "ELF"), ("90", "ELF"), ("100", "text"), ("120", "text")):
        told, calls = launch(FAKE_GPU_CAPABILITY=capability)
        assert told["error"] == "" and f"cuModuleLoadData {kind}" in calls, capability


def test_each_device_gets_its_own_module(launch):
    told, calls = launch(f"{SCALE}\nop.scale(Tensor(64, device=1), Tensor(64), 2)")
    assert told["error"] == ""
    assert calls.count("cuModuleLoadData ELF") == 2 and calls.count("cuDevicePrimaryCtxRetain") == 2


def test_a_first_launch_may_be_captured_in_a_graph(launch):
    do = f"{SCALE}\nop.kernels.launch('scale_512', (1, 1, 1), Tensor(0), Tensor(0), 1, 1.0)"
    told, calls = launch(do, FAKE_GPU_CAPTURING="1")
    assert told["error"] == "" and calls.count("cuModuleLoadData ELF") == 2


def test_a_thread_without_a_context_gets_one_for_the_launch_alone(launch):
    do = f"import threading\nother = threading.Thread(target=lambda: {SCALE})\n{SCALE}\nother.start(); other.join()"
    told, calls = launch(do)
    assert told["error"] == "" and len([call for call in calls if call.startswith("cuLaunchKernel")]) == 2
    assert calls.count("cuModuleLoadData ELF") == 1 and calls.count("cuDevicePrimaryCtxRetain") == 1


def test_an_empty_tensor_launches_nothing(launch):
    told, calls = launch("op.scale(Tensor(4096, 0), Tensor(8192, 0), 0.5)")
    assert told["error"] == "" and not [call for call in calls if call.startswith("cuLaunchKernel")]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"FAKE_GPU_CAPABILITY": "75"},
            ", and device 0 is sm_75: build it for that too",
        ),
        (
            {"FAKE_GPU_FAIL": "cuModuleLoadData=209"},
            "cuModuleLoadData: no kernel image is available for execution on the device (error 209; the driver supports"
            " CUDA 13.1)",
        ),
        ({"FAKE_GPU_FAIL": "cuLaunchKernel=701"}, "cuLaunchKernel: "),
        ({"FAKE_GPU_FAIL": "cuInit=100"}, "cuInit: "),
        (
            {"do": "op.scale(Tensor(4097), Tensor(8192), 0.5)"},
            "argument 0 was declared to be divisible by 16, and is 4097",
        ),
        ({"do": "op.scale(Tensor(4096, device=-1), Tensor(0), 1)"}, "expected one on a GPU"),
        ({"do": "op.scale(Tensor(4096, 1 << 42), Tensor(0), 1)"}, "a grid of 4294967296 x 1 x 1 was asked for"),
        (
            {"do": "op.kernels.launch('scale_512', (1, 65536, 1), Tensor(0), Tensor(0), 1, 1.0)"},
            "a grid of 1 x 65536 x 1 was asked for, and at most 2147483647 x 65535 x 65535 can be launched",
        ),
        (
            {"do": "op.kernels.launch('scale_512', (1, 1, 1), Tensor(0), Tensor(0), 1 << 63, 1.0)"},
            "its arguments do not fit what was declared",
        ),
        ({"do": "op.kernels.launch('triple', (1, 1, 1), Tensor(0))"}, "the builder declares no such kernel"),
        ({"driver": "/nowhere"}, "the CUDA driver could not be loaded (libcuda.so.1: cannot open shared object file"),
    ],
)
def test_a_kernel_that_cannot_be_launched_raises_the_reason(launch, settings, reason):
    told, _calls = launch(**settings)
    assert told["error"].startswith("KernelLaunchError: scale: the kernel '") and reason in told["error"]


def test_a_driver_without_a_function_that_is_needed_is_too_old(launch, tmp_path):
    told, _calls = launch(driver=triton_parts.fake_driver(tmp_path, "cuda", "-DTOO_OLD"))
    assert "the CUDA driver is too old: it has no function cuLaunchKernel" in told["error"]


def test_the_same_launcher_serves_hip(launch):
    told, calls = launch(f"{SCALE}\nop.scale(Tensor(64, device=1), Tensor(64), 2)", target="hip:gfx942")
    assert told["error"] == ""
    launches = [call for call in calls if call.startswith("hipModuleLaunchKernel")]
    assert launches[0] == "hipModuleLaunchKernel grid 2 1 1 threads 256 shared 0 stream 4242 1000 2000 800 3f000000 0 0"
    assert calls[-1] == "hipSetDevice 0", "the thread's device is as it was"
    told, _calls = launch(target="hip:gfx942", FAKE_GPU_FAIL="hipModuleLoadData=209")
    assert "can be loaded: hipModuleLoadData: no kernel image is available" in told["error"]
    assert "none of its images (gfx9" in told["error"]


def test_a_library_tells_what_it_holds(parts, monkeypatch):
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(parts["folder"] / "layer"))
    builder = triton_parts.scale_op(parts["folder"] / "op", "prebuilt_scale")
    images = builder("cuda:sm_90").load().kernels.images()
    found = {(one["kernel"], one["arch"]) for one in images}
    assert found == {(f"scale_{block}", arch) for block in (512, 1024) for arch in ("sm_80", "sm_90a", "compute_80")}
    assert all(one["bytes"] > 1000 and one["threads"] == 128 and one["shared"] == 0 for one in images)


def test_an_unchanged_op_is_a_hit_and_an_edited_neighbour_is_not(tmp_path):
    builder = triton_parts.scale_op(tmp_path / "op")
    first = builder("cuda:sm_80").obtain()
    assert builder("cuda:sm_80").obtain().origin == "cache"
    fakes.write(tmp_path / "op", "factor.py", triton_parts.FACTOR.replace("value * by", "value + by"))
    second = builder("cuda:sm_80").obtain()
    assert second.origin == "built" and second.result != first.result
    inputs = {one[1] for one in second.manifest()["inputs"]["files"] if one[0] == "own"}
    assert inputs == {"kernels.py", "factor.py"}


def test_the_library_is_the_same_in_another_folder(tmp_path, monkeypatch):
    results = []
    for name in ("here", "there"):
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / f"store_{name}"))
        entry = triton_parts.scale_op(tmp_path / name)("cuda:sm_90").obtain()
        results.append((entry.result, entry.binary["sha256"]))
    assert results[0] == results[1]


def test_what_is_declared_is_part_of_the_key(tmp_path):
    builder = triton_parts.scale_op(tmp_path / "op")
    made = builder("cuda:sm_80")
    plan, description = made.plan(made.toolchain(_store())), made.describe()
    kernel = builder.kernels[0]
    for other in (
        kernel._replace(warps=8),
        kernel._replace(stages=3),
        kernel._replace(constants={"BLOCK": 2048}),
        kernel._replace(arguments={**kernel.arguments, "by": "fp64"}),
    ):
        builder.kernels = [other, *builder.kernels[1:]]
        changed = builder("cuda:sm_80")
        assert changed.plan(changed.toolchain(_store())).key != plan.key
        assert changed.describe().key != description.key


def _store():
    from opforge.cache.current import current_store

    return current_store()


def test_an_error_in_a_kernel_names_its_file_and_line(tmp_path):
    builder = triton_parts.scale_op(tmp_path / "op")
    fakes.write(tmp_path / "op", "kernels.py", triton_parts.KERNELS.replace("tl.load(x", "tl.lode(x"))
    with pytest.raises(CompileError) as caught:
        builder("cuda:sm_80").obtain()
    assert "kernels.py:11: error: " in str(caught.value) and "lode" in str(caught.value)
    assert ">   11 |     tl.store(y + at, times(tl.lode(x" in str(caught.value)
    fakes.write(tmp_path / "op", "kernels.py", triton_parts.KERNELS)
    fakes.write(tmp_path / "op", "factor.py", triton_parts.FACTOR.replace("value * by", "value * bye"))
    with pytest.raises(CompileError, match=r"factor\.py:6: error: .*bye is not defined"):
        builder("cuda:sm_80").obtain()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"function": "half"}, "there is no @triton.jit function 'half' in it"),
        ({"constants": {}}, "the kernel's declaration and the function differ in: BLOCK"),
        (
            {"arguments": {"y": "*fp32", "x": "*fp32", "count": "i64", "by": "fp32"}},
            "the run-time arguments must be declared in the function's order: x, y, count, by",
        ),
    ],
)
def test_a_declaration_that_does_not_match_its_function_is_refused(tmp_path, change, said):
    builder = triton_parts.scale_op(tmp_path / "op")
    builder.kernels = [builder.kernels[0]._replace(**change)]
    with pytest.raises(CompileError, match=r"kernels\.py:[0-9]+: error") as caught:
        builder("cuda:sm_80").obtain()
    assert said in str(caught.value)


def test_a_feature_that_the_launcher_lacks_is_refused_when_it_is_built(tmp_path):
    builder = triton_parts.scale_op(tmp_path / "op")
    builder.kernels = [builder.kernels[0]._replace(name="bad name", warps=3)]
    with pytest.raises(BuilderError, match=r"warps=3. Expected a power of two"):
        builder("cuda:sm_80").obtain()


def test_targets_that_triton_cannot_reach_are_refused(tmp_path):
    builder = triton_parts.scale_op(tmp_path / "op")
    for target, reason in (
        ("cuda:sm_70", "Triton compiles for sm_75 and later, not for sm_70"),
        ("cuda:sm_80+compute_90", "Triton writes PTX for later devices up to compute_89, not compute_90"),
    ):
        with pytest.raises(OpIncompatibleError) as caught:
            builder(target).obtain()
        assert reason in str(caught.value)


def test_one_signature_of_every_kernel_of_ours_compiles_for_each_kind_of_target(tmp_path):
    """All of them take a minute; the wide ones of bfloat16 pass through the most of the compiler."""
    import importlib

    from opforge.builders.triton import TRITON_BUILDERS, TritonOpBuilder
    from opforge.builders.triton.base import KERNELS

    chosen = {}
    for place in TRITON_BUILDERS.values():
        module, _, name = place.partition(":")
        builder = getattr(importlib.import_module(module), name)
        for kernel in builder.kernels:
            if "bf16" in kernel.name or kernel.name == "trust":
                constants = {one: value for one, value in kernel.constants.items() if value is None or value is True}
                chosen.setdefault((builder.name, kernel.function, str(constants)), kernel)
    kernels = [kernel._replace(name=f"k{number}") for number, kernel in enumerate(chosen.values())]

    class Every(TritonOpBuilder):
        name = "every"
        folder = KERNELS.path

    Every.kernels = kernels
    entry = Every("cuda:sm_90").obtain()
    assert len(kernels) > 25 and entry.binary["exports"] == ["opforge_find", "opforge_kernels", "opforge_launch"]
    told = examine(entry.library)["kernels"]
    assert len(told) == len(kernels) and [one for one in told if one["spills"]] == []
    Every.kernels = kernels[::8]
    assert os.path.getsize(Every("hip:gfx942").obtain().library) > 4096


def test_a_damaged_library_is_not_launched(tmp_path):
    builder = triton_parts.scale_op(tmp_path / "op")
    entry = builder("cuda:sm_80").obtain()
    os.chmod(entry.library, 0o700)
    with open(entry.library, "r+b") as file:
        file.seek(2000)
        file.write(b"\xff" * 16)
    assert builder("cuda:sm_80").load().origin == "built"
