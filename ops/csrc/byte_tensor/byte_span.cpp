// Whether the elements of a tensor lie in memory without gaps or overlap, in whatever order its dimensions are.

#include <algorithm>
#include <cstdint>
#include <vector>

// Returns 1 if the elements fill one block of memory exactly, else 0.
extern "C" __attribute__((visibility("default"))) int is_one_block(int64_t dimensions, const int64_t* sizes,
                                                                   const int64_t* strides) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < dimensions; ++i) {
        if (sizes[i] == 0) return 1;
        if (sizes[i] > 1) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [=](int64_t a, int64_t b) { return strides[a] < strides[b]; });
    int64_t expected = 1;
    for (const int64_t i : order) {
        if (strides[i] != expected) return 0;
        expected *= sizes[i];
    }
    return 1;
}
