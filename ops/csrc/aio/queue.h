// Requests in the order in which they came, and the threads that move their blocks.
#pragma once

#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "request.h"

namespace opforge::aio {

class Queue {
public:
    struct Options {
        std::string engine;
        unsigned depth, workers;
        int64_t block_bytes;
        bool direct;
    };

    // Raises std::system_error or std::bad_alloc; returns false with `problem` if the engine cannot be used.
    bool start(const Options& options, std::string& problem);
    ~Queue();
    // Finishes the writes, drops the reads and ends the threads. Every wait ends; later requests fail.
    void stop();

    void submit(Request* request);
    void cancel(Request* request);
    // Returns whether it has finished within the time; a negative time is without end.
    bool wait(Request* request, double seconds);
    // Sets the requests that finished since the last call, which the queue forgets. Returns how many.
    int finished(Request** out, int limit);
    // Lets go of memory that is about to be freed, and that no request is for any more.
    void forget(int64_t region);
    // Returns what all workers have registered.
    Registration registration();

private:
    struct Worker {
        std::unique_ptr<Engine> engine;  // of `thread`
        std::vector<Block> blocks;
        std::thread thread;
        char* bounce = nullptr;  // of all blocks; the kernel gives memory for what is used of it
        size_t bounce_bytes = 0;
        std::vector<int64_t> forgotten;  // regions that `engine` must let go of
        Registration registration;

        void make_blocks(const Options& options);
        ~Worker();
    };
    using Lock = std::unique_lock<std::mutex>;

    void run(Worker& worker, std::string& problem, std::promise<bool> started);
    void work(Worker& worker);
    void forget(Lock& lock, Worker& worker);
    bool next(Lock& lock, Block& block);
    bool open(Lock& lock);
    bool settle(Lock& lock, Block& block);
    void finish(Lock& lock, Request* request);
    void end_if_idle(Lock& lock, Request* request);

    Options options_;
    std::mutex mutex_;
    std::condition_variable work_, ended_;
    std::deque<Request*> fresh_, active_;
    std::vector<Request*> finished_;
    std::set<int64_t> regions_;  // what engines may have registered
    size_t unfinished_ = 0;
    bool stopping_ = false;
    std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace opforge::aio
