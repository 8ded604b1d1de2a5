"""Defects in the facade that its comparison with torch must find: `python tests/facade mutants`.

Each is one change of a copy of the headers. A comparison is compiled on the copy and run: a mutant for which it finds
no difference has survived, and that is a failure.
"""

import dataclasses
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from facade import expressions
from facade.compiling import compile_library
from opforge.builders.facade import flags


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of one of the headers: a text that occurs there once, and what replaces it."""

    file: str
    text: str
    replacement: str
    by: str = "numbers"
    """The comparison that must find it: one of COMPARISONS, or a file of tests/compile/facade."""


MUTANTS = {
    "a negative number is padded to uint8 without wrapping": Mutant("scalars.h", "value += 256;", ""),
    "pow by 3 is one call of pow": Mutant(
        "numbers.h", "exponent.equal(3) || exponent.equal(0.5)", "exponent.equal(0.5)"
    ),
    "float16 is multiplied as float16": Mutant(
        "numbers.h", "type == ScalarType::Half ? converted", "false ? converted"
    ),
    "bool is subtracted": Mutant("numbers.h", "if (self_is_bool || other_is_bool)", "if (false)"),
    "alpha is not checked": Mutant("numbers.h", "!factor.isIntegral(true)) {", "false) {"),
    "the sign of alpha is lost": Mutant("numbers.h", "-alpha.toDouble(), &h", "alpha.toDouble(), &h"),
    "a number that does not fit is filled in": Mutant(
        "numbers.h", "t.numel() == 1)) {\n        check_fits", "t.numel() == 1) && false) {\n        check_fits"
    ),
    "a result is written into any dtype": Mutant(
        "numbers.h", "check_cast(result.scalar_type(), self.scalar_type());", ""
    ),
    "a 0-dim tensor promotes as one with dimensions": Mutant("numbers.h", "self.dim() > 0 ? self :", "true ? self :"),
    "a bound of clamp is not checked": Mutant(
        "scalars.h", "facade::check_fits(s, t);\n    }\n    return facade::wrapped", "}\n    return facade::wrapped"
    ),
    "a sum of integers is always contiguous": Mutant(
        "numbers.h", "if (gives_contiguous(a, b)) {", "if (true) {", "expressions"
    ),
    "an expanded tensor is filled by a tensor": Mutant(
        "numbers.h", "if (x.stride(i) == 0 && x.size(i) > 1) {", "if (false) {", "expressions"
    ),
    "a dimension one before the first is taken": Mutant(
        "tensor.h", "dim < -count ||", "dim < -count - 1 ||", "expressions"
    ),
    "a list of integers is one of 32 bits": Mutant(
        "factories.h",
        "std::is_integral_v<T>       ? ScalarType::Long",
        "std::is_integral_v<T>       ? ScalarType::Int",
        "expressions",
    ),
    "a slice's step is ignored": Mutant(
        "indexing.h", "s->start(), s->stop(), s->step()", "s->start(), s->stop(), 1", "expressions"
    ),
    "the type's largest number overflows": Mutant(
        "types.h",
        "value > static_cast<F>(std::numeric_limits<T>::max())",
        "value >= static_cast<F>(std::numeric_limits<T>::max())",
        "expressions",
    ),
    "an error of select has no type": Mutant("errors.h", '"select(): index ",', "", "expressions"),
    "what a mode makes is written through its pointer": Mutant(
        "factories.h",
        "if (void* memory = n > 0 ? r.data_ptr() : nullptr) {",
        "if (void* memory = r.data_ptr(); n > 0) {",
        "expressions",
    ),
    "parts of a reduction begin at its result": Mutant(
        "parallel.h", "T r = f(first, last, identity);", "T r = f(first, last, T(first));", "expressions"
    ),
    "the default dtype is float32": Mutant(
        "numbers.h", "converted(number(s), default_dtype())", "converted(number(s), ScalarType::Float)", "expressions"
    ),
    "an accessor takes sizes for strides": Mutant(
        "tensor.h",
        "return TensorAccessor<T, N>(element_data<T>(), sizes().data(), strides().data());",
        "return TensorAccessor<T, N>(element_data<T>(), sizes().data(), sizes().data());",
        "test_names.py",
    ),
    "an index of int32 is read as one of int64": Mutant(
        "dispatch.h",
        "AT_PRIVATE_CASE_TYPE_USING_HINT(at::ScalarType::Int, index_t, __VA_ARGS__)",
        "case at::ScalarType::Int: { using index_t = int64_t; return __VA_ARGS__(); }",
        "test_names.py",
    ),
    "to takes copy for non_blocking": Mutant(
        "tensor.h",
        '"aten::to", "dtype", *this, dtype, non_blocking, copy, format',
        '"aten::to", "dtype", *this, dtype, copy, non_blocking, format',
        "test_names.py",
    ),
    "every saved tensor is the first one": Mutant(
        "function.h",
        "saved_tensors.push_back(tensor_or_undefined(opforge_PyTuple_GetItem(saved.get(), i)));",
        "saved_tensors.push_back(tensor_or_undefined(opforge_PyTuple_GetItem(saved.get(), 0)));",
        "test_names.py",
    ),
    "an exception of C++ for a length has no type": Mutant(
        "exceptions.h",
        "OPFORGE_IS(std::length_error, ValueError)",
        "OPFORGE_IS(std::length_error, RuntimeError)",
        "test_names.py",
    ),
    "a deleter gets another pointer than the memory": Mutant("factories.h", "(*f)(p);", "(*f)(c);", "test_names.py"),
    "a float8 tensor is multiplied in the order that has no kernel": Mutant(
        "scalars.h", "if (facade::is_float8(a.scalar_type())) {", "if (false) {"
    ),
    "the two factors of addmm are exchanged": Mutant(
        "near_scalars.h",
        'call<Tensor>("aten::mm", "", x, y), x, beta, alpha)',
        'call<Tensor>("aten::mm", "", x, y), x, alpha, beta)',
    ),
    "addcdiv divides integers": Mutant(
        "near_scalars.h",
        "facade::category(y.scalar_type()) < facade::Category::Real) {",
        "facade::category(y.scalar_type()) < facade::Category::Bool) {",
    ),
    "a range of integers has real numbers": Mutant(
        "numbers.h", "is_real ? default_dtype() : ScalarType::Long", "default_dtype()"
    ),
    "a power in double precision is one of float32": Mutant(
        "near_scalars.h",
        "ScalarType::ComplexDouble : ScalarType::Double",
        "ScalarType::ComplexDouble : ScalarType::Float",
    ),
    "the keys of a dict are its values": Mutant(
        "objects.h", "entry_ = {key, value};", "entry_ = {value, key};", "test_objects.py"
    ),
    "objects are equal that differ": Mutant(
        "objects.h", "constexpr int is_equal = 2;", "constexpr int is_equal = 3;", "test_objects.py"
    ),
    "what is released is counted once more": Mutant(
        "objects.h",
        "return kept_.release();",
        "return facade::Ref::borrow(kept_.release()).release();",
        "test_objects.py",
    ),
    "a refused type has another text": Mutant("objects.h", "is not an instance of '", "is no '", "test_objects.py"),
    "a padding takes no value": Mutant(
        "functional.h", "std::optional<double>(o.value())", "std::optional<double>(0)", "test_functional.py"
    ),
    "a convolution's paddings are exchanged": Mutant(
        "functional.h",
        "at::IntArrayRef(o.padding()), at::IntArrayRef(o.output_padding())",
        "at::IntArrayRef(o.output_padding()), at::IntArrayRef(o.padding())",
        "test_functional.py",
    ),
    "a size is rounded up": Mutant("functional.h", "int64_t(std::floor(", "int64_t(std::ceil(", "test_functional.py"),
    "a tensor is printed by a function of another name": Mutant(
        "symbols.h", "dlsym(opened, symbol)", "dlsym(opened, symbol + 1)", "test_functional.py"
    ),
    "a copy of a tensor has the other's handle": Mutant(
        "tensor.h",
        'facade::check(aoti_torch_new_tensor_handle(o.handle_, &handle_), "a tensor");',
        "handle_ = o.handle_;",
        "test_names.py",
    ),
    "what a translator throws is lost": Mutant(
        "registered_exceptions.h", "                thrown = std::current_exception();\n", "", "test_objects.py"
    ),
    "a second base is at the address of its class": Mutant(
        "classes.h", "return static_cast<X*>(static_cast<T*>(p));", "return p;", "test_objects.py"
    ),
    "one constructor is taken for all": Mutant(
        "classes.h",
        "return py_detail::instance_of(o, py_detail::class_of<T>()) != nullptr;",
        "return py_detail::instance_of(o) != nullptr;",
        "test_objects.py",
    ),
    "a source's conversion always converts": Mutant(
        "casters.h", "return value.caster.load(o, convert);", "return value.caster.load(o, true);", "test_objects.py"
    ),
    "inner lists have as many dimensions and no sizes": Mutant(
        "factories.h", "sizes[i] != sizes[0]", "sizes[i].size() != sizes[0].size()", "test_names.py"
    ),
    "an op's error names types as the dispatcher does": Mutant(
        "library.h", "::pybind11::facade::with_pythons_types(e.what())", "e.what()", "test_names.py"
    ),
    "a tensor is never freed": Mutant(
        "tensor.h", "aoti_torch_delete_tensor_object(handle_);", "(void)handle_;", "test_calls.py"
    ),
}


def mutated(mutant: Mutant, folder: Path) -> Path:
    """Returns a copy of the facade's include tree with the defect. Raises ValueError if its text is not there once."""
    include = folder / "include"
    shutil.copytree(flags.INCLUDE, include)
    path = include / "opforge" / "facade" / mutant.file
    text = path.read_text()
    if text.count(mutant.text) != 1:
        raise ValueError(f"{mutant.text!r} is {text.count(mutant.text)} times in {mutant.file}: expected once")
    path.write_text(text.replace(mutant.text, mutant.replacement))
    return include


