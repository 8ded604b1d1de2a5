"""Error classes: their messages, their attributes, pickling, and which of them a cache hit imports."""

from __future__ import annotations

import copy
import inspect
import json
import pickle

import pytest
from support import child_processes

from opforge import errors

EXAMPLES = {
    errors.SettingError: (errors.SettingError("OPFORGE_JOBS", "x", "a number"), "expected a number"),
    errors.ConfigFileError: (
        errors.ConfigFileError("/etc/opforge/config.toml", "'jbos' is not a setting", "Did you mean jobs?"),
        "The settings file /etc/opforge/config.toml cannot be used: 'jbos' is not a setting. Did you mean jobs?",
    ),
    errors.UnknownAcceleratorError: (
        errors.UnknownAcceleratorError("cdua", ["cpu", "cuda"], "OPFORGE_ACCELERATOR"),
        "Did you mean 'cuda' or 'cpu'? Known: cpu, cuda. Install the package that provides it, or choose one of these.",
    ),
    errors.AcceleratorUnavailableError: (
        errors.AcceleratorUnavailableError("cuda", "no driver", "set_accelerator"),
        "requested by set_accelerator, cannot be used here: no driver. Fix that, or unset it to let opforge choose.",
    ),
    errors.AcceleratorInUseError: (
        errors.AcceleratorInUseError("cuda", "cpu"),
        "Enter the scope once, before starting threads.",
    ),
    errors.CommunicationError: (
        errors.CommunicationError("xpu", "xccl", "this torch has no such backend"),
        "Install what provides it, or choose another, such as init_distributed(backend='gloo').",
    ),
    errors.GroupError: (
        errors.GroupError(0, 2, "ended", 1, "rank 1 (process 7) has ended during barrier", "See why it ended"),
        "The group of 2 ranks in shared memory failed on rank 0: rank 1 (process 7) has ended during barrier. See why",
    ),
    errors.OpNotFoundError: (
        errors.OpNotFoundError("CPUAdm", "cpu", {"CPUAdam": "ready"}),
        "Did you mean 'CPUAdam'? It offers:\n  - CPUAdam: ready",
    ),
    errors.OpIncompatibleError: (
        errors.OpIncompatibleError("relu", "cpu", ["it is an op for cuda", "no compiler"]),
        "The op 'relu' cannot be used for cpu:\n  - it is an op for cuda\n  - no compiler",
    ),
    errors.PrebuiltRequiredError: (
        errors.PrebuiltRequiredError("relu", "cpu", ["/layer: it is for sm_80"]),
        "forbids building one:\n  - /layer: it is for sm_80\nName the folder that holds it in OPFORGE_CACHE_LAYERS",
    ),
    errors.BuilderError: (errors.BuilderError("Relu", "name=''", "Expected an identifier"), "Expected an identifier"),
    errors.SourceNotFoundError: (
        errors.SourceNotFoundError("relu", "a.cpp", ["/p"]),
        "Looked in:\n  - /p\nCorrect the name, or add the folder that holds it.",
    ),
    errors.ToolchainNotFoundError: (
        errors.ToolchainNotFoundError("C++ compiler", ["g++ on PATH"], "Install one."),
        "Looked for:\n  - g++ on PATH\nInstall one.",
    ),
    errors.BenchFileError: (errors.BenchFileError("/x", "it is cut off", "Write it again"), "it is cut off. Write"),
    errors.TuningError: (errors.TuningError("relu", "it is wrong", "Correct it"), "relu cannot be used for tuning: it"),
    errors.ProjectError: (errors.ProjectError("if", "it is a word", "Choose another"), "'if' cannot be created: it is"),
    errors.FarmError: (errors.FarmError("tcp://h:1", "no worker answers", "Start one"), "answers. Start one."),
    errors.InspectionError: (errors.InspectionError("/x", "it is empty", "Name a library"), "Name a library."),
    errors.ToolchainError: (errors.ToolchainError("/g++", "it printed nothing", "Set CXX"), "Set CXX"),
    errors.BuildError: (errors.BuildError("relu: it failed; do this"), "do this"),
    errors.CompileError: (
        errors.CompileError.of(
            "relu",
            "compile a.cpp",
            "a.cpp:1: error: x",
            "> 1 | x",
            ["g++", "a.cpp"],
            "/log",
            [{"file": "a.cpp", "line": 1, "column": 0, "severity": "error", "message": "x"}],
        ),
        "relu: compile a.cpp failed: a.cpp:1: error: x\n> 1 | x\ncommand: g++ a.cpp\nfull log: /log",
    ),
    errors.BuildResourceError: (
        errors.BuildResourceError.of("relu", "the disk is full", "Free some space.", "/log"),
        "relu: the build stopped: the disk is full. Free some space.\nfull log: /log",
    ),
    errors.UnstableInputError: (errors.UnstableInputError.of("relu", ["/a.h"]), "stop writing to them:\n  - /a.h"),
    errors.CacheDirError: (errors.CacheDirError("/c", "it is a file", "Remove it"), "it is a file. Remove it"),
    errors.LayerError: (
        errors.LayerError("/site", "/site can be written by group 5", "Run: chmod go-w /site"),
        "A layer must be owned by root, by you or by a user in OPFORGE_TRUSTED_OWNERS, and nobody else may write it."
        " Run: chmod go-w /site, or remove it from OPFORGE_CACHE_LAYERS.",
    ),
    errors.BuildForbiddenError: (errors.BuildForbiddenError("relu", ["a: old"]), "  - a: old\nBuild it before, with"),
    errors.CompileForbiddenError: (
        errors.CompileForbiddenError("step (a.py:3) for float32[3]"),
        "step (a.py:3) for float32[3]: no compiled graph fits, and opforge.no_builds() forbids compiling."
        "\nCompile it before, for these shapes, inside opforge.compiled(NAME).",
    ),
    errors.CompiledScopeError: (
        errors.CompiledScopeError("step", ["encoder"]),
        "save_compiled('step'): load_compiled has not begun it. Begun: encoder. Call load_compiled('step') before",
    ),
    errors.ProgramError: (
        errors.ProgramError("a.pt2", "it is damaged", "Get it again"),
        "a.pt2: it is damaged. Get it",
    ),
    errors.LockTimeoutError: (errors.LockTimeoutError("relu", 5, "process 7"), "Raise OPFORGE_LOCK_TIMEOUT"),
    errors.LoadError: (errors.LoadError("relu", "/a.so", "undefined symbol", "Name it in libraries"), "Name it in"),
    errors.KernelSchemaError: (
        errors.KernelSchemaError("relu", "/a.so", ["f (a.cpp:1): argument 1 is double"]),
        "Change these functions, or their schemas:\n  - f (a.cpp:1): argument 1 is double",
    ),
    errors.PortError: (
        errors.PortError("a.py", "line 3: no closing parenthesis", "Fix it, or exclude the file"),
        "a.py cannot be ported: line 3: no closing parenthesis. Fix it, or exclude the file.",
    ),
    errors.ExtraNotInstalledError: (
        errors.ExtraNotInstalledError("opforge port", "libcst", "port"),
        "the package 'libcst', which is not installed. Install it with: pip install 'opforge[port]'.",
    ),
    errors.RemoteError: (errors.RemoteError("it failed; do this"), "do this"),
    errors.StoreError: (
        errors.StoreError("https://host/ops", "get v1/a.json", "the server answered 403 Forbidden", "Check the token"),
        "https://host/ops: get v1/a.json failed: the server answered 403 Forbidden. Check the token.",
    ),
    errors.DamagedListError: (
        errors.DamagedListError(
            "file:///shared/ops", "reading v1/withdrawals/ci.json", "it is no JSON", "Ask its owner"
        ),
        "file:///shared/ops: reading v1/withdrawals/ci.json failed: it is no JSON. Ask its owner.",
    ),
    errors.StoreBehindError: (
        errors.StoreBehindError("file:///shared/ops", "its list is of state 3, older than 4", "Ask its owner"),
        "file:///shared/ops is rejected: its list is of state 3, older than 4. Ask its owner",
    ),
    errors.WithdrawnError: (
        errors.WithdrawnError("acme/relu 2", "the key ci has withdrawn it: it leaks", "Use another version"),
        "acme/relu 2 is rejected: the key ci has withdrawn it: it leaks. Use another version",
    ),
    errors.SignatureError: (
        errors.SignatureError("the offer of 'relu'", "the key 'ci-1' has expired", "Trust a newer key"),
        "the offer of 'relu' is rejected: the key 'ci-1' has expired. Trust a newer key.",
    ),
    errors.PublishError: (
        errors.PublishError("relu", "https://host/ops", "the server ignores preconditions", "Use another store"),
        "relu was not published to https://host/ops: the server ignores preconditions. Use another store.",
    ),
    errors.KeyFileError: (errors.KeyFileError("ci.secret is damaged. Make a new key."), "Make a new key."),
    errors.TrustFileError: (
        errors.TrustFileError("/etc/trust.json", "it has mode 666", "Run: chmod go-w /etc/trust.json"),
        "The trust file /etc/trust.json cannot be used: it has mode 666. Run: chmod go-w /etc/trust.json.",
    ),
    errors.KernelFormatError: (
        errors.KernelFormatError("kernel.toml", "'name' is missing", "a name such as acme/relu"),
        "kernel.toml: 'name' is missing. Expected a name such as acme/relu.",
    ),
    errors.KernelNotFoundError: (
        errors.KernelNotFoundError("acme/relu 2", ["/opt/kernels"], "Install it with: opforge install acme/relu"),
        "The kernel acme/relu 2 was not found. Looked in:\n  - /opt/kernels\nInstall it",
    ),
    errors.KernelIncompatibleError: (
        errors.KernelIncompatibleError("acme/relu 2", ["torch-cuda: it is for cuda"], "Use another machine."),
        "No variant of the kernel acme/relu 2 can be used here:\n  - torch-cuda: it is for cuda\nUse another",
    ),
    errors.KernelLoadError: (
        errors.KernelLoadError("acme/relu 2", "/opt/x", "importing it failed", "Report it to its author"),
        "The kernel acme/relu 2 in /opt/x could not be loaded: importing it failed. Report",
    ),
    errors.KernelMappingError: (
        errors.KernelMappingError("RMSNorm", "'x' is not a kernel of a layer", '"ORG/NAME:Layer"'),
        "RMSNorm: 'x' is not a kernel of a layer. Expected \"ORG/NAME:Layer\".",
    ),
    errors.KernelScopeError: (
        errors.KernelScopeError("Llama", "another thread runs it", "Wait until its calls have ended"),
        "The model Llama: another thread runs it. Wait until",
    ),
    errors.KernelDependencyError: (
        errors.KernelDependencyError("acme/top", ["acme/top 1 needs acme/base 2"]),
        "No releases were found that acme/top can be used with:\n  - acme/top 1 needs acme/base 2\nRequest other",
    ),
    errors.KernelLockError: (
        errors.KernelLockError("opforge.lock", ["acme/relu 2 is required"], "Bring it up to date with: opforge lock"),
        "The lock file opforge.lock cannot be used:\n  - acme/relu 2 is required\nBring it up to date",
    ),
    errors.KernelInstallError: (
        errors.KernelInstallError("acme/relu 2", "the disk is full", "Free some space"),
        "acme/relu 2 was not installed: the disk is full. Free some space.",
    ),
    errors.PackError: (
        errors.PackError("acme/relu", ["its library has a RUNPATH"], "Correct it."),
        "The package acme/relu cannot be made:\n  - its library has a RUNPATH\nCorrect it.",
    ),
    errors.HostfileError: (
        errors.HostfileError("hosts", 3, "a slots=0", "a host without a slot runs nothing", "slots=1 or more"),
        "hosts, line 3: 'a slots=0': a host without a slot runs nothing. Expected slots=1 or more.",
    ),
    errors.CoresError: (errors.CoresError("3 ranks want cores, and one core may be used", "Start 1"), "Start 1"),
    errors.LauncherNotFoundError: (
        errors.LauncherNotFoundError("mpi", "there is no mpirun on PATH", "Install one"),
        "The launcher 'mpi' cannot be used here: there is no mpirun on PATH. Install one.",
    ),
    errors.LaunchError: (errors.LaunchError("b did not respond", "Check its cable"), "respond. Check its cable."),
    errors.KernelLaunchError: (
        errors.KernelLaunchError(
            "adam", "update_fp32", "it is built for sm_90a, and device 0 is sm_80: build it for that too"
        ),
        "adam: the kernel 'update_fp32' was not launched: it is built for sm_90a, and device 0 is sm_80: build it for",
    ),
    errors.NamespaceClashError: (
        errors.NamespaceClashError("relu", "ns::relu"),
        "torch.ops.ns.relu is registered already, by another library. Rename the namespace",
    ),
    errors.DeepSpeedError: (
        errors.DeepSpeedError("it is not installed", "==0.19.8"),
        "it is not installed. opforge was tested with DeepSpeed==0.19.8. Install that after torch, with: pip",
    ),
    errors.HubLoaderError: (
        errors.HubLoaderError("it is not installed", ">=0.17.2,<0.18"),
        "opforge was tested with kernels>=0.17.2,<0.18. Install that with: pip install 'kernels>=0.17.2,<0.18'",
    ),
}


