// DeepSpeed's collectives over oneCCL. The functions are called through ctypes, which releases the interpreter's lock.
// They return 0, or 1 with the reason in `problem`; no exception leaves them.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <oneapi/ccl.hpp>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Kvs = ccl::shared_ptr_class<ccl::kvs>;

template <typename Call>
int outcome(char* problem, int64_t limit, Call call) {
    std::string reason;
    try {
        call();
        return 0;
    } catch (const std::exception& error) {
        reason = error.what();
    } catch (...) {
        reason = "an unknown exception";
    }
    if (limit > 0) {
        const size_t bytes = std::min<size_t>(reason.size(), static_cast<size_t>(limit) - 1);
        std::memcpy(problem, reason.data(), bytes);
        problem[bytes] = 0;
    }
    return 1;
}

ccl::communicator& of(void* communicator) { return *static_cast<ccl::communicator*>(communicator); }

}  // namespace

EXPORT int64_t ccl_address_bytes() { return static_cast<int64_t>(ccl::kvs::address_max_size); }

// Makes a key-value store for the ranks of a communicator, and writes its address.
EXPORT int ccl_create_kvs(void** kvs, uint8_t* address, char* problem, int64_t limit) {
    return outcome(problem, limit, [&] {
        ccl::init();
        auto created = std::make_unique<Kvs>(ccl::create_main_kvs());
        const auto bytes = (*created)->get_address();
        std::memcpy(address, bytes.data(), bytes.size());
        *kvs = created.release();
    });
}

// Opens the store of an address.
EXPORT int ccl_open_kvs(void** kvs, const uint8_t* address, char* problem, int64_t limit) {
    return outcome(problem, limit, [&] {
        ccl::init();
        ccl::kvs::address_type bytes;
        std::memcpy(bytes.data(), address, bytes.size());
        *kvs = new Kvs(ccl::create_kvs(bytes));
    });
}

EXPORT int ccl_connect(void** communicator, void* kvs, int size, int rank, char* problem, int64_t limit) {
    return outcome(problem, limit, [&] {
        *communicator = new ccl::communicator(ccl::create_communicator(size, rank, *static_cast<Kvs*>(kvs)));
    });
}

// An operation with a name is cached by oneCCL under it: the name must be the same on all ranks.
EXPORT int ccl_all_reduce(void* communicator, void* data, int64_t count, int dtype, int operation, const char* name,
                          char* problem, int64_t limit) {
    return outcome(problem, limit, [&] {
        auto attributes = ccl::create_operation_attr<ccl::allreduce_attr>();
        if (name) {
            attributes.set<ccl::operation_attr_id::to_cache>(true);
            attributes.set<ccl::operation_attr_id::match_id>(ccl::string_class(name));
        }
        ccl::allreduce(data, data, static_cast<size_t>(count), static_cast<ccl::datatype>(dtype),
                       static_cast<ccl::reduction>(operation), of(communicator), attributes)
            .wait();
    });
}

EXPORT int ccl_broadcast(void* communicator, void* data, int64_t count, int dtype, int root, char* problem,
                         int64_t limit) {
    return outcome(problem, limit, [&] {
        ccl::broadcast(data, static_cast<size_t>(count), static_cast<ccl::datatype>(dtype), root, of(communicator))
            .wait();
    });
}

EXPORT int ccl_barrier(void* communicator, char* problem, int64_t limit) {
    return outcome(problem, limit, [&] { ccl::barrier(of(communicator)).wait(); });
}

// The numbers that oneCCL's headers have for the names in ops/ccl/communicators.py, in that order.
EXPORT int ccl_dtype(int index) {
    using ccl::datatype;
    constexpr datatype kTypes[] = {datatype::int8,    datatype::uint8,   datatype::int16,   datatype::uint16,
                                   datatype::int32,   datatype::uint32,  datatype::int64,   datatype::uint64,
                                   datatype::float16, datatype::float32, datatype::float64, datatype::bfloat16};
    return static_cast<int>(kTypes[index]);
}

EXPORT int ccl_reduction(int index) {
    using ccl::reduction;
    constexpr reduction kOperations[] = {reduction::sum, reduction::prod, reduction::min, reduction::max};
    return static_cast<int>(kOperations[index]);
}
