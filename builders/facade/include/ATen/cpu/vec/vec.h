#undef OPFORGE_VEC
#define OPFORGE_VEC <ATen/cpu/vec/vec.h>
#include <opforge/facade/vec.h>
