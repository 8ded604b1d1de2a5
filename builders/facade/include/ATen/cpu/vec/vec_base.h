#undef OPFORGE_VEC
#define OPFORGE_VEC <ATen/cpu/vec/vec_base.h>
#include <opforge/facade/vec.h>
