#undef OPFORGE_VEC
#define OPFORGE_VEC <ATen/cpu/vec/functional_bfloat16.h>
#include <opforge/facade/vec.h>
