#include "queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace opforge::aio {

Queue::~Queue() {
    stop();
    for (Request* request : finished_) request->release();
}

void Queue::stop() {
    {
        Lock lock(mutex_);
        stopping_ = true;
        for (auto* list : {&fresh_, &active_})
            for (Request* request : *list)
                if (!request->write) request->fail(ECANCELED, -1);
    }
    work_.notify_all();
    for (auto& worker : workers_)
        if (worker->thread.joinable()) worker->thread.join();
}

void Queue::submit(Request* request) {
    Lock lock(mutex_);
    ++unfinished_;
    if (stopping_) {
        request->fail(ECANCELED, -1);
        finish(lock, request);
        return;
    }
    if (request->region.number) regions_.insert(request->region.number);
    fresh_.push_back(request);
    work_.notify_one();
}

void Queue::cancel(Request* request) {
    {
        Lock lock(mutex_);
        if (!request->is_finished) request->fail(ECANCELED, -1);
    }
    work_.notify_all();
}

bool Queue::wait(Request* request, double seconds) {
    Lock lock(mutex_);
    const auto ended = [request] { return request->is_finished; };
    if (seconds >= 0) return ended_.wait_for(lock, std::chrono::duration<double>(seconds), ended);
    ended_.wait(lock, ended);
    return true;
}

int Queue::finished(Request** out, int limit) {
    Lock lock(mutex_);
    const int count = static_cast<int>(std::min<size_t>(static_cast<size_t>(limit), finished_.size()));
    std::copy(finished_.end() - count, finished_.end(), out);
    finished_.resize(finished_.size() - static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) out[i]->release();
    return count;
}

void Queue::forget(int64_t region) {
    Lock lock(mutex_);
    if (!regions_.erase(region)) return;
    for (auto& worker : workers_) worker->forgotten.push_back(region);
    work_.notify_all();
}

void Queue::forget(Lock& lock, Worker& worker) {
    const std::vector<int64_t> regions = std::move(worker.forgotten);
    worker.forgotten.clear();
    lock.unlock();
    for (const int64_t region : regions) worker.engine->forget(region);
    lock.lock();
    worker.registration = worker.engine->registration();
}

Registration Queue::registration() {
    Lock lock(mutex_);
    Registration all;
    for (const auto& worker : workers_) {
        all.bytes += worker->registration.bytes;
        if (worker->registration.error) all.error = worker->registration.error;
    }
    return all;
}

void Queue::work(Worker& worker) {
    std::vector<Block*> free, ready, done(options_.depth);
    for (Block& block : worker.blocks) free.push_back(&block);
    size_t in_flight = 0;
    Lock lock(mutex_);
    for (;;) {
        if (!worker.forgotten.empty()) forget(lock, worker);
        const size_t retried = ready.size();
        while (!free.empty() && next(lock, *free.back())) {
            ready.push_back(free.back());
            free.pop_back();
        }
        if (ready.empty() && in_flight == 0) {
            if (stopping_ && unfinished_ == 0) {
                work_.notify_all();
                return;
            }
            work_.wait(lock);
            continue;
        }
        lock.unlock();
        for (size_t i = retried; i < ready.size(); ++i) {
            const Block& block = *ready[i];
            if (block.write && block.address != block.memory) std::memcpy(block.address, block.memory, block.bytes);
        }
        size_t count = 0;  // of blocks in `done`
        if (!ready.empty()) {
            const int started = worker.engine->submit(ready.data(), static_cast<int>(ready.size()));
            if (started < 0) {
                ready.front()->result = started;  // libaio refuses the first block of a list
                done[count++] = ready.front();
            } else {
                in_flight += static_cast<size_t>(started);
            }
            ready.erase(ready.begin(), ready.begin() + (started < 0 ? 1 : started));
        }
        if (in_flight && count == 0) {
            const int ended = worker.engine->collect(done.data(), static_cast<int>(done.size()));
            if (ended >= 0) {
                count = static_cast<size_t>(ended);
            } else {
                // The engine itself has failed: nothing more comes from it.
                for (Block& block : worker.blocks) {
                    if (std::count(free.begin(), free.end(), &block) || std::count(ready.begin(), ready.end(), &block))
                        continue;
                    block.result = ended;
                    done[count++] = &block;
                }
            }
            in_flight -= count;
        }
        for (size_t i = 0; i < count; ++i) {
            const Block& block = *done[i];
            if (!block.write && block.address != block.memory && block.result > 0)
                std::memcpy(block.memory, block.address, static_cast<size_t>(block.result));
        }
        lock.lock();
        worker.registration = worker.engine->registration();
        for (size_t i = 0; i < count; ++i) (settle(lock, *done[i]) ? free : ready).push_back(done[i]);
    }
}

