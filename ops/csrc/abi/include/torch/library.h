// Is found before torch's header of the same name, and includes it. In libraries that opforge loads, the blocks of
// TORCH_LIBRARY, _FRAGMENT and _IMPL are registered when the loader requests it. torch would register them in a static
// constructor, where a conflict of namespaces would end the process.
#pragma once

#include_next <torch/library.h>

#ifdef OPFORGE_LOADS_TORCH_BLOCKS

#include <opforge/torch_blocks.h>

// Each of torch's macros defines one object of this class, by its qualified name.
#define TorchLibraryInit OpforgeBlock

#endif
