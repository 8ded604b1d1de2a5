// Is found before torch's header of the same name, includes it, and defines its three registration macros differently:
// a block of definitions becomes a constant in a section of the library instead of a static constructor. Sources use
// torch's documented macros; opforge registers the blocks after dlopen, when an error can still be reported.
#pragma once

#include_next <torch/csrc/stable/library.h>

// A Python module (the `torch` ABI) may be loaded by a plain import, so its blocks register themselves as torch does
// it.
#ifndef TORCH_EXTENSION_NAME

#include <opforge/registration.h>

#undef STABLE_TORCH_LIBRARY
#undef STABLE_TORCH_LIBRARY_FRAGMENT
#undef STABLE_TORCH_LIBRARY_IMPL

// If the library contains a C++ runtime of its own, no exception may leave a kernel: see opforge/exceptions.h.
#ifdef _LIBCPP_VERSION
#undef TORCH_BOX
#define TORCH_BOX(function)                                                \
    (::opforge::Guarded{&::opforge::guarded<&torch::stable::detail::boxer< \
        std::remove_pointer_t<std::remove_reference_t<decltype(function)>>, (function)>::boxed_fn>})
#endif

#define STABLE_TORCH_LIBRARY(ns, m) OPFORGE_BLOCK(ns, nullptr, m, C10_UID)
#define STABLE_TORCH_LIBRARY_FRAGMENT(ns, m) OPFORGE_BLOCK(ns, nullptr, m, C10_UID)
#define STABLE_TORCH_LIBRARY_IMPL(ns, key, m) OPFORGE_BLOCK(ns, #key, m, C10_UID)

#endif
