// The io_uring engine, by system calls alone: liburing is not needed.

#include "engine.h"

#include <cerrno>
#include <cstring>

#if __has_include(<linux/io_uring.h>)
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "registered.h"

#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#define SYS_io_uring_enter 426
#endif

namespace opforge::aio {
namespace {

// Linux 6.1: headers may be older. The thread that made the ring is the only one that uses it, and completions are
// processed when it asks for them, not whenever the kernel interrupts it.
constexpr unsigned SINGLE_ISSUER = 1u << 12, DEFER_TASKRUN = 1u << 13;

struct Mapping {
    char* start = nullptr;
    size_t bytes = 0;

    bool map(int ring, size_t size, off_t offset) {
        void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);
        if (memory == MAP_FAILED) return false;
        start = static_cast<char*>(memory);
        bytes = size;
        // A forked child that touched the ring would disturb its parent's.
        madvise(memory, size, MADV_DONTFORK);
        return true;
    }
    ~Mapping() {
        if (start) munmap(start, bytes);
    }
};

class Uring : public Engine {
public:
    bool open(unsigned depth, std::string& problem) {
        io_uring_params params;
        for (const unsigned flags : {SINGLE_ISSUER | DEFER_TASKRUN, 0u}) {
            params = {};
            params.flags = IORING_SETUP_CLAMP | flags;
            ring_ = static_cast<int>(syscall(SYS_io_uring_setup, depth, &params));
            if (ring_ >= 0 || errno != EINVAL) break;
        }
        if (ring_ < 0) {
            problem = refusal(errno);
            return false;
        }
        const size_t submissions = params.sq_off.array + params.sq_entries * sizeof(unsigned);
        const size_t completions = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
        if (!submissions_.map(ring_, submissions, IORING_OFF_SQ_RING) ||
            !completions_.map(ring_, completions, IORING_OFF_CQ_RING) ||
            !entries_.map(ring_, params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES)) {
            problem = std::string("the ring cannot be mapped: ") + std::strerror(errno);
            return false;
        }
        sq_head_ = at(submissions_, params.sq_off.head);
        sq_tail_ = at(submissions_, params.sq_off.tail);
        sq_mask_ = *at(submissions_, params.sq_off.ring_mask);
        sq_array_ = at(submissions_, params.sq_off.array);
        sq_entries_ = params.sq_entries;
        cq_head_ = at(completions_, params.cq_off.head);
        cq_tail_ = at(completions_, params.cq_off.tail);
        cq_mask_ = *at(completions_, params.cq_off.ring_mask);
        cqes_ = reinterpret_cast<io_uring_cqe*>(completions_.start + params.cq_off.cqes);
        sqes_ = reinterpret_cast<io_uring_sqe*>(entries_.start);
        return reads(problem);
    }

    ~Uring() override {
        if (ring_ < 0) return;
        memory_.forget_all(ring_);
        close(ring_);
    }

    int submit(Block** blocks, int count) override {
        unsigned tail = *sq_tail_;
        const unsigned head = __atomic_load_n(sq_head_, __ATOMIC_ACQUIRE);
        int added = 0;
        for (; added < count && tail - head < sq_entries_; ++added, ++tail) {
            const Block& block = *blocks[added];
            const int place = memory_.index(ring_, block);
            io_uring_sqe& entry = sqes_[tail & sq_mask_];
            std::memset(&entry, 0, sizeof entry);
            if (place >= 0) {
                entry.opcode = block.write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
                entry.buf_index = static_cast<uint16_t>(place);
            } else {
                entry.opcode = block.write ? IORING_OP_WRITE : IORING_OP_READ;
            }
            entry.fd = block.file;
            entry.addr = reinterpret_cast<uintptr_t>(block.address);
            entry.len = block.bytes;
            entry.off = static_cast<uint64_t>(block.offset);
            entry.user_data = reinterpret_cast<uintptr_t>(blocks[added]);
            sq_array_[tail & sq_mask_] = tail & sq_mask_;
        }
        __atomic_store_n(sq_tail_, tail, __ATOMIC_RELEASE);
        // Entries that the kernel does not take now stay in the ring: the next call passes them again.
        unsubmitted_ += added;
        return added;
    }

