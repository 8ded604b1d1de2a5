#pragma once

// The differences between CUDA and HIP that a translation of names does not cover.

#include <cstdint>

#include <opforge/host_device.h>

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#define OPFORGE_GRID_CONSTANT
#else
#include <cuda_runtime.h>
#define OPFORGE_GRID_CONSTANT __grid_constant__
#endif

namespace opforge::cuda {

// The number of lanes that exchange values; half of a wavefront on GPUs whose wavefronts have 64 lanes.
constexpr int kWarp = 32;

template <typename T>
__device__ T shuffle_xor(T value, int distance) {
#if defined(__HIPCC__)
    return __shfl_xor(value, distance, kWarp);
#else
    return __shfl_xor_sync(0xffffffffu, value, distance, kWarp);
#endif
}

// Returns the reason why the last launch did not start; null if it did.
inline const char* launch_problem() {
    const cudaError_t code = cudaGetLastError();
    return code == cudaSuccess ? nullptr : cudaGetErrorString(code);
}

// From Hopper on, the blocks of a cluster run at the same time and can access each other's shared memory.
constexpr int kMostInCluster = 8;  // not every GPU supports more

#if defined(__HIPCC__) || CUDART_VERSION < 11080
#define OPFORGE_NO_CLUSTERS
#endif

// Waits for all threads of the cluster. What they wrote to shared memory is visible afterwards.
__device__ inline void sync_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// Writes a word to the shared memory of another block of the cluster, at the address of `to` in that block.
__device__ inline void put(uint32_t* to, int block, uint32_t word) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "r"(block));
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(word) : "memory");
#else
    if (block >= 0) *to = word;
#endif
}

// Whether the code of a kernel that this device would run was compiled for clusters. PTX for an older GPU was not.
template <typename Kernel>
bool has_clusters(Kernel* kernel) {
#if defined(OPFORGE_NO_CLUSTERS)
    return false;
#else
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess) return attributes.ptxVersion >= 90;
    cudaGetLastError();  // clears the error: the launch reports its own
    return false;
#endif
}

template <typename... Parameters, typename... Arguments>
const char* launch_clusters(void (*kernel)(Parameters...), unsigned cluster, unsigned blocks, unsigned threads,
                            cudaStream_t stream, const Arguments&... arguments) {
#if defined(OPFORGE_NO_CLUSTERS)
    return "there are no clusters";
#else
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = {blocks, 1, 1};
    config.blockDim = {threads, 1, 1};
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, arguments...);
    return launch_problem();
#endif
}

}  // namespace opforge::cuda
