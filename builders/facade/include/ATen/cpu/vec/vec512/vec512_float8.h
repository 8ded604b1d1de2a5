#undef OPFORGE_VEC
#define OPFORGE_VEC <ATen/cpu/vec/vec512/vec512_float8.h>
#include <opforge/facade/vec.h>
