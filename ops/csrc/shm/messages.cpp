#include "messages.h"

#include <algorithm>
#include <cstring>

#include "collectives.h"

namespace opforge::shm {

namespace {

// The first packet of a message begins with its head.
constexpr size_t kHead = kLine;
static_assert(sizeof(Packet) <= kHead);

}  // namespace

Messages::Messages(Group& group) : group_(group) {
    for (uint32_t rank = 0; rank < group.ranks(); ++rank) peers_.push_back(std::make_unique<Peer>());
}

void Messages::send(const void* data, size_t bytes, uint32_t dtype, uint32_t to, uint64_t tag, double seconds) {
    const auto deadline = deadline_after(seconds);
    const std::lock_guard<std::mutex> lock(peers_[to]->sending);
    group_.check();
    const Call call{kSend, dtype, 0, 0, bytes / size_of(dtype), tag};
    Channel& channel = group_.channel(group_.rank(), to);
    const Packet head{tag, bytes, dtype};
    uint32_t number = channel.sent.value.load(std::memory_order_relaxed);
    size_t done = 0, offset = kHead;
    do {
        group_.wait(channel.received, to, call, deadline,
                    [number](uint32_t received) { return number - received < kPackets; });
        char* packet = group_.packet(group_.rank(), to, number);
        if (offset) std::memcpy(packet, &head, sizeof head);
        const size_t size = std::min(bytes - done, group_.packet_bytes() - offset);
        if (size) std::memcpy(packet + offset, static_cast<const char*>(data) + done, size);
        done += size;
        Group::publish(channel.sent, ++number);
        if (offset) Group::increase(group_.member(to).mail);
        offset = 0;
    } while (done < bytes);
}

void Messages::receive(void* data, size_t bytes, uint32_t dtype, uint32_t from, uint64_t tag, double seconds) {
    const auto deadline = deadline_after(seconds);
    const std::lock_guard<std::mutex> lock(peers_[from]->receiving);
    const Call call{kSend, dtype, 0, 0, bytes / size_of(dtype), tag};
    Channel& channel = group_.channel(from, group_.rank());
    while (!take(data, bytes, from, call, deadline)) {
        const uint32_t number = channel.received.value.load(std::memory_order_relaxed);
        group_.wait(channel.sent, from, call, deadline, [number](uint32_t sent) { return sent != number; });
    }
}

uint32_t Messages::receive_any(void* data, size_t bytes, uint32_t dtype, uint64_t tag, double seconds) {
    const auto deadline = deadline_after(seconds);
    const Call call{kSend, dtype, 0, 0, bytes / size_of(dtype), tag};
    Word& mail = group_.member(group_.rank()).mail;
    for (uint32_t turn = 0;; ++turn) {
        // Read first: what comes while the ranks are looked at changes it, and ends the wait.
        const uint32_t seen = mail.value.load();
        for (uint32_t rank = 0; rank < group_.ranks(); ++rank) {
            const uint32_t from = (turn + rank) % group_.ranks();
            if (from == group_.rank()) continue;
            // Another thread that receives from this rank keeps messages with other tags, which are seen after a sleep.
            const std::unique_lock<std::mutex> lock(peers_[from]->receiving, std::try_to_lock);
            if (lock && take(data, bytes, from, call, deadline)) return from;
        }
        group_.wait_briefly(mail, absentee(turn), call, deadline, [seen](uint32_t value) { return value != seen; });
    }
}

// Returns a rank to look after while any of them may send: another one in each turn, and one that has left only if all
// have. Those may end.
uint32_t Messages::absentee(uint32_t turn) {
    const uint32_t ranks = group_.ranks();
    uint32_t other = group_.rank();
    for (uint32_t k = 0; k < ranks; ++k) {
        const uint32_t rank = (turn + k) % ranks;
        if (rank == group_.rank()) continue;
        other = rank;
        if (!group_.member(rank).has_left.load()) break;
    }
    return other;
}

bool Messages::take(void* data, size_t bytes, uint32_t from, const Call& call, Clock::time_point deadline) {
    Peer& peer = *peers_[from];
    for (auto kept = peer.kept.begin(); kept != peer.kept.end(); ++kept) {
        if (kept->head.tag != call.tag) continue;
        match(kept->head, call, from);
        if (bytes) std::memcpy(data, kept->data.get(), bytes);
        peer.kept.erase(kept);
        return true;
    }
    group_.check();
    Channel& channel = group_.channel(from, group_.rank());
    for (;;) {
        const uint32_t number = channel.received.value.load(std::memory_order_relaxed);
        if (channel.sent.value.load(std::memory_order_acquire) == number) return false;
        Packet head;
        std::memcpy(&head, group_.packet(from, group_.rank(), number), sizeof head);
        if (head.tag == call.tag) {
            match(head, call, from);
            stream_in(static_cast<char*>(data), bytes, from, call, deadline);
            return true;
        }
        Kept kept{head, std::make_unique<char[]>(head.bytes)};
        stream_in(kept.data.get(), head.bytes, from, call, deadline);
        peer.kept.push_back(std::move(kept));
    }
}

void Messages::stream_in(char* data, size_t bytes, uint32_t from, const Call& call, Clock::time_point deadline) {
    Channel& channel = group_.channel(from, group_.rank());
    uint32_t number = channel.received.value.load(std::memory_order_relaxed);
    size_t done = 0, offset = kHead;
    do {
        group_.wait(channel.sent, from, call, deadline, [number](uint32_t sent) { return sent != number; });
        const size_t size = std::min(bytes - done, group_.packet_bytes() - offset);
        if (size) std::memcpy(data + done, group_.packet(from, group_.rank(), number) + offset, size);
        done += size;
        offset = 0;
        Group::publish(channel.received, ++number);
    } while (done < bytes);
}

void Messages::match(const Packet& head, const Call& call, uint32_t from) {
    if (head.dtype == call.dtype && head.bytes == call.count * size_of(call.dtype)) return;
    group_.fail(kMessage, from, call, {kSend, head.dtype, 0, 0, head.bytes / size_of(head.dtype), head.tag});
}

}  // namespace opforge::shm
