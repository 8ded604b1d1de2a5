// Random layerwise token dropping: which tokens of a sequence a layer computes, gathered and put back.

#include <opforge/stable_blocks.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "../cpu/dense.h"

namespace opforge::cpu {
namespace {

// Sorts each row of `reserved` numbers in [0, tokens), by counting unless there are far more tokens than numbers.
void sort_rows(int32_t* ids, int64_t rows, int64_t reserved, int64_t tokens) {
    each_row(rows, reserved * 4, [&](int64_t begin, int64_t end) {
        const bool counts = tokens <= 64 * reserved;
        std::vector<int32_t> count(counts ? static_cast<size_t>(tokens) : 0);
        for (int64_t row = begin; row < end; ++row) {
            int32_t* const data = ids + row * reserved;
            if (!counts) {
                std::sort(data, data + reserved);
                continue;
            }
            std::fill(count.begin(), count.end(), 0);
            for (int64_t i = 0; i < reserved; ++i) ++count[static_cast<size_t>(data[i])];
            int32_t* next = data;
            for (int32_t id = 0; id < tokens; ++id) {
                *next = id;  // a branch for each token would be mispredicted as often as tokens are chosen
                next += count[static_cast<size_t>(id)] > 0 ? 1 : 0;
                for (int32_t again = 1; again < count[static_cast<size_t>(id)]; ++again) *next++ = id;
                if (next == data + reserved) break;
            }
        }
    });
}

void sort(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    arguments.tensor();
    const Dense ids = numbers(arguments.handles()[0], "unsorted_token_ids", true);
    const int64_t tokens = arguments.integer();
    check_dim(ids, "unsorted_token_ids", 3, 3, "[layers, batch, reserved tokens]");
    check_range(ids, "unsorted_token_ids", 0, tokens, "numbers of original_tokens tokens");
    if (ids.numel) sort_rows(ids.as<int32_t>(), ids.size(0) * ids.size(1), ids.size(2), tokens);
}

// Copies a row, and fetches the one at `later` line by line meanwhile: the processor does not expect it there.
inline void copy_row(char* to, const char* from, const char* later, int64_t bytes) {
    constexpr int64_t kLine = 64;
    int64_t k = 0;
    for (; k + kLine <= bytes; k += kLine) {
        __builtin_prefetch(later + k);
        std::memcpy(to + k, from + k, kLine);
    }
    std::memcpy(to + k, from + k, static_cast<size_t>(bytes - k));
}

// How tokens lie in memory: token t of sequence b is at (b * batch + t * token) elements.
struct Strides {
    int64_t batch, token;
    Strides(const Dense& x, bool batch_first) : batch(x.size(1) * x.size(2)), token(x.size(2)) {
        if (!batch_first) std::swap(batch, token);
    }
};

// The tensors of a gather or a scatter: all tokens, the retained ones, and their numbers in all.
struct Tokens {
    Dense all, part, ids;
    bool batch_first;

    Tokens(Arguments& arguments, bool scatters) {
        for (int i = 0; i < 3; ++i) arguments.tensor();
        const auto& handles = arguments.handles();
        const char* const part_name = scatters ? "layer_activations" : "out";
        all = dense(handles[scatters ? 0 : 1], scatters ? "all_activations" : "activations", scatters);
        part = dense(handles[scatters ? 1 : 0], part_name, !scatters);
        ids = numbers(handles[2], "sorted_indices", false);
        batch_first = arguments.flag();
        const char* const all_name = scatters ? "all_activations" : "activations";
        check_dim(all, all_name, 3, 3, batch_first ? "[batch, tokens, channels]" : "[tokens, batch, channels]");
        check_dim(ids, "sorted_indices", 2, 2, "[batch, retained tokens]");
        const int64_t batch = all.size(batch_first ? 0 : 1);
        check_sizes(ids, "sorted_indices", {batch, ids.size(1)}, "one row for each sequence of the batch");
        if (batch_first) {
            check_sizes(part, part_name, {batch, ids.size(1), all.size(2)}, "[batch, retained tokens, channels]");
        } else {
            check_sizes(part, part_name, {ids.size(1), batch, all.size(2)}, "[retained tokens, batch, channels]");
        }
        check_same_dtype(part, part_name, all, all_name);
        const Named whole{all, all_name}, some{part, part_name};
        check_apart({scatters ? whole : some, scatters ? some : whole, {ids, "sorted_indices"}}, 1);
        check_range(ids, "sorted_indices", 0, all.size(batch_first ? 1 : 0), "numbers of tokens");
    }

