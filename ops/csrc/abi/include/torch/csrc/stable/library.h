// Is found before torch's header of the same name, and includes it. In libraries that opforge loads, the blocks of
// STABLE_TORCH_LIBRARY, _FRAGMENT and _IMPL are registered when the loader requests it: after dlopen, when an error can
// still be reported. torch would register them in a static constructor.
#pragma once

#ifdef OPFORGE_LOADS_STABLE_BLOCKS

// The names of these two classes are used by torch's macros and by sources, and belong to ours.
#define StableLibrary StableLibraryOfTorch
#define StableTorchLibraryInit StableTorchLibraryInitOfTorch
#include_next <torch/csrc/stable/library.h>
#undef StableLibrary
#undef StableTorchLibraryInit

#include <opforge/kernel_types.h>
#include <opforge/stable_blocks.h>

#else
#include_next <torch/csrc/stable/library.h>
#endif
