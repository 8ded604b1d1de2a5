#pragma once

// For functions that run on the host and on a device with the same arithmetic. If a result must be rounded in one way,
// the code uses fmaf, since compilers differ in which operations they contract.

#if defined(__CUDACC__) || defined(__HIPCC__)
#define OPFORGE_HD __host__ __device__
#else
#define OPFORGE_HD
#endif

#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define OPFORGE_ON_DEVICE
#endif
