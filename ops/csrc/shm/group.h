#pragma once

// `Group`: this process's part in a group, and how it waits for the others.

#include <chrono>
#include <mutex>

#include "layout.h"

namespace opforge::shm {

struct Failed {};  // thrown; Header::failure says why
struct Closed {};  // thrown in the calls that are under way when the group is closed
struct Invalid {   // thrown if the memory cannot be used
    int error;
};

using Clock = std::chrono::steady_clock;

constexpr unsigned kYields = 4;  // before the first sleep

class Group {
public:
    // Makes a group's memory, which has no name in any file system. Returns its descriptor. Throws Invalid.
    static int create(uint32_t ranks, uint64_t token, const uint32_t* processes, const uint64_t* started);
    // Maps the memory of a descriptor, which the caller closes. Throws Invalid.
    Group(int descriptor, uint32_t ranks, uint32_t rank, uint64_t token);
    ~Group();
    Group(const Group&) = delete;

    uint32_t rank() const { return rank_; }
    uint32_t ranks() const { return ranks_; }
    Header& header() { return *reinterpret_cast<Header*>(base_); }
    Member& member(uint32_t rank) { return *reinterpret_cast<Member*>(base_ + layout_.member(rank)); }
    char* slot(uint32_t rank, uint32_t step) {
        return base_ + layout_.slots(rank) + step % kSlots * layout_.slot_bytes;
    }
    Channel& channel(uint32_t from, uint32_t to) {
        return *reinterpret_cast<Channel*>(base_ + layout_.channel(from, to));
    }
    char* packet(uint32_t from, uint32_t to, uint32_t number) {
        return base_ + layout_.channel(from, to) + kPage + number % kPackets * layout_.packet_bytes;
    }
    // In how many chunks a tensor of so many bytes goes at least, before they become larger.
    size_t parts(size_t bytes) {
        const Header& shared = header();
        for (uint32_t i = 0; i < shared.tuned && i < kMostTuned; ++i) {
            if (shared.parts[i].low <= bytes && bytes <= shared.parts[i].high) return shared.parts[i].parts;
        }
        return kParts;
    }
    size_t slot_bytes() const { return layout_.slot_bytes; }
    size_t packet_bytes() const { return layout_.packet_bytes; }

    // Waits until all ranks have attached.
    void join(double seconds);
    // Makes the calls under way in this process throw Closed, and later ones of all ranks fail.
    void close();

    // Locks the collective calls, checks that the group can be used, and sets the call that peers compare.
    class Turn {
    public:
        Turn(Group& group, const Call& call, double seconds);
        char* slot() { return group_.slot(group_.rank_, group_.step_); }  // of the step that is posted next
        uint32_t post();                                                  // returns the step's number
        void arrive(uint32_t step);                                       // waits until all have posted it
        const Clock::time_point deadline;

    private:
        Group& group_;
        std::lock_guard<std::mutex> lock_;
        const Call call_;
        const uint32_t first_;
        bool is_compared_ = false;
    };

    void check();  // throws Failed or Closed
    [[noreturn]] void fail(FailureCode code, uint32_t rank, const Call& expected, const Call& actual);

    // Waits until `ready` returns true for the value of a word that `peer` changes.
    template <typename Ready>
    void wait(Word& word, uint32_t peer, const Call& call, Clock::time_point deadline, Ready ready) {
        while (!wait_briefly(word, peer, call, deadline, ready)) {
        }
    }
    // The same, but it returns false after one sleep.
    template <typename Ready>
    bool wait_briefly(Word& word, uint32_t peer, const Call& call, Clock::time_point deadline, Ready ready) {
        for (int turn = 0; turn < spins_; ++turn) {
            if (ready(word.value.load(std::memory_order_acquire))) return true;
            pause();
        }
        for (unsigned round = 0; round <= kYields; ++round) {
            const uint32_t seen = word.value.load(std::memory_order_acquire);
            if (ready(seen)) return true;
            sleep(word, seen, peer, call, deadline, round);
        }
        return ready(word.value.load(std::memory_order_acquire));
    }
    // Calls come(rank), which waits briefly and returns whether the rank has come, until all others have. So one that
    // has ended is seen while another is late.
    template <typename Come>
    void wait_for_all(Come come) {
        for (bool have_come = false; !have_come;) {
            have_come = true;
            for (uint32_t rank = 0; rank < ranks_; ++rank) {
                if (rank != rank_ && !come(rank)) have_come = false;
            }
        }
    }
    static void publish(Word& word, uint32_t value);
    static void increase(Word& word);  // for words that several ranks change

private:
    void sleep(Word& word, uint32_t seen, uint32_t peer, const Call& call, Clock::time_point deadline, unsigned round);
    bool has_ended(uint32_t rank);
    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    const uint32_t ranks_, rank_;
    const Layout layout_;
    char* base_;
    int spins_;
    uint32_t step_ = kFirstStep;  // the next one
    std::mutex collective_;
    std::atomic<bool> is_closed_{false};
};

Clock::time_point deadline_after(double seconds);

constexpr uint64_t kUnknown = ~uint64_t{0};

// Returns the start time of a process in ticks, 0 if it has ended or is a zombie, kUnknown if this process cannot look,
// such as without a free descriptor.
uint64_t start_time(uint32_t process);

}  // namespace opforge::shm
