#pragma once

// For functions that run on the host and on a device: one text, one arithmetic. What has to be rounded in one way is
// written with fmaf, since compilers differ in what they contract by themselves.

#if defined(__CUDACC__) || defined(__HIPCC__)
#define OPFORGE_HD __host__ __device__
#else
#define OPFORGE_HD
#endif

#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define OPFORGE_ON_DEVICE
#endif
