#include "collectives.h"

#include <algorithm>
#include <cstring>

namespace opforge::shm {

namespace {

// Up to this size, and between two ranks always, every rank reduces everything: that is one wait instead of two.
constexpr size_t kWholeBytes = 16 << 10;

const char* at(const void* data, size_t bytes) { return static_cast<const char*>(data) + bytes; }
char* at(void* data, size_t bytes) { return static_cast<char*>(data) + bytes; }

void copy(void* to, const void* from, size_t bytes) {
    if (bytes && to != from) std::memmove(to, from, bytes);
}

// Bytes of chunk k of `total`.
size_t part(size_t total, size_t chunk, size_t k) { return k * chunk < total ? std::min(chunk, total - k * chunk) : 0; }

size_t steps_for(size_t bytes, size_t chunk) { return std::max<size_t>(1, (bytes + chunk - 1) / chunk); }

// What goes in one step, of `bytes` in all: the same on every rank.
size_t chunk_for(Group& group, size_t bytes) {
    size_t chunk = kLeastChunk;
    const size_t parts = group.parts(bytes);
    while (chunk < group.slot_bytes() && bytes > parts * chunk) chunk *= 2;
    return chunk;
}

// The same for each of the ranks, of `bytes` for each.
size_t share_for(Group& group, size_t bytes) {
    return chunk_for(group, bytes * group.ranks()) / group.ranks() / kLine * kLine;
}

// Runs the steps of a call. `fill(k, slot)` fills this rank's slot; `consume(k, step)` reads all slots of the step. The
// next slot is filled before the others' are waited for, so a rank that is late for a moment stops nobody.
template <typename Fill, typename Consume>
void run(Group::Turn& turn, size_t steps, Fill fill, Consume consume) {
    uint32_t before = 0;
    for (size_t k = 0; k <= steps; ++k) {
        uint32_t current = 0;
        if (k < steps) {
            fill(k, turn.slot());
            current = turn.post();
        }
        if (k > 0) {
            turn.arrive(before);
            consume(k - 1, before);
        }
        before = current;
    }
}

// The part of a chunk of `count` elements that a rank reduces. It begins at a cache line.
struct Slice {
    size_t begin, end;
    Slice(size_t count, size_t size, uint32_t ranks, uint32_t rank) {
        const size_t most = round_up((count + ranks - 1) / ranks, kLine / size);
        begin = std::min(count, rank * most);
        end = std::min(count, begin + most);
    }
    size_t count() const { return end - begin; }
};

// Every rank reduces everything: one step for each chunk.
void reduce_whole(Group& group, Group::Turn& turn, char* data, size_t count, size_t size, Reduction reduce) {
    const size_t bytes = count * size, chunk = chunk_for(group, bytes);
    const void* inputs[kMostRanks];
    const auto fill = [&](size_t k, char* slot) { copy(slot, data + k * chunk, part(bytes, chunk, k)); };
    const auto consume = [&](size_t k, uint32_t step) {
        for (uint32_t rank = 0; rank < group.ranks(); ++rank)
            inputs[rank] = rank == group.rank() ? data + k * chunk : group.slot(rank, step);
        reduce(data + k * chunk, inputs, group.ranks(), part(bytes, chunk, k) / size);
    };
    run(turn, steps_for(bytes, chunk), fill, consume);
}

// Every rank reduces its slice of each chunk, and copies the results of the others: two steps for each chunk. They
// overlap: values of the next chunk are posted before this one's are reduced.
void reduce_slices(Group& group, Group::Turn& turn, char* data, size_t count, size_t size, Reduction reduce) {
    const size_t bytes = count * size, chunk = chunk_for(group, bytes), steps = steps_for(bytes, chunk);
    const uint32_t ranks = group.ranks(), self = group.rank();
    const void* inputs[kMostRanks];
    uint32_t values[2], results[2];
    const auto slice = [&](size_t k, uint32_t rank) { return Slice(part(bytes, chunk, k) / size, size, ranks, rank); };
    const auto post_values = [&](size_t k) {
        const Slice own = slice(k, self);
        const char* from = data + k * chunk;
        char* slot = turn.slot();
        copy(slot, from, own.begin * size);
        copy(slot + own.end * size, from + own.end * size, part(bytes, chunk, k) - own.end * size);
        values[k % 2] = turn.post();
    };
    const auto copy_results = [&](size_t k) {
        turn.arrive(results[k % 2]);
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            if (rank == self) continue;
            const Slice other = slice(k, rank);
            copy(data + k * chunk + other.begin * size, group.slot(rank, results[k % 2]), other.count() * size);
        }
    };
    post_values(0);
    for (size_t k = 0; k < steps; ++k) {
        if (k + 1 < steps) post_values(k + 1);
        turn.arrive(values[k % 2]);
        const Slice own = slice(k, self);
        char* place = data + k * chunk + own.begin * size;
        for (uint32_t rank = 0; rank < ranks; ++rank)
            inputs[rank] = rank == self ? place : group.slot(rank, values[k % 2]) + own.begin * size;
        reduce(place, inputs, ranks, own.count());
        copy(turn.slot(), place, own.count() * size);
        results[k % 2] = turn.post();
        if (k > 0) copy_results(k - 1);
    }
    copy_results(steps - 1);
}

}  // namespace

