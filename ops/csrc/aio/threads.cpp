// The engine that needs no kernel feature: threads that call preadv and pwritev.

#include "engine.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace opforge::aio {
namespace {

constexpr unsigned MOST_THREADS = 16;

class Threads : public Engine {
public:
    bool open(unsigned depth, std::string& problem) {
        try {
            for (unsigned i = 0; i < std::min(depth, MOST_THREADS); ++i) threads_.emplace_back([this] { work(); });
        } catch (const std::system_error& error) {
            // Fewer threads are slower, not wrong.
            if (threads_.empty()) problem = std::string("no thread can be started: ") + error.what();
        }
        return !threads_.empty();
    }

    ~Threads() override {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
        }
        work_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    int submit(Block** blocks, int count) override {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            waiting_.insert(waiting_.end(), blocks, blocks + count);
        }
        if (count == 1)
            work_.notify_one();
        else
            work_.notify_all();
        return count;
    }

    int collect(Block** done, int limit) override {
        std::unique_lock<std::mutex> lock(mutex_);
        ended_.wait(lock, [this] { return !done_.empty(); });
        int count = 0;
        for (; count < limit && !done_.empty(); ++count) {
            done[count] = done_.front();
            done_.pop_front();
        }
        return count;
    }

private:
    void work() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            work_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
            if (waiting_.empty()) return;
            Block* block = waiting_.front();
            waiting_.pop_front();
            lock.unlock();
            iovec part{block->address, block->bytes};
            const ssize_t moved = block->write ? pwritev(block->file, &part, 1, block->offset)
                                               : preadv(block->file, &part, 1, block->offset);
            block->result = moved < 0 ? -errno : moved;
            lock.lock();
            done_.push_back(block);
            ended_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable work_, ended_;
    std::deque<Block*> waiting_, done_;
    std::vector<std::thread> threads_;
    bool stopping_ = false;
};

}  // namespace

std::unique_ptr<Engine> make_threads(unsigned depth, std::string& problem) {
    auto engine = std::make_unique<Threads>();
    if (!engine->open(depth, problem)) return nullptr;
    return engine;
}

}  // namespace opforge::aio
