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
#include <string>
#include <vector>

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

    explicit Tunables(const Tunable (&tunables)[kCount]) : text_("1") {
        for (size_t i = 0; i < kCount; ++i) {
            standard_[i] = tunables[i].standard;
            text_.append("\n").append(tunables[i].name).append("=").append(std::to_string(tunables[i].standard));
        }
    }

    // The values for a call. `size` is what the op's author counts, such as elements.
    Values of(int64_t dtype, int64_t size) const {
        if (const Table* table = table_.load(std::memory_order_acquire)) {
            for (const Row& row : table->rows) {
                const bool is_meant = row.dtype == dtype || row.dtype == kAnyDType;
                if (is_meant && row.low <= size && size <= row.high) return row.values;
            }
        }
        return standard_;
    }

    // Calls visit(low, high, values) for each row of a dtype.
    template <typename Visit>
    void each(int64_t dtype, const Visit& visit) const {
        const Table* table = table_.load(std::memory_order_acquire);
        for (size_t i = 0; table && i < table->rows.size(); ++i) {
            const Row& row = table->rows[i];
            if (row.dtype == dtype || row.dtype == kAnyDType) visit(row.low, row.high, row.values);
        }
    }

    // A line with the interface's number, then a line NAME=DEFAULT for each.
    const char* describe() const { return text_.c_str(); }

    // Replaces the table. A row is a dtype, the lowest and the highest size, and the values in the order of the names.
    void set(const int64_t* numbers, int64_t rows) {
        auto* table = new Table;
        for (; rows > 0; --rows, numbers += 3 + kCount) {
            Row row{numbers[0], numbers[1], numbers[2], {}};
            for (size_t i = 0; i < kCount; ++i) row.values[i] = numbers[3 + i];
            table->rows.push_back(row);
        }
        // A call may still read an earlier table, so none is ever freed, and equal ones are one.
        const Table* known = newest_.load(std::memory_order_acquire);
        table->before = known;
        while (known && known->rows != table->rows) known = known->before;
        if (known || table->rows.empty()) {
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
        bool operator==(const Row& other) const {
            return dtype == other.dtype && low == other.low && high == other.high && values == other.values;
        }
    };
    struct Table {
        std::vector<Row> rows;
        const Table* before = nullptr;
    };

    Values standard_{};
    std::string text_;
    std::atomic<const Table*> newest_{nullptr};
    std::atomic<const Table*> table_{nullptr};
};

}  // namespace opforge

#define OPFORGE_TUNABLES(tunables)                                                                                     \
    extern "C" __attribute__((visibility("default"))) const char* opforge_tunables() { return (tunables).describe(); } \
    extern "C" __attribute__((visibility("default"))) void opforge_tune(const int64_t* n, int64_t rows) {              \
        (tunables).set(n, rows);                                                                                       \
    }
