#undef OPFORGE_VEC
#define OPFORGE_VEC <ATen/cpu/vec/vec512/vec512.h>
#include <opforge/facade/vec.h>
