#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "group.h"
#include "tuned.h"

namespace opforge::shm {

namespace {

constexpr int kSpins = 2000;             // about 50 us
constexpr long kNap = 50 * 1000 * 1000;  // ns between two looks at the peer's process

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

uint64_t start_time(uint32_t process) {
    char path[32], text[1024];
    std::snprintf(path, sizeof path, "/proc/%u/stat", process);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return errno == ENOENT || errno == ESRCH ? 0 : kUnknown;
    const ssize_t bytes = read(file, text, sizeof text - 1);
    const int error = errno;
    ::close(file);
    if (bytes <= 0) return bytes == 0 || error == ESRCH ? 0 : kUnknown;
    text[bytes] = 0;
    const char* field = std::strrchr(text, ')');  // the program's name may have anything but is the last in parentheses
    if (!field || field[1] != ' ' || field[2] == 'Z' || field[2] == 'X') return 0;
    for (int number = 2; number < 22 && field; ++number) field = std::strchr(field + 1, ' ');
    return field ? std::strtoull(field, nullptr, 10) : 0;
}

Clock::time_point deadline_after(double seconds) {
    constexpr double kYear = 365.0 * 24 * 3600;  // the clock's numbers end
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                              std::chrono::duration<double>(seconds > kYear ? kYear : seconds));
}

int Group::create(uint32_t ranks, uint64_t token, const uint32_t* processes, const uint64_t* started) {
    const int descriptor = static_cast<int>(syscall(SYS_memfd_create, "opforge_shm", 1u /* MFD_CLOEXEC */));
    if (descriptor < 0) throw Invalid{errno};
    const Layout layout(ranks);
    const auto write = [descriptor](const auto& value, size_t offset) {
        return pwrite(descriptor, &value, sizeof value, static_cast<off_t>(offset)) == ssize_t{sizeof value};
    };
    Header header{};
    header.version = kVersion;
    header.ranks = ranks;
    header.token = token;
    write_tuned(header);
    bool is_written = !ftruncate(descriptor, static_cast<off_t>(layout.total())) && write(header, 0);
    for (uint32_t rank = 0; is_written && rank < ranks; ++rank) {
        Member member{};
        member.posted.value.store(kFirstStep);
        member.process = processes[rank];
        member.started = started[rank];
        is_written = write(member, layout.member(rank));
    }
    if (is_written) return descriptor;
    const int error = errno ? errno : EIO;
    ::close(descriptor);
    throw Invalid{error};
}

Group::Group(int descriptor, uint32_t ranks, uint32_t rank, uint64_t token)
    : ranks_(ranks), rank_(rank), layout_(ranks) {
    void* memory = mmap(nullptr, layout_.total(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) throw Invalid{errno};
    base_ = static_cast<char*>(memory);
    int problem = 0;
    if (header().version != kVersion || header().ranks != ranks || header().token != token) problem = EPROTO;
    // Memory that is reserved now cannot be missing later, when its lack would be a SIGBUS.
    if (!problem &&
        fallocate(descriptor, 0, static_cast<off_t>(layout_.member(rank)), static_cast<off_t>(layout_.reserved())))
        problem = errno == EOPNOTSUPP ? 0 : errno;
    if (problem) {
        munmap(base_, layout_.total());
        throw Invalid{problem};
    }
    // A rank that spins keeps a peer without a core of its own from running.
    cpu_set_t cores;
    spins_ = sched_getaffinity(0, sizeof cores, &cores) || CPU_COUNT(&cores) >= static_cast<int>(ranks) ? kSpins : 0;
    member(rank_).has_attached.store(1);
    header().attached.value.fetch_add(1);
    futex(header().attached.value, FUTEX_WAKE, INT_MAX, nullptr);
}

Group::~Group() { munmap(base_, layout_.total()); }

void Group::join(double seconds) {
    const auto deadline = deadline_after(seconds);
    wait_for_all([&](uint32_t rank) {
        const auto has_attached = [&](uint32_t) { return member(rank).has_attached.load() != 0; };
        return wait_briefly(header().attached, rank, {}, deadline, has_attached);
    });
}

void Group::close() {
    is_closed_.store(true);
    member(rank_).has_left.store(1);
}

void Group::check() {
    if (is_closed_.load(std::memory_order_relaxed)) throw Closed{};
    if (header().failure_state.load(std::memory_order_acquire)) throw Failed{};
}

void Group::fail(FailureCode code, uint32_t rank, const Call& expected, const Call& actual) {
    uint32_t none = 0;
    if (header().failure_state.compare_exchange_strong(none, 1)) {
        header().failure = {code, rank_, rank, member(rank).process, expected, actual};
        header().failure_state.store(2, std::memory_order_release);
    }
    throw Failed{};
}

void Group::publish(Word& word, uint32_t value) {
    // Both are sequentially consistent: either this sees the sleeper, or the sleeper sees the value.
    word.value.store(value);
    if (word.sleepers.load()) futex(word.value, FUTEX_WAKE, INT_MAX, nullptr);
}

void Group::increase(Word& word) {
    word.value.fetch_add(1);
    if (word.sleepers.load()) futex(word.value, FUTEX_WAKE, INT_MAX, nullptr);
}

void Group::sleep(Word& word, uint32_t seen, uint32_t peer, const Call& call, Clock::time_point deadline,
                  unsigned round) {
    check();
    if (round < kYields) {
        sched_yield();
        return;
    }
    const timespec nap{0, kNap};
    word.sleepers.fetch_add(1);
    if (word.value.load() == seen) futex(word.value, FUTEX_WAIT, seen, &nap);
    word.sleepers.fetch_sub(1);
    if (word.value.load() != seen) return;
    // The peer may have posted and ended between the two looks: the value is compared once more.
    const FailureCode code = member(peer).has_left.load() ? kLeft
                             : has_ended(peer)            ? kEnded
                             : Clock::now() >= deadline   ? kLate
                                                          : FailureCode{};
    if (code && word.value.load() == seen) fail(code, peer, call, {});
}

bool Group::has_ended(uint32_t rank) {
    const uint64_t started = start_time(member(rank).process);
    return started != kUnknown && started != member(rank).started;
}

Group::Turn::Turn(Group& group, const Call& call, double seconds)
    : deadline(deadline_after(seconds)), group_(group), lock_(group.collective_), call_(call), first_(group.step_) {
    group.check();
}

uint32_t Group::Turn::post() {
    const uint32_t step = group_.step_;
    Member& self = group_.member(group_.rank_);
    if (step == first_) self.calls[step % kSlots] = call_;
    publish(self.posted, step + 1);
    group_.step_ = step + 1;
    return step;
}

void Group::Turn::arrive(uint32_t step) {
    group_.wait_for_all([&](uint32_t rank) {
        Member& peer = group_.member(rank);
        // The difference of numbers that wrap.
        const auto has_posted = [step](uint32_t posted) { return static_cast<int32_t>(posted - step) > 0; };
        if (!group_.wait_briefly(peer.posted, rank, call_, deadline, has_posted)) return false;
        if (!is_compared_ && !same(peer.calls[first_ % kSlots], call_))
            group_.fail(kDisagree, rank, call_, peer.calls[first_ % kSlots]);
        return true;
    });
    is_compared_ = true;
}

}  // namespace opforge::shm
