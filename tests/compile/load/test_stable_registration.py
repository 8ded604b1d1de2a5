"""Registration of ops on the stable ABI: namespaces that are in use, schemas, and sources that register nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal

import pytest
from support import sample_ops, text_files
from support.sample_ops import STABLE_HEADERS

from opforge.errors import CompileError, LoadError, NamespaceClashError
from opforge.fast_path import library
from opforge.programs import save

torch = pytest.importorskip("torch", reason="pip install torch")
pytestmark = pytest.mark.usefixtures("precompiled")


@contextlib.contextmanager
def interrupted_registration(monkeypatch):
    """Has a signal come while a library registers its ops: Python raises its exception right behind that."""
    register = library.call_register
    with monkeypatch.context() as patch:
        patch.setattr(library, "call_register", lambda *given: register(*given) or signal.raise_signal(signal.SIGINT))
        yield


def test_a_function_of_another_library_or_op_is_a_clash_until_that_library_is_gone(tmp_path):
    cls = sample_ops.stable_op(tmp_path / "op")
    foreign = torch.library.Library(cls.name, "DEF")
    foreign.define("relu(Tensor x) -> Tensor")
    with pytest.raises(NamespaceClashError) as caught:
        cls().load()
    assert str(caught.value) == (
        f"{cls.name}: torch.ops.{cls.name}.relu is registered already, by another library."
        " Rename the namespace in the source's STABLE_TORCH_LIBRARY, or do not load both."
    )
    foreign._destroy()
    other = torch.library.Library(cls.name, "FRAGMENT")
    other.define("gelu(Tensor x) -> Tensor")  # another function of the namespace is no clash
    assert cls().load().relu(torch.tensor([-1.0])).tolist() == [0.0]
    second = type("Second", (cls,), {"name": f"{cls.name}_too", "folder": str(tmp_path / "op")})
    with pytest.raises(NamespaceClashError) as caught:
        second().load()
    assert str(caught.value) == (
        f"{cls.name}_too: torch.ops.{cls.name}.relu is registered already, by the op {cls.name!r}."
        " Rename the namespace in the source's STABLE_TORCH_LIBRARY, or do not load both."
    )


def test_an_overload_of_another_library_is_a_clash(tmp_path):
    text = STABLE_HEADERS + (
        "int64_t f(int64_t x) { return x; }\n"
        'STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("f.special(int x) -> int"); }\n'
        'STABLE_TORCH_LIBRARY_IMPL(@NAME@, CompositeExplicitAutograd, m) { m.impl("f.special", TORCH_BOX(&f)); }\n'
    )
    cls = sample_ops.op_from_source(tmp_path / "op", text)
    foreign = torch.library.Library(cls.name, "FRAGMENT")
    foreign.define("f.special(int x) -> int")
    with pytest.raises(NamespaceClashError, match=rf"torch.ops.{cls.name}.f is registered already, by another library"):
        cls().load()
    foreign._destroy()
    assert cls().load().f.special(3) == 3


def test_the_error_for_a_schema_that_torch_cannot_parse_has_torchs_reason(tmp_path):
    text = STABLE_HEADERS + 'STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("f(Tensr x) -> Tensor"); }\n'
    cls = sample_ops.op_from_source(tmp_path / "op", text)
    for _ in range(2):
        with pytest.raises(LoadError) as caught:
            cls().load()
        message = str(caught.value)
        assert message.splitlines()[-2:] == [
            f"{cls.name}::f(Tensr x) -> Tensor",
            f"{' ' * len(cls.name)}    ~~~~~ <--- HERE",
        ]
        assert f"The schema '{cls.name}::f(Tensr x) -> Tensor' cannot be read: " in message
        assert "torch refused the definition f(Tensr x) -> Tensor" in message


def test_a_dispatch_key_that_torch_does_not_have_is_named(tmp_path):
    text = STABLE_HEADERS + (
        "int64_t f(int64_t x) { return x; }\n"
        'STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("f(int x) -> int"); }\n'
        'STABLE_TORCH_LIBRARY_IMPL(@NAME@, Cpu, m) { m.impl("f", TORCH_BOX(&f)); }\n'
    )
    with pytest.raises(LoadError, match=r"torch refused the dispatch key Cpu. Write CPU, CUDA, .* in this letter case"):
        sample_ops.op_from_source(tmp_path / "op", text)().load()


OTHER_TYPES = pytest.mark.long("compiles torch's headers for another name of the same table")


@pytest.mark.parametrize(
    "schema",
    [
        "f(Tensor x, int64_t[] n) -> Tensor",
        pytest.param("f(tensor x) -> Tensor", marks=OTHER_TYPES),
        pytest.param("f() -> double", marks=OTHER_TYPES),
    ],
)
def test_the_error_names_a_type_that_torch_takes_for_a_variable(tmp_path, schema):
    text = STABLE_HEADERS + f'STABLE_TORCH_LIBRARY(@NAME@, m) {{ m.def("{schema}"); }}\n'
    cls = sample_ops.op_from_source(tmp_path / "op", text)
    with pytest.raises(
        LoadError, match=r"'(tensor|int64_t|double)' in the schema '.*' is not a type. Write Tensor, int "
    ):
        cls().load()


def test_a_failed_registration_removes_the_definitions_before_the_bad_one(tmp_path):
    """Otherwise the corrected library could not be loaded: `good` would be defined already."""
    bad = 'STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("good(int x) -> int"); m.def("bad(Oops x) -> int"); }\n'
    cls = sample_ops.op_from_source(tmp_path / "op", STABLE_HEADERS + bad)
    with pytest.raises(LoadError, match=r"bad\(Oops x\) -> int' cannot be read"):
        cls().load()
    with pytest.raises(AttributeError, match="good"):
        getattr(torch.ops, cls.name).good
    good = STABLE_HEADERS + (
        "int64_t good(int64_t x) { return x + 1; }\n"
        f'STABLE_TORCH_LIBRARY({cls.name}, m) {{ m.def("good(int x) -> int"); }}\n'
        f'STABLE_TORCH_LIBRARY_IMPL({cls.name}, CompositeExplicitAutograd, m) {{ m.impl("good", TORCH_BOX(&good)); }}\n'
    )
    text_files.write(tmp_path / "op", f"{cls.name}.cpp", good)
    assert cls().load().good(1) == 2


@pytest.mark.parametrize(
    ("headers", "linker"),
    [("", "bfd"), ("", "gold"), ("", "lld"), ("", "mold"), (STABLE_HEADERS, "bfd")],
    ids=["bfd", "gold", "lld", "mold", "with the header"],
)
def test_the_error_for_a_source_that_registers_nothing_shows_how_to_register(tmp_path, own_store, linker, headers):
    if shutil.which(f"ld.{linker}") is None:
        pytest.skip(f"needs ld.{linker} (apt install {'binutils' if linker in ('bfd', 'gold') else linker})")
    text = headers + "long f(long x) { return x; }\n"
    cls = sample_ops.op_from_source(tmp_path / "op", text, extra_link_args=[f"-fuse-ld={linker}"])
    with pytest.raises(CompileError) as caught:
        cls().load()
    assert str(caught.value) == (
        f"{cls.name}: no source registers an op. Write a STABLE_TORCH_LIBRARY({cls.name}, m) block after"
        " #include <torch/csrc/stable/library.h>, or choose abi='c' for plain functions, abi='torch' for pybind."
    )
    assert os.listdir(own_store / "v2" / "staging") == []


def test_the_registration_blocks_of_several_sources_make_one_library(tmp_path, monkeypatch):
    """Also if a signal ends the load right behind their registration, and they are loaded again."""
    folder = tmp_path / "op"
    name = sample_ops.unique_name("split")
    folder.mkdir()
    text_files.write(
        folder,
        "defs.cpp",
        STABLE_HEADERS + f'STABLE_TORCH_LIBRARY({name}, m) {{ m.def("f(int x) -> int"); }}\n'
        f'STABLE_TORCH_LIBRARY_FRAGMENT({name}, m) {{ m.def("g(int x) -> int"); }}\n',
    )
    for function, number in (("f", 1), ("g", 2)):
        text_files.write(
            folder,
            f"{function}.cpp",
            STABLE_HEADERS + f"static int64_t run(int64_t x) {{ return x + {number}; }}\n"
            f"STABLE_TORCH_LIBRARY_IMPL({name}, CompositeExplicitAutograd, m) "
            f'{{ m.impl("{function}", TORCH_BOX(&run)); }}\n',
        )
    builder = sample_ops.builder_class(folder, name, sources=["defs.cpp", "f.cpp", "g.cpp"])()
    with pytest.raises(KeyboardInterrupt), interrupted_registration(monkeypatch):
        builder.load()
    op = builder.load()
    assert (op.f(1), op.g(1)) == (2, 3) and op.f is getattr(torch.ops, name).f.default


SERVES_OTHERS = """\
int64_t f(int64_t x) { return x * VERSION; }
void g(StableIValue* stack, uint64_t, uint64_t) { stack[0] = torch::stable::detail::from(f(0)); }
#if VERSION != 3
STABLE_TORCH_LIBRARY(@NAME@_own, m) { m.def("own(int x) -> int"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@_own, CompositeExplicitAutograd, m) { m.impl("own", TORCH_BOX(&f)); }
#endif
#if VERSION != 4
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CompositeExplicitAutograd, m) { m.impl("f", TORCH_BOX(&f)); }
#endif
#if VERSION == 2
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CompositeExplicitAutograd, m) { m.impl("g", &g); }
#endif
"""


def test_of_kernels_for_the_ops_of_another_library_those_of_the_version_that_was_loaded_last_are_there(
    tmp_path, monkeypatch
):
    """One version has ops of its own and kernels for others, one such kernels alone, and one none."""
    first = sample_ops.op_from_source(tmp_path, STABLE_HEADERS + SERVES_OTHERS, define_macros=(("VERSION", "2"),))
    space = torch.library.Library(first.name, "DEF")
    space.define("f(int x) -> int")
    space.define("g() -> int")
    builders = {2: first()}
    for version in (3, 4):
        changes = {"define_macros": (("VERSION", f"{version}"),), "folder": str(tmp_path)}
        builders[version] = type("Later", (first,), changes)()
    others = getattr(torch.ops, first.name)
    ops = {}
    for version in (2, 3, 2, 2, 3, 4, 2, 4, 3):
        op = builders[version].load()
        assert ops.setdefault(version, op) is op and builders[version].load() is op
        for name, has_it in (("f", version != 4), ("g", version == 2)):
            key = "CompositeExplicitAutograd"
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"{first.name}::{name}", key) == has_it
            # in the keys of torch.compile's caches: the kernels may be in a graph
            named = {key for key, names in library.defined.items() if f"{first.name}::{name}" in names}
            assert named == ({op.__entry__.key} if has_it else set())
        assert version == 4 or others.f(1) == version
    assert (ops[2].own(1), ops[4].own(1)) == (2, 4)
    with pytest.raises(KeyboardInterrupt), interrupted_registration(monkeypatch):
        builders[2].load()
    assert [(builders[version].load() is ops[version], others.f(1)) for version in (3, 2, 3)] == [
        (True, 3), (True, 2), (True, 3)
    ]  # fmt: skip
    monkeypatch.setitem(library.defined, op.__entry__.key, {"::": None})  # as of blocks of TORCH_LIBRARY_IMPL
    assert save._entry("program.pt2", op).key == op.__entry__.key
    space._destroy()


def test_a_second_version_with_a_kernel_for_the_op_of_another_library_in_its_own_namespace_is_refused(tmp_path):
    """Its namespace has a suffix: torch would go on calling the kernel of the first version."""
    text = STABLE_HEADERS + (
        "int64_t f(int64_t x) { return x * VERSION; }\n"
        'STABLE_TORCH_LIBRARY_FRAGMENT(@NAME@, m) { m.def("own(int x) -> int"); }\n'
        "STABLE_TORCH_LIBRARY_IMPL(@NAME@, CompositeExplicitAutograd, m) {\n"
        '  m.impl("own", TORCH_BOX(&f));\n  m.impl("f", TORCH_BOX(&f));\n}\n'
    )
    first = sample_ops.op_from_source(tmp_path, text, define_macros=(("VERSION", "2"),))
    space = torch.library.Library(first.name, "FRAGMENT")
    space.define("f(int x) -> int")
    op = first().load()
    assert getattr(torch.ops, first.name).f(1) == 2 and f"{first.name}::f" in library.defined[op.__entry__.key]
    second = type("Later", (first,), {"define_macros": (("VERSION", "3"),), "folder": str(tmp_path)})
    with pytest.raises(LoadError, match=rf"kernel for {first.name}::f, .* Load it in a new process"):
        second().load()
    space._destroy()