// Sets `block` to what must be moved next. Returns false if there is nothing.
bool Queue::next(Lock& lock, Block& block) {
    for (;;) {
        if (active_.empty()) {
            if (!open(lock)) return false;
            continue;
        }
        Request* request = active_.front();
        if (!request->error) {
            if (const int error = request->next(block)) request->fail(error, block.offset);
        }
        if (!request->error) ++request->in_flight;
        if (request->error || request->is_exhausted()) {
            active_.pop_front();
            request->is_listed = false;
        }
        if (!request->error) return true;
        end_if_idle(lock, request);
    }
}

// Opens the file of the next request. Returns false if there is none.
bool Queue::open(Lock& lock) {
    if (fresh_.empty()) return false;
    Request* request = fresh_.front();
    fresh_.pop_front();
    if (!request->error) {
        lock.unlock();
        File& file = request->file;
        int error =
            file.open(request->path.c_str(), std::exchange(request->descriptor, -1), request->write, options_.direct);
        const int64_t end = request->end();
        if (!error && !request->write && file.is_regular && end > file.bytes) error = ENODATA;
        // Blocks that each made the file longer would be written in turn, and a full disk be seen only at the end.
        if (!error && request->write && file.is_regular && file.direct >= 0 && request->offsets.size() == 1 &&
            request->row_bytes && end > file.bytes &&
            fallocate(file.direct, 0, request->offsets[0], request->row_bytes))
            error = errno == ENOSPC || errno == EFBIG || errno == EDQUOT || errno == EIO ? errno : 0;
        lock.lock();
        if (error) request->fail(error, -1);
    }
    request->is_listed = !request->error && !request->is_exhausted();
    if (request->is_listed) {
        active_.push_back(request);
        work_.notify_one();  // another worker can take a share of it
    } else {
        end_if_idle(lock, request);
    }
    return true;
}

// Returns whether the block is done with; false if the rest of it must be submitted again.
bool Queue::settle(Lock& lock, Block& block) {
    Request* request = block.request;
    const int64_t result = block.result;
    int error = 0;
    if (!request->error) {
        if (result == -EINTR || result == -EAGAIN) {
            if (result == -EAGAIN) {
                lock.unlock();
                usleep(50);
                lock.lock();
            }
            return false;
        }
        if (result == -EINVAL && block.direct) {
            error = request->advance(block, 0);
            if (!error) return false;
        } else if (result < 0) {
            error = static_cast<int>(-result);
        } else if (result == 0) {
            error = request->write ? EIO : ENODATA;
        } else if (result < block.bytes) {
            error = request->advance(block, static_cast<uint32_t>(result));
            if (!error) return false;
        }
        if (error) request->fail(error, block.offset);
    }
    --request->in_flight;
    end_if_idle(lock, request);
    return true;
}

void Queue::end_if_idle(Lock& lock, Request* request) {
    if (!request->is_listed && request->in_flight == 0 && (request->error || request->is_exhausted()))
        finish(lock, request);
}

void Queue::finish(Lock& lock, Request* request) {
    lock.unlock();  // a close may wait for a server
    const int error = request->file.close();
    lock.lock();
    if (error && request->write) request->fail(error, -1);
    request->is_finished = true;
    finished_.push_back(request);
    --unfinished_;
    ended_.notify_all();
    if (stopping_ && unfinished_ == 0) work_.notify_all();
}

}  // namespace opforge::aio
