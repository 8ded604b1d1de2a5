"""kernel.toml and build.toml: what is read, and what is refused with its reason."""

from __future__ import annotations

import copy
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies
from support import sample_ops
from support.text_files import write

from opforge.accelerator.target import Target
from opforge.errors import BuilderError, KernelFormatError, OpforgeError, OpIncompatibleError
from opforge.packages.form.version import Version
from opforge.packages.pack import properties
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import build_toml, depends, reading

KERNEL = 'name = "acme/relu"\nversion = "2.3"\nlicense = "MIT"\n[op]\nsources = ["relu.cpp"]\n'
HUB = {
    "general": {
        "name": "silu",
        "version": 1,
        "edition": 5,
        "license": "Apache-2.0",
        "backends": ["cpu", "cuda"],
        "hub": {"repo-id": "acme/silu"},
        "kernel-depends": [{"repo-id": "acme/base", "version": 1}],
        "python-depends": ["einops"],
    },
    "torch": {"src": ["torch-ext/torch_binding.cpp", "torch-ext/torch_binding.h"]},
    "kernel": {
        "silu_cpu": {"backend": "cpu", "depends": ["torch"], "src": ["silu_cpu/silu.cpp"], "cxx-flags": ["-O2"]},
        "silu_cuda": {"backend": "cuda", "depends": ["torch"], "src": ["silu_cuda/silu.cu"], "include": ["silu_cuda"]},
    },
}


@pytest.fixture
def hub(tmp_path):
    for name in ("torch-ext/torch_binding.cpp", "torch-ext/torch_binding.h", "torch-ext/silu/__init__.py"):
        write(tmp_path, name, "")
    for name in ("silu_cpu/silu.cpp", "silu_cuda/silu.cu"):
        write(tmp_path, name, "")
    return str(tmp_path)


class TestKernelToml:
    def test_it_is_read(self, tmp_path):
        write(tmp_path, "kernel.toml", 'targets = ["cpu:x86-64-v3"]\npython-depends = ["einops>=0.8"]\n' + KERNEL)
        write(tmp_path, "relu.cpp", "")
        described = reading.read(str(tmp_path))
        assert (described.name, described.version, described.targets) == (
            "acme/relu",
            Version(2, 3),
            ("cpu:x86-64-v3",),
        )
        spec = described.builder(Target.parse("cpu"), False).spec()
        assert (spec.name, spec.abi, spec.sources) == ("relu", "torch-stable", ("relu.cpp",))

    def test_its_op_has_the_attributes_of_a_builder(self, tmp_path):
        write(
            tmp_path,
            "kernel.toml",
            KERNEL + 'requires-torch = ">=2.10"\ndevices = ["cuda"]\narchitectures = ["9.0a"]\n',
        )
        write(tmp_path, "relu.cpp", "")
        spec = reading.read(str(tmp_path)).builder(Target.parse("cuda"), False).spec()
        assert (spec.requires_torch, str(spec.target)) == (">=2.10", "cuda:sm_90a")

    def test_the_name_and_the_version_can_be_replaced(self, tmp_path):
        write(tmp_path, "kernel.toml", KERNEL)
        described = reading.read(str(tmp_path / "kernel.toml"), "other/relu", "4")
        assert (described.name, described.version) == ("other/relu", Version(4))

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("", "'name' is missing"),
            ('nam = "a/bc"\n' + KERNEL, "'nam' is not a field that is read; did you mean 'name'?"),
            (KERNEL.replace("acme/relu", "../x"), "'../x' is not a name that can be used"),
            (KERNEL.replace("2.3", "2.3.4"), "'2.3.4' cannot be used. Expected a version such as 2 or 2.3"),
            (KERNEL.replace('"MIT"', "3"), "'license' is 3: expected a text"),
            ('builder = "ops:B"\n' + KERNEL, "it has both 'builder' and [op]"),
            ('targets = ["cpu:x86-64-v9"]\n' + KERNEL, "cpu:x86-64-v9"),
            ('backends = ["cuda"]\n' + KERNEL, "'backends' is for a package without a library: name `targets`"),
            ('python = "../other"\n' + KERNEL, "'../other' does not stay inside the package"),
            ('python = "missing"\n' + KERNEL, "'missing' does not exist in"),
            ('python-depends = ["a b c"]\n' + KERNEL, "'a b c' is not a requirement"),
            (KERNEL.replace("sources", "source"), "'source' is not a field that is read; did you mean 'sources'?"),
            (KERNEL.partition("[op]")[0], "there is nothing to pack"),
            (KERNEL + '[depends]\n"acme/base" = "~1"\n', "'~1' cannot be used. Expected a version or a range"),
            ("name = \n", "it is not valid TOML"),
            ("<<<<<<< HEAD\n" + KERNEL, "line 1 is a mark of a merge conflict"),
            ("a = [" * 5000, "it is n"),
        ],
    )
    def test_a_wrong_file_is_refused(self, tmp_path, text, problem):
        write(tmp_path, "kernel.toml", text)
        with pytest.raises(OpforgeError) as error:
            reading.read(str(tmp_path))
        assert problem in str(error.value)

    @pytest.mark.parametrize("in_project", [True, False], ids=["kernel.toml", "module:Class"])
    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("1 / 0", "importing its module failed: ZeroDivisionError: division by zero. Fix the module"),
            ("class B(", "importing its module failed: SyntaxError: "),
            ("raise SystemExit(0)", "importing its module failed: SystemExit: 0"),
            ("import no_such_module", "its module needs 'no_such_module', which is not installed. Install it"),
        ],
    )
    def test_a_builder_whose_module_cannot_be_imported_is_refused(
        self, tmp_path, monkeypatch, in_project, text, problem
    ):
        name = sample_ops.unique_name("ops")
        write(tmp_path, f"{name}.py", text)
        write(tmp_path, "kernel.toml", f'builder = "{name}:B"\n' + KERNEL.partition("[op]")[0])
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(BuilderError, match=f"{name}:B: {problem}"):
            reading.read(str(tmp_path) if in_project else f"{name}:B")

    @pytest.mark.parametrize("folder", ["python/", "./python", "python//", "tests/../python"])
    def test_a_folder_may_be_written_in_several_ways(self, tmp_path, folder):
        write(tmp_path, "kernel.toml", f'python = "{folder}"\n{KERNEL}')
        write(tmp_path, "python/__init__.py", "")
        assert reading.read(str(tmp_path)).python == str(tmp_path / "python")

    def test_a_folder_without_a_description_is_refused(self, tmp_path):
        with pytest.raises(KernelFormatError, match=r"Expected a folder with kernel\.toml or build"):
            reading.read(str(tmp_path))


