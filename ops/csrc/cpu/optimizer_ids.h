#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "arguments.h"

namespace opforge::cpu {

// What create_* stores for later calls under the caller's id: one mode.
class OptimizerIds {
public:
    // `op` is the part of the function's name after create_, such as "adam".
    explicit OptimizerIds(const char* op) : op_(op) {}

    // Replaces the mode of an earlier call with the same id.
    void create(int64_t id, bool mode) {
        const std::lock_guard<std::mutex> guard(mutex_);
        modes_[id] = mode;
    }
    bool mode(int64_t id) const {
        const std::lock_guard<std::mutex> guard(mutex_);
        const auto mode = modes_.find(id);
        if (mode != modes_.end()) return mode->second;
        refuse({"optimizer_id ", id, " is unknown, expected one given to create_", op_, ": call create_", op_, "(", id,
                ", ...) first"});
    }
    // An unknown id is not an error, so destroying twice is allowed.
    void destroy(int64_t id) {
        const std::lock_guard<std::mutex> guard(mutex_);
        modes_.erase(id);
    }

private:
    const char* op_;
    mutable std::mutex mutex_;
    std::map<int64_t, bool> modes_;
};

// The boxed functions that all optimizers share: `ids` returns the ids of one.

// For a rule whose updates pass all of their numbers.
template <OptimizerIds& (*ids)()>
void create(StableIValue* stack, uint64_t, uint64_t) {
    ids().create(Arguments(stack).integer(), true);
    stack[0] = 0;
}

template <OptimizerIds& (*ids)()>
void destroy(StableIValue* stack, uint64_t, uint64_t) {
    ids().destroy(Arguments(stack).integer());
    stack[0] = 0;
}

}  // namespace opforge::cpu