void barrier(Group& group, double seconds) {
    Group::Turn turn(group, {kBarrier}, seconds);
    run(turn, 1, [](size_t, char*) {}, [](size_t, uint32_t) {});
}

void all_reduce(Group& group, void* data, size_t count, uint32_t dtype, uint32_t op, double seconds) {
    Group::Turn turn(group, {kAllReduce, dtype, op, 0, count}, seconds);
    const size_t size = size_of(dtype);
    const auto algorithm = group.ranks() == 2 || count * size <= kWholeBytes ? reduce_whole : reduce_slices;
    algorithm(group, turn, static_cast<char*>(data), count, size, reduction(dtype, op));
}

void reduce_scatter(Group& group, const void* const* inputs, void* out, size_t count, uint32_t dtype, uint32_t op,
                    double seconds) {
    Group::Turn turn(group, {kReduceScatter, dtype, op, 0, count}, seconds);
    const uint32_t ranks = group.ranks(), self = group.rank();
    const Reduction reduce = reduction(dtype, op);
    const size_t size = size_of(dtype), bytes = count * size, chunk = share_for(group, bytes);
    const void* values[kMostRanks];
    const auto fill = [&](size_t k, char* slot) {
        for (uint32_t rank = 0; rank < ranks; ++rank)
            if (rank != self) copy(slot + rank * chunk, at(inputs[rank], k * chunk), part(bytes, chunk, k));
    };
    const auto consume = [&](size_t k, uint32_t step) {
        for (uint32_t rank = 0; rank < ranks; ++rank)
            values[rank] = rank == self ? at(inputs[self], k * chunk) : group.slot(rank, step) + self * chunk;
        reduce(at(out, k * chunk), values, ranks, part(bytes, chunk, k) / size);
    };
    run(turn, steps_for(bytes, chunk), fill, consume);
}

void all_gather(Group& group, const void* in, void* const* outputs, size_t bytes, uint32_t dtype, double seconds) {
    Group::Turn turn(group, {kAllGather, dtype, 0, 0, bytes / size_of(dtype)}, seconds);
    const size_t chunk = chunk_for(group, bytes);
    const auto fill = [&](size_t k, char* slot) { copy(slot, at(in, k * chunk), part(bytes, chunk, k)); };
    const auto consume = [&](size_t k, uint32_t step) {
        for (uint32_t rank = 0; rank < group.ranks(); ++rank) {
            const void* from = rank == group.rank() ? at(in, k * chunk) : group.slot(rank, step);
            copy(at(outputs[rank], k * chunk), from, part(bytes, chunk, k));
        }
    };
    run(turn, steps_for(bytes, chunk), fill, consume);
}

void broadcast(Group& group, void* data, size_t bytes, uint32_t dtype, uint32_t root, double seconds) {
    Group::Turn turn(group, {kBroadcast, dtype, 0, root, bytes / size_of(dtype)}, seconds);
    const bool is_root = root == group.rank();
    const size_t chunk = chunk_for(group, bytes);
    const auto fill = [&](size_t k, char* slot) {
        if (is_root) copy(slot, at(data, k * chunk), part(bytes, chunk, k));
    };
    const auto consume = [&](size_t k, uint32_t step) {
        if (!is_root) copy(at(data, k * chunk), group.slot(root, step), part(bytes, chunk, k));
    };
    run(turn, steps_for(bytes, chunk), fill, consume);
}

void all_to_all(Group& group, const void* const* inputs, const uint64_t* input_bytes, void* const* outputs,
                const uint64_t* output_bytes, uint32_t dtype, double seconds) {
    const Call call{kAllToAll, dtype};
    Group::Turn turn(group, call, seconds);
    const uint32_t ranks = group.ranks(), self = group.rank();
    size_t most = 0;
    // The first step says how much each rank sends to each: all must run as many steps as the longest transfer needs.
    const auto compare = [&](size_t, uint32_t step) {
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            const auto* sizes = reinterpret_cast<const uint64_t*>(group.slot(rank, step));
            most = std::max<size_t>(most, *std::max_element(sizes, sizes + ranks));
            if (sizes[self] == output_bytes[rank]) continue;
            Call expected = call, actual = call;
            expected.count = output_bytes[rank] / size_of(dtype);
            actual.count = sizes[self] / size_of(dtype);
            group.fail(kSplits, rank, expected, actual);
        }
    };
    run(turn, 1, [&](size_t, char* slot) { copy(slot, input_bytes, ranks * sizeof(uint64_t)); }, compare);
    if (!most) return;
    const size_t chunk = share_for(group, most);
    const auto fill = [&](size_t k, char* slot) {
        for (uint32_t rank = 0; rank < ranks; ++rank)
            if (rank != self) copy(slot + rank * chunk, at(inputs[rank], k * chunk), part(input_bytes[rank], chunk, k));
    };
    const auto consume = [&](size_t k, uint32_t step) {
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            const void* from = rank == self ? at(inputs[rank], k * chunk) : group.slot(rank, step) + self * chunk;
            copy(at(outputs[rank], k * chunk), from, part(output_bytes[rank], chunk, k));
        }
    };
    run(turn, steps_for(most, chunk), fill, consume);
}

}  // namespace opforge::shm
