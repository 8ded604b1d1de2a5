#pragma once

#include <pthread.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "arguments.h"

namespace opforge::cpu {

// What create_* stores for later calls under the caller's id: one mode.
class OptimizerIds {
public:
    // `op` is the part of the function's name after create_, such as "adam".
    explicit OptimizerIds(const char* op) : op_(op) {}

    // Replaces the mode of an earlier call with the same id.
    void create(int64_t id, bool mode) {
        const Guard guard(mutex_);
        if (auto* known = find(id)) {
            known->second = mode;
        } else {
            modes_.push_back({id, mode});
        }
    }
    bool mode(int64_t id) {
        {
            const Guard guard(mutex_);
            if (const auto* known = find(id)) return known->second;
        }
        refuse({"optimizer_id ", id, " is unknown, expected one given to create_", op_, ": call create_", op_, "(", id,
                ", ...) first"});
    }
    // An unknown id is not an error, so destroying twice is allowed.
    void destroy(int64_t id) {
        const Guard guard(mutex_);
        if (auto* known = find(id)) {
            *known = modes_.back();
            modes_.pop_back();
        }
    }

private:
    using Mode = std::pair<int64_t, bool>;

    // <mutex> and <map> take longer to compile than all that is here.
    struct Guard {
        pthread_mutex_t& mutex;
        explicit Guard(pthread_mutex_t& locked) : mutex(locked) { pthread_mutex_lock(&mutex); }
        ~Guard() { pthread_mutex_unlock(&mutex); }
    };

    Mode* find(int64_t id) {
        for (Mode& mode : modes_) {
            if (mode.first == id) return &mode;
        }
        return nullptr;
    }

    const char* op_;
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    std::vector<Mode> modes_;  // few: one for each optimizer that exists
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