def by_numbers(folder: Path) -> bool:
    """Compares operators with numbers. Returns whether there is a difference."""
    path = Path(__file__).parent.parent / "compile" / "facade" / "test_numbers.py"
    spec = importlib.util.spec_from_file_location("facade_numbers", path)
    assert spec and spec.loader
    comparison = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(comparison)
    (folder / "op.cpp").write_text(comparison.SOURCE)
    compile_library("facade", "numbers_op", [folder / "op.cpp"], folder / "op.so", ["-O0"])
    command = [sys.executable, "-W", "ignore", "-c", comparison.COMPARE, str(folder / "op.so")]
    ended = subprocess.run(command, capture_output=True, text=True)
    return ended.returncode != 0 or not ended.stdout.splitlines()[0].endswith(" 0")


def by_expressions(folder: Path) -> bool:
    """Compares names that are written by hand in every setting. Returns whether there is a difference."""
    (folder / "op.cpp").write_text(expressions.source([text for text, _ in expressions.EXPRESSIONS]))
    compile_library("facade", "expressions", [folder / "op.cpp"], folder / "op.so", ["-O0"])
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent), "expressions-child", str(folder / "op.so")]
    ended = subprocess.run(command, capture_output=True, text=True)
    return ended.returncode != 0 or json.loads(ended.stdout.splitlines()[-1])[1] != []


