#undef OPFORGE_VEC
#define OPFORGE_VEC <ATen/cpu/vec/vec256/vec256.h>
#include <opforge/facade/vec.h>
