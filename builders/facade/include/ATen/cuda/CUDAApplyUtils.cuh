#include <ATen/cuda/CUDAContext.h>
#include <opforge/facade/cuda_device.cuh>
#include <opforge/facade/tensor_info.cuh>
