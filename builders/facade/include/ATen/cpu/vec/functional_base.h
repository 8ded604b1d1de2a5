#undef OPFORGE_VEC
#define OPFORGE_VEC <ATen/cpu/vec/functional_base.h>
#include <opforge/facade/vec.h>
