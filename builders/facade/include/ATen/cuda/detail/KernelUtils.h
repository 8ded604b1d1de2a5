#include <opforge/facade/kernel_utils.cuh>
