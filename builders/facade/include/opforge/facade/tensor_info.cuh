// A tensor's memory, sizes and strides as an argument of a kernel.
#pragma once
#pragma GCC system_header
#include "cuda.h"

#ifdef __CUDACC__
#define OPFORGE_BOTH __host__ __device__
#else
#define OPFORGE_BOTH
#endif
#define MAX_TENSORINFO_DIMS 25

namespace at {
namespace cuda {
namespace detail {
template <typename T, typename IndexType>
struct TensorInfo {
    TensorInfo() = default;
    TensorInfo(T* p, int dim, IndexType sz[MAX_TENSORINFO_DIMS], IndexType st[MAX_TENSORINFO_DIMS])
        : data(p), dims(dim) {
        TORCH_CHECK(dim < MAX_TENSORINFO_DIMS, "CUDA Tensors cannot have more than 25 dimensions");
        for (int i = 0; i < dim; ++i) {
            sizes[i] = sz[i];
            strides[i] = st[i];
        }
    }
    void reduceDim(int dim) {
        TORCH_CHECK(dim < dims && dim >= 0, "expected dim between 0 and dims - 1");
        sizes[dim] = 1;
    }
    // Joins neighbours that lie in memory as one, and drops those of size 1, but for one that is to stay. Returns where
    // that one is now, or -1.
    int collapseDims(const int excludeDim = -1) {
        TORCH_CHECK(excludeDim >= -1 && excludeDim < dims, "expected excluded dim between -1 and dims - 1");
        int kept = 0, place = -1;
        for (int i = 0; i < dims; ++i) {
            const bool stays = i == excludeDim, may_join = kept > 0 && kept - 1 != place;
            if (!stays && sizes[i] == 1) {
                continue;
            }
            if (!stays && may_join && strides[kept - 1] == sizes[i] * strides[i]) {
                sizes[kept - 1] *= sizes[i];
                strides[kept - 1] = strides[i];
                continue;
            }
            if (stays) {
                place = kept;
            }
            sizes[kept] = sizes[i];
            strides[kept++] = strides[i];
        }
        if (kept == 0) {  // one element
            sizes[kept] = 1;
            strides[kept++] = 1;
        }
        dims = kept;
        return place;
    }
    OPFORGE_BOTH bool isContiguous() const { return dims == 1 && strides[0] == 1; }

    T* data = nullptr;
    IndexType sizes[MAX_TENSORINFO_DIMS];
    IndexType strides[MAX_TENSORINFO_DIMS];
    int dims = 0;
};

// Where the element of a number lies. Dims is the number of dimensions, or -1 to take the tensor's own.
template <typename T, typename IndexType, int Dims>
struct IndexToOffset {
    static OPFORGE_BOTH IndexType get(IndexType linearId, const TensorInfo<T, IndexType>& info) {
        IndexType offset = 0;
        for (int i = (Dims == -1 ? info.dims : Dims) - 1; i > 0; --i) {
            offset += linearId % info.sizes[i] * info.strides[i];
            linearId /= info.sizes[i];
        }
        return offset + linearId * info.strides[0];
    }
};

template <typename T, typename IndexType>
TensorInfo<T, IndexType> getTensorInfo(const TensorBase& t) {
    IndexType sizes[MAX_TENSORINFO_DIMS], strides[MAX_TENSORINFO_DIMS];
    const int dims = static_cast<int>(t.dim());
    TORCH_CHECK(dims < MAX_TENSORINFO_DIMS, "CUDA Tensors cannot have more than 25 dimensions");
    for (int i = 0; i < dims; ++i) {
        sizes[i] = static_cast<IndexType>(t.size(i));
        strides[i] = static_cast<IndexType>(t.stride(i));
    }
    if constexpr (std::is_const_v<T>) {
        return {t.const_data_ptr<std::remove_const_t<T>>(), dims, sizes, strides};
    } else {
        return {t.mutable_data_ptr<T>(), dims, sizes, strides};
    }
}

// Whether numbers and offsets of all elements fit.
inline bool canUse32BitIndexMath(const TensorBase& t, int64_t max_elem = std::numeric_limits<int32_t>::max()) {
    if (t.numel() >= max_elem) {
        return false;
    }
    if (t.numel() == 0) {
        return max_elem > 0;
    }
    int64_t last = 0;
    for (int64_t i = 0; i < t.dim(); ++i) {
        last += (t.size(i) - 1) * t.stride(i);
    }
    return last < max_elem;
}
}  // namespace detail
}  // namespace cuda
}  // namespace at
#undef OPFORGE_BOTH
