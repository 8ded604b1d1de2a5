#pragma once

#include <memory>
#include <vector>

#include "group.h"

namespace opforge::shm {

// Messages between two ranks. Those of one sender arrive in order; a tag chooses among them.
class Messages {
public:
    explicit Messages(Group& group);
    void send(const void* data, size_t bytes, uint32_t dtype, uint32_t to, uint64_t tag, double seconds);
    void receive(void* data, size_t bytes, uint32_t dtype, uint32_t from, uint64_t tag, double seconds);
    // Receives the next message of any rank, and returns which.
    uint32_t receive_any(void* data, size_t bytes, uint32_t dtype, uint64_t tag, double seconds);

private:
    struct Kept {  // a message that was read before one with the requested tag
        Packet head;
        std::unique_ptr<char[]> data;
    };
    struct Peer {
        std::mutex sending, receiving;
        std::vector<Kept> kept;
    };
    // Receives a message with the call's tag if one has come. The rank's `receiving` is locked.
    bool take(void* data, size_t bytes, uint32_t from, const Call& call, Clock::time_point deadline);
    uint32_t absentee(uint32_t turn);
    void stream_in(char* data, size_t bytes, uint32_t from, const Call& call, Clock::time_point deadline);
    void match(const Packet& head, const Call& call, uint32_t from);

    Group& group_;
    std::vector<std::unique_ptr<Peer>> peers_;
};

}  // namespace opforge::shm
