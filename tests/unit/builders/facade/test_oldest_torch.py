"""On the facade no flag of an op or of the user chooses the oldest torch or Python: its record states these."""

import pytest
from support import sample_ops
from support.compilers.fake_toolchain import FakeToolchain

from opforge.builders import planner
from opforge.builders.facade import flags

OTHERS = {"TORCH_TARGET_VERSION": "0x020d000000000000", "Py_LIMITED_API": "0x030a0000"}


def plan_of(folder, monkeypatch, toolchain=None, **attributes):
    monkeypatch.setattr(planner.facade_headers, "missing", lambda include: "")
    for name in ("plain.cpp", "other.cpp"):
        (folder / name).write_text("")
    builder = sample_ops.builder_class(folder, "plain", abi="torch-facade", **attributes)
    return planner.make_plan(builder().spec(), toolchain or FakeToolchain())


@pytest.mark.parametrize(
    "words",
    [
        *([f"-D{name}={value}"] for name, value in OTHERS.items()),
        ["-DPy_LIMITED_API"],
        ["-D", "Py_LIMITED_API=0x030a0000"],
        ["-U", "TORCH_TARGET_VERSION"],
        ["-UTORCH_TARGET_VERSION"],
    ],
    ids=" ".join,
)
def test_a_flag_does_not_change_them(tmp_path, monkeypatch, words):
    flagged = ["-DMINE=1", *words, "-D", "TORCH_TARGET_VERSION_OF_MINE", "-O1"]
    plan = plan_of(tmp_path, monkeypatch, extra_compile_args=flagged)
    at = plan.compile_flags.index("-DMINE=1")
    assert plan.compile_flags[at : at + 4] == ("-DMINE=1", "-D", "TORCH_TARGET_VERSION_OF_MINE", "-O1")


def test_a_macro_of_the_op_or_of_a_group_does_not_change_them(tmp_path, monkeypatch):
    group = [{"sources": ["other.cpp"], "define_macros": {**OTHERS, "MINE": "2"}}]
    plan = plan_of(tmp_path, monkeypatch, define_macros={**OTHERS, "MINE": "1"}, sources=["plain.cpp"], groups=group)
    for defines, mine in ((plan.defines, "1"), (plan.groups[0].defines, "2")):
        own = dict(defines)
        assert {name: own[name] for name in flags.OF_OLDEST} == {
            "TORCH_TARGET_VERSION": flags.TARGET,
            "Py_LIMITED_API": flags.PYTHON_API,
        }
        assert own["MINE"] == mine and len(own) == len(defines)


def test_the_users_variables_do_not_change_them(tmp_path, monkeypatch):
    class OfUser(FakeToolchain):
        def flags(self):
            return ("-DPy_LIMITED_API=0x030a0000", "-DMINE"), ()

    assert plan_of(tmp_path, monkeypatch, OfUser()).compile_flags[-1:] == ("-DMINE",)
