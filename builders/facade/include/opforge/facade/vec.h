// at::vec, vectors of the CPU: the installed torch's own headers, which call nothing of torch but SLEEF's functions,
// by their names in C, where CPU_CAPABILITY_AVX2 or AVX512 is defined. Included for each of them: OPFORGE_VEC names it.
#pragma GCC system_header
#include "facade.h"

// torch refuses a source for its stable ABI there.
#pragma push_macro("TORCH_TARGET_VERSION")
#undef TORCH_TARGET_VERSION
#include_next OPFORGE_VEC
#pragma pop_macro("TORCH_TARGET_VERSION")