def subclasses(base=errors.OpforgeError):
    for kind in base.__subclasses__():
        if kind.__module__.startswith("opforge"):
            yield kind
            yield from subclasses(kind)


def test_every_class_has_an_example_and_is_listed_as_public():
    assert set(EXAMPLES) == set(subclasses())
    assert sorted(errors.__all__) == sorted(kind.__name__ for kind in [*EXAMPLES, errors.OpforgeError])


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_the_message_says_what_to_do_and_is_a_sentence(kind):
    error, part = EXAMPLES[kind]
    assert part in str(error)
    assert isinstance(error, errors.OpforgeError)
    assert "None" not in str(error) and ".." not in str(error).replace("...", "")


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_pickling_and_copying_keep_the_class_the_message_and_the_attributes(kind):
    """A pool pickles what its worker raises: an error that cannot be unpickled kills the pool's thread; all wait."""
    error, _part = EXAMPLES[kind]
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(copied) is kind and str(copied) == str(error) and copied.args == error.args
        assert vars(copied) == vars(error)
        assert getattr(copied, "msg", None) == getattr(error, "msg", None)  # ImportError's own attribute


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_each_argument_of_a_constructor_is_an_attribute(kind):
    error, _part = EXAMPLES[kind]
    parameters = inspect.signature(kind).parameters
    assert parameters and set(parameters) <= vars(error).keys()


