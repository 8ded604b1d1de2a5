// The start and the end of a queue's threads. Each makes and destroys its engine itself.

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <new>
#include <utility>

#include "queue.h"

namespace opforge::aio {
namespace {

constexpr size_t MOST_BOUNCE_BYTES = 32 << 20;  // of all workers
constexpr size_t PAGE = 4096;
constexpr size_t HUGE_PAGE = 2 << 20;

std::unique_ptr<Engine> make_engine(const std::string& name, unsigned depth, std::string& problem) {
    if (name == "io_uring") return make_uring(depth, problem);
    if (name == "libaio") return make_libaio(depth, problem);
    if (name == "threads") return make_threads(depth, problem);
    problem = "there is no such engine";
    return nullptr;
}

}  // namespace

void Queue::Worker::make_blocks(const Options& options) {
    const size_t share = MOST_BOUNCE_BYTES / options.workers / options.depth / PAGE * PAGE;
    const size_t each =
        std::clamp<size_t>(share, PAGE, std::max<size_t>(PAGE, static_cast<size_t>(options.block_bytes)));
    bounce_bytes = each * options.depth;
    void* memory =
        mmap(nullptr, bounce_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    bounce = static_cast<char*>(memory);
    // The kernel pins each page of a block; where it refuses huge ones, that only takes longer.
    if (bounce_bytes >= HUGE_PAGE) madvise(memory, bounce_bytes, MADV_HUGEPAGE);
    blocks.resize(options.depth);
    for (size_t i = 0; i < blocks.size(); ++i) {
        blocks[i].bounce = bounce + i * each;
        blocks[i].bounce_bytes = static_cast<uint32_t>(each);
    }
}

Queue::Worker::~Worker() {
    if (bounce) munmap(bounce, bounce_bytes);
}

bool Queue::start(const Options& options, std::string& problem) {
    options_ = options;
    // Handlers of the program's signals run in its own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool complete = true;
    try {
        while (complete && workers_.size() < options.workers) {
            workers_.push_back(std::make_unique<Worker>());
            Worker& worker = *workers_.back();
            worker.make_blocks(options);
            std::promise<bool> started;
            auto outcome = started.get_future();
            worker.thread = std::thread(&Queue::run, this, std::ref(worker), std::ref(problem), std::move(started));
            complete = outcome.get();
        }
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return complete;
}

// `problem` is gone once `started` has its value.
void Queue::run(Worker& worker, std::string& problem, std::promise<bool> started) {
    try {
        worker.engine = make_engine(options_.engine, options_.depth, problem);
    } catch (const std::exception& error) {
        problem = error.what();
    }
    const bool usable = worker.engine != nullptr;
    started.set_value(usable);
    if (!usable) return;
    work(worker);
    worker.engine.reset();
    const Lock lock(mutex_);
    worker.registration = {};
}

}  // namespace opforge::aio
