#pragma once

// Numbers of an op that are tuned: the loader sets a table of them, and a call reads the row for its dtype and size.
//
// One unit of the library names them with their defaults, and exports what the loader calls:
//
//   static opforge::Tunables<2> tunables({{"grain", 16384}, {"threads", 0}});
//   OPFORGE_TUNABLES(tunables)
//
//   const auto [grain, threads] = tunables.of(opforge::scalar_type(dtype), elements);
//
// The interface describes itself, by the number in the first line of `opforge_tunables`: a library keeps the one that
// it was compiled with.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <opforge/dtype.h>

namespace opforge {

struct Tunable {
    const char* name;
    int64_t standard;
};

constexpr int64_t kAnyDType = -1;

// The number by which torch, and the loader, know an element type.
inline int64_t scalar_type(DType dtype) { return dtype == DType::BFloat16 ? 15 : dtype == DType::Float16 ? 5 : 6; }

template <size_t kCount>
class Tunables {
public:
    using Values = std::array<int64_t, kCount>;

    explicit Tunables(const Tunable (&tunables)[kCount]) {
        size_t space = 2;
        for (const Tunable& tunable : tunables) space += std::strlen(tunable.name) + 23;
        char* end = text_ = new char[space];  // never freed, as the tables
        end += std::snprintf(end, 2, "1");
        for (size_t i = 0; i < kCount; ++i) {
            const auto number = static_cast<long long>(standard_[i] = tunables[i].standard);
            end += std::snprintf(end, space - static_cast<size_t>(end - text_), "\n%s=%lld", tunables[i].name, number);
        }
    }

    // The values for a call. `size` is what the op's author counts, such as elements.
    Values of(int64_t dtype, int64_t size) const {
        if (const Table* table = table_.load(std::memory_order_acquire)) {
            for (int64_t i = 0; i < table->count; ++i) {
                const Row& row = table->rows[i];
                if (row.is_for(dtype) && row.low <= size && size <= row.high) return row.values;
            }
        }
        return standard_;
    }

    // Calls visit(low, high, values) for each row of a dtype.
    template <typename Visit>
    void each(int64_t dtype, const Visit& visit) const {
        const Table* table = table_.load(std::memory_order_acquire);
        for (int64_t i = 0; table && i < table->count; ++i) {
            const Row& row = table->rows[i];
            if (row.is_for(dtype)) visit(row.low, row.high, row.values);
        }
    }

    // A line with the interface's number, then a line NAME=DEFAULT for each.
    const char* describe() const { return text_; }

    // Replaces the table. A row is a dtype, the lowest and the highest size, and the values in the order of the names.
    void set(const int64_t* numbers, int64_t rows) {
        auto* table = new Table{new Row[static_cast<size_t>(rows)], rows, newest_.load(std::memory_order_acquire)};
        for (int64_t i = 0; i < rows; ++i, numbers += 3 + kCount) {
            Row& row = table->rows[i];
            row.dtype = numbers[0], row.low = numbers[1], row.high = numbers[2];
            for (size_t k = 0; k < kCount; ++k) row.values[k] = numbers[3 + k];
        }
        // A call may still read an earlier table, so none is ever freed, and equal ones are one.
        const Table* known = table->before;
        while (known && !known->is_equal(*table)) known = known->before;
        if (known || rows == 0) {
            delete[] table->rows;
            delete table;
        } else {
            while (!newest_.compare_exchange_weak(table->before, table)) {
            }
            known = table;
        }
        table_.store(known, std::memory_order_release);
    }

private:
    struct Row {
        int64_t dtype, low, high;
        Values values;
        bool is_for(int64_t other) const { return dtype == other || dtype == kAnyDType; }
    };
    struct Table {
        Row* rows;
        int64_t count;
        const Table* before;
        bool is_equal(const Table& other) const {  // a row has no gaps
            return count == other.count && std::memcmp(rows, other.rows, static_cast<size_t>(count) * sizeof(Row)) == 0;
        }
    };

    Values standard_{};
    char* text_;
    std::atomic<const Table*> newest_{nullptr};
    std::atomic<const Table*> table_{nullptr};
};

}  // namespace opforge

#define OPFORGE_TUNABLES(tunables)                                                                                     \
    extern "C" __attribute__((visibility("default"))) const char* opforge_tunables() { return (tunables).describe(); } \
    extern "C" __attribute__((visibility("default"))) void opforge_tune(const int64_t* n, int64_t rows) {              \
        (tunables).set(n, rows);                                                                                       \
    }
