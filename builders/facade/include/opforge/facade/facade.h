// The part of torch's C++ API that the facade has. Every header of the facade's include tree that has
// the name of one of torch's includes this one. Nothing is visible outside of the library: several
// libraries of the facade, and torch itself, have classes of like names in one process.
#pragma once
// A project may ask for warnings as errors: they are for its own code. What is included from here has it from here.
#pragma GCC system_header
// Standard headers that torch's own headers bring, before the hidden part begins. The C ones bring names such as
// isinf into the global namespace.
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <cassert>
#include <cctype>
#include <chrono>
#include <cinttypes>
#include <climits>
#include <cmath>
#include <complex>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <forward_list>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <sstream>
#include <stack>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <valarray>
#include <variant>
#include <vector>

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/core/DeviceType.h>
#include <torch/headeronly/core/Layout.h>
#include <torch/headeronly/core/MemoryFormat.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/core/TensorAccessor.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>
#include <torch/headeronly/util/HeaderOnlyArrayRef.h>
#include <torch/headeronly/util/complex.h>

#ifdef OPFORGE_LOADS_FACADE_BLOCKS
#include <opforge/registration.h>
#endif

#pragma GCC visibility push(hidden)
#include "buffers.h"
#include "classes.h"
#include "complex_functions.h"
#include "context.h"
#include "dispatch.h"
#include "dispatching.h"
#include "factories.h"
#include "fft.h"
#include "function.h"
#include "functional.h"
#include "further_types.h"
#include "generators.h"
#include "graph.h"
#include "iterators.h"
#include "library.h"
#include "logging.h"
#include "module.h"
#include "parallel.h"
#include "registered_exceptions.h"
#include "special.h"
#include "tensor_utils.h"
#include "trampolines.h"

namespace at {
namespace cuda {}
}  // namespace at
namespace torch {
using namespace at;
inline namespace opforge_facade {
using Dtype = at::ScalarType;
using at::IntArrayRef;
using at::NoGradGuard;
using at::Tensor;
using autograd::AutoGradMode;
using c10::Dict;
using c10::nullopt;
using c10::optional;
constexpr auto kUInt8 = at::kByte, kInt8 = at::kChar, kInt16 = at::kShort, kInt32 = at::kInt, kInt64 = at::kLong,
               kFloat16 = at::kHalf, kFloat32 = at::kFloat, kFloat64 = at::kDouble;
constexpr auto kU8 = kUInt8, kU16 = at::kUInt16, kU32 = at::kUInt32, kU64 = at::kUInt64, kI8 = kInt8, kI16 = kInt16,
               kI32 = kInt32, kI64 = kInt64, kF16 = kFloat16, kF32 = kFloat32, kF64 = kFloat64;
using Deleter = std::function<void(void*)>;
namespace autograd {
using at::NoGradGuard;
// A tensor outside of every graph, which shares the memory of `data`.
OPFORGE_IF_USED at::Tensor make_variable(const at::Tensor& data, bool requires_grad = false, bool = true) {
    at::Tensor made = data.defined() ? data.detach() : at::Tensor();
    return made.defined() ? made.set_requires_grad(requires_grad) : made;
}
}  // namespace autograd
namespace cuda {
using namespace at::cuda;
OPFORGE_IF_USED bool is_available() {
    return c10::facade::torch_function<bool()>("torch::cuda::is_available", "_ZN5torch4cuda12is_availableEv")();
}
OPFORGE_IF_USED size_t device_count() {
    return c10::facade::torch_function<size_t()>("torch::cuda::device_count", "_ZN5torch4cuda12device_countEv")();
}
}  // namespace cuda
// torch's translates exceptions of a function; the facade's modules do so for every function.
template <class F>
std::decay_t<F> wrap_pybind_function(F&& f) {
    return std::forward<F>(f);
}
}  // namespace opforge_facade
}  // namespace torch
#pragma GCC visibility pop

// One binary serves every torch, and states the version of the oldest. opforge refuses a branch that a later one would
// take otherwise (torch_versions.py).
#undef TORCH_VERSION
#undef TORCH_VERSION_MAJOR
#undef TORCH_VERSION_MINOR
#undef TORCH_VERSION_PATCH
#undef TORCH_ABI_VERSION
#define TORCH_ABI_VERSION TORCH_TARGET_VERSION  // torch's own headers register with it
#define TORCH_VERSION_MAJOR 2
#define TORCH_VERSION_MINOR 10
#define TORCH_VERSION_PATCH 0
#pragma GCC poison TORCH_VERSION