def by_test(folder: Path, name: str) -> bool:
    """Runs a file of tests on the headers of a folder. Returns whether a test fails."""
    path = Path(__file__).parent.parent / "compile" / "facade" / name
    pytest = ["-q", "-x", "-p", "no:cacheprovider", str(path)]
    code = (
        "import pathlib, sys, pytest; from opforge.builders.facade import flags; "
        "flags.INCLUDE = pathlib.Path(sys.argv[1]); sys.exit(pytest.main(sys.argv[2:]))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(folder / "include"), *pytest]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode < 0:  # a call has crashed, and with it the tests
        return True
    if ended.returncode not in (0, 1):
        raise RuntimeError(f"{name} ended with {ended.returncode}:\n{ended.stdout[-3000:]}{ended.stderr[-1000:]}")
    if " error" in ended.stdout.splitlines()[-1]:
        raise RuntimeError(f"{name} does not run:\n{ended.stdout[-3000:]}")
    return ended.returncode == 1


COMPARISONS = {"numbers": by_numbers, "expressions": by_expressions}


def finds(mutant: Mutant) -> bool:
    """Returns whether the comparison finds the defect: a difference, or a call that crashes."""
    with tempfile.TemporaryDirectory() as work, mock.patch.object(flags, "INCLUDE", mutated(mutant, Path(work))):
        return COMPARISONS[mutant.by](Path(work)) if mutant.by in COMPARISONS else by_test(Path(work), mutant.by)


def run(names: Sequence[str]) -> int:
    """Tries mutants. Returns how many survived. Raises RuntimeError if a comparison finds one in sound headers."""
    survived, chosen = 0, names or list(MUTANTS)
    for by in sorted({MUTANTS[name].by for name in chosen}):
        if finds(Mutant("tensor.h", "#pragma once", "#pragma once", by)):
            raise RuntimeError(f"the comparison {by!r} finds a difference in headers without a defect")
    for name in chosen:
        found = finds(MUTANTS[name])
        survived += not found
        print(f"{'found' if found else 'SURVIVED'}: {name}", flush=True)
    return survived
