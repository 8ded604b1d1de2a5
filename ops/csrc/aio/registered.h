// Locked memory that is registered with a ring: the kernel pins its pages once, and not for each block.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine.h"

namespace opforge::aio {

class RegisteredMemory {
public:
    // Returns the ring's index of the memory that a block is in, or -1 if it is not registered. Registers it once as
    // many bytes as it has were moved: by then, registering costs less than what it would have saved.
    int index(int ring, const Block& block);
    void forget(int ring, int64_t region);
    // Before the ring is closed: a forked child has its descriptor too, and would keep the pages pinned.
    void forget_all(int ring);
    const Registration& registration() const { return registration_; }

private:
    // Of a region. Small ones need less of the limit, and less time while blocks wait to be submitted.
    struct Part {
        int index = -1;
        int64_t bytes = 0, moved = 0, due = 0;
    };

    void enter(int ring, Part& part, char* address);
    bool update(int ring, int index, char* address, int64_t bytes);

    std::map<std::pair<int64_t, int64_t>, Part> parts_;  // by the number of the region, and of the part in it
    std::vector<int> free_;
    bool has_table_ = false;
    Registration registration_;
};

}  // namespace opforge::aio