class TestBuildToml:
    def test_it_is_read_and_gives_a_builder_for_each_backend(self, hub):
        described = build_toml.parse(HUB, "build.toml", hub)
        assert (described.name, described.version, described.backends) == ("acme/silu", Version(1), ("cpu", "cuda"))
        assert Path(described.python).name == "silu" and described.kernel_depends[0].versions.text == "1"
        builder = described.builder(Target.parse("cuda:sm_90"), False)
        (group,) = builder.groups
        assert (builder.sources, group["sources"]) == (["torch-ext/torch_binding.cpp"], ["silu_cuda/silu.cu"])
        assert (builder.include_dirs, group["include_dirs"]) == (("torch-ext",), ("silu_cuda",))
        assert ("CUDA_KERNEL", "1") in builder.define_macros and builder.abi == "torch"
        (group,) = described.builder(Target.parse("cpu"), False).groups
        assert (group["sources"], group["extra_compile_args"]) == (["silu_cpu/silu.cpp"], {"cxx": ["-O2"]})

    def test_capital_letters_of_the_hub_are_small_here(self, hub):
        table = copy.deepcopy(HUB)
        table["general"]["hub"] = {"repo-id": "Acme-Labs/Silu"}
        table["general"]["kernel-depends"] = [{"repo-id": "Acme-Labs/Base", "version": 2}]
        described = build_toml.parse(table, "build.toml", hub)
        (needed,) = described.kernel_depends
        assert (described.name, needed.name, needed.repository) == (
            "acme-labs/silu",
            "acme-labs/base",
            "Acme-Labs/Base",
        )

    def test_what_one_backend_needs_is_in_its_variants_alone(self, hub, tmp_path):
        cuda = {"python-depends": ["nvidia-cutlass-dsl"], "kernel-depends": [{"repo-id": "acme/gemm", "version": 3}]}
        table = {"general": {**HUB["general"], "cuda": cuda}, "torch-noarch": {}}
        described = build_toml.parse(table, "build.toml", hub)
        packed = pack(described, str(tmp_path / "out"), Options(tried=False))
        stated = {variant.label: variant.metadata for variant in packed}
        assert stated["torch-cpu"].python_depends == ("einops",)
        assert stated["torch-cpu"].opforge["depends"] == {"acme/base": "1"}
        assert stated["torch-cuda"].python_depends == ("einops", "nvidia-cutlass-dsl")
        assert stated["torch-cuda"].opforge["depends"] == {"acme/base": "1", "acme/gemm": "3"}

    def test_the_versions_of_torch_are_a_range_with_both_ends(self, hub):
        table = copy.deepcopy(HUB)
        table["torch"] |= {"minver": "2.11", "maxver": "2.13"}
        builder = build_toml.parse(table, "build.toml", hub).builder(Target.parse("cpu"), False)
        assert builder.requires_torch == ">=2.11,<2.14"
        table["torch"]["minver"] = "new"
        with pytest.raises(KernelFormatError, match="'minver' is 'new': expected a version such as 2"):
            build_toml.parse(table, "build.toml", hub).builder(Target.parse("cpu"), False)

    def test_the_stable_abi_of_a_backend_is_used(self, hub):
        table = copy.deepcopy(HUB)
        table["torch"]["stable-abi"] = {"cpu": "2.11"}
        described = build_toml.parse(table, "build.toml", hub)
        builder = described.builder(Target.parse("cpu"), False)
        assert (builder.abi, builder.torch_target) == ("torch-stable", "2.11")
        assert described.builder(Target.parse("cuda:sm_90"), False).abi == "torch"

    @pytest.mark.parametrize("edition", [3, 4])
    def test_older_editions_are_read(self, hub, edition):
        table = copy.deepcopy(HUB)
        del table["general"]["edition"], table["general"]["backends"]
        if edition == 3:
            table["general"]["universal"] = False
            table["kernel"] = {"silu": {"language": "cuda-hipify", "src": ["silu_cuda/silu.cu"]}}
        described = build_toml.parse(table, "build.toml", hub)
        assert described.backends == (("rocm",) if edition == 3 else ("cpu", "cuda"))

    def test_a_kernel_without_a_library_is_for_its_backends(self, hub):
        table = {"general": HUB["general"], "torch-noarch": {}}
        described = build_toml.parse(table, "build.toml", hub)
        assert described.builder is None and described.backends == ("cpu", "cuda")

    @pytest.mark.parametrize(
        ("path", "value", "problem"),
        [
            ("general/edition", 9, "'edition' is 9, and opforge reads 3, 4, 5"),
            ("general/nme", "x", "'nme' is not a field that is read; did you mean 'name'?"),
            ("general/name", "CON", "'CON' is not a name that can be used"),
            ("general/hub/repo-id", "x", "'x' is not two parts with one '/'"),
            ("torch/src", ["/etc/passwd"], "'/etc/passwd' does not stay inside the package"),
            ("torch/src", ["../*.cpp"], "'../*.cpp', which does not stay inside the package"),
            ("torch/src", ["csrc/*.cpp"], "'csrc/*.cpp', which matches no file"),
            ("torch/src", ["*/torch_binding.cpp"], None),
            ("torch/include", ["../include"], "'../include' does not stay inside the package"),
            ("torch/include", ["missing"], "'missing' does not exist"),
            ("torch/include", ["."], None),
            ("torch/pyext", "py", "'pyext' is 'py': expected a list of texts"),
            ("torch/pyroot", "x", "'pyroot' is not a field that is read"),
            ("torch/stable-abi", True, "'stable-abi' is True: expected a text"),
            ("torch/stable-abi", 2.11, "'stable-abi' is 2.11: expected a text"),
            ("torch/stable-abi", {"cpu": True}, "'cpu' is True: expected a text"),
            ("torch/stable-abi", {"hip": "2.11"}, "'hip' is not a field that is read"),
            ("general/version", None, "'version' is missing"),
            ("general/license", None, "'license' is missing"),
            ("general/backends", None, "'backends' is missing"),
            ("general/backends", ["cpu", "cuda", "cpu"], "'backends' holds 'cpu' twice"),
            ("general/backends", ["cpu", "cuda", "vulkan"], "'backends' holds 'vulkan': expected one of cpu, cuda"),
            ("general/hub", {"repo-id": "a/silu", "branch": 1}, "'branch' is 1: expected a text"),
            ("general/hub", {"repo": "a/silu"}, "'repo' is not a field that is read"),
            ("general/cuda", {"minver": 12}, "'minver' is 12: expected a text"),
            ("general/xpu", {"minver": "1.2"}, "'minver' is not a field that is read"),
            ("general/kernel-depends", [{"repo-id": "a/bc"}], "it has not exactly one of 'version' and 'revision'"),
            (
                "general/kernel-depends",
                [{"repo-id": "a/bc", "version": ">=2"}],
                "'version' is '>=2': expected a whole number",
            ),
            ("kernel/silu_cpu/cuda-flags", ["-O2"], "'cuda-flags' is not a field that is read"),
            ("kernel/silu_cpu/language", "cuda", "'language' is not a field of edition 5"),
            ("torch/src", ["../x.cpp"], "'../x.cpp' does not stay inside the package"),
            ("torch/src", ["missing.cpp"], "'missing.cpp' does not exist"),
            ("torch-noarch", {}, "it has 2 of [torch], [torch-noarch] and [tvm-ffi], and not exactly one"),
            (
                "kernel/silu_cpu/depends",
                ["cutlass_4_0"],
                "it depends on cutlass_4_0: name a folder or a wheel with its headers, --depend cutlass_4_0=PATH",
            ),
            ("kernel/silu_cpu/depends", ["metal-cpp"], "'depends' names 'metal-cpp': it is Apple's"),
            ("kernel/silu_cpu/depends", ["boost"], "'depends' names 'boost', which opforge does not know"),
            ("kernel/silu_cpu/src", None, "'src' is missing"),
            ("kernel", {"x": {"backend": "metal", "src": []}}, "'backends' lacks 'metal', which a kernel is for"),
        ],
    )
    def test_a_wrong_field_is_refused(self, hub, path, value, problem):
        table = copy.deepcopy(HUB)
        *parents, last = path.split("/")
        holder = table
        for parent in parents:
            holder = holder[parent]
        holder[last] = value
        if problem is None:
            assert build_toml.parse(table, "build.toml", hub).builder(Target.parse("cpu"), False)
            return
        with pytest.raises(KernelFormatError) as error:
            build_toml.parse(table, "build.toml", hub).builder(Target.parse("cpu"), False)
        assert problem in str(error.value)

    def test_a_kernel_for_tvm_ffi_needs_tvm_ffi(self, hub, monkeypatch):
        monkeypatch.setattr(depends, "tvm_ffi", lambda: ("", ""))
        table = {"general": HUB["general"], "tvm-ffi": {}}
        described = build_toml.parse(table, "build.toml", hub)
        with pytest.raises(OpIncompatibleError, match="tvm-ffi, which is not installed: pip install apache-tvm-ffi"):
            described.builder(Target.parse("cpu"), False)

    def test_what_the_user_names_is_a_folder_of_headers(self, hub, tmp_path):
        table = copy.deepcopy(HUB)
        table["kernel"]["silu_cpu"]["depends"] = ["torch", "cutlass_4_0"]
        write(tmp_path, "tree/include/cutlass/cutlass.h", "")
        write(tmp_path, "tree/tools/util/include/cutlass/util.h", "")
        with zipfile.ZipFile(tmp_path / "cutlass.whl", "w") as archive:
            archive.write(tmp_path / "tree/include/cutlass/cutlass.h", "pkg/source/include/cutlass/cutlass.h")
        for path, count in (("tree", 2), ("tree/include", 2), ("cutlass.whl", 1)):
            provided = dict([depends.parse(f"cutlass_4_0={tmp_path}/{path}")])
            builder = build_toml.parse(table, "build.toml", hub, provided).builder(Target.parse("cpu"), False)
            roots = [root for root in builder.kernel_roots if root.name.startswith("cutlass_4_0")]
            assert len(roots) == count and (Path(roots[0].path) / "include/cutlass/cutlass.h").is_file()

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("boost=/", "'boost' is not a dependency of a hub kernel"),
            ("cutlass_4_0=/missing", "/missing does not exist"),
            ("cutlass_4_0", "Expected --depend NAME=PATH"),
        ],
    )
    def test_a_dependency_that_is_not_there_is_refused(self, text, problem):
        with pytest.raises(KernelFormatError) as error:
            depends.parse(text)
        assert problem in str(error.value)

    def test_what_is_no_tree_of_headers_is_refused(self, tmp_path):
        write(tmp_path, "x.whl", "text")
        for path in (tmp_path, tmp_path / "x.whl"):
            with pytest.raises(KernelFormatError, match=r"--depend NAME=PATH, with a folder that has include/"):
                depends.roots("cutlass_4_0", str(path))

    def test_the_versions_of_cuda_are_a_range_with_both_ends(self, hub):
        table = copy.deepcopy(HUB)
        table["general"]["cuda"] = {"minver": "12.4", "maxver": "13.0"}
        table["kernel"]["silu_cuda"]["cuda-minver"] = "12.8"
        limits = build_toml.parse(table, "build.toml", hub).toolkits["cuda"]
        assert limits == ("12.8", "13.0")
        problems = [
            properties.toolkit_problem("cuda", {"cuda": used}, limits) for used in ("12.6", "12.8", "13.0", "13.2")
        ]
        assert problems[1:3] == ["", ""] and problems[0] == "it is for cuda 12.8 to 13.0, and the toolkit here is 12.6"
        assert properties.toolkit_problem("cuda", {"cuda": "12.10"}, ("12.8", "")) == "", "no text is compared"

    def test_a_backend_without_a_kernel_is_built_from_the_binding_alone(self, hub):
        table = copy.deepcopy(HUB)
        del table["kernel"]["silu_cpu"]
        builder = build_toml.parse(table, "build.toml", hub).builder(Target.parse("cpu"), False)
        assert (builder.sources, [*builder.groups]) == (["torch-ext/torch_binding.cpp"], [])

    def test_the_kinds_of_files_that_are_shipped_are_those_of_pyext(self, hub, tmp_path):
        for kind in ("json", "py", "txt"):
            write(hub, f"torch-ext/silu/data.{kind}", "1\n")
        table = {"general": HUB["general"], "torch-noarch": {"pyext": ["json", "py"], "cuda_capabilities": ["12.1"]}}
        packed = pack(build_toml.parse(table, "build.toml", hub), str(tmp_path / "out"), Options(tried=False))
        assert "data.json" in packed[0].metadata.files and "data.txt" not in packed[0].metadata.files
        assert [variant.metadata.archs for variant in packed] == [(), ("12.1",)]

    def test_a_revision_is_stated_in_the_hubs_metadata(self, hub, tmp_path):
        table = {"general": copy.deepcopy(HUB["general"]), "torch-noarch": {}}
        table["general"]["kernel-depends"] = [
            {"repo-id": "Acme/Base", "revision": "main"},
            {"repo-id": "acme/gemm", "version": 3},
        ]
        (packed, _cuda) = pack(build_toml.parse(table, "build.toml", hub), str(tmp_path / "out"), Options(tried=False))
        with open(Path(packed.folder) / "metadata.json") as file:
            stated = json.load(file)
        assert stated["kernel-depends"] == table["general"]["kernel-depends"]
        assert stated["x-opforge"]["depends"] == {"acme/base": "@main", "acme/gemm": "3"}


VALUES = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(max_size=6),
    lambda part: (
        strategies.lists(part, max_size=2) | strategies.dictionaries(strategies.text(max_size=6), part, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(
    strategies.sampled_from(
        [
            *HUB,
            "general/name",
            "general/hub",
            "general/kernel-depends",
            "torch/src",
            "kernel/silu_cpu/src",
            "kernel/silu_cpu",
        ]
    ),
    VALUES,
)
def test_any_value_in_any_field_of_build_toml_is_read_or_refused(tmp_path_factory, path, value):
    folder = tmp_path_factory.getbasetemp() / "hub-fuzz"
    write(folder, "torch-ext/silu/__init__.py", "")
    table = copy.deepcopy(HUB)
    *parents, last = path.split("/")
    holder = table
    for parent in parents:
        holder = holder[parent]
    holder[last] = value
    try:
        described = build_toml.parse(table, "build.toml", str(folder))
        if described.builder:
            described.builder(Target.parse("cpu"), False)
    except OpforgeError:
        return
