// Counts what kernels that run on the host read and write of some tensors: each address once for each block, as a GPU
// does whose first-level cache holds what a block reads. Compiled by clang with
// -fsanitize-coverage=func,trace-loads,trace-stores, which calls these functions before each access of memory.
#include <cuda_runtime.h>

#include <cstdint>

#define OPFORGE_EXPORT extern "C" __attribute__((visibility("default")))
#define OPFORGE_UNCOUNTED __attribute__((no_sanitize("coverage")))

namespace {

constexpr int64_t kMost = 1 << 22;  // bytes of a tensor

struct Accesses {
    int64_t bytes;
    int64_t seen[kMost];  // the block that has read or written this byte, and one more

    OPFORGE_UNCOUNTED void add(int64_t at, int64_t size) {
        for (int64_t i = at; i < at + size; ++i) {
            bytes += seen[i] != blockIdx.x + int64_t{1};
            seen[i] = blockIdx.x + int64_t{1};
        }
    }
};

struct Tensor {
    uintptr_t begin;
    int64_t size;
    Accesses reads, writes;
};
Tensor tensors[2];

template <Accesses Tensor::* kind>
OPFORGE_UNCOUNTED void count(void* address, int64_t size) {
    for (Tensor& tensor : tensors) {
        const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(address) - tensor.begin);
        if (at >= 0 && at + size <= tensor.size) (tensor.*kind).add(at, size);
    }
}

}  // namespace

// Begins to count the accesses of a tensor, which has at most kMost bytes.
OPFORGE_EXPORT OPFORGE_UNCOUNTED void opforge_count(int number, void* begin, int64_t size) {
    Tensor& tensor = tensors[number];
    tensor.begin = reinterpret_cast<uintptr_t>(begin);
    tensor.size = size;
    for (Accesses* accesses : {&tensor.reads, &tensor.writes}) {
        accesses->bytes = 0;
        for (int64_t& block : accesses->seen) block = 0;
    }
}

// Returns the bytes of a tensor that were read and written.
OPFORGE_EXPORT OPFORGE_UNCOUNTED int64_t opforge_counted(int number) {
    return tensors[number].reads.bytes + tensors[number].writes.bytes;
}

#define OPFORGE_CALLBACKS(size)                                                                               \
    extern "C" OPFORGE_UNCOUNTED void __sanitizer_cov_load##size(void* p) { count<&Tensor::reads>(p, size); } \
    extern "C" OPFORGE_UNCOUNTED void __sanitizer_cov_store##size(void* p) { count<&Tensor::writes>(p, size); }
OPFORGE_CALLBACKS(1)
OPFORGE_CALLBACKS(2)
OPFORGE_CALLBACKS(4)
OPFORGE_CALLBACKS(8)
OPFORGE_CALLBACKS(16)