@pytest.mark.parametrize("kind", [*EXAMPLES, errors.OpforgeError], ids=lambda kind: kind.__name__)
def test_a_traceback_prints_the_public_name(kind):
    assert f"{kind.__module__}.{kind.__qualname__}" == f"opforge.errors.{kind.__name__}"
    assert getattr(errors, kind.__name__) is kind


def test_a_pickled_error_is_read_by_a_process_that_has_not_imported_its_class():
    error, part = EXAMPLES[errors.CompileError]
    code = f"import pickle; error = pickle.loads({pickle.dumps(error)!r}); print(type(error).__name__, error)"
    output = child_processes.run_python(code)
    assert output.startswith("CompileError ") and part in output


def test_the_modules_of_a_hit_import_no_error():
    """An error's file is imported when it is raised: each further file costs every process time."""
    modules = "accelerator.select accelerator.devices.cpu builders.base fast_path.lookup"
    code = f"""
import importlib, sys
for name in {modules.split()!r}:
    importlib.import_module(f"opforge.{{name}}")
print(*sorted(name for name in sys.modules if name.startswith("opforge.errors.")))
"""
    assert child_processes.run_python(code) == "\n"


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'opforge\.errors' has no attribute 'CompilerError'"):
        errors.CompilerError


def test_an_error_about_an_unknown_name_holds_the_similar_names():
    assert errors.OpNotFoundError("CPUAdm", "cpu", {"CPUAdam": "ready"}).near == ("CPUAdam",)
    assert errors.UnknownAcceleratorError("cdua", ["cpu", "cuda"], "x").near == ("cuda", "cpu")
    assert errors.OpNotFoundError("zzz", "cpu", {"CPUAdam": "ready"}).near == ()


