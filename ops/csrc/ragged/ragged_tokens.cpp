// Tokens of a ragged batch: their embeddings, the last one of each sequence, and their keys and values in the cache.

#include <opforge/stable_blocks.h>

#include <cmath>
#include <vector>

#include "ragged.h"

namespace opforge::cpu {
namespace {

void ragged_embed(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 3; ++i) arguments.tensor();
    arguments.optional_tensor();
    const int64_t shift = arguments.integer();
    for (int i = 0; i < 4; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    const size_t next = 3 + arguments.lengths()[3];
    const Dense out = values(handles[0], "embedded_tokens", true), ids = dense(handles[1], "input_ids", false);
    const Dense table = values(handles[2], "embedding_weight", false);
    check_dim(table, "embedding_weight", 2, 2, "[words, channels]");
    const int64_t columns = table.size(1), words = table.size(0);
    check_sizes(out, "embedded_tokens", {ids.numel, columns}, "[tokens, channels]");
    check_same_dtype(out, "embedded_tokens", table, "embedding_weight");
    const bool wide = ids.dtype == aoti_torch_dtype_int64();
    if (!wide && ids.dtype != aoti_torch_dtype_int32()) refuse({"input_ids is neither int32 nor int64, expected one"});
    Dense positions;
    if (next == 4) {
        positions = values(handles[3], "position_embedding_weight", false);
        check_dim(positions, "position_embedding_weight", 2, 2, "[positions, channels]");
        check_sizes(positions, "position_embedding_weight", {positions.size(0), columns}, "[positions, channels]");
        check_same_dtype(positions, "position_embedding_weight", table, "embedding_weight");
        if (positions.size(0) == 0)
            refuse({"position_embedding_weight has shape [0, ...], expected a position or more"});
    }
    check_apart({{out, "embedded_tokens"},
                 {ids, "input_ids"},
                 {table, "embedding_weight"},
                 {positions, "position_embedding_weight"}},
                1);
    const Batch batch(handles[next], handles[next + 1], ids.numel);
    const int32_t* const owner = positions.data ? sequence_of_tokens(handles[next + 2], batch) : nullptr;
    const auto word = [&](int64_t i) -> int64_t {
        return wide ? ids.as<const int64_t>()[i] : ids.as<const int32_t>()[i];
    };
    for (int64_t i = 0; i < batch.tokens; ++i) {
        if (word(i) >= 0 && word(i) < words) continue;
        refuse({"input_ids has ", word(i), " at position ", i, ", expected 0 to ", words - 1,
                ": rows of embedding_weight"});
    }
    with_dtype(out.kind, [&](auto type) {
        using T = typename decltype(type)::type;
        each_row(batch.tokens, 2 * columns * out.item, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                T* const to = out.as<T>() + i * columns;
                const T* const from = table.as<const T>() + word(i) * columns;
                if (!owner) {
                    std::memcpy(to, from, static_cast<size_t>(columns) * sizeof(T));
                    continue;
                }
                const SequenceState& state = batch.sequences[owner[i]];
                const int64_t position = state.seen + (i - state.start) + shift;
                const int64_t row = std::min(std::max<int64_t>(position, 0), positions.size(0) - 1);
                const T* const place = positions.as<const T>() + row * columns;
                for (int64_t k = 0; k < columns; k += Vec::kWidth) {
                    store_some(to + k, load_some(from + k, columns - k) + load_some(place + k, columns - k),
                               columns - k);
                }
            }
        });
    });
}

void gather_for_logits(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 4; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    const Dense out = dense(handles[0], "final_token_acts", true), in = dense(handles[1], "all_acts", false);
    check_dim(in, "all_acts", 2, 2, "[tokens, channels]");
    check_dim(out, "final_token_acts", 2, 2, "[sequences, channels]");
    check_sizes(out, "final_token_acts", {out.size(0), in.size(1)}, "[sequences, channels]");
    check_same_dtype(out, "final_token_acts", in, "all_acts");
    check_apart({{out, "final_token_acts"}, {in, "all_acts"}}, 1);
    const Batch batch(handles[2], handles[3], in.size(0));
    const int64_t count = std::min(batch.count, out.size(0)), bytes = in.size(1) * in.item;
    for (int64_t i = 0; i < count; ++i) {
        if (batch.sequences[i].tokens == 0) {
            refuse({"sequence ", i, " has no token, expected one or more: it has no last token"});
        }
    }
    each_row(count, 2 * bytes, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t last = batch.sequences[i].start + batch.sequences[i].tokens - 1;
            std::memcpy(out.as<char>() + i * bytes, in.as<const char>() + last * bytes, static_cast<size_t>(bytes));
        }
    });
}