    int collect(Block** done, int limit) override {
        for (;;) {
            unsigned head = *cq_head_;
            const unsigned tail = __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE);
            if (unsubmitted_ == 0 && head != tail) return take(done, limit, head, tail);
            const int entered = enter(head == tail ? 1 : 0);
            if (entered >= 0) {
                unsubmitted_ -= entered;
            } else if (entered == -EAGAIN || entered == -EBUSY || entered == -EINTR) {
                // Out of kernel memory or of room for completions: take what has ended, then try again.
                if (head != __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE))
                    return take(done, limit, head, __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE));
                if (entered != -EINTR) usleep(100);
            } else {
                return entered;
            }
        }
    }

    void forget(int64_t region) override { memory_.forget(ring_, region); }

    Registration registration() const override { return memory_.registration(); }

private:
    static unsigned* at(const Mapping& mapping, unsigned offset) {
        return reinterpret_cast<unsigned*>(mapping.start + offset);
    }

    int enter(unsigned least) {
        const long result =
            syscall(SYS_io_uring_enter, ring_, unsubmitted_, least, least ? IORING_ENTER_GETEVENTS : 0u, nullptr, 0);
        return result < 0 ? -errno : static_cast<int>(result);
    }

    int take(Block** done, int limit, unsigned head, unsigned tail) {
        int count = 0;
        for (; head != tail && count < limit; ++head, ++count) {
            const io_uring_cqe& completion = cqes_[head & cq_mask_];
            done[count] = reinterpret_cast<Block*>(static_cast<uintptr_t>(completion.user_data));
            done[count]->result = completion.res;
        }
        __atomic_store_n(cq_head_, head, __ATOMIC_RELEASE);
        return count;
    }

    // Kernels before 5.6 have rings, but no reads without an iovec; sandboxes may allow a ring and refuse to use it.
    bool reads(std::string& problem) {
        char byte = 1;
        Block block, *pointer = &block;
        block.file = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
        block.address = &byte;
        block.bytes = 1;
        if (block.file < 0) return true;
        int result = submit(&pointer, 1);
        result = collect(&pointer, 1);
        close(block.file);
        if (result == 1 && block.result == 1) return true;
        const int error = static_cast<int>(result < 0 ? -result : -block.result);
        problem = std::string("a ring was made, but a read in it failed: ") + std::strerror(error);
        return false;
    }

    static std::string refusal(int error) {
        if (error == ENOSYS) return "this kernel has no io_uring (it came with Linux 5.6)";
        if (error == ENOMEM) return "no memory for a ring: raise the limit of locked memory (ulimit -l)";
        if (error != EPERM && error != EACCES) return std::string("io_uring_setup: ") + std::strerror(error);
        char text[8] = {};
        const int file = ::open("/proc/sys/kernel/io_uring_disabled", O_RDONLY | O_CLOEXEC);
        const bool disabled = file >= 0 && read(file, text, 1) == 1 && text[0] != '0';
        if (file >= 0) close(file);
        if (disabled)
            return std::string("the kernel setting kernel.io_uring_disabled is ") + text +
                   ": sysctl -w kernel.io_uring_disabled=0 allows it";
        return "refused by a filter of system calls (seccomp), as containers have: allow io_uring_setup, "
               "io_uring_enter and io_uring_register in its profile";
    }

    int ring_ = -1;
    Mapping submissions_, completions_, entries_;
    unsigned *sq_head_ = nullptr, *sq_tail_ = nullptr, *sq_array_ = nullptr, sq_mask_ = 0, sq_entries_ = 0;
    unsigned *cq_head_ = nullptr, *cq_tail_ = nullptr, cq_mask_ = 0;
    unsigned unsubmitted_ = 0;
    io_uring_cqe* cqes_ = nullptr;
    io_uring_sqe* sqes_ = nullptr;
    RegisteredMemory memory_;
};

}  // namespace

std::unique_ptr<Engine> make_uring(unsigned depth, std::string& problem) {
    auto engine = std::make_unique<Uring>();
    if (!engine->open(depth, problem)) return nullptr;
    return engine;
}

}  // namespace opforge::aio

#else

namespace opforge::aio {

std::unique_ptr<Engine> make_uring(unsigned, std::string& problem) {
    problem =
        "the op was built without linux/io_uring.h: install the kernel's headers (linux-libc-dev) and build it again";
    return nullptr;
}

}  // namespace opforge::aio

#endif
