// A fake CUDA runtime: kernels run on the host, all threads of all blocks one after the other. Threads run in fibers,
// so that they can wait at a barrier. This tests which elements a kernel reads and writes, and what it computes. It
// does not test what depends on parallel execution or on the GPU's own instructions.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define CUDART_VERSION 13000

// Copied member by member: an unoptimised copy of all at once is a memcpy, which calls no function at an access.
template <typename T>
struct HostVector2 {
    T x, y;
    HostVector2() = default;
    HostVector2(T first, T second) : x(first), y(second) {}
    HostVector2(const HostVector2& other) : x(other.x), y(other.y) {}
    HostVector2& operator=(const HostVector2& other) {
        x = other.x;
        y = other.y;
        return *this;
    }
};
template <typename T>
struct HostVector4 {
    T x, y, z, w;
    HostVector4() = default;
    HostVector4(T first, T second, T third, T fourth) : x(first), y(second), z(third), w(fourth) {}
    HostVector4(const HostVector4& other) : x(other.x), y(other.y), z(other.z), w(other.w) {}
    HostVector4& operator=(const HostVector4& other) {
        x = other.x;
        y = other.y;
        z = other.z;
        w = other.w;
        return *this;
    }
};
using uint2 = HostVector2<uint32_t>;
using uint4 = HostVector4<uint32_t>;
using float2 = HostVector2<float>;
using float4 = HostVector4<float>;
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return ""; }

struct dim3 {
    uint32_t x, y, z;
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension = 4 };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        dim3 clusterDim;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    unsigned numAttrs;
};
struct cudaFuncAttributes {
    int ptxVersion;
};
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel*) {
    attributes->ptxVersion = 90;
    return cudaSuccess;
}

namespace host_runtime {

// A fiber runs threads to their end, one after the other, until a thread waits. The next fiber runs the threads after
// that.
struct Fiber {
    static constexpr size_t kStack = 1 << 16;
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[kStack]};
    uint32_t thread = 0;  // the thread that waits
    bool waits = false;
};
inline ucontext_t scheduler;
inline std::vector<std::unique_ptr<Fiber>> fibers;
inline Fiber* current;
inline uint32_t first_block, threads_together, next_thread;
inline void (*body)(void*);
inline void* argument;
inline uint64_t slots[8192];

// The current thread's number among the threads of the blocks that run together.
inline uint32_t number() { return (blockIdx.x - first_block) * blockDim.x + threadIdx.x; }
inline void become(uint32_t thread) {
    blockIdx.x = first_block + thread / blockDim.x;
    threadIdx.x = thread % blockDim.x;
}

inline void live() {
    for (Fiber* self = current;;) {
        while (next_thread < threads_together) {
            become(next_thread++);
            body(argument);
        }
        self->waits = false;
        swapcontext(&self->context, &scheduler);
    }
}

inline void resume(Fiber& fiber) {
    current = &fiber;
    become(fiber.thread);
    swapcontext(&scheduler, &fiber.context);
}

// Runs kernel() for each thread of each block, with the blocks of a cluster together. A round takes every thread to its
// next barrier, which is a barrier of the whole cluster. The blocks of a cluster also share their shared memory, so
// each block must write to its own addresses.
template <typename Kernel>
void run(uint32_t blocks, uint32_t threads, Kernel kernel, uint32_t cluster = 1) {
    body = [](void* function) { (*static_cast<Kernel*>(function))(); };
    argument = &kernel;
    gridDim.x = blocks;
    blockDim.x = threads;
    threads_together = cluster * threads;
    for (first_block = 0; first_block < blocks; first_block += cluster) {
        next_thread = 0;
        size_t used = 0;
        for (; next_thread < threads_together; ++used) {
            if (used == fibers.size()) {
                fibers.push_back(std::make_unique<Fiber>());
                Fiber& fiber = *fibers.back();
                getcontext(&fiber.context);
                fiber.context.uc_stack.ss_sp = fiber.stack.get();
                fiber.context.uc_stack.ss_size = Fiber::kStack;
                makecontext(&fiber.context, &live, 0);
            }
            resume(*fibers[used]);
        }
        for (bool alive = true; alive;) {
            alive = false;
            for (size_t i = 0; i < used; ++i) {
                if (!fibers[i]->waits) continue;
                resume(*fibers[i]);
                alive = alive || fibers[i]->waits;
            }
        }
    }
}

}  // namespace host_runtime

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
    host_runtime::run(
        config->gridDim.x, config->blockDim.x, [&] { kernel(arguments...); }, config->attrs[0].val.clusterDim.x);
    return cudaSuccess;
}

inline void __syncthreads() {
    host_runtime::Fiber& self = *host_runtime::current;
    self.thread = host_runtime::number();
    self.waits = true;
    swapcontext(&self.context, &host_runtime::scheduler);
}

template <typename T>
T __shfl_xor_sync(uint32_t, T value, int distance, int) {
    const uint32_t own = host_runtime::number();
    std::memcpy(&host_runtime::slots[own], &value, sizeof value);
    __syncthreads();
    std::memcpy(&value, &host_runtime::slots[own ^ static_cast<uint32_t>(distance)], sizeof value);
    __syncthreads();
    return value;
}
