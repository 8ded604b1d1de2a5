#pragma once

// What is in the memory that the processes of a group share. All of it begins as zeros.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace opforge::shm {

constexpr uint32_t kVersion = 3;  // of this layout: a rank with another version of the op is rejected
constexpr size_t kPage = 4096;
constexpr size_t kLine = 64;

// A collective call is a sequence of steps. In each step every rank fills one of its slots, posts the step, waits until
// all have posted it, and reads the slots of the others. It may fill and post up to two steps before it has read an
// earlier one. So when all have posted step i, all have read step i - 3, and when a rank fills the slot of step i, all
// have posted step i - 3 and read step i - 6. The number of slots divides 2^32, where steps begin at 0 again.
constexpr size_t kSlots = 8;
// The first step's number: steps begin at 0 again soon, in every group, and not after an hour in a few.
constexpr uint32_t kFirstStep = 0u - 256;
// A large tensor goes in large chunks, since each costs a wait. A group of many ranks has small slots alone: all slots
// are reserved when the group is made.
constexpr size_t kLeastChunk = 256 << 10;
constexpr size_t kMostChunk = 1 << 20;
constexpr size_t kRanksWithLargeSlots = 8;

// A message from one rank to another goes through a ring of packets.
constexpr size_t kPackets = 4;
constexpr size_t kMostPacketBytes = 64 << 10;
constexpr size_t kMessageBytes = 13 << 20;  // what a rank has at most for the messages that it sends
constexpr uint32_t kMostRanks = 512;

// A word that others wait for, alone in its cache line.
struct alignas(kLine) Word {
    std::atomic<uint32_t> value;
    std::atomic<uint32_t> sleepers;  // waiters in futex(2)
};

// What a rank has called. The ranks of a group must agree on it.
struct Call {
    uint32_t kind, dtype, op, root;
    uint64_t count;  // elements
    uint64_t tag;
};

inline bool same(const Call& a, const Call& b) {
    return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root && a.count == b.count &&
           a.tag == b.tag;
}

// Why a group cannot be used any more. The first rank that sees a failure writes it, and all report it.
struct Failure {
    uint32_t code;
    uint32_t reporter, rank;  // who saw it, and whom it is about
    uint32_t process;         // that rank's
    Call expected, actual;    // the reporter's call and the rank's
};

enum FailureCode : uint32_t { kLate = 1, kEnded, kLeft, kDisagree, kSplits, kMessage };

// In how many chunks tensors of these sizes go, in bytes: what tuning has found. Whoever makes the group writes it, as
// all ranks must use the same.
struct Parts {
    uint64_t low, high, parts;
};
constexpr size_t kMostTuned = 16;
constexpr uint64_t kParts = 8;

struct Header {
    uint32_t version, ranks;
    uint64_t token;                       // random: the right memory was opened
    std::atomic<uint32_t> failure_state;  // 0: none, 1: being written, 2: written
    Failure failure;
    Word attached;   // how many ranks have mapped the memory
    uint32_t tuned;  // rows of `parts`
    Parts parts[kMostTuned];
};

struct Member {
    Word posted;  // steps
    Word mail;    // messages to this rank, for one that waits for any of them
    Call calls[kSlots];
    std::atomic<uint32_t> has_attached, has_left;
    uint32_t process;  // its id
    uint64_t started;  // its start time, in the kernel's ticks: ids are used again
};

// From one rank to another.
struct Channel {
    Word sent, received;  // packets
};

struct Packet {  // at the beginning of a message
    uint64_t tag, bytes;
    uint32_t dtype;
};

constexpr size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Sizes and offsets, for a number of ranks.
struct Layout {
    size_t slot_bytes, packet_bytes, channel_bytes, rank_bytes, ranks;

    explicit Layout(size_t count) : ranks(count) {
        slot_bytes = count <= kRanksWithLargeSlots ? kMostChunk : kLeastChunk;
        const size_t packet = kMessageBytes / (count * kPackets) / kPage * kPage;
        packet_bytes = packet > kMostPacketBytes ? kMostPacketBytes : packet > kPage ? packet - kPage : kPage;
        channel_bytes = kPage + kPackets * packet_bytes;
        rank_bytes = reserved() + (count > 1 ? count * channel_bytes : 0);
    }
    size_t reserved() const { return kPage + kSlots * slot_bytes; }  // of each rank
    size_t total() const { return kPage + ranks * rank_bytes; }
    size_t member(size_t rank) const { return kPage + rank * rank_bytes; }
    size_t slots(size_t rank) const { return member(rank) + kPage; }
    size_t channel(size_t from, size_t to) const { return member(from) + reserved() + to * channel_bytes; }
};

static_assert(sizeof(Header) <= kPage && sizeof(Member) <= kPage && sizeof(Channel) <= kPage);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace opforge::shm
