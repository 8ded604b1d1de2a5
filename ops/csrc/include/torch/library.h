// Stands before torch's header of the same name and includes it. Where opforge is to load the library, what the macros
// TORCH_LIBRARY, _FRAGMENT and _IMPL define waits until the loader asks for it: torch would register it in a static
// constructor, and a namespace that is taken would end the process.
#pragma once

#include_next <torch/library.h>

#ifdef OPFORGE_LOADS

#include <opforge/torch_blocks.h>

// Each of torch's macros makes one object of this class, by its qualified name.
#define TorchLibraryInit OpforgeBlock

#endif
