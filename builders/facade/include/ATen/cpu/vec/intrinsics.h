#undef OPFORGE_VEC
#define OPFORGE_VEC <ATen/cpu/vec/intrinsics.h>
#include <opforge/facade/vec.h>
