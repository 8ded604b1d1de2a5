// Is found before torch's header of the same name, and includes it: see opforge/exceptions.h.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <opforge/exceptions.h>

#define torch_parallel_for ::opforge::guarded_parallel_for
#include_next <torch/csrc/stable/ops.h>
#undef torch_parallel_for