@pytest.mark.parametrize(
    ("name", "near"), [("gpu", "cuda"), ("ROCm", "cuda"), ("metal", "mps"), ("sm_90", "cuda:sm_90")]
)
def test_what_people_call_a_device_is_answered_with_the_accelerators_name(name, near):
    assert errors.UnknownAcceleratorError(name, ["cpu", "cuda", "mps", "npu", "xpu"], "x").near == (near,)
    assert near not in errors.UnknownAcceleratorError(name, ["cpu", "npu", "xpu"], "x").near


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.SettingError, ValueError),
        (errors.OpNotFoundError, LookupError),
        (errors.SourceNotFoundError, FileNotFoundError),
        (errors.CacheDirError, OSError),
        (errors.LockTimeoutError, TimeoutError),
        (errors.LoadError, ImportError),
        (errors.DeepSpeedError, ImportError),
        (errors.BuildError, RuntimeError),
    ],
)
def test_an_error_is_also_an_instance_of_the_builtin_exception(kind, builtin):
    assert issubclass(kind, builtin)


def test_no_suggestion_is_made_if_no_name_is_similar():
    assert "Did you mean" not in str(errors.OpNotFoundError("zzz", "cpu", {"CPUAdam": "ready"}))
    assert "(it offers none)" in str(errors.OpNotFoundError("zzz", "cpu", {}))


