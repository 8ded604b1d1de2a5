#undef OPFORGE_VEC
#define OPFORGE_VEC <ATen/cpu/vec/vec_half.h>
#include <opforge/facade/vec.h>
