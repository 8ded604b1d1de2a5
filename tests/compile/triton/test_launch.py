"""A prebuilt Triton op is launched without Triton and without a compiler, through a stand-in for the GPU's driver."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

import pytest
from support import child_processes
from support.gpu import triton_parts
from support.store.fake_store import ME

from opforge.builders.declaration.description import description_key

pytestmark = [pytest.mark.compile, triton_parts.needs_triton]

LAUNCH = """
from opforge.builders.base import OpBuilder
import importlib, json, os, sys
sys.path.insert(0, os.environ["FOLDER"])
Builder = importlib.import_module(os.environ["MODULE"]).ScaleBuilder
for number, case in enumerate(json.loads(os.environ["CASES"])):
    if child := os.fork():  # a process for each: the driver and the op are loaded once in a process
        assert os.waitpid(child, 0)[1] == 0
        continue
    os.environ.update(case["settings"], FAKE_GPU_LOG=os.environ["FAKE_GPU_LOG"] + str(number))
    op = Builder(case["target"]).load()
    op.kernels.raw_stream = lambda device: 4242
    error = ""
    try:
        exec(case["do"])
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    print(json.dumps({"origin": op.origin, "error": error}), flush=True)
    assert "triton" not in sys.modules
    os._exit(0)
"""
CUDA = "libcuda.so.1"
SCALE = "op.scale(Tensor(4096), Tensor(8192), 0.5)"


@pytest.fixture(scope="module")
def prebuilt(tmp_path_factory):
    """An op that was built for several targets, in a layer; the stand-in drivers; a PATH on which no compiler works."""
    folder = tmp_path_factory.mktemp("triton")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(folder / "store"))
        builder = triton_parts.scale_op(folder / "op", "prebuilt_scale")
        from opforge.cache import layer

        for target in ("cuda:sm_80+sm_90+ptx", "hip:gfx90a+gfx942"):
            for_target = builder(target)
            layer.add(str(folder / "layer"), for_target.build(), description_key(for_target.spec()), ME)
    path, mark = triton_parts.forbidden_compilers(folder)
    drivers = folder / "drivers"  # one folder: processes with another one would be forked from another server
    drivers.mkdir()
    for device in ("cuda", "hip"):
        built = triton_parts.fake_driver(folder, device)
        for name in os.listdir(built):
            shutil.copy(os.path.join(built, name), drivers)
    return {"folder": folder, "path": path, "mark": mark, "drivers": drivers}


@pytest.fixture(scope="module")
def launch_all(prebuilt, tmp_path_factory):
    """Loads and launches the prebuilt op in processes without Triton and compilers.

    For each case it returns the op's origin and error, and the calls of the driver. A case has variables of the fake
    driver, and `do` and `target` if they are not the usual ones.
    """

    def run(*cases: dict[str, str], driver: Any = None):
        tmp_path = tmp_path_factory.mktemp("launched")
        if driver is not None:  # a file in the place of CUDA's driver, or none if it is empty
            moved = (prebuilt["drivers"] / CUDA).rename(prebuilt["folder"] / CUDA)
            if driver:
                shutil.copy(driver, prebuilt["drivers"])
        described = [
            {"do": case.pop("do", SCALE), "target": case.pop("target", "cuda:sm_90"), "settings": case}
            for case in map(dict, cases)
        ]
        log = tmp_path / "driver.log"
        env = {
            "OPFORGE_CACHE_LAYERS": str(prebuilt["folder"] / "layer"),
            "OPFORGE_CACHE_DIR": str(tmp_path / "own"),
            "PATH": prebuilt["path"],
            "FOLDER": str(prebuilt["folder"] / "op"),
            "MODULE": "prebuilt_scale",
            "CASES": json.dumps(described),
            "LD_LIBRARY_PATH": str(prebuilt["drivers"]),
            "FAKE_GPU_LOG": str(log),
            "FAKE_GPU_PARAMETERS": "6",
        }
        code = triton_parts.WITHOUT_TRITON + triton_parts.TENSOR + LAUNCH
        try:
            printed = child_processes.run_with_torch(code, env=env).splitlines()
        finally:
            if driver is not None:
                moved.replace(prebuilt["drivers"] / CUDA)
        assert not os.path.exists(prebuilt["mark"]), "a compiler was called"
        assert len(printed) == len(cases)
        logs = [tmp_path / f"driver.log{number}" for number in range(len(cases))]
        return [
            (json.loads(line), each.read_text().splitlines() if each.exists() else [])
            for line, each in zip(printed, logs, strict=True)
        ]

    return run


TWO_DEVICES = f"{SCALE}\nop.scale(Tensor(64, device=1), Tensor(64), 2)"
THREADS = f"import threading\nother = threading.Thread(target=lambda: {SCALE})\n{SCALE}\nother.start(); other.join()"
SMALL = "op.kernels.launch('scale_512', (1, 1, 1), Tensor(0), Tensor(0), 1, 1.0)"
KINDS = {"80": "ELF", "86": "ELF", "90": "ELF", "100": "text", "120": "text"}
"""The capability of a device -> what is loaded for it: machine code, or PTX."""
CASES = {
    "twice": {"do": f"{SCALE}\nop.scale(Tensor(64), Tensor(8192, 1), 2)"},
    "two devices": {"do": TWO_DEVICES},
    "capturing": {"do": f"{SCALE}\n{SMALL}", "FAKE_GPU_CAPTURING": "1"},
    "a thread": {"do": THREADS},
    "pinned": {"do": "op.scale(Tensor(4096), Tensor(8192, device=-2), 0.5)"},
    "empty": {"do": "op.scale(Tensor(4096, 0), Tensor(8192, 0), 0.5)"},
    "hip": {"do": TWO_DEVICES, "target": "hip:gfx942"},
    "hip fails": {"target": "hip:gfx942", "FAKE_GPU_FAIL": "hipModuleLoadData=209"},
    **{capability: {"FAKE_GPU_CAPABILITY": capability} for capability in KINDS},
}
REASONS = (
    ({"FAKE_GPU_CAPABILITY": "75"}, ", and device 0 is sm_75: build it for that too"),
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
    ({"do": "op.scale(Tensor(4096, device=-1), Tensor(0), 1)"}, "with a tensor on cpu, expected one on a GPU"),
    ({"do": "op.scale(Tensor(4096), Tensor(0, device=-1), 1)"}, "with a tensor on cpu, expected one on a GPU"),
    ({"do": "op.scale(Tensor(4096, 1 << 42), Tensor(0), 1)"}, "the grid is 4294967296 x 1 x 1, and at most"),
    (
        {"do": "op.kernels.launch('scale_512', (1, 65536, 1), Tensor(0), Tensor(0), 1, 1.0)"},
        "the grid is 1 x 65536 x 1, and at most 2147483647 x 65535 x 65535 can be launched",
    ),
    (
        {"do": "op.kernels.launch('scale_512', (1, 1, 1), Tensor(0), Tensor(0), 1 << 63, 1.0)"},
        "its arguments do not fit what was declared",
    ),
    ({"do": "op.kernels.launch('triple', (1, 1, 1), Tensor(0))"}, "the builder declares no such kernel"),
)


@pytest.fixture(scope="module")
def launched(launch_all):
    """The outcomes of CASES by their names, and those of REASONS by the reason, all by one program."""
    cases = {**CASES, **{reason: case for case, reason in REASONS}}
    return dict(zip(cases, launch_all(*cases.values()), strict=True))


def test_a_prebuilt_kernel_is_launched_without_triton_and_without_a_compiler(launched):
    outcome, calls = launched["twice"]
    assert outcome["error"] == "" and outcome["origin"] not in ("built", "jit")
    loads = [call for call in calls if call.startswith("cuModuleLoadData")]
    assert loads == ["cuModuleLoadData ELF"], "an image is loaded once"
    assert "cuModuleGetFunction scale" in calls
    first, second = [call for call in calls if call.startswith("cuLaunchKernel")]
    # x, y, count, by (0.5 as a float32), and two pointers that Triton appends, which are null here
    assert first == "cuLaunchKernel grid 2 1 1 threads 128 shared 0 stream 4242 1000 2000 800 3f000000 0 0"
    assert second.endswith(" 40 2000 800 40000000 0 0")


def test_the_best_image_for_the_device_is_loaded(launched):
    for capability, kind in KINDS.items():
        outcome, calls = launched[capability]
        assert outcome["error"] == "" and f"cuModuleLoadData {kind}" in calls, capability


def test_pinned_memory_of_the_host_is_an_argument(launched):
    outcome, calls = launched["pinned"]
    assert outcome["error"] == "" and len([call for call in calls if call.startswith("cuLaunchKernel")]) == 1


def test_each_device_gets_its_own_module(launched):
    outcome, calls = launched["two devices"]
    assert outcome["error"] == ""
    assert calls.count("cuModuleLoadData ELF") == 2 and calls.count("cuDevicePrimaryCtxRetain") == 2


def test_a_first_launch_may_be_captured_in_a_graph(launched):
    outcome, calls = launched["capturing"]
    assert outcome["error"] == "" and calls.count("cuModuleLoadData ELF") == 2


def test_a_thread_without_a_context_gets_one_for_the_launch_only(launched):
    outcome, calls = launched["a thread"]
    assert outcome["error"] == "" and len([call for call in calls if call.startswith("cuLaunchKernel")]) == 2
    assert calls.count("cuModuleLoadData ELF") == 1 and calls.count("cuDevicePrimaryCtxRetain") == 1


def test_an_empty_tensor_launches_nothing(launched):
    outcome, calls = launched["empty"]
    assert outcome["error"] == "" and not [call for call in calls if call.startswith("cuLaunchKernel")]


def test_a_kernel_that_cannot_be_launched_raises_the_reason(launched):
    for _case, reason in REASONS:
        outcome, _calls = launched[reason]
        assert outcome["error"].startswith("KernelLaunchError: scale: the kernel '") and reason in outcome["error"]


def test_a_driver_that_is_missing_or_lacks_a_needed_function(launch_all, tmp_path):
    ((outcome, _calls),) = launch_all({}, driver="")
    missing = "the CUDA driver could not be loaded (libcuda.so.1: cannot open shared object file"
    assert outcome["error"].startswith("KernelLaunchError: scale: the kernel '") and missing in outcome["error"]
    old = os.path.join(triton_parts.fake_driver(tmp_path, "cuda", "-DTOO_OLD"), CUDA)
    ((outcome, _calls),) = launch_all({}, driver=old)
    assert "the CUDA driver is too old: it has no function cuLaunchKernel" in outcome["error"]


def test_the_same_launcher_serves_hip(launched):
    (outcome, calls), (failed, _calls) = launched["hip"], launched["hip fails"]
    assert outcome["error"] == ""
    launches = [call for call in calls if call.startswith("hipModuleLaunchKernel")]
    assert launches[0] == "hipModuleLaunchKernel grid 2 1 1 threads 256 shared 0 stream 4242 1000 2000 800 3f000000 0 0"
    assert calls[-1] == "hipSetDevice 0", "the thread's device is restored"
    assert "can be loaded: hipModuleLoadData: no kernel image is available" in failed["error"]
    assert "none of its images (gfx9" in failed["error"]


def test_a_library_lists_its_images(prebuilt, monkeypatch):
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(prebuilt["folder"] / "layer"))
    builder = triton_parts.scale_op(prebuilt["folder"] / "op", "prebuilt_scale")
    images = builder("cuda:sm_90").load().kernels.images()
    kernels = {(image["kernel"], image["arch"]) for image in images}
    assert kernels == {(f"scale_{block}", arch) for block in (512, 1024) for arch in ("sm_80", "sm_90a", "compute_80")}
    assert all(image["bytes"] > 1000 and image["threads"] == 128 and image["shared"] == 0 for image in images)