@pytest.mark.parametrize(
    "kind", [errors.CompileError, errors.BuildResourceError, errors.UnstableInputError, errors.BuildError]
)
def test_a_build_error_is_recreated_from_its_attributes(kind):
    from opforge.builders.run.planned_build import shared_error

    error, _part = EXAMPLES[kind]
    recreated = shared_error(error.kind, json.loads(json.dumps(vars(error))))
    assert type(recreated) is kind and str(recreated) == str(error) and vars(recreated) == vars(error)


@pytest.mark.parametrize("unexpected", [{"unheard_of": 1}, {"diagnostics": "x"}])
def test_a_build_error_of_another_version_keeps_its_kind_and_message(unexpected):
    from opforge.builders.run.planned_build import shared_error

    recreated = shared_error("compile", {"message": "relu: no", **unexpected})
    assert type(recreated) is errors.CompileError and str(recreated) == "relu: no"


def test_a_missing_source_is_shown_with_the_file_of_nearly_its_name(tmp_path):
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "relu.cpp").touch()
    for missing, searched in (("csrc/rleu.cpp", tmp_path), (str(tmp_path / "csrc" / "relu.cu"), tmp_path / "csrc")):
        text = str(errors.SourceNotFoundError("relu", missing, ["/nowhere", str(searched)]))
        assert "Did you mean 'relu.cpp'? Correct the name" in text
    assert "Did you mean" not in str(errors.SourceNotFoundError("relu", "gelu.h", [str(tmp_path / "csrc")]))
