// Stands before torch's header of the same name, and includes it: see opforge/exceptions.h.
#pragma once

#include <cstddef>  // says which C++ library this is

#ifdef _LIBCPP_VERSION
#include <opforge/exceptions.h>
#define torch_parallel_for ::opforge::guarded_parallel_for
#endif

#include_next <torch/csrc/stable/ops.h>

#ifdef _LIBCPP_VERSION
#undef torch_parallel_for
#endif