// The angles of a token's rotation, a pair for each frequency.
struct Rotation {
    std::vector<float> frequencies, cosines, sines;
    int64_t half = 0;

    void turn_to(int64_t position) {
        for (int64_t i = 0; i < half; ++i) {
            const float angle = frequencies[i] * static_cast<float>(position);
            cosines[i] = std::cos(angle), sines[i] = std::sin(angle);
        }
    }
    template <typename T>
    void apply(const T* from, T* to) const {
        for (int64_t i = 0; i < half; ++i) {
            const float x = to_float(from[i]), y = to_float(from[i + half]);
            from_float(x * cosines[i] - y * sines[i], to[i]);
            from_float(y * cosines[i] + x * sines[i], to[i + half]);
        }
    }
};

// Copies keys and values of the batch's tokens to the cache. Before, queries and keys are rotated by `rotation`.
void fill_cache(Arguments& arguments, size_t first, const Rotation* shared) {
    const auto& handles = arguments.handles();
    const Dense cache = values(handles[0], "kv_cache", true);
    const SpacedRows q = spaced_rows(handles[1], "q", shared != nullptr), k = spaced_rows(handles[2], "k", false);
    const SpacedRows v = spaced_rows(handles[3], "v", false);
    check_dim(cache, "kv_cache", 5, 5, "[pages, tokens of a page, 2, heads, head size]");
    const int64_t block = cache.size(1), heads = cache.size(3), size = cache.size(4), rows = q.size(0);
    check_sizes(cache, "kv_cache", {cache.size(0), block, 2, heads, size}, "a key and a value for each token");
    if (block == 0) refuse({"kv_cache has shape ", text(cache), ", expected a token or more of a page"});
    check_sizes(k, "k", {rows, heads * size}, "[tokens of q, heads * head size of kv_cache]");
    check_sizes(v, "v", {rows, heads * size}, "[tokens of q, heads * head size of kv_cache]");
    if (size == 0 || heads == 0 || q.size(1) % (heads * size) != 0) {
        refuse({"q has shape ", text(q), ", expected as many heads as a multiple of the ", heads, " heads of size ",
                size, " of kv_cache"});
    }
    for (const SpacedRows* other : {&q, &k, &v}) check_same_dtype(*other, "q, k or v", cache, "kv_cache");
    if (shared && 2 * shared->half > size) {
        refuse({"rotary_dim is ", 2 * shared->half, ", expected at most ", size, ", the head size"});
    }
    const Batch batch(handles[first], handles[first + 1], rows);
    const int32_t* const owner = sequence_of_tokens(handles[first + 2], batch);
    const Dense lists = dense(handles[first + 3], "kv_ptrs", false);
    if (lists.dtype != aoti_torch_dtype_int64() || lists.numel < batch.count) {
        refuse({"kv_ptrs has shape ", text(lists), ", expected an int64 address of a list for each sequence"});
    }
    std::vector<int64_t> slots(static_cast<size_t>(batch.tokens));
    for (int64_t i = 0; i < batch.tokens; ++i) {
        const SequenceState& state = batch.sequences[owner[i]];
        const int64_t position = state.seen + (i - state.start);
        const auto* const list = reinterpret_cast<const int32_t*>(lists.as<const int64_t>()[owner[i]]);
        if (!list) refuse({"kv_ptrs has 0 for sequence ", owner[i], ", expected an address"});
        const int64_t page = list[position / block];
        if (page < 0 || page >= cache.size(0)) {
            refuse({"sequence ", owner[i], " has page ", page, ", expected 0 to ", cache.size(0) - 1,
                    ", the pages of kv_cache"});
        }
        slots[i] = page * block + position % block;
    }
    with_dtype(cache.kind, [&](auto type) {
        using T = typename decltype(type)::type;
        each_row(batch.tokens, 4 * heads * size * cache.item, [&](int64_t begin, int64_t end) {
            Rotation rotation = shared ? *shared : Rotation{};
            for (int64_t i = begin; i < end; ++i) {
                const SequenceState& state = batch.sequences[owner[i]];
                T* const key = cache.as<T>() + slots[i] * 2 * heads * size;
                std::memcpy(key, k.row<const T>(i), static_cast<size_t>(heads * size) * sizeof(T));
                std::memcpy(key + heads * size, v.row<const T>(i), static_cast<size_t>(heads * size) * sizeof(T));
                if (!shared) continue;
                rotation.turn_to(state.seen + (i - state.start));
                for (int64_t head = 0; head < heads; ++head) {
                    rotation.apply(k.row<const T>(i) + head * size, key + head * size);
                }
                for (T* query = q.row<T>(i); query < q.row<T>(i) + q.size(1); query += size) {
                    rotation.apply(query, query);
                }
            }
        });
    });
}

