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
        offset = 0;
        Group::publish(channel.sent, ++number);
    } while (done < bytes);
}

void Messages::receive(void* data, size_t bytes, uint32_t dtype, uint32_t from, uint64_t tag, double seconds) {
    const auto deadline = deadline_after(seconds);
    Peer& peer = *peers_[from];
    const std::lock_guard<std::mutex> lock(peer.receiving);
    const Call call{kSend, dtype, 0, 0, bytes / size_of(dtype), tag};
    for (auto kept = peer.kept.begin(); kept != peer.kept.end(); ++kept) {
        if (kept->head.tag != tag) continue;
        match(kept->head, call, from);
        if (bytes) std::memcpy(data, kept->data.get(), bytes);
        peer.kept.erase(kept);
        return;
    }
    group_.check();
    Channel& channel = group_.channel(from, group_.rank());
    for (;;) {
        const uint32_t number = channel.received.value.load(std::memory_order_relaxed);
        group_.wait(channel.sent, from, call, deadline, [number](uint32_t sent) { return sent != number; });
        Packet head;
        std::memcpy(&head, group_.packet(from, group_.rank(), number), sizeof head);
        if (head.tag == tag) {
            match(head, call, from);
            stream_in(static_cast<char*>(data), bytes, from, call, deadline);
            return;
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
