"""The configs of a Triton kernel are compiled for sm_90, and a launch takes the one that a tuning result names."""

from __future__ import annotations

import importlib
import json
import os
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support import child_processes
from support.gpu import triton_parts
from support.text_files import write
from support.tuned_ops import row

from opforge.builders.declaration.description import description_key
from opforge.builders.lookup import tuning_results as records
from opforge.builders.triton_op_builder import tuned
from opforge.builders.triton_op_builder.kernel import Kernel, check_kernels, kernel_texts, with_variants
from opforge.cache.maintenance import gc
from opforge.cli import group
from opforge.errors import BuilderError

CONFIGS = [{"BLOCK": 2048, "warps": 8}, {"warps": 1}]
SCALE = Kernel("scale", "kernels.py", "scale", triton_parts.ARGUMENTS, {"BLOCK": 1024}, configs=CONFIGS)
MODULE = f"""\
from opforge.builders.triton import Kernel, TritonOpBuilder


class ScaleBuilder(TritonOpBuilder):
    name = "tuned_scale"
    python_functions = "tuned_scale_functions:bind"
    kernels = [
        Kernel("scale", "kernels.py", "scale", {triton_parts.ARGUMENTS!r}, {{"BLOCK": 1024}}, configs={CONFIGS!r})
    ]
"""
FUNCTIONS = """\
def bind(kernels):
    def scale(x, y, by):
        kernels.launch("scale", lambda meta: (-(-x.numel() // meta["BLOCK"]), 1, 1), x, y, x.numel(), by)

    return {"scale": scale}
"""
LAUNCH = """
import importlib, os, sys
sys.path.insert(0, os.environ["FOLDER"])
op = importlib.import_module("tuned_scale_builder").ScaleBuilder("cuda:sm_90").load()
op.kernels.raw_stream = lambda device: 0
for count in (4096, 64):
    op.scale(Tensor(4096, count), Tensor(8192, count), 0.5)
print(*(image["kernel"] for image in op.kernels.images()))
"""


def result(kernel, *rows):
    return {"format": 1, "op": "tuned_scale", "kernel": kernel, "target": "cuda:sm_90a", "cores": 0, "rows": [*rows]}


@pytest.fixture
def op(tmp_path, monkeypatch, cuda_driver):
    """A function that writes the op, and returns its builder and what two calls in another process launch."""

    def make(module, name):
        folder, log = tmp_path / "op", tmp_path / "driver.log"
        folder.mkdir()
        for file, text in {
            "kernels.py": triton_parts.KERNELS,
            "factor.py": triton_parts.FACTOR,
            "tuned_scale_functions.py": FUNCTIONS,
            f"{name}.py": module,
        }.items():
            write(folder, file, text)
        env = {"OPFORGE_CACHE_DIR": str(tmp_path / "store"), "FOLDER": str(folder), "FAKE_GPU_LOG": str(log)}
        env |= {"LD_LIBRARY_PATH": cuda_driver, "FAKE_GPU_PARAMETERS": "6"}

        def launches(**others):
            log.write_text("")
            code = LAUNCH.replace("tuned_scale_builder", name)
            output = child_processes.run_with_torch(triton_parts.TENSOR + code, env=env | others)
            calls = [call.split() for call in log.read_text().splitlines() if call.startswith("cuLaunchKernel")]
            # The images, then the grid's first number and the threads of each launch.
            return sorted(output.split()), [(call[2], call[6]) for call in calls]

        monkeypatch.syspath_prepend(str(folder))
        return importlib.import_module(name).ScaleBuilder("cuda:sm_90"), launches

    return make


EVERY = ["scale", "scale[BLOCK=2048,warps=8]", "scale[warps=1]"]
ROWS = (row(CONFIGS[0], 2000, "any", what="scale"), row(CONFIGS[1], 100, "any", what="scale"))


@pytest.mark.compile
@triton_parts.needs_triton
def test_a_launch_takes_the_config_that_was_found_for_its_size(op, tmp_path):
    builder, launches = op(MODULE, "tuned_scale_builder")
    assert launches() == (EVERY, [("4", "128"), ("1", "128")])
    records.write(str(tmp_path / "store"), result(description_key(builder.spec()), *ROWS))
    assert launches()[1] == [("2", "256"), ("1", "32")]


@pytest.mark.compile
@triton_parts.needs_triton
def test_configs_that_are_no_part_of_the_usual_library_are_compiled_when_a_result_takes_one(op, tmp_path):
    module = MODULE.replace("    kernels = ", "    compiles_configs = False\n    kernels = ")
    builder, launches = op(module, "lean_scale_builder")
    usual = (["scale"], [("4", "128"), ("1", "128")])
    assert launches() == usual
    records.write(str(tmp_path / "store"), result(description_key(builder.spec()), *ROWS))
    assert launches(OPFORGE_PREBUILT="require") == usual, "their library cannot be built: the defaults are used"
    assert launches() == (EVERY, [("2", "256"), ("1", "32")])
    other = tuned.with_configs(builder)
    assert description_key(other.spec()) != description_key(builder.spec())
    entry = SimpleNamespace(record={"description": description_key(other.spec())})
    assert tuned.wanted(other, entry).description == description_key(builder.spec()), "one result for both"


