#pragma once
#include <opforge/facade/facade.h>

namespace at {
namespace sparse {
using SparseTensor = Tensor;
}
}  // namespace at
