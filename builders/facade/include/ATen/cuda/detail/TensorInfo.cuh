#include <opforge/facade/tensor_info.cuh>