@pytest.mark.compile
@triton_parts.needs_triton
def test_commands_tell_the_library_of_configs_from_the_usual_one(op, own_store, tmp_path, monkeypatch):
    module = MODULE.replace("    kernels = ", "    compiles_configs = False\n    kernels = ")
    builder, _launches = op(module, "listed_scale_builder")
    usual, other = builder.build(), tuned.with_configs(builder).build()

    def run(*words):
        done = CliRunner().invoke(group, [*words])
        assert done.exit_code == 0, done.output
        return done.stdout  # and no warning beside it

    columns, *lines = (line.split("\t") for line in run("ls", "tuned_scale").splitlines())
    shown = {line[columns.index("KEY")]: line[columns.index("KERNELS")] for line in lines}
    assert shown == {usual.key[:12]: "1", other.key[:12]: "3"}
    assert usual.library in run("cache", "explain", "listed_scale_builder:ScaleBuilder", "--target", "cuda:sm_90")
    monkeypatch.chdir(tmp_path / "op")  # a folder is remembered only for files that are older than two seconds
    for entry in (usual, other):
        shown = run("cache", "explain", entry.key)
        assert entry.library in shown and "not compared" not in shown
    run("rm", other.key)
    assert "KERNELS" not in run("ls", "tuned_scale") and usual.key[:12] in run("ls")
    other = tuned.with_configs(builder).build()
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.0)
    run("gc", "--max-size", "0")
    assert not os.path.exists(usual.library) and not os.path.exists(other.library)


@pytest.mark.compile
@triton_parts.needs_triton
def test_a_result_that_takes_a_config_which_cannot_be_compiled_leaves_the_defaults(op, tmp_path):
    bad = {"BLOCK": 1000}  # no power of 2
    builder, launches = op(MODULE.replace(repr(CONFIGS), repr([bad])), "bad_scale_builder")
    usual = (["scale"], [("4", "128"), ("1", "128")])
    assert launches() == usual
    rows = [row(bad, 2000, "any", what="scale")]
    records.write(str(tmp_path / "store"), result(description_key(builder.spec()), *rows))
    assert launches() == usual


def test_a_config_is_a_kernel_of_its_own():
    default, large, narrow = with_variants([SCALE])
    assert default == SCALE
    assert (large.name, large.constants, large.warps) == ("scale[BLOCK=2048,warps=8]", {"BLOCK": 2048}, 8)
    assert (narrow.name, narrow.constants, narrow.warps) == ("scale[warps=1]", {"BLOCK": 1024}, 1)
    texts = [json.loads(text) for text in kernel_texts(with_variants([SCALE])).values()]
    assert [(text["warps"], text["constants"]["BLOCK"]) for text in texts] == [(4, 1024), (8, 2048), (1, 1024)]
    assert "configs" not in texts[0], "what a kernel without configs is keyed by stays as it was"


@pytest.mark.parametrize("config", [{"BLCK": 1}, {}, {"BLOCK": 1.5}])
def test_a_config_with_what_the_kernel_lacks(config):
    with pytest.raises(BuilderError, match=r"scale: configs has \{.*\}\. Expected numbers for BLOCK, warps, stages"):
        check_kernels("ScaleBuilder", [SCALE._replace(configs=[config])])


def test_two_equal_configs():
    equal = [{"BLOCK": 2048, "warps": 1}, {"warps": 1, "BLOCK": 2048}]
    with pytest.raises(BuilderError, match=r"scale: two of its configs are equal\. Leave one of them out"):
        check_kernels("ScaleBuilder", [SCALE._replace(configs=equal)])


def test_a_config_with_warps_that_are_no_power_of_two():
    with pytest.raises(BuilderError, match=r"scale: warps=3\. Expected a power of two"):
        check_kernels("ScaleBuilder", [SCALE._replace(configs=[{"warps": 3}])])


def test_sizes_between_two_results_and_a_config_that_the_op_lacks():
    rows = [row(CONFIGS[0], 1000, "any", what="scale"), row({}, 4000, "any", what="scale")]
    assert tuned.choices(rows, [SCALE]) == ({"scale": [(125, 2000, "scale[BLOCK=2048,warps=8]")]}, "")
    for bad in (row({"warps": 2}, 1, "any", what="scale"), row({"warps": 1}, 1, "any", what="other")):
        made, problem = tuned.choices([bad], [SCALE])
        assert made == {} and problem.endswith("which the op does not have")