void kv_rotary_embeddings(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 4; ++i) arguments.tensor();
    const int64_t dimension = arguments.integer();
    const double base = arguments.real();
    for (int i = 0; i < 4; ++i) arguments.tensor();
    if (dimension < 0 || dimension % 2 != 0) {
        refuse({"rotary_dim is ", dimension, ", expected an even number"});
    }
    Rotation rotation;
    rotation.half = dimension / 2;
    rotation.cosines.resize(rotation.half), rotation.sines.resize(rotation.half);
    // Rounded to the dtype of the queries, as models keep them.
    with_dtype(values(arguments.handles()[0], "kv_cache", false).kind, [&](auto type) {
        using T = typename decltype(type)::type;
        for (int64_t i = 0; i < rotation.half; ++i) {
            const double power = static_cast<double>(2 * i) / static_cast<double>(dimension);
            rotation.frequencies.push_back(to_float(from_float<T>(static_cast<float>(1.0 / std::pow(base, power)))));
        }
    });
    fill_cache(arguments, 4, &rotation);
}

void kv_trained_rotary_embeddings(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 9; ++i) arguments.tensor();
    const Dense frequencies = values(arguments.handles()[4], "inv_freq", false);
    check_dim(frequencies, "inv_freq", 1, 1, "[rotary_dim / 2]");
    if (frequencies.kind != DType::Float32) refuse({"inv_freq is not float32, expected float32"});
    Rotation rotation;
    rotation.half = frequencies.numel;
    rotation.frequencies.assign(frequencies.as<const float>(), frequencies.as<const float>() + rotation.half);
    rotation.cosines.resize(rotation.half), rotation.sines.resize(rotation.half);
    fill_cache(arguments, 5, &rotation);
}

void linear_kv_copy(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 8; ++i) arguments.tensor();
    fill_cache(arguments, 4, nullptr);
}

constexpr char kEmbed[] = "ttto.tttt", kLogits[] = "tttt", kRotary[] = "tttt..tttt", kTrained[] = "ttttttttt",
               kCopy[] = "tttttttt";

}  // namespace
}  // namespace opforge::cpu

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "ragged_embed(Tensor(a!) embedded_tokens, Tensor input_ids, Tensor embedding_weight, Tensor? "
        "position_embedding_weight, int pos_embed_offset, Tensor batch_metadata, Tensor seq_metadata, Tensor "
        "tokens_to_seq, Tensor kv_ptrs) -> ()");
    m.def(
        "gather_for_logits(Tensor(a!) final_token_acts, Tensor all_acts, Tensor batch_metadata, Tensor seq_metadata) "
        "-> ()");
    m.def(
        "kv_rotary_embeddings(Tensor(a!) kv_cache, Tensor(b!) q, Tensor k, Tensor v, int rotary_dim, float theta_base, "
        "Tensor batch_metadata, Tensor seq_metadata, Tensor tokens_to_seq, Tensor kv_ptrs) -> ()");
    m.def(
        "kv_trained_rotary_embeddings(Tensor(a!) kv_cache, Tensor(b!) q, Tensor k, Tensor v, Tensor inv_freq, Tensor "
        "batch_metadata, Tensor seq_metadata, Tensor tokens_to_seq, Tensor kv_ptrs) -> ()");
    m.def(
        "linear_kv_copy(Tensor(a!) kv_cache, Tensor q, Tensor k, Tensor v, Tensor batch_metadata, Tensor seq_metadata, "
        "Tensor tokens_to_seq, Tensor kv_ptrs) -> ()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("ragged_embed", OPFORGE_BOXED(&opforge::cpu::ragged_embed));
    m.impl("gather_for_logits", OPFORGE_BOXED(&opforge::cpu::gather_for_logits));
    m.impl("kv_rotary_embeddings", OPFORGE_BOXED(&opforge::cpu::kv_rotary_embeddings));
    m.impl("kv_trained_rotary_embeddings", OPFORGE_BOXED(&opforge::cpu::kv_trained_rotary_embeddings));
    m.impl("linear_kv_copy", OPFORGE_BOXED(&opforge::cpu::linear_kv_copy));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("ragged_embed", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kEmbed>));
    m.impl("gather_for_logits", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kLogits>));
    m.impl("kv_rotary_embeddings", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kRotary>));
    m.impl("kv_trained_rotary_embeddings", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kTrained>));
    m.impl("linear_kv_copy", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kCopy>));
}