    // Calls copy(part, all, later, bytes) for each retained token, or for a part of its channels. `later` is what `all`
    // is in the next call.
    template <typename Copy>
    void each(const Copy& copy) const {
        constexpr int64_t kSlice = 4096;  // bytes of a token that one thread copies
        const int64_t retained = ids.size(1), bytes = all.size(2) * all.item;
        if (part.numel == 0) return;
        const Strides from(all, batch_first), to(part, batch_first);
        const int64_t slices = (bytes + kSlice - 1) / kSlice;
        const int32_t* const id = ids.as<const int32_t>();
        // A thread has whole sequences of one slice, so that of two equal indexes the last one is written last.
        each_row(ids.size(0) * slices, retained * std::min(bytes, kSlice), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const int64_t batch = row / slices, at = row % slices * kSlice;
                const int64_t count = std::min(kSlice, bytes - at);
                char* all_base = all.as<char>() + batch * from.batch * all.item + at;
                char* part_base = part.as<char>() + batch * to.batch * all.item + at;
                const auto token = [&](int64_t i) {
                    return all_base + id[batch * retained + i] * from.token * all.item;
                };
                for (int64_t i = 0; i < retained; ++i) {
                    char* const later = token(std::min(i + 1, retained - 1));
                    copy(part_base + i * to.token * all.item, token(i), later, count);
                }
            }
        });
    }
};

void gather(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Tokens(arguments, false).each([](char* part, const char* all, const char* later, int64_t bytes) {
        copy_row(part, all, later, bytes);
    });
}

void scatter(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Tokens(arguments, true).each([](const char* part, char* all, const char* later, int64_t bytes) {
        copy_row(all, part, later, bytes);
    });
}

// Calls visit with an unsigned type of `bytes` bytes.
template <typename Visit>
void with_size(int64_t bytes, const Visit& visit) {
    if (bytes == 1) {
        visit(Type<uint8_t>{});
    } else if (bytes == 2) {
        visit(Type<uint16_t>{});
    } else if (bytes == 4) {
        visit(Type<uint32_t>{});
    } else if (bytes == 8) {
        visit(Type<uint64_t>{});
    } else {
        refuse({"dense_mask has elements of ", bytes, " bytes, expected 1, 2, 4 or 8"});
    }
}

// The rows and columns of a mask that each layer retains.
void mask(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 3; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    const Dense out = dense(handles[0], "out", true), in = dense(handles[1], "dense_mask", false);
    const Dense ids = numbers(handles[2], "sorted_indices", false);
    check_dim(in, "dense_mask", 4, 4, "[batch, 1, tokens, tokens]");
    check_dim(ids, "sorted_indices", 3, 3, "[layers, batch, retained tokens]");
    const int64_t tokens = in.size(3), batch = in.size(0), retained = ids.size(2);
    check_sizes(in, "dense_mask", {batch, 1, tokens, tokens}, "[batch, 1, tokens, tokens]");
    check_sizes(ids, "sorted_indices", {ids.size(0), batch, retained}, "[layers, batch of the mask, retained tokens]");
    check_sizes(out, "out", {ids.size(0), batch, 1, retained, retained}, "[layers, batch, 1, retained, retained]");
    check_same_dtype(out, "out", in, "dense_mask");
    check_apart({{out, "out"}, {in, "dense_mask"}, {ids, "sorted_indices"}}, 1);
    check_range(ids, "sorted_indices", 0, tokens, "numbers of the mask's tokens");
    const int32_t* const id = ids.as<const int32_t>();
    with_size(in.item, [&](auto type) {
        using T = typename decltype(type)::type;
        each_row(ids.numel, retained * in.item, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const int64_t sequence = row / retained, image = sequence % batch;
                const int32_t* const columns = id + sequence * retained;
                const T* const from = in.as<const T>() + (image * tokens + id[row]) * tokens;
                T* const to = out.as<T>() + row * retained;
                for (int64_t i = 0; i < retained; ++i) to[i] = from[columns[i]];
            }
        });
    });
}

constexpr char kSort[] = "t", kTokens[] = "ttt";

}  // namespace
}  // namespace opforge::cpu

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def("tokens_sort_(Tensor(a!) unsorted_token_ids, int original_tokens) -> ()");
    m.def("tokens_gather_(Tensor(a!) out, Tensor activations, Tensor sorted_indices, bool batch_first) -> ()");
    m.def(
        "tokens_scatter_(Tensor(a!) all_activations, Tensor layer_activations, Tensor sorted_indices, bool "
        "batch_first) -> ()");
    m.def("mask_gather_(Tensor(a!) out, Tensor dense_mask, Tensor sorted_indices) -> ()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("tokens_sort_", OPFORGE_BOXED(&opforge::cpu::sort));
    m.impl("tokens_gather_", OPFORGE_BOXED(&opforge::cpu::gather));
    m.impl("tokens_scatter_", OPFORGE_BOXED(&opforge::cpu::scatter));
    m.impl("mask_gather_", OPFORGE_BOXED(&opforge::cpu::mask));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("tokens_sort_", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kSort>));
    m.impl("tokens_gather_", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kTokens>));
    m.impl("tokens_scatter_", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kTokens>));
    m.impl("mask_gather_", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kTokens>));
}
