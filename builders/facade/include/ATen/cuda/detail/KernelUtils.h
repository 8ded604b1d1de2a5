#include <opforge/facade/cuda_device.cuh>
