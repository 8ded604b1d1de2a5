// What moves blocks between a file and memory: io_uring, libaio, or threads that call preadv and pwritev.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

namespace opforge::aio {

struct Request;

// Locked memory of opforge's account, of which a tensor is a part. Its number is never used for other memory, even at
// the same address.
struct Region {
    int64_t number = 0;  // 0 for none
    char* address = nullptr;
    int64_t bytes = 0;
};

// What an engine has registered with the kernel, and the last error number when it was refused.
struct Registration {
    int64_t bytes = 0;
    int error = 0;
};

// A part of a request that one system call moves. It stays at its address until the engine has returned it.
struct Block {
    Request* request = nullptr;
    int file = -1;
    bool write = false;
    bool direct = false;
    char* address = nullptr;  // where the engine reads or writes: in the tensor, or in `bounce`
    char* memory = nullptr;   // where it is in the tensor
    uint32_t bytes = 0;
    int64_t offset = 0;
    int64_t result = 0;  // bytes, or the negative error number
    Region region;
    // Aligned memory of this block's own, for tensors that are not aligned as O_DIRECT wants it.
    char* bounce = nullptr;
    uint32_t bounce_bytes = 0;
};

// Used by one thread alone, which also makes and destroys it.
class Engine {
public:
    virtual ~Engine() = default;
    // Starts `count` blocks, of which the engine never has more than its depth at once. Returns how many it took, at
    // least one if it has none in flight, or the negative error number.
    virtual int submit(Block** blocks, int count) = 0;
    // Waits until at least one block has ended, and returns up to `limit` of them.
    virtual int collect(Block** done, int limit) = 0;
    // Lets go of memory that nobody has any more. No block is in it.
    virtual void forget(int64_t region) { static_cast<void>(region); }
    virtual Registration registration() const { return {}; }
};

// Each returns nullptr with the reason in `problem` if the engine cannot be used here.
std::unique_ptr<Engine> make_uring(unsigned depth, std::string& problem);
std::unique_ptr<Engine> make_libaio(unsigned depth, std::string& problem);
std::unique_ptr<Engine> make_threads(unsigned depth, std::string& problem);

}  // namespace opforge::aio
