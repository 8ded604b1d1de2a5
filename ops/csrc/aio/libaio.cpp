// The libaio engine. The library is opened at run time, so neither its headers nor the library are needed for a build.

#include "engine.h"

#include <dlfcn.h>
#include <linux/aio_abi.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace opforge::aio {
namespace {

struct Library {
    int (*setup)(int, void**) = nullptr;
    int (*destroy)(void*) = nullptr;
    int (*submit)(void*, long, iocb**) = nullptr;
    int (*events)(void*, long, long, io_event*, timespec*) = nullptr;
    std::string problem;

    Library() {
        void* handle = dlopen("libaio.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!handle) handle = dlopen("libaio.so.1t64", RTLD_NOW | RTLD_LOCAL);
        if (!handle) {
            problem = "libaio.so.1 is not installed (apt install libaio1, dnf install libaio)";
            return;
        }
        load(handle, "io_setup", setup);
        load(handle, "io_destroy", destroy);
        load(handle, "io_submit", submit);
        load(handle, "io_getevents", events);
    }

    template <typename Function>
    void load(void* handle, const char* name, Function& function) {
        function = reinterpret_cast<Function>(dlsym(handle, name));
        if (!function) problem = std::string("libaio.so.1 has no ") + name;
    }
};

const Library& library() {
    static const Library* const loaded = new Library;  // never freed: threads may use it until the process ends
    return *loaded;
}

class Libaio : public Engine {
public:
    bool open(unsigned depth, std::string& problem) {
        problem = library().problem;
        if (!problem.empty()) return false;
        const int result = library().setup(static_cast<int>(depth), &context_);
        if (result < 0) {
            problem = std::string("io_setup: ") + std::strerror(-result);
            if (result == -EAGAIN) problem += ": raise the kernel setting fs.aio-max-nr";
            if (result == -EPERM) problem += ": a filter of system calls (seccomp) refuses it";
            return false;
        }
        controls_.resize(depth);
        events_.resize(depth);
        for (iocb& control : controls_) free_.push_back(&control);
        return true;
    }

    ~Libaio() override {
        if (context_) library().destroy(context_);
    }

    int submit(Block** blocks, int count) override {
        batch_.clear();
        for (int i = 0; i < count && i < static_cast<int>(free_.size()); ++i) {
            iocb* control = free_[free_.size() - 1 - i];
            const Block& block = *blocks[i];
            std::memset(control, 0, sizeof *control);
            control->aio_lio_opcode = block.write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
            control->aio_fildes = static_cast<uint32_t>(block.file);
            control->aio_buf = reinterpret_cast<uintptr_t>(block.address);
            control->aio_nbytes = block.bytes;
            control->aio_offset = block.offset;
            control->aio_data = reinterpret_cast<uintptr_t>(blocks[i]);
            batch_.push_back(control);
        }
        int result;
        do {
            result = library().submit(context_, static_cast<long>(batch_.size()), batch_.data());
            // The kernel is out of requests. Blocks in flight will return theirs; without any, time must.
            if (result == -EAGAIN && in_flight_ == 0) usleep(100);
        } while (result == -EINTR || (result == -EAGAIN && in_flight_ == 0));
        if (result == -EAGAIN) return 0;
        if (result > 0) {
            free_.resize(free_.size() - static_cast<size_t>(result));
            in_flight_ += result;
        }
        return result;
    }

    int collect(Block** done, int limit) override {
        const long room = std::min<long>(limit, static_cast<long>(events_.size()));
        int count;
        do {
            count = library().events(context_, 1, room, events_.data(), nullptr);
        } while (count == -EINTR || count == 0);
        for (int i = 0; i < count; ++i) {
            done[i] = reinterpret_cast<Block*>(static_cast<uintptr_t>(events_[i].data));
            done[i]->result = events_[i].res;
            free_.push_back(reinterpret_cast<iocb*>(static_cast<uintptr_t>(events_[i].obj)));
        }
        if (count > 0) in_flight_ -= count;
        return count;
    }

private:
    void* context_ = nullptr;
    int in_flight_ = 0;
    std::vector<iocb> controls_;
    std::vector<iocb*> free_, batch_;
    std::vector<io_event> events_;
};

}  // namespace

std::unique_ptr<Engine> make_libaio(unsigned depth, std::string& problem) {
    auto engine = std::make_unique<Libaio>();
    if (!engine->open(depth, problem)) return nullptr;
    return engine;
}

}  // namespace opforge::aio
