#undef OPFORGE_VEC
#define OPFORGE_VEC <ATen/cpu/vec/functional.h>
#include <opforge/facade/vec.h>
