// What the sources of a hub kernel include to name their ops. opforge defines TORCH_EXTENSION_NAME; the macros here
// expand it before torch's macros see it. In a library that opforge builds, the blocks wait for `opforge_register`.
#pragma once

#define OPFORGE_HUB_EXPANDED(MACRO, ...) MACRO(__VA_ARGS__)

#define TORCH_LIBRARY_EXPAND(NAME, MODULE) OPFORGE_HUB_EXPANDED(TORCH_LIBRARY, NAME, MODULE)
#define TORCH_LIBRARY_IMPL_EXPAND(NAME, DEVICE, MODULE) OPFORGE_HUB_EXPANDED(TORCH_LIBRARY_IMPL, NAME, DEVICE, MODULE)
#define STABLE_TORCH_LIBRARY_EXPAND(NAME, MODULE) OPFORGE_HUB_EXPANDED(STABLE_TORCH_LIBRARY, NAME, MODULE)
#define STABLE_TORCH_LIBRARY_IMPL_EXPAND(NAME, DEVICE, MODULE) \
    OPFORGE_HUB_EXPANDED(STABLE_TORCH_LIBRARY_IMPL, NAME, DEVICE, MODULE)

// Elsewhere this makes the library a Python module, so that importing it registers the ops. `_ops.py` does that here,
// so it is nothing: kernels write it with and without a semicolon.
#define REGISTER_EXTENSION(NAME)
