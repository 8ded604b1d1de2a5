"""Errors: each says what failed, what was expected and what to do."""

from __future__ import annotations

import copy
import inspect
import json
import pickle

import pytest

from opforge import errors

EXAMPLES = {
    errors.SettingError: (errors.SettingError("OPFORGE_JOBS", "x", "a number"), "expected a number"),
    errors.UnknownAcceleratorError: (
        errors.UnknownAcceleratorError("cdua", ["cpu", "cuda"], "OPFORGE_ACCELERATOR"),
        "Did you mean 'cuda' or 'cpu'? Known: cpu, cuda. Install the package that provides it, or choose one of these.",
    ),
    errors.AcceleratorUnavailableError: (
        errors.AcceleratorUnavailableError("cuda", "no driver", "set_accelerator"),
        "Mend that, or unset the choice to let opforge pick one.",
    ),
    errors.AcceleratorInUseError: (
        errors.AcceleratorInUseError("cuda", "cpu"),
        "Enter the scope once, before starting threads.",
    ),
    errors.CommunicationError: (
        errors.CommunicationError("xpu", "xccl", "this torch has no such backend"),
        "Install what brings it, or name another, as in init_distributed(backend='gloo').",
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
        "forbids to build one:\n  - /layer: it is for sm_80\nName the folder that holds it in OPFORGE_CACHE_LAYERS",
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
    errors.InspectionError: (errors.InspectionError("/x", "it is empty", "Name a library"), "Name a library."),
    errors.ToolchainError: (errors.ToolchainError("/g++", "it said nothing", "Set CXX"), "Set CXX"),
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
    errors.ArchiveError: (
        errors.ArchiveError("/a.tar", "it is cut off", 2),
        "2 of its entries were imported before that.",
    ),
    errors.LayerError: (
        errors.LayerError("/site", "/site can be written by group 5", "Run: chmod go-w /site"),
        "A layer must belong to root, to you or to one of OPFORGE_TRUSTED_OWNERS, and nobody else may write it."
        " Run: chmod go-w /site, or take it out of OPFORGE_CACHE_LAYERS.",
    ),
    errors.LockTimeoutError: (errors.LockTimeoutError("relu", 5, "process 7"), "Raise OPFORGE_LOCK_TIMEOUT"),
    errors.LoadError: (errors.LoadError("relu", "/a.so", "undefined symbol", "Name it in libraries"), "Name it in"),
    errors.PortError: (
        errors.PortError("a.py", "line 3: no closing parenthesis", "Mend it, or leave the file out"),
        "a.py cannot be ported: line 3: no closing parenthesis. Mend it, or leave the file out.",
    ),
    errors.ExtraNotInstalledError: (
        errors.ExtraNotInstalledError("opforge port", "libcst", "port"),
        "the package 'libcst', which is not installed. Install it by: pip install 'opforge[port]'.",
    ),
    errors.HostfileError: (
        errors.HostfileError("hosts", 3, "a slots=0", "a host without a slot runs nothing", "slots=1 or more"),
        "hosts, line 3: 'a slots=0': a host without a slot runs nothing. Expected slots=1 or more.",
    ),
    errors.CoresError: (
        errors.CoresError("3 ranks want cores, and one core may be used", "Start fewer ranks"),
        "Start fewer",
    ),
    errors.LauncherNotFoundError: (
        errors.LauncherNotFoundError("mpi", "there is no mpirun on PATH", "Install one"),
        "The launcher 'mpi' cannot be used here: there is no mpirun on PATH. Install one.",
    ),
    errors.LaunchError: (
        errors.LaunchError("b gave no answer", "See that it is up"),
        "b gave no answer. See that it is up.",
    ),
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
        "it is not installed. opforge was tested with DeepSpeed==0.19.8; beside torch it is installed by: pip",
    ),
}


def every_class(base=errors.OpforgeError):
    for one in base.__subclasses__():
        if one.__module__.startswith("opforge"):
            yield one
            yield from every_class(one)


def test_every_class_has_its_example_here():
    assert set(EXAMPLES) == set(every_class())


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_the_message_says_what_to_do_and_is_a_sentence(kind):
    error, part = EXAMPLES[kind]
    assert part in str(error)
    assert isinstance(error, errors.OpforgeError)
    assert "None" not in str(error) and ".." not in str(error).replace("...", "")


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_an_error_crosses_to_another_process_whole(kind):
    """A pool pickles what its worker raises: an error that cannot be unpickled kills the pool's thread; all wait."""
    error, _part = EXAMPLES[kind]
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(back) is kind and str(back) == str(error) and back.args == error.args
        assert vars(back) == vars(error)
        assert getattr(back, "msg", None) == getattr(error, "msg", None)  # where ImportError keeps its own


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_what_a_message_is_made_of_can_be_read_by_a_program(kind):
    error, _part = EXAMPLES[kind]
    taken = inspect.signature(kind).parameters
    assert taken and set(taken) <= vars(error).keys()


def test_an_error_tells_the_names_that_are_near():
    assert errors.OpNotFoundError("CPUAdm", "cpu", {"CPUAdam": "ready"}).near == ("CPUAdam",)
    assert errors.UnknownAcceleratorError("cdua", ["cpu", "cuda"], "x").near == ("cuda", "cpu")
    assert errors.OpNotFoundError("zzz", "cpu", {"CPUAdam": "ready"}).near == ()


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
def test_an_error_is_also_what_python_calls_it(kind, builtin):
    assert issubclass(kind, builtin)


def test_no_suggestion_is_made_for_a_name_that_is_like_none():
    assert "Did you mean" not in str(errors.OpNotFoundError("zzz", "cpu", {"CPUAdam": "ready"}))
    assert "(it offers none)" in str(errors.OpNotFoundError("zzz", "cpu", {}))


@pytest.mark.parametrize(
    "kind", [errors.CompileError, errors.BuildResourceError, errors.UnstableInputError, errors.BuildError]
)
def test_a_build_error_is_rebuilt_from_its_parts(kind):
    from opforge.builders.run.pipeline import shared_error

    first, _part = EXAMPLES[kind]
    again = shared_error(first.kind, json.loads(json.dumps(vars(first))))
    assert type(again) is kind and str(again) == str(first) and vars(again) == vars(first)


@pytest.mark.parametrize("more", [{"unheard_of": 1}, {"diagnostics": "x"}])
def test_a_build_error_of_another_version_keeps_its_kind_and_message(more):
    from opforge.builders.run.pipeline import shared_error

    again = shared_error("compile", {"message": "relu: no", **more})
    assert type(again) is errors.CompileError and str(again) == "relu: no"
